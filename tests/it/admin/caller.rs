//! Names of callers: kept with claims and holds, and shown only to their own app and to operators.

use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::commands::Terminal;
use super::{alice, operated};

const SOON: Duration = Duration::from_secs(30);
const NAME: &str = "pod/shop-7c9:1";

#[tokio::test]
async fn a_caller_is_shown_with_its_claim_on_memory() {
    a_caller_is_shown_with_its_claim(&operated("memory:").start().await).await;
}

#[tokio::test]
async fn a_caller_is_shown_with_its_claim_on_redis() {
    let Some(server) = RedisServer::start().await else { return };
    a_caller_is_shown_with_its_claim(&operated(&server.url()).start().await).await;
}

async fn a_caller_is_shown_with_its_claim(gateway: &Gateway) {
    let client = gateway.client();
    let claim = json!({ "operation": "order.submit", "contents": "A-1001", "lease": "10m", "caller": NAME });
    let granted = client.post("/v1/claims", &claim).await.expect(201);
    assert!(!granted.body.to_string().contains(NAME), "{}", granted.body);
    let other = json!({ "operation": "order.submit", "contents": "A-1001", "caller": "pod/other" });
    let duplicate = client.post("/v1/claims", &other).await.expect(409);
    assert!(!duplicate.body.to_string().contains("pod/"), "{}", duplicate.body);

    let id = granted.body["global_id"].as_str().unwrap();
    let shown = json!({ "app": "default", "global_id": id });
    for outcome in ["in progress", "success"] {
        if outcome == "success" {
            client.report(&granted, json!({ "outcome": outcome })).await.expect(200);
        }
        assert_eq!(client.get(&format!("/v1/claims/{id}")).await.expect(200).body["caller"], NAME, "{outcome}");
        let record = alice(gateway).post("/admin/v1/claims/show", &shown).await.expect(200).body;
        assert_eq!(record["caller"], NAME, "{outcome}");
        let printed =
            Terminal::at(gateway).run(&["claim", "show", "--app", "default", "--global-id", id]).expect(0).out;
        assert!(printed.contains(&format!("Caller      {NAME}\n")), "{printed}");
    }
    let nameless = client.post("/v1/claims", &json!({ "contents": "nameless" })).await.expect(201).body;
    let path = format!("/v1/claims/{}", nameless["global_id"].as_str().unwrap());
    assert_eq!(client.get(&path).await.expect(200).body.get("caller"), None, "stored only if it was sent");

    let items = json!({ "items": [{ "contents": "in a batch", "caller": NAME }] });
    let batch = client.post("/v1/claims/batch", &items).await.expect(200).body;
    let path = format!("/v1/claims/{}", batch["items"][0]["global_id"].as_str().unwrap());
    assert_eq!(client.get(&path).await.expect(200).body["caller"], NAME);
}

#[tokio::test]
async fn a_caller_is_shown_with_its_hold_and_where_it_waits() {
    let gateway = operated("memory:").start().await;
    let client = gateway.client();
    client.post("/v1/locks/report/holds", &json!({ "lease": "10m", "caller": NAME })).await.expect(201);
    let refused = client.post("/v1/locks/report/holds", &json!({ "caller": "pod/b" })).await.expect(409);
    assert!(!refused.body.to_string().contains(NAME), "{}", refused.body);
    assert_eq!(client.get("/v1/locks/report").await.expect(200).body["holders"][0]["caller"], NAME);
    let shown = json!({ "app": "default", "name": "report" });
    let lock = alice(&gateway).post("/admin/v1/locks/show", &shown).await.expect(200).body;
    assert_eq!(lock["holders"][0]["caller"], NAME);
    let printed = Terminal::at(&gateway).run(&["lock", "show", "--app", "default", "report"]).expect(0).out;
    assert!(printed.contains(NAME), "{printed}");

    client.post("/v1/claims", &json!({ "contents": "A", "lease": "10m" })).await.expect(201);
    let wait = |path: &'static str, body: Value| {
        let client = gateway.client();
        tokio::spawn(async move { client.post(path, &body).await })
    };
    let waiting = [
        wait("/v1/claims", json!({ "contents": "A", "wait": "25s", "caller": "pod/for-claim" })),
        wait("/v1/locks/report/holds", json!({ "wait": "25s", "caller": "pod/for-lock" })),
    ];
    let listed = async || alice(&gateway).get("/admin/v1/waiting").await.expect(200).body;
    until("both wait", SOON, async || listed().await["callers"] == 2).await;
    let shown = listed().await;
    assert_eq!(shown["claims"][0]["names"], json!(["pod/for-claim"]));
    assert_eq!(shown["locks"][0]["names"], json!(["pod/for-lock"]));
    let printed = Terminal::at(&gateway).run(&["waiting"]).expect(0).out;
    assert!(printed.contains("pod/for-claim") && printed.contains("pod/for-lock"), "{printed}");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_name_that_is_none_is_refused_and_not_repeated() {
    let gateway = operated("memory:").start().await;
    for wrong in [json!(""), json!("two words"), json!("<b>"), json!("x".repeat(65)), json!(7)] {
        for (path, body) in [
            ("/v1/claims", json!({ "contents": "A", "caller": wrong })),
            ("/v1/locks/report/holds", json!({ "caller": wrong })),
        ] {
            let refused = gateway.client().post(path, &body).await.expect(400);
            let detail = refused.body["detail"].as_str().unwrap();
            assert!(detail.contains("caller") && !detail.contains("two words"), "{detail}");
        }
    }
    gateway.client().post("/v1/claims", &json!({ "contents": "B", "caller": null })).await.expect(201);
    gateway.client().post("/v1/locks/report/holds", &json!({ "caller": null })).await.expect(201);
}
