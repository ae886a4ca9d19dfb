//! The life of a claim over HTTP, in the order of a new user's steps, on every engine.

use oncegate_testkit::client::{Answer, Client, global_id};
use serde_json::{Value, json};

use crate::support::gateway;

#[tokio::test]
async fn a_claim_lives_by_the_contract_on_memory() {
    let gateway = gateway::on_memory().start().await;
    check(&gateway.client(), true).await;
}

#[tokio::test]
async fn a_claim_lives_by_the_contract_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway::on_disk(&folder.path().join("claims")).start().await;
    check(&gateway.client(), true).await;
}

#[tokio::test]
async fn a_claim_call_without_an_operation_is_answered_with_a_warning() {
    let gateway = gateway::on_memory().start().await;
    let client = gateway.client();
    let warning =
        |answer: &Answer| answer.headers.get("oncegate-warning").map(|text| text.to_str().unwrap().to_owned());
    let claims = [
        (json!({ "contents": "a" }), 201),
        (json!({ "contents": "a" }), 409),
        (json!({ "contents": "a", "wait": "10ms" }), 409),
        (json!({ "contents": "a", "fingerprint": 1 }), 422),
        (json!({ "contents": "" }), 422),
    ];
    for (unnamed, status) in claims {
        let answer = client.post("/v1/claims", &unnamed).await.expect(status);
        assert_eq!(warning(&answer).as_deref(), Some("operation_missing"), "{unnamed}");
        let mut named = unnamed.clone();
        named["operation"] = json!("order.submit");
        let answer = client.post("/v1/claims", &named).await.expect(status);
        assert_eq!(warning(&answer), None, "{named}");
    }
    let (unnamed, named) = (json!({ "contents": "b" }), json!({ "contents": "b", "operation": "order.submit" }));
    for (items, expected) in [(json!([named, unnamed]), Some("operation_missing")), (json!([named, named]), None)] {
        let answer = client.post("/v1/claims/batch", &json!({ "items": items })).await.expect(200);
        assert_eq!(warning(&answer).as_deref(), expected, "{items}");
    }
    let log = gateway.log();
    assert_eq!(log.matches("names no operation").count(), 1, "{log}");
    assert!(log.contains("\"app.key\":\"default\""), "{log}");
}

/// First claim, duplicate, success, duplicate with result, failure, claim again: codes and fields.
pub(crate) async fn check(client: &Client, strict_fence: bool) {
    let order = json!({ "order_id": "A-1001" });
    let body = json!({ "operation": "order.submit", "contents": order });
    let first = client.post("/v1/claims", &body).await.expect(201);
    assert_eq!(first.body["global_id"], global_id("order.submit", r#"{"order_id":"A-1001"}"#));
    assert_eq!(first.headers["location"], first.path(""));
    assert_eq!((&first.body["state"], &first.body["repeated"]), (&json!("in_progress"), &json!(false)));
    assert_eq!(first.body["degraded"], Value::Null);
    assert_eq!(first.body["fence"].is_u64(), strict_fence);
    let attempt = first.body["attempt"].as_str().unwrap();
    assert!(attempt.starts_with(&format!("{}-", first.body["timestamp"])));
    assert!((20_000..=30_000).contains(&first.body["lease_ms"].as_u64().unwrap()));

    let duplicate = client.post("/v1/claims", &body).await.expect(409);
    assert_eq!(duplicate.code(), (409, "duplicate"));
    assert_eq!(duplicate.body["state"], "in_progress");
    assert_eq!(duplicate.body["timestamp"], first.body["timestamp"]);
    assert_eq!(duplicate.headers["retry-after"], "1");
    assert!(!duplicate.text.contains(attempt), "an attempt is shown to its holder only");

    let result = json!({ "order_no": 17, "total": "12.50", "nothing": null });
    let settled = client.report(&first, json!({ "outcome": "success", "result": result })).await.expect(200);
    assert_eq!((&settled.body["state"], &settled.body["late"]), (&json!("succeeded"), &json!(false)));

    let duplicate = client.post("/v1/claims", &body).await.expect(409);
    assert_eq!((&duplicate.body["state"], &duplicate.body["result"]), (&json!("succeeded"), &result));
    assert!(duplicate.headers.get("retry-after").is_none());
    let again = client.report(&first, json!({ "outcome": "success", "result": 2 })).await.expect(200);
    assert_eq!(again.body["state"], "succeeded");
    assert_eq!(client.settle(&first, "failure").await.code(), (409, "already_succeeded"));
    assert_eq!(client.renew(&first, None).await.code(), (409, "already_succeeded"));

    let record = client.get(&first.path("")).await.expect(200);
    assert_eq!((&record.body["contents"], &record.body["result"]), (&order, &result));
    assert!(!record.text.contains(attempt));

    let second = client.claim(json!("order-2")).await.expect(201);
    let renewed = client.renew(&second, Some("1h")).await.expect(200);
    assert!(renewed.body["lease_ms"].as_u64().unwrap() > 3_590_000);
    let released = client.settle(&second, "failure").await.expect(200);
    assert_eq!((&released.body["state"], &released.body["late"]), (&json!("released"), &json!(false)));
    assert_eq!(client.get(&second.path("")).await.code(), (404, "not_found"));
    let third = client.claim(json!("order-2")).await.expect(201);
    assert_ne!(third.body["attempt"], second.body["attempt"]);
    if strict_fence {
        assert!(third.body["fence"].as_u64() > second.body["fence"].as_u64());
    }
    let superseded = client.settle(&second, "failure").await;
    assert_eq!(superseded.code(), (409, "superseded"));
    assert_eq!(superseded.body["state"], "in_progress");
    assert_eq!(client.claim(json!("order-2")).await.code(), (409, "duplicate"), "the newer claim remains");
}
