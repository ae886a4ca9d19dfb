//! Recent calls with their claim and request: every kind except plain grants and successes.

use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::commands::Terminal;
use super::{alice, operated};
use crate::degraded;
use crate::support::caller::{self, caller};

const SOON: Duration = Duration::from_secs(30);

async fn recent(gateway: &Gateway, query: &str) -> Vec<Value> {
    let answer = alice(gateway).get(&format!("/admin/v1/recent{query}")).await.expect(200);
    answer.body["events"].as_array().unwrap().clone()
}

/// Kind, detail and operation, the newest first.
async fn kinds(gateway: &Gateway, query: &str) -> Vec<Value> {
    let short = |event: &Value| json!([event["kind"], event["detail"], event["operation"]]);
    recent(gateway, query).await.iter().map(short).collect()
}

#[tokio::test]
async fn repeats_mismatches_and_superseded_outcomes_are_listed_and_plain_calls_are_not() {
    let gateway = operated("memory:").start().await;
    let client = gateway.client();
    let claim = json!({ "operation": "order.submit", "contents": { "order_id": "secret-order" }, "fingerprint": "a" });
    let granted = client.post("/v1/claims", &claim).await.expect(201);
    assert_eq!(recent(&gateway, "").await, [] as [Value; 0], "a plain grant");
    let repeat = client.post("/v1/claims", &claim).await.expect(409);
    client.settle(&granted, "success").await.expect(200);
    client.post("/v1/claims", &claim).await.expect(409);
    let mut other = claim.clone();
    other["fingerprint"] = "b".into();
    client.post("/v1/claims", &other).await.expect(422);
    let timestamp = granted.body["timestamp"].as_u64().unwrap() - 1;
    let late = json!({ "attempt": format!("{timestamp}-0123456789abcdef"), "outcome": "failure" });
    assert_eq!(client.post(&granted.path("/outcome"), &late).await.status, 409);
    let batch = json!({ "items": [claim, { "operation": "pay", "contents": "A-2" }] });
    client.post("/v1/claims/batch", &batch).await.expect(200);
    let shown = kinds(&gateway, "").await;
    assert_eq!(
        shown,
        [
            json!(["duplicate", "succeeded", "order.submit"]),
            json!(["superseded", shown[1][1], "order.submit"]),
            json!(["mismatch", "fingerprint_mismatch", "order.submit"]),
            json!(["duplicate", "succeeded", "order.submit"]),
            json!(["duplicate", "in_progress", "order.submit"]),
        ]
    );
    let events = recent(&gateway, "").await;
    let first = &events[4];
    assert_eq!((&first["global_id"], &first["app"]), (&granted.body["global_id"], &json!("default")));
    assert_eq!(first["request_id"].as_str(), repeat.headers["x-request-id"].to_str().ok());
    assert_eq!(first["attempt_hash"], repeat.body["attempt_hash"]);
    assert_eq!(events[1]["global_id"], granted.body["global_id"], "of the path");
    assert_eq!(events[2]["global_id"], granted.body["global_id"], "of the body");
    let id = granted.body["global_id"].as_str().unwrap();
    assert_eq!(recent(&gateway, &format!("?global_id={id}")).await.len(), 5);
    assert_eq!(recent(&gateway, "?kind=duplicate&limit=2").await.len(), 2);
    assert_eq!(recent(&gateway, "?operation=order.submit&app=default").await.len(), 5);
    assert_eq!(recent(&gateway, &format!("?after={}", events[3]["id"])).await, events[4..]);
    for wrong in ["?kind=grant", "?limit=0", "?limit=1001", "?app=-", "?global_id=x", "?after=0", "?state=a"] {
        assert_eq!(alice(&gateway).get(&format!("/admin/v1/recent{wrong}")).await.status, 400, "{wrong}");
    }
    let printed = Terminal::at(&gateway).run(&["recent", "--kind", "mismatch"]).expect(0).out;
    assert!(printed.contains("fingerprint_mismatch") && printed.lines().count() == 2, "{printed}");
    assert!(!alice(&gateway).get("/admin/v1/recent").await.text.contains("secret-order"));
}

#[tokio::test]
async fn calls_of_a_batch_have_their_claim_and_operation() {
    let gateway = operated("memory:").start().await;
    let client = gateway.client();
    let claim = json!({ "operation": "order.submit", "contents": { "order_id": "A-1" }, "fingerprint": "a" });
    let granted = client.post("/v1/claims", &claim).await.expect(201);
    let (id, timestamp) = (granted.body["global_id"].clone(), granted.body["timestamp"].as_u64().unwrap() - 1);
    let outcome = |operation: Option<&str>| {
        let attempt = format!("{timestamp}-0123456789abcdef");
        json!({ "global_id": id, "attempt": attempt, "outcome": "failure", "operation": operation })
    };
    let plain = json!({ "global_id": id, "attempt": granted.body["attempt"], "outcome": "success" });
    let items = json!({ "items": [outcome(None), plain, outcome(Some("order.submit"))] });
    client.post("/v1/outcomes/batch", &items).await.expect(200);
    let superseded = recent(&gateway, "?kind=superseded").await;
    assert_eq!(superseded.len(), 2, "{superseded:?}");
    for (event, operation) in superseded.iter().zip([json!("order.submit"), Value::Null]) {
        assert_eq!((&event["global_id"], &event["operation"]), (&id, &operation), "{event}");
    }
    let mut other = claim.clone();
    other["fingerprint"] = "b".into();
    let batch = json!({ "items": [{ "operation": "pay", "contents": 1 }, other] });
    client.post("/v1/claims/batch", &batch).await.expect(200);
    let mismatch = recent(&gateway, "?kind=mismatch").await;
    assert_eq!((&mismatch[0]["global_id"], &mismatch[0]["operation"]), (&id, &json!("order.submit")), "{mismatch:?}");
}

#[tokio::test]
async fn refused_and_observed_calls_are_listed_of_their_app() {
    let more = "mode = \"observe\"\n[apps.shop.quota]\nrequests_per_second = 1\nburst = \"2s\"\n";
    let config = format!("{}{}{more}", caller::app("shop"), caller::app("bank"));
    let gateway = operated("memory:").config(&config).start().await;
    let (shop, bank) = (caller(&gateway, "shop"), caller(&gateway, "bank"));
    let mut refused = false;
    for number in 0..40 {
        refused |= shop.claim(json!({ "number": number })).await.status == 429;
    }
    assert!(refused);
    for _ in 0..2 {
        bank.claim(json!("A-1")).await.expect(201);
    }
    assert_eq!(kinds(&gateway, "?app=bank").await, [json!(["observed", "duplicate", "default"])]);
    let of_shop = kinds(&gateway, "?app=shop").await;
    assert!(!of_shop.is_empty() && of_shop.iter().all(|event| event[1] == "quota_exceeded"), "{of_shop:?}");
}

#[tokio::test]
async fn answers_of_outage_policies_are_listed() {
    let Some(mut server) = RedisServer::start_with(&["appendonly yes", "appendfsync always"]).await else { return };
    let gateway = degraded::setup(server.url()).start().await;
    let spooling = caller(&gateway, "spooling");
    let granted = spooling.claim(json!("A-1")).await.expect(201);
    server.kill();
    until("the outcome is journaled", SOON, async || spooling.settle(&granted, "success").await.status == 202).await;
    let id = granted.body["global_id"].as_str().unwrap();
    let shown = kinds(&gateway, &format!("?global_id={id}&kind=degraded")).await;
    assert!(shown.contains(&json!(["degraded", "spool", null])), "{shown:?}");
}
