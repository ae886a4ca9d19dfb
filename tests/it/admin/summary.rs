//! The summary of a gateway: its state, and each kind of trouble while it lasts.

use std::fs;
use std::time::Duration;

use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::commands::Terminal;
use super::{alice, operated, operators};
use crate::degraded;
use crate::support::caller::caller;

const TIMEOUT: Duration = Duration::from_secs(30);

async fn summary(gateway: &Gateway) -> Value {
    alice(gateway).get("/admin/v1/summary").await.expect(200).body
}

/// Severity, kind, app, subject and count of everything that needs a person.
async fn attention(gateway: &Gateway) -> Vec<Value> {
    let found = summary(gateway).await["attention"].as_array().unwrap().clone();
    let short =
        |entry: &Value| json!([entry["severity"], entry["kind"], entry["app"], entry["subject"], entry["count"]]);
    found.iter().map(short).collect()
}

async fn needs(gateway: &Gateway, expected: Value) {
    let what = format!("{expected} needs a person");
    until(&what, TIMEOUT, async || json!(attention(gateway).await) == expected).await;
}

#[tokio::test]
async fn a_gateway_without_trouble_says_so() {
    let gateway = operated("memory:").start().await;
    until("its engine is checked", TIMEOUT, async || summary(&gateway).await["engines"][0]["up"] == true).await;
    let shown = summary(&gateway).await;
    assert_eq!((&shown["stage"], &shown["version"]), (&json!("ready"), &json!(env!("CARGO_PKG_VERSION"))));
    assert_eq!(shown["attention"], json!([]));
    assert_eq!((&shown["engines"][0]["chains"], &shown["engines"][0]["detail"]), (&json!(["default"]), &Value::Null));
    assert_eq!((&shown["chains"][0]["active"], &shown["spool"]["entries"]), (&json!("primary"), &json!(0)));
    let later = summary(&gateway).await;
    assert_eq!(shown["started_at"], later["started_at"]);
    assert!(later["uptime_ms"].as_u64() >= shown["uptime_ms"].as_u64());
    let printed = Terminal::at(&gateway).run(&["summary"]).expect(0).out;
    assert!(printed.starts_with("Stage          ready\n"), "{printed}");
    assert!(printed.ends_with("\n\nNothing needs a person.\n"), "{printed}");
}

/// Without a probe by the reader: the gateway itself has noticed it.
#[tokio::test]
async fn a_store_that_is_down_and_the_answers_that_wait_for_it_need_a_person_until_it_is_back() {
    let Some(mut server) = RedisServer::start_with(&["appendonly yes", "appendfsync always"]).await else { return };
    let gateway = degraded::setup(server.url()).start().await;
    let spooling = caller(&gateway, "spooling");
    let granted = spooling.claim(fresh::contents()).await.expect(201);
    needs(&gateway, json!([])).await;
    server.kill();
    degraded::out(&gateway).await;
    spooling.settle(&granted, "success").await.expect(202);
    let down = json!(["critical", "store_down", null, "primary", 1]);
    needs(&gateway, json!([down, ["warning", "spool_waiting", null, null, 1]])).await;
    let shown = summary(&gateway).await;
    assert_eq!(shown["engines"][0]["up"], false);
    for entry in shown["attention"].as_array().unwrap() {
        let since = entry["since"].as_str().unwrap();
        assert!(since > shown["started_at"].as_str().unwrap(), "{entry}");
    }
    let printed = Terminal::at(&gateway).run(&["summary"]).expect(0).out;
    assert!(printed.contains("\ncritical  store_down "), "{printed}");
    server.restart().await;
    needs(&gateway, json!([])).await;
    assert_eq!(summary(&gateway).await["engines"][0]["up"], true);
}

#[tokio::test]
async fn suspects_need_a_person_until_they_are_checked() {
    let gateway = operated("memory:").start().await;
    let client = gateway.client();
    for number in 0..3 {
        let granted = client.claim(json!(number)).await.expect(201);
        let other = granted.body["timestamp"].as_u64().unwrap() - 1;
        let late = json!({ "attempt": format!("{other}-0123456789abcdef"), "outcome": "success" });
        assert_eq!(client.post(&granted.path("/outcome"), &late).await.code(), (409, "superseded"));
    }
    assert_eq!(attention(&gateway).await, [json!(["critical", "double", "default", null, 3])]);
    let listed = alice(&gateway).get("/admin/v1/suspects").await.expect(200).body;
    for suspect in listed["suspects"].as_array().unwrap() {
        let check = json!({ "found": "once", "reason": "INC-2" });
        alice(&gateway).post(&format!("/admin/v1/suspects/{}/check", suspect["id"]), &check).await.expect(200);
    }
    assert_eq!(attention(&gateway).await, [] as [Value; 0]);
}

