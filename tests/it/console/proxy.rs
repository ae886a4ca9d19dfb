//! The pages of the proxy: its routes, recent requests by the first characters of their key, a claim found from its key, and a response
//! that is erased.

use oncegate_testkit::gateway::Gateway;
use serde_json::json;

use super::browser::{Browser, OWN, location};
use super::{ROLES, operated, token};
use crate::proxy::{Caller, Upstream};

const KEY: &str = "51aa03c2-qz7k-4b60-9c0f-2d3f8e6b1a77";

pub(super) async fn started() -> (Gateway, Caller) {
    let (_upstream, port) = Upstream::start().await;
    let config = format!(
        "[proxy]\nlisten = \"127.0.0.1:0\"\n[proxy.upstreams.orders]\nurls = [\"http://127.0.0.1:{port}\"]\n\
         [[proxy.routes]]\nname = \"orders.create\"\napp = \"default\"\npath = \"/orders/{{kind}}\"\nmethods = [\"POST\"]\n\
         upstream = \"orders\"\nprincipal = [\"authorization\"]\n"
    );
    let gateway = operated().config(&config).start().await;
    let caller = Caller::of(&gateway);
    (gateway, caller)
}

#[tokio::test]
async fn a_request_is_found_from_its_key_and_its_response_is_erased() {
    let (gateway, caller) = started().await;
    for _ in 0..2 {
        assert_eq!(caller.post("/orders/a", KEY, "one").await.status, 201);
    }
    let mut page = String::new();
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        for path in ["/console/proxy", "/console/proxy/orders.create", "/console/proxy/orders.create?answer=replayed"] {
            let shown = browser.get(path).await.expect(200).text;
            assert!(shown.contains("<bdi>51aa03c2</bdi>…") && shown.contains("Replayed · 201"), "{path}: {shown}");
            assert!(!shown.contains("qz7k"), "{path}: {shown}");
        }
        let none = browser.get("/console/proxy/orders.create?answer=mismatch").await.expect(200).text;
        assert!(none.contains("no such request lately"), "{none}");
        assert_eq!(browser.get("/console/proxy/none").await.status, 404);
        assert_eq!(browser.get("/console/proxy/orders.create?answer=no").await.status, 400);
        let form_token = browser.form_token().await;
        let find = async |fields: &str| {
            browser
                .post("/console/find", &[OWN], &format!("form_token={form_token}&route=orders.create&{fields}"))
                .await
        };
        let found = find(&format!("key=+{KEY}+")).await;
        assert!(found.status == 303 && location(&found).ends_with("?realm=proxy"), "{}: {}", found.status, found.text);
        assert!(!location(&found).contains("51aa03c2"), "no key in an address: {}", location(&found));
        location(&found).clone_into(&mut page);
        let claim = browser.get(&page).await.expect(200).text;
        assert!(claim.contains("Forwarded · 201") && claim.contains("Replayed · 201"), "{claim}");
        assert_eq!(claim.contains("/forget?realm=proxy"), role == "act", "{claim}");
        assert!(claim.contains("repeats get the stored response"), "{claim}");
        let id = page.split(['/', '?']).nth(4).unwrap();
        let json =
            browser.get(&format!("/console/json/claims/show?app=default&global_id={id}&realm=proxy")).await.expect(200);
        for (what, shown) in [("page", &claim), ("JSON", &json.text)] {
            assert_eq!(shown.contains("•••"), role != "view", "the body of a response is in no {what}: {shown}");
        }
        let absent = find("key=other-key-of-nobody").await.expect(200).text;
        assert!(absent.contains("no request with this key lately"), "{absent}");
        let wrong = find("key=a+b").await.expect(200).text;
        assert!(wrong.contains("role=\"alert\"") && wrong.contains("visible ASCII"), "{wrong}");
    }
    let fields = [("idempotency-key", KEY), ("authorization", "bob")];
    assert_eq!(caller.send("POST", "/orders/a", &fields, "one").await.status, 201);
    let browser = Browser::signed_in(&gateway, "act").await;
    let form_token = browser.form_token().await;
    let form = format!("form_token={form_token}&route=orders.create&key={KEY}");
    let several = browser.post("/console/find", &[OWN], &form).await.expect(200).text;
    assert!(
        several.contains("Several callers have used this key") && several.matches("51aa03c2</bdi>…").count() == 3,
        "{several}"
    );

    let ask = page.replace("?realm", "/forget?realm");
    let shown = browser.get(&ask).await.expect(200).text;
    let field = |name: &str| {
        let (_, rest) = shown.split_once(&format!("name=\"{name}\" value=\"")).expect(name);
        rest.split('"').next().unwrap().to_owned()
    };
    let (nonce, hash) = (field("nonce"), field("attempt_hash"));
    let stale = format!("form_token={form_token}&nonce={nonce}&attempt_hash=00000000&reason=PRIV-7");
    assert_eq!(browser.post(&ask, &[OWN], &stale).await.status, 409, "another attempt than was shown");
    let form = format!("form_token={form_token}&nonce={nonce}&attempt_hash={hash}&reason=PRIV-7");
    let done = browser.post(&ask, &[OWN], &form).await;
    assert!(done.status == 303 && location(&done).contains("done=forgotten"), "{}: {}", done.status, done.text);
    let shown = browser.get(location(&done)).await.expect(200).text;
    assert!(shown.contains("The response is erased"), "{shown}");
    assert_eq!(caller.post("/orders/a", KEY, "one").await.status, 409);
    let of_api = page.replace("?realm=proxy", "/forget");
    assert_eq!(browser.get(&of_api).await.status, 404, "no claim of the API has this ID");
    let trail = browser.get("/console/audit?action=proxy.forget").await.expect(200).text;
    assert!(trail.contains("PRIV-7"), "{trail}");
    assert!(trail.contains(&format!("href=\"{page}\"")), "the record of the proxy, not a claim of the API: {trail}");
    assert!(!gateway.log().contains("qz7k"), "{}", gateway.log());
}

