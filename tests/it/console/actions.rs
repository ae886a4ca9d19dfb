//! Actions: the admin API does once what an operator decides on a page, for the state that the page showed.

use std::time::Duration;

use oncegate_testkit::client::Answer;
use oncegate_testkit::gateway::Gateway;
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::browser::{Browser, OWN, location};
use super::pages::{page_of, succeeded};
use super::{operated, token};

/// An operation whose outcome is unknown.
pub(super) async fn unknown(gateway: &Gateway, contents: &Value) -> Answer {
    let claim = json!({ "operation": "order.submit", "contents": contents });
    let granted = gateway.client().post("/v1/claims", &claim).await.expect(201);
    gateway.client().settle(&granted, "unknown").await.expect(200);
    granted
}

/// Returns the hidden fields of the form of a page, as a body.
pub(super) fn bound(page: &Answer) -> String {
    let (_, form) = page.text.split_once("class=\"action\"").expect("a form");
    let hidden = form.split("<input type=\"hidden\" name=\"").skip(1);
    let pairs = hidden.map(|input| {
        let (name, rest) = input.split_once("\" value=\"").unwrap();
        format!("{name}={}", rest.split('"').next().unwrap())
    });
    pairs.collect::<Vec<_>>().join("&")
}

pub(super) async fn newest(gateway: &Gateway, action: &str) -> Value {
    let path = format!("/admin/v1/audit?action={action}");
    let trail = gateway.admin_client().with_credential(&token("view")).get(&path).await.expect(200);
    trail.body["entries"].clone()
}

#[tokio::test]
async fn an_unknown_is_settled_once_and_its_waiting_caller_is_answered() {
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "act").await;
    let contents = json!({ "order_id": "A-1" });
    let page = page_of(&unknown(&gateway, &contents).await);
    let shown = browser.get(&page).await.expect(200);
    assert!(shown.text.contains("The outcome is unknown. Repeats get 409 until it is settled"), "{}", shown.text);
    assert!(shown.text.contains("became unknown (the end of its retention, less the retention)"), "{}", shown.text);
    let form = browser.get(&format!("{page}/settle")).await.expect(200);
    let body = format!("{}&outcome=success&result=%7B%22number%22%3A7%7D&reason=INC-42", bound(&form));
    let settled = browser.post(&format!("{page}/settle"), &[OWN], &body).await;
    assert_eq!((settled.status, location(&settled)), (303, &*format!("{page}?done=success")), "{}", settled.text);
    let again = browser.post(&format!("{page}/settle"), &[OWN], &body).await;
    assert_eq!((again.status, location(&again)), (303, location(&settled)), "a second click");
    let after = browser.get(location(&settled)).await.expect(200);
    assert!(
        after.text.contains("Settled: it was done") && after.text.contains("{&quot;number&quot;:7}"),
        "{}",
        after.text
    );
    // The address alone says nothing: another operator may have got it in a chat.
    let other = Browser::signed_in(&gateway, "act").await;
    for (browser, address) in [(&other, location(&settled)), (&browser, &*format!("{page}?done=failure"))] {
        let linked = browser.get(address).await.expect(200);
        assert!(!linked.text.contains("Settled:"), "{address}: {}", linked.text);
    }
    let repeat =
        gateway.client().post("/v1/claims", &json!({ "operation": "order.submit", "contents": contents })).await;
    assert_eq!((repeat.code(), &repeat.body["result"]), ((409, "duplicate"), &json!({ "number": 7 })));
    let entries = newest(&gateway, "claim.settle").await;
    assert_eq!(entries.as_array().unwrap().len(), 1, "{entries}");
    let entry = &entries[0];
    assert_eq!((&entry["via"], &entry["who"], &entry["reason"]), (&json!("console"), &json!("act"), &json!("INC-42")));
}

#[tokio::test]
async fn a_result_is_settled_with_the_text_that_was_typed() {
    const TYPED: &str = r#"{"price":1.10,"number":12345678901234567890,"a":1e2}"#;
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "act").await;
    let contents = json!({ "order_id": "A-1" });
    let page = page_of(&unknown(&gateway, &contents).await);
    let form = bound(&browser.get(&format!("{page}/settle")).await.expect(200));
    let fields = [("outcome", "success"), ("result", TYPED), ("reason", "INC-42")];
    let typed = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    browser.post(&format!("{page}/settle"), &[OWN], &format!("{form}&{typed}")).await.expect(303);
    let claim = json!({ "operation": "order.submit", "contents": contents });
    let repeat = gateway.client().post("/v1/claims", &claim).await.expect(409);
    assert!(repeat.text.contains(&format!("\"result\":{TYPED}")), "{}", repeat.text);
    // The admin API keeps it, too.
    let other = json!({ "order_id": "A-2" });
    unknown(&gateway, &other).await;
    let named = format!("\"app\":\"default\",\"operation\":\"order.submit\",\"contents\":{other}");
    let body = format!("{{{named},\"outcome\":\"success\",\"result\":{TYPED},\"reason\":\"INC-42\"}}");
    gateway.admin_client().with_credential(&token("act")).post_raw("/admin/v1/claims/settle", body).await.expect(200);
    let repeat = gateway.client().post("/v1/claims", &json!({ "operation": "order.submit", "contents": other })).await;
    assert!(repeat.text.contains(&format!("\"result\":{TYPED}")), "{}", repeat.text);
}