#[tokio::test]
async fn unknown_claims_need_a_person_until_they_are_settled_at_any_gateway() {
    let Some(server) = RedisServer::start().await else { return };
    let on_lease_end = "[defaults]\non_lease_end = \"unknown\"\n";
    let gateway = operated(&server.url()).config(on_lease_end).start().await;
    let other = operated(&server.url()).config(on_lease_end).start().await;
    let client = gateway.client();
    let reported = client.claim(json!("reported")).await.expect(201);
    client.report(&reported, json!({ "outcome": "unknown" })).await.expect(200);
    let unknown = |count: usize| json!([["warning", "unknown", "default", null, count]]);
    assert_eq!(json!(attention(&gateway).await), unknown(1));
    let crashed = json!({ "contents": "crashed", "lease": "2s" });
    client.post("/v1/claims", &crashed).await.expect(201);
    until("a repeat meets it", TIMEOUT, async || client.post("/v1/claims", &crashed).await.body["state"] == "unknown")
        .await;
    assert_eq!(json!(attention(&gateway).await), unknown(2));
    assert_eq!(json!(attention(&other).await), json!([]), "it has met none");
    // One is settled here, and one elsewhere.
    client.report(&reported, json!({ "outcome": "success" })).await.expect(200);
    assert_eq!(json!(attention(&gateway).await), unknown(1));
    let settle = json!({ "app": "default", "contents": "crashed", "outcome": "failure", "reason": "INC-42" });
    alice(&other).post("/admin/v1/claims/settle", &settle).await.expect(200);
    needs(&gateway, json!([])).await;
}

#[tokio::test]
async fn a_configuration_and_an_audit_trail_that_cannot_be_used_need_a_person() {
    let gateway = operated("memory:").start().await;
    gateway.configure(&format!("{}no_such_key = 1\n", operators()));
    gateway.signal("HUP");
    let reload = json!(["warning", "reload_failed", null, null, 1]);
    needs(&gateway, json!([reload])).await;
    let trail = gateway.data_dir().join("audit.jsonl");
    fs::create_dir_all(&trail).unwrap();
    let release = json!({ "app": "default", "contents": 1, "reason": "INC-7" });
    gateway.client().claim(json!(1)).await.expect(201);
    alice(&gateway).post("/admin/v1/claims/release", &release).await.expect(503);
    assert_eq!(attention(&gateway).await, [json!(["critical", "audit_failing", null, null, 1]), reload]);
    fs::remove_dir(&trail).unwrap();
    alice(&gateway).post("/admin/v1/claims/release", &release).await.expect(200);
    gateway.configure(&operators());
    gateway.signal("HUP");
    needs(&gateway, json!([])).await;
}

#[tokio::test]
async fn a_chain_that_grants_nothing_needs_a_person() {
    let frozen = "[chains.default]\nengines = [\"primary\"]\non_data_loss = \"freeze\"\n[defaults]\nlease = \"10m\"\n";
    let gateway = operated("memory:").config(frozen).start().await;
    needs(&gateway, json!([["critical", "grants_frozen", null, "default", 1]])).await;
    assert!(summary(&gateway).await["chains"][0]["held_ms"].as_u64().unwrap() > 0);

    let Some(server) = RedisServer::start_with(&["appendonly yes", "appendfsync always"]).await else { return };
    let requires = "[chains.default]\nengines = [\"primary\"]\nrequires = [\"durable\"]\n";
    let gateway = operated(&server.url()).config(requires).start().await;
    gateway.client().claim(fresh::contents()).await.expect(201);
    needs(&gateway, json!([])).await;
    server.query::<String>("CONFIG SET appendfsync everysec");
    needs(&gateway, json!([["critical", "requirements_unmet", null, "default", 1]])).await;
}

#[tokio::test]
async fn a_store_that_is_full_or_has_lost_its_data_needs_a_person() {
    let Some(server) = RedisServer::start().await else { return };
    let gateway = operated(&server.url()).start().await;
    gateway.client().claim(fresh::contents()).await.expect(201);
    needs(&gateway, json!([])).await;
    server.query::<String>("CONFIG SET maxmemory 1");
    let refused = gateway.client().claim(fresh::contents()).await;
    assert_eq!(refused.code(), (503, "store_full"));
    let full = json!(["critical", "store_full", null, "primary", 1]);
    needs(&gateway, json!([full])).await;
    until("the list of engines names the reason", TIMEOUT, async || {
        let printed = Terminal::at(&gateway).run(&["engine", "list"]).expect(0).out;
        printed.contains("answers, but refuses calls: ")
    })
    .await;
    server.query::<String>("CONFIG SET maxmemory 0");
    server.query::<String>("FLUSHALL");
    let lost = json!(["critical", "data_lost", null, "primary", 1]);
    until("the loss needs a person", TIMEOUT, async || attention(&gateway).await.contains(&lost)).await;
    assert!(summary(&gateway).await["engines"][0]["data_lost_at"].is_string());
}