#[tokio::test]
async fn repeats_at_the_proxy_are_in_the_headline() {
    let (gateway, caller) = started().await;
    let browser = Browser::signed_in(&gateway, "view").await;
    let overview = async || browser.get("/console/").await.expect(200).text;
    assert_eq!(caller.post("/orders/a", KEY, "one").await.status, 201);
    assert!(overview().await.contains("No operation has met a repeat today"), "{}", overview().await);
    for _ in 0..2 {
        assert_eq!(caller.post("/orders/a", KEY, "one").await.status, 201);
    }
    assert_eq!(caller.post("/orders/a", KEY, "other").await.status, 422);
    let shown = overview().await;
    assert!(shown.contains("1 operations met a repeat after they were done or unknown today (2 answers)."), "{shown}");
    assert!(shown.contains("1 answers 422"), "{shown}");
}

/// The contents of a claim of the proxy have the whole key.
#[tokio::test]
async fn view_sees_no_contents_of_a_claim_that_it_finds_by_its_key() {
    let (gateway, caller) = started().await;
    assert_eq!(caller.post("/orders/a", KEY, "one").await.status, 201);
    let operator = |role: &str| gateway.admin_client().with_credential(&token(role));
    let found = operator("act").get("/admin/v1/proxy/recent").await.expect(200).body;
    let named = json!({ "app": "default", "realm": "proxy", "global_id": found["requests"][0]["global_id"] });
    let claim = operator("act").post("/admin/v1/claims/show", &named).await.expect(200).body;
    let find = json!({ "route": "orders.create", "key": KEY, "principal": claim["contents"]["principal"] });
    for role in ROLES {
        let found = operator(role).post("/admin/v1/proxy/find", &find).await.expect(200);
        assert_eq!(found.body["claim"]["state"], "succeeded", "{role}: {}", found.text);
        assert_eq!(found.text.contains("qz7k"), role != "view", "{role}: {}", found.text);
    }
}
