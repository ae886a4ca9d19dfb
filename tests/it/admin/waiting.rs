//! The claims and locks that callers of a gateway wait for, as operators see them.

use std::time::Duration;

use oncegate_testkit::client::Answer;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::commands::Terminal;
use super::{alice, operated};

const SOON: Duration = Duration::from_secs(30);

async fn waiting(gateway: &Gateway, query: &str) -> Value {
    alice(gateway).get(&format!("/admin/v1/waiting{query}")).await.expect(200).body
}

/// Sends a call that waits.
fn wait(gateway: &Gateway, path: &'static str, body: Value) -> JoinHandle<Answer> {
    let client = gateway.client();
    tokio::spawn(async move { client.post(path, &body).await })
}

#[tokio::test]
async fn those_that_wait_are_listed_until_they_are_answered_on_memory() {
    those_that_wait_are_listed_until_they_are_answered("memory:").await;
}

#[tokio::test]
async fn those_that_wait_are_listed_until_they_are_answered_on_redis() {
    let Some(server) = RedisServer::start().await else { return };
    those_that_wait_are_listed_until_they_are_answered(&server.url()).await;
}

async fn those_that_wait_are_listed_until_they_are_answered(engine: &str) {
    let gateway = operated(engine).start().await;
    let (client, nobody) = (gateway.client(), json!({ "callers": 0, "more": false, "claims": [], "locks": [] }));
    assert_eq!(waiting(&gateway, "").await, nobody);
    let claim = json!({ "operation": "order.submit", "contents": "A-1001", "lease": "10m", "wait": "25s" });
    let granted = client.post("/v1/claims", &claim).await.expect(201);
    let held = client.post("/v1/locks/report/holds", &json!({ "lease": "10m" })).await.expect(201);
    let first = wait(&gateway, "/v1/claims", claim.clone());
    until("one waits", SOON, async || waiting(&gateway, "").await["callers"] == 1).await;
    let second = wait(&gateway, "/v1/claims", claim);
    let third = wait(&gateway, "/v1/locks/report/holds", json!({ "wait": "25s" }));
    until("three wait", SOON, async || waiting(&gateway, "").await["callers"] == 3).await;

    let shown = waiting(&gateway, "?app=default").await;
    let (claim, lock) = (&shown["claims"][0], &shown["locks"][0]);
    assert_eq!((&claim["app"], &claim["operation"]), (&json!("default"), &json!("order.submit")));
    assert_eq!((&claim["realm"], &claim["global_id"]), (&json!("api"), &granted.body["global_id"]));
    assert_eq!((&claim["callers"], &lock["callers"], &lock["name"]), (&json!(2), &json!(1), &json!("report")));
    let began_at = granted.body["claimed_at"].as_str().unwrap();
    for since in [&claim["since"], &lock["since"]] {
        assert!(since.as_str().unwrap() > began_at, "{shown}");
    }
    assert!(claim["since"].as_str() < lock["since"].as_str(), "the first of two counts: {shown}");
    assert_eq!(waiting(&gateway, "?app=other").await, nobody);
    let printed = Terminal::at(&gateway).run(&["waiting"]).expect(0).out;
    assert!(printed.ends_with("\n\nWaiting calls: 3.\n") && printed.contains(" order.submit  api "), "{printed}");

    client.report(&granted, json!({ "outcome": "success" })).await.expect(200);
    let release = json!({ "attempt": held.body["attempt"] });
    client.post("/v1/locks/report/release", &release).await.expect(200);
    for (answer, status) in [(first, 409), (second, 409), (third, 201)] {
        tokio::time::timeout(SOON, answer).await.expect("it is answered").expect("no panic").expect(status);
    }
    until("none waits", SOON, async || waiting(&gateway, "").await == nobody).await;
}

#[tokio::test]
async fn a_list_of_those_that_wait_is_bounded() {
    let gateway = operated("memory:").start().await;
    let mut calls = Vec::new();
    for contents in ["a", "b", "c"] {
        let claim = json!({ "contents": contents, "lease": "10m", "wait": "25s" });
        gateway.client().post("/v1/claims", &claim).await.expect(201);
        calls.push(wait(&gateway, "/v1/claims", claim));
    }
    until("all wait", SOON, async || waiting(&gateway, "").await["callers"] == 3).await;
    let some = waiting(&gateway, "?limit=2").await;
    assert_eq!(
        (&some["more"], &some["callers"], some["claims"].as_array().unwrap().len()),
        (&json!(true), &json!(3), 2)
    );
    for wrong in ["?limit=0", "?limit=1001", "?app=-", "?lock=a"] {
        assert_eq!(alice(&gateway).get(&format!("/admin/v1/waiting{wrong}")).await.status, 400, "{wrong}");
    }
    calls.iter().for_each(JoinHandle::abort);
}
