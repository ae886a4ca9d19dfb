//! Pages of an app: its terms and secrets, and a change of one in a registry.

use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::json;

use super::actions::{bound, newest};
use super::browser::{Browser, OWN, location};
use super::{ROLES, operated, token};
use crate::support::caller;

#[cfg(feature = "postgres")]
const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn an_app_of_the_file_shows_its_terms_and_is_changed_in_the_file() {
    let gateway = operated().config(&format!("{}lease = \"11s\"\n", caller::app("shop"))).start().await;
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        let list = browser.get("/console/apps").await.expect(200);
        assert!(list.text.contains("href=\"/console/apps/shop\""), "{}", list.text);
        let page = browser.get("/console/apps/shop").await.expect(200);
        assert!(page.text.contains("11s") && page.text.contains("unlimited"), "{}", page.text);
        assert_eq!(page.text.contains("oncegate app rotate shop"), role == "act", "{}", page.text);
        assert!(!page.text.contains("/apps/shop/rotate"), "{}", page.text);
        assert_eq!(browser.get("/console/apps/none").await.status, 404);
    }
    let browser = Browser::signed_in(&gateway, "act").await;
    let ask = browser.get("/console/apps/shop/disable").await.expect(200);
    assert!(ask.text.contains("configuration file") && !ask.text.contains("class=\"action\""), "{}", ask.text);
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_new_secret_is_shown_once_and_an_app_is_disabled_by_its_name() {
    let Some(server) = oncegate_testkit::postgres_server::PostgresServer::start().await else { return };
    let gateway = operated().env("ONCEGATE_REGISTRY__URL", server.url()).start().await;
    until("it is ready", SOON, async || gateway.admin_client().get("/readyz").await.status == 200).await;
    let operator = gateway.admin_client().with_credential(&token("act"));
    let made = operator.post("/admin/v1/apps", &json!({ "app": "shop", "reason": "a test" })).await.expect(201);
    let browser = Browser::signed_in(&gateway, "act").await;
    let page = "/console/apps/shop";
    let form = bound(&browser.get(&format!("{page}/rotate")).await.expect(200));
    let stale = bound(&browser.get(&format!("{page}/rotate")).await.expect(200));
    let body = format!("{form}&revoke=older&reason=INC-42");
    let shown = browser.post(&format!("{page}/rotate"), &[OWN], &body).await.expect(200);
    assert_eq!(shown.headers["cache-control"], "no-store");
    let (_, rest) = shown.text.split_once("<pre>shop.").expect("the new credential");
    let secret = rest.split('<').next().unwrap();
    assert_ne!(made.body["secret"], secret);
    let again = browser.post(&format!("{page}/rotate"), &[OWN], &body).await;
    assert_eq!((again.status, location(&again)), (303, "/console/apps/shop?done=rotated"), "a reload");
    let after = browser.get(location(&again)).await.expect(200);
    assert!(after.text.contains("It was shown once") && !after.text.contains(secret), "{}", after.text);
    assert_eq!(newest(&gateway, "app.rotate").await.as_array().unwrap().len(), 1);
    let refused = browser.post(&format!("{page}/rotate"), &[OWN], &format!("{stale}&revoke=older&reason=x")).await;
    assert!(refused.status == 409 && refused.text.contains("has changed since"), "{}", refused.text);
    // The caller uses the new secret, so it is the one whose revocation needs the name.
    let client = gateway.client().with_credential(&format!("shop.{secret}"));
    let call = async || client.post("/v1/global-ids", &json!({ "contents": 1 })).await.status;
    until("the new secret is in effect", SOON, async || call().await == 200).await;
    let listed = operator.get("/admin/v1/apps/shop").await.expect(200).body;
    let old = listed["secrets"][0]["secret_id"].as_str().unwrap().to_owned();
    let form = bound(&browser.get(&format!("{page}/revoke/{old}")).await.expect(200));
    let done = browser.post(&format!("{page}/revoke/{old}"), &[OWN], &format!("{form}&reason=INC-42")).await;
    assert_eq!((done.status, location(&done)), (303, "/console/apps/shop?done=revoked"), "{}", done.text);
    let form = bound(&browser.get(&format!("{page}/disable")).await.expect(200));
    for typed in ["", "&typed=bank"] {
        let refused = browser.post(&format!("{page}/disable"), &[OWN], &format!("{form}{typed}&reason=x")).await;
        assert!(refused.status == 400 && refused.text.contains("Type exactly"), "{}", refused.text);
    }
    let form = bound(&browser.get(&format!("{page}/disable")).await.expect(200));
    let done = browser.post(&format!("{page}/disable"), &[OWN], &format!("{form}&typed=shop&reason=INC-7")).await;
    assert_eq!((done.status, location(&done)), (303, "/console/apps/shop?done=disabled"), "{}", done.text);
    until("its callers are refused", SOON, async || call().await == 403).await;
    let form = bound(&browser.get(&format!("{page}/enable")).await.expect(200));
    browser.post(&format!("{page}/enable"), &[OWN], &format!("{form}&reason=INC-7")).await.expect(303);
    until("its callers are accepted", SOON, async || call().await == 200).await;
    let (log, trail) = (gateway.log(), std::fs::read_to_string(gateway.data_dir().join("audit.jsonl")).unwrap());
    assert!(!log.contains(secret) && !trail.contains(secret));
}