#[tokio::test]
async fn an_action_is_refused_if_the_claim_has_changed_since_it_was_shown() {
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "act").await;
    let contents = json!({ "order_id": "A-1" });
    let granted = unknown(&gateway, &contents).await;
    let page = page_of(&granted);
    let settle = bound(&browser.get(&format!("{page}/settle")).await.expect(200));
    let release = bound(&browser.get(&format!("{page}/release")).await.expect(200));
    // Another attempt takes the operation over.
    let taken = json!({ "operation": "order.submit", "contents": contents, "take_over": true });
    gateway.client().post("/v1/claims", &taken).await.expect(201);
    for (action, form) in
        [("settle", format!("{settle}&outcome=failure&reason=x")), ("release", format!("{release}&reason=x"))]
    {
        let refused = browser.post(&format!("{page}/{action}"), &[OWN], &form).await;
        assert!(refused.status == 409 && refused.text.contains("superseded"), "{action}: {}", refused.text);
    }
    assert_eq!(newest(&gateway, "claim.settle").await, json!([]), "nothing was started");
    // A success that arrives after the page was opened is not undone.
    let other = json!({ "order_id": "A-2" });
    let granted = gateway
        .client()
        .post("/v1/claims", &json!({ "operation": "order.submit", "contents": other }))
        .await
        .expect(201);
    let page = page_of(&granted);
    let release = bound(&browser.get(&format!("{page}/release")).await.expect(200));
    gateway.client().settle(&granted, "success").await.expect(200);
    let refused = browser.post(&format!("{page}/release"), &[OWN], &format!("{release}&reason=x")).await;
    assert!(refused.status == 409 && refused.text.contains("already_succeeded"), "{}", refused.text);
}

#[tokio::test]
async fn a_succeeded_claim_is_released_only_if_again_was_typed() {
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "act").await;
    let contents = json!({ "order_id": "A-1" });
    let page = page_of(&succeeded(&gateway, &contents, &json!(1)).await);
    let form = bound(&browser.get(&format!("{page}/release")).await.expect(200));
    for typed in ["", "&typed=yes", "&typed=Again"] {
        let refused = browser.post(&format!("{page}/release"), &[OWN], &format!("{form}{typed}&reason=x")).await;
        assert!(refused.status == 400 && refused.text.contains("Type exactly"), "{typed}: {}", refused.text);
    }
    let reasonless = browser.post(&format!("{page}/release"), &[OWN], &format!("{form}&typed=again")).await;
    assert_eq!(reasonless.status, 400, "{}", reasonless.text);
    let form = bound(&browser.get(&format!("{page}/release")).await.expect(200));
    let done = browser.post(&format!("{page}/release"), &[OWN], &format!("{form}&typed=again&reason=INC-7")).await;
    assert_eq!((done.status, location(&done)), (303, &*format!("{page}?done=released")), "{}", done.text);
    assert!(
        browser.get(location(&done)).await.expect(200).text.contains("Released. The operation can be claimed again.")
    );
    gateway
        .client()
        .post("/v1/claims", &json!({ "operation": "order.submit", "contents": contents }))
        .await
        .expect(201);
}

#[tokio::test]
async fn a_suspect_is_checked_and_then_no_longer_listed() {
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "act").await;
    super::hostile::suspected(&gateway, "order.submit", &json!({ "order_id": "A-1" })).await;
    let list = browser.get("/console/attention").await.expect(200);
    assert!(list.text.contains("href=\"/console/attention/1\""), "{}", list.text);
    let ask = browser.get("/console/attention/1").await.expect(200);
    assert!(ask.text.contains("{&quot;order_id&quot;:&quot;A-1&quot;}"), "what to look up: {}", ask.text);
    let is_noted = async || newest(&gateway, "claim.view").await.as_array().unwrap().len() == 2;
    until("the looks at the list and at the claim are in the trail", Duration::from_mins(1), is_noted).await;
    let form = bound(&ask);
    let done = browser.post("/console/attention/1", &[OWN], &format!("{form}&found=twice&reason=INC-9")).await;
    assert_eq!((done.status, location(&done)), (303, "/console/attention?done=checked"), "{}", done.text);
    let after = browser.get(location(&done)).await.expect(200);
    assert!(after.text.contains("Recorded.") && after.text.contains("Nothing is open here"), "{}", after.text);
    assert_eq!(newest(&gateway, "suspect.check").await[0]["result"], "twice");
    assert_eq!(browser.get("/console/attention/2").await.status, 404);
}

