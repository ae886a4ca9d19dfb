//! Outcomes that are accepted while a store is out.

use oncegate_testkit::client::{Answer, Client};
use serde_json::json;

use super::{delivered, durable_redis, out, policy, setup};
use crate::support::caller::{self, caller};
use crate::support::exposition::Page;

/// An app with one operation that spools its outcomes.
fn mixed() -> String {
    format!("{}[apps.mixed.operations.\"order.submit\".on_outage]\noutcome = \"spool\"\n", caller::app("mixed"))
}

async fn claim(client: &Client, operation: &str, contents: &str) -> Answer {
    client.post("/v1/claims", &json!({ "operation": operation, "contents": contents })).await.expect(201)
}

#[tokio::test]
async fn the_gateway_that_granted_a_claim_knows_its_operation() {
    let Some(mut server) = durable_redis().await else { return };
    let setup = setup(server.url()).config(&mixed());
    let (gateway, another) = (setup.start().await, setup.start().await);
    let (client, elsewhere) = (caller(&gateway, "mixed"), caller(&another, "mixed"));
    let order = claim(&client, "order.submit", "1").await;
    let batch = json!({ "items": [{ "operation": "order.submit", "contents": "2" }] });
    let of_batch = client.post("/v1/claims/batch", &batch).await.expect(200).body["items"][0].clone();
    let notice = claim(&client, "notice.send", "3").await;
    server.kill();
    out(&gateway).await;
    out(&another).await;
    let done = json!({ "outcome": "success" });
    assert_eq!(elsewhere.report(&order, done.clone()).await.status, 503, "it does not know");
    let named = json!({ "outcome": "success", "operation": "order.submit" });
    assert_eq!(policy(&elsewhere.report(&order, named).await.expect(202)), Some("spool"));
    assert_eq!(policy(&client.report(&order, done.clone()).await.expect(202)), Some("spool"));
    let item = json!({ "global_id": of_batch["global_id"], "attempt": of_batch["attempt"], "outcome": "success" });
    let answer = client.post("/v1/outcomes/batch", &json!({ "items": [item] })).await.expect(200);
    assert_eq!(answer.body["items"][0]["status"], 202, "{}", answer.text);
    assert_eq!(client.report(&notice, done).await.status, 503, "another operation");
    server.restart().await;
    delivered(&gateway).await;
}

#[tokio::test]
async fn an_outcome_too_old_to_be_recorded_is_rejected_at_once() {
    let Some(mut server) = durable_redis().await else { return };
    let gateway = setup(server.url()).start().await;
    let client = caller(&gateway, "spooling");
    server.kill();
    out(&gateway).await;
    let report = |outcome: &str| json!({ "attempt": "1600000000000000-0123456789abcdef", "outcome": outcome });
    let path = "/v1/claims/2ca8a31a53ad078ffd0c7c8c80158af7/outcome";
    for outcome in ["success", "unknown"] {
        let answer = client.post(path, &report(outcome)).await;
        assert_eq!((answer.code(), policy(&answer)), ((409, "expired"), Some("spool")), "{}", answer.text);
    }
    assert_eq!(Page::get(&gateway.admin_client()).await.sum("oncegate_spool_entries", &[]), 0);
}