/// Starts a gateway with an app in a registry, and returns its first secret.
#[cfg(feature = "postgres")]
async fn with_registry(server: &oncegate_testkit::postgres_server::PostgresServer) -> (Gateway, String) {
    let gateway = operated().env("ONCEGATE_REGISTRY__URL", server.url()).start().await;
    until("it is ready", SOON, async || gateway.admin_client().get("/readyz").await.status == 200).await;
    let operator = gateway.admin_client().with_credential(&token("act"));
    let made = operator.post("/admin/v1/apps", &json!({ "app": "shop", "reason": "a test" })).await.expect(201);
    let secret = made.body["secret"].as_str().unwrap().to_owned();
    (gateway, secret)
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn the_secret_that_was_used_last_is_revoked_by_the_name_of_its_app_only() {
    let Some(server) = oncegate_testkit::postgres_server::PostgresServer::start().await else { return };
    let (gateway, secret) = with_registry(&server).await;
    let client = gateway.client().with_credential(&format!("shop.{secret}"));
    let is_used = async || client.post("/v1/global-ids", &json!({ "contents": 1 })).await.status == 200;
    until("the first secret is used", SOON, is_used).await;
    let browser = Browser::signed_in(&gateway, "act").await;
    let page = "/console/apps/shop";
    let send = async |action: &str, fields: &str| {
        let form = bound(&browser.get(&format!("{page}/{action}")).await.expect(200));
        browser.post(&format!("{page}/{action}"), &[OWN], &format!("{form}{fields}&reason=INC-42")).await
    };
    // All secrets: that in use is one of them.
    for typed in ["", "&typed=bank"] {
        let refused = send("rotate", &format!("&revoke=all{typed}")).await;
        assert!(refused.status == 400 && refused.text.contains("Type exactly"), "{typed}: {}", refused.text);
    }
    assert_eq!(newest(&gateway, "app.rotate").await, json!([]), "nothing was started");
    // The newest stays, and it is the one in use.
    let made = send("rotate", "&revoke=older").await.expect(200).text;
    let (_, rest) = made.split_once("<pre>shop.").expect("the secret");
    let second = rest.split('<').next().unwrap().to_owned();
    // Now the one in use is older, and not the newest.
    let refused = send("rotate", "&revoke=older").await;
    assert!(refused.status == 400 && refused.text.contains("Type exactly"), "{}", refused.text);
    // Uses are recorded to the minute, so each of two that are used may be the last one.
    let other = gateway.client().with_credential(&format!("shop.{second}"));
    let is_used = async || other.post("/v1/global-ids", &json!({ "contents": 1 })).await.status == 200;
    until("the second secret is used", SOON, is_used).await;
    let operator = gateway.admin_client().with_credential(&token("act"));
    let listed = operator.get("/admin/v1/apps/shop").await.expect(200).body;
    for secret in listed["secrets"].as_array().unwrap() {
        let action = format!("revoke/{}", secret["secret_id"].as_str().unwrap());
        let refused = send(&action, "").await;
        assert!(refused.status == 400 && refused.text.contains("Type exactly"), "{action}: {}", refused.text);
    }
    send("rotate", "&revoke=all&typed=shop").await.expect(200);
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn pages_stand_while_the_registry_of_apps_is_out() {
    let Some(server) = oncegate_testkit::postgres_server::PostgresServer::start().await else { return };
    let (gateway, secret) = with_registry(&server).await;
    let client = gateway.client().with_credential(&format!("shop.{secret}"));
    let granted = async || client.claim(json!("A-1")).await.status != 401;
    until("the app is known", SOON, granted).await;
    let browser = Browser::signed_in(&gateway, "view").await;
    let page = async |path: &str| browser.get(path).await.expect(200).text;
    let old = "The registry of apps does not answer.";
    let pages = ["/console/find", "/console/locks", "/console/apps"];
    for path in pages {
        assert!(!page(path).await.contains(old), "{path}");
    }
    server.freeze();
    until("the page says that it may be old", SOON, async || page("/console/find").await.contains(old)).await;
    for path in pages {
        let shown = page(path).await;
        assert!(shown.contains("<bdi>shop</bdi>") || shown.contains("<option value=\"shop\""), "{path}: {shown}");
        assert!(shown.contains(old), "{path}: {shown}");
    }
    for path in ["/console/recent", "/console/operations", "/console/attention"] {
        page(path).await;
    }
    // What the gateway knows is still found.
    let found = super::find::typed(&browser, "/console/", "\"A-1\"").await;
    assert!(found.status == 303 && location(&found).starts_with("/console/claims/shop/"), "{}", found.text);
    server.thaw();
    until("it is back", SOON, async || !page("/console/find").await.contains(old)).await;
}

#[tokio::test]
async fn refusals_of_a_quota_are_on_the_page_of_the_app() {
    let quota = "[apps.shop.quota]\nrequests_per_second = 1\nburst = \"2s\"\n";
    let gateway = operated().config(&format!("{}{quota}", caller::app("shop"))).start().await;
    let (shop, mut refused) = (caller::caller(&gateway, "shop"), 0);
    while refused < 3 {
        refused += u64::from(shop.claim(json!({ "number": refused })).await.status == 429);
    }
    let page = Browser::signed_in(&gateway, "view").await.get("/console/apps/shop").await.expect(200).text;
    assert!(page.contains(" · 3 refused since the start"), "{page}");
}

#[tokio::test]
async fn an_open_gateway_says_so() {
    let open = "callers need no credential";
    let gateway = operated().start().await;
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        for path in ["/console/", "/console/apps"] {
            let page = browser.get(path).await.expect(200).text;
            assert!(page.contains(open), "{path}: {page}");
        }
    }
    let operator = gateway.admin_client().with_credential(&token("view"));
    assert_eq!(operator.get("/admin/v1/summary").await.expect(200).body["open"], true);
    let closed = operated().config(&caller::app("shop")).start().await;
    let browser = Browser::signed_in(&closed, "view").await;
    for path in ["/console/", "/console/apps"] {
        assert!(!browser.get(path).await.expect(200).text.contains(open), "{path}");
    }
}