#[tokio::test]
async fn a_chain_is_switched_once_its_name_was_typed_and_the_loss_accepted() {
    let config =
        "[engines]\nprimary = \"memory:\"\nspare = \"memory:\"\n[chains.default]\nengines = [\"primary\", \"spare\"]\n";
    let gateway = crate::support::gateway::on_configured()
        .config(&super::operators(&["act", "view"]))
        .config(config)
        .start()
        .await;
    let browser = Browser::signed_in(&gateway, "act").await;
    let met = json!({ "order_id": "A-1" });
    unknown(&gateway, &met).await;
    gateway.client().post("/v1/claims", &json!({ "operation": "order.submit", "contents": met })).await.expect(409);
    let page = "/console/chains/default/switch";
    let ask = browser.get(page).await.expect(200);
    assert!(ask.text.contains("1 claim is stored on <code>primary</code>"), "{}", ask.text);
    for (name, value) in [("Unknown outcomes", 1), ("May have run twice", 0), ("Waiting calls", 0), ("Spool", 0)] {
        assert!(ask.text.contains(&format!("<dt>{name}</dt><dd>{value}</dd>")), "{name}: {}", ask.text);
    }
    let form = bound(&ask);
    for wrong in ["&typed=other&accept_loss=true", "&typed=default"] {
        let refused = browser.post(page, &[OWN], &format!("{form}&to=spare&reason=x{wrong}")).await;
        assert!([400, 409].contains(&refused.status), "{wrong}: {}", refused.text);
    }
    let form = bound(&browser.get(page).await.expect(200));
    let body = format!("{form}&to=spare&typed=default&accept_loss=true&reason=INC-1");
    let done = browser.post(page, &[OWN], &body).await;
    assert_eq!((done.status, location(&done)), (303, "/console/chains/default?done=switched"), "{}", done.text);
    assert_eq!(location(&browser.post(page, &[OWN], &body).await), location(&done), "a second click");
    let shown = browser.get(location(&done)).await.expect(200);
    assert!(shown.text.contains("Switched.") && shown.text.contains("spare"), "{}", shown.text);
    // A page that was opened before the switch does not switch back.
    let stale = bound(&ask);
    let refused =
        browser.post(page, &[OWN], &format!("{stale}&to=primary&typed=default&accept_loss=true&reason=x")).await;
    assert!(refused.status == 409 && refused.text.contains("has changed since"), "{}", refused.text);
    assert_eq!(newest(&gateway, "chain.switch").await.as_array().unwrap().len(), 1);
}

/// Claims of a store that hangs are counted for longer than a page may take.
#[cfg(feature = "postgres")]
#[tokio::test]
async fn the_page_of_a_switch_names_the_loss_while_the_store_hangs() {
    let Some(server) = PostgresServer::start().await else { return };
    let config = format!(
        "[engines]\nprimary = \"{}\"\nspare = \"memory:\"\n[chains.default]\nengines = [\"primary\", \"spare\"]\n",
        server.url()
    );
    let operators = super::operators(&["act"]);
    let gateway = crate::support::gateway::on_configured().config(&operators).config(&config).start().await;
    let browser = Browser::signed_in(&gateway, "act").await;
    let page = async || browser.get("/console/chains/default/switch").await;
    let is_counted = async || page().await.text.contains("0 claims are stored on <code>primary</code>");
    until("the loss is counted", Duration::from_mins(1), is_counted).await;
    // Its probes are answered, and claims are not.
    let (url, lock) =
        (server.url(), "BEGIN; LOCK TABLE oncegate_claims IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(600)");
    let locking = tokio::spawn(async move { PostgresServer::execute_at(&url, lock).await });
    let locks =
        "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND relation = 'oncegate_claims'::regclass";
    until("claims are locked", Duration::from_mins(1), async || server.query(locks).await == "1").await;
    let shown = page().await.expect(200).text;
    assert!(shown.contains("How many claims are stored on <code>primary</code> is not known"), "{shown}");
    assert!(
        shown.contains("It does not know the locks that are held") && shown.contains("class=\"action\""),
        "{shown}"
    );
    locking.abort();
}

#[tokio::test]
async fn each_page_says_that_the_trail_cannot_be_written_and_actions_are_refused() {
    let gateway = operated().start().await;
    std::fs::create_dir_all(gateway.data_dir().join("audit.jsonl")).unwrap();
    let page = format!("{}/settle", page_of(&unknown(&gateway, &json!({ "order_id": "A-1" })).await));
    let browser = Browser::signed_in(&gateway, "act").await;
    let is_said = async || browser.get(&page).await.expect(200).text.contains("The audit trail cannot be written");
    until("the page shows the notice", Duration::from_mins(1), is_said).await;
    let form = bound(&browser.get(&page).await.expect(200));
    let body = format!("{form}&outcome=success&reason=INC-42");
    let refused = browser.post(&page, &[OWN], &body).await.expect(503);
    assert!(
        refused.text.contains("audit_unavailable") && refused.text.contains("Back to the form"),
        "{}",
        refused.text
    );
    let claim = json!({ "operation": "order.submit", "contents": { "order_id": "A-1" } });
    assert_eq!(gateway.client().post("/v1/claims", &claim).await.body["state"], "unknown");
}
