//! Fsync before the answer: the gateway runs under strace, and everything that an answer promises is on the disk before the
//! answer is sent. A kill does not show this, since the system keeps the writes of a process.

use std::path::Path;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::strace::{self, Call, Kind};
use serde_json::json;

use crate::admin::{alice, operated};
#[cfg(feature = "redis")]
use crate::degraded::{out, policy, setup};
#[cfg(feature = "redis")]
use crate::support::caller::caller;
use crate::support::gateway;

/// A request and its answer, as places in the record.
#[derive(Debug)]
struct Exchange {
    arrived: usize,
    answered: usize,
}

/// Ends the gateway and reads its system calls. Its last calls are recorded by then.
async fn recorded(mut gateway: Gateway, record: &Path) -> Vec<Call> {
    gateway.signal("TERM");
    assert!(gateway.ended().await.success());
    strace::calls(record)
}

/// The exchanges of requests that begin like this, in their order. One request is in service at a time.
fn exchanges(calls: &[Call], request: &str) -> Vec<Exchange> {
    let arrivals = calls.iter().filter(|call| call.kind == Kind::Read && call.text.starts_with(request));
    let exchange = |arrival: &Call| {
        let is_answer = |call: &&Call| {
            let is_later = call.started > arrival.ended && call.target == arrival.target;
            is_later && call.kind == Kind::Write && call.text.starts_with("HTTP/1.1 ")
        };
        let answer = calls.iter().find(is_answer).expect("it is answered");
        Exchange { arrived: arrival.ended, answered: answer.started }
    };
    arrivals.map(exchange).collect()
}

/// Panics unless something was written to the files under `folder` between these two places, and all of it was made durable
/// before the second one.
#[track_caller]
fn assert_durable(calls: &[Call], folder: &Path, exchange: &Exchange) {
    let is_under = |call: &&Call| Path::new(&call.target).starts_with(folder);
    let written = calls.iter().filter(is_under).filter(|call| call.kind == Kind::Write);
    let written: Vec<_> =
        written.filter(|call| (exchange.arrived..exchange.answered).contains(&call.started)).collect();
    assert!(!written.is_empty(), "nothing is written to {} in {exchange:?}", folder.display());
    for write in written {
        let is_its_sync = |call: &&Call| {
            let is_between = call.started > write.ended && call.ended < exchange.answered;
            call.kind == Kind::Sync && call.target == write.target && is_between
        };
        assert!(calls.iter().any(|call| is_its_sync(&call)), "answered in {exchange:?} before a sync of {write:?}");
    }
}

#[tokio::test]
async fn the_disk_engine_answers_after_fsync() {
    if !strace::is_available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (claims, record) = (folder.path().join("claims"), folder.path().join("record"));
    let gateway = gateway::on_disk(&claims).traced(&record).start().await;
    let client = gateway.client();
    for number in 0..3 {
        let granted = client.claim(json!(number)).await.expect(201);
        client.renew(&granted, None).await.expect(200);
        client.settle(&granted, "success").await.expect(200);
    }
    let items = [json!({ "contents": "first" }), json!({ "contents": "second" })];
    client.post("/v1/claims/batch", &json!({ "items": items })).await.expect(200);
    let calls = recorded(gateway, &record).await;
    let exchanges = exchanges(&calls, "POST /v1/claims");
    assert_eq!(exchanges.len(), 10);
    for exchange in &exchanges {
        assert_durable(&calls, &claims, exchange);
    }
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn the_outage_journal_is_synced_before_the_answer() {
    if !strace::is_available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (data_dir, record) = (folder.path().join("data"), folder.path().join("record"));
    // Nothing listens there.
    let gateway = setup("redis://127.0.0.1:1").data_dir(&data_dir).traced(&record).start().await;
    out(&gateway).await;
    let (local, lenient) = (caller(&gateway, "local"), caller(&gateway, "lenient"));
    for client in [&local, &lenient] {
        let granted = client.claim(json!("once")).await.expect(201);
        assert!(policy(&granted).is_some());
        client.renew(&granted, None).await.expect(200);
        let settled = client.settle(&granted, "success").await;
        assert!(matches!(settled.status, 200 | 202), "{}", settled.text);
    }
    let calls = recorded(gateway, &record).await;
    let exchanges = exchanges(&calls, "POST /v1/claims");
    // Before these, the store was missed.
    for exchange in &exchanges[exchanges.len() - 6..] {
        assert_durable(&calls, &data_dir.join("journal"), exchange);
    }
}

#[tokio::test]
async fn the_audit_trail_is_synced_before_the_change_and_before_the_answer() {
    if !strace::is_available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [claims, data_dir, record] = ["claims", "data", "record"].map(|name| folder.path().join(name));
    let engine = format!("disk:{}", claims.display());
    let gateway = operated(&engine).data_dir(&data_dir).traced(&record).start().await;
    let (client, alice) = (gateway.client(), alice(&gateway));
    for number in 0..2 {
        client.claim(json!(number)).await.expect(201);
        let release = json!({ "app": "default", "contents": number, "reason": "INC-7" });
        alice.post("/admin/v1/claims/release", &release).await.expect(200);
    }
    let calls = recorded(gateway, &record).await;
    let exchanges = exchanges(&calls, "POST /admin/v1/claims/release");
    assert_eq!(exchanges.len(), 2);
    let trail = data_dir.join("audit.jsonl");
    for exchange in &exchanges {
        assert_durable(&calls, &trail, exchange);
        assert_durable(&calls, &claims, exchange);
        let is_change = |call: &&Call| {
            let is_in_service = (exchange.arrived..exchange.answered).contains(&call.started);
            is_in_service && call.kind == Kind::Write && Path::new(&call.target).starts_with(&claims)
        };
        let changed = calls.iter().find(is_change).expect("the claim is released").started;
        assert_durable(&calls, &trail, &Exchange { answered: changed, ..*exchange });
    }
}
