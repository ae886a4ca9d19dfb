//! The end of a record: the same instant in every answer about it, to callers and operators, through every gateway, on every engine.

use oncegate_testkit::client::Answer;
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::{Gateway, Setup};
use serde_json::{Value, json};

use super::commands::Terminal;
use super::{alice, operated};

const NONCE: &str = "nonce-of-the-holder";

#[tokio::test]
async fn a_record_has_one_end_on_memory() {
    a_record_has_one_end(operated("memory:"), 1).await;
}

#[tokio::test]
async fn a_record_has_one_end_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    a_record_has_one_end(operated(&format!("disk:{}", folder.path().join("claims").display())), 1).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_record_has_one_end_on_redis() {
    let Some(server) = oncegate_testkit::redis_server::RedisServer::start().await else { return };
    a_record_has_one_end(operated(&server.url()), 2).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_record_has_one_end_on_postgres() {
    let Some(server) = oncegate_testkit::postgres_server::PostgresServer::start().await else { return };
    a_record_has_one_end(operated(&server.url()), 2).await;
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn a_record_has_one_end_on_etcd() {
    let Some(cluster) = oncegate_testkit::etcd_cluster::EtcdCluster::start_one().await else { return };
    a_record_has_one_end(operated(&cluster.patient_url()), 2).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn a_record_has_one_end_on_zookeeper() {
    let Some(cluster) = oncegate_testkit::zookeeper_cluster::ZooKeeperCluster::start_one().await else { return };
    a_record_has_one_end(operated(&cluster.patient_url()), 2).await;
}

/// From the renewal on: a new grant may name its end by the clock of its gateway.
async fn a_record_has_one_end(setup: Setup, gateways: usize) {
    let mut running = Vec::new();
    for _ in 0..gateways {
        running.push(setup.start().await);
    }
    let (caller, operator) = (running[0].client(), alice(&running[0]));
    let contents = fresh::contents();
    let claim = json!({ "contents": contents, "attempt_nonce": NONCE, "lease": "10m" });
    let granted = caller.post("/v1/claims", &claim).await.expect(201);
    let renewed = caller.renew(&granted, Some("1h")).await.expect(200);
    let in_progress = one(("renewal", &renewed.body["lease_expires_at"]), &running, &contents).await;

    let unknown = caller.settle(&granted, "unknown").await.expect(200);
    let unknown = one(("outcome", &unknown.body["expires_at"]), &running, &contents).await;
    let listed = operator.get("/admin/v1/unknowns").await.expect(200);
    assert_eq!(listed.body["unknowns"][0]["expires_at"], unknown, "{}", listed.text);

    let settlement = json!({ "app": "default", "contents": contents, "outcome": "success", "reason": "INC-1" });
    let settled = operator.post("/admin/v1/claims/settle", &settlement).await.expect(200);
    let succeeded = one(("settlement of an operator", &settled.body["expires_at"]), &running, &contents).await;
    let repeated = caller.settle(&granted, "success").await.expect(200);
    assert_eq!(repeated.body["expires_at"], succeeded);
    let item =
        json!({ "global_id": granted.body["global_id"], "attempt": granted.body["attempt"], "outcome": "success" });
    let batch = caller.post("/v1/outcomes/batch", &json!({ "items": [item] })).await.expect(200);
    assert_eq!(batch.body["items"][0]["expires_at"], succeeded, "{}", batch.text);
    assert!(in_progress.as_str() < succeeded.as_str() && succeeded.as_str() < unknown.as_str());

    let contents = fresh::contents();
    let granted = caller.claim(contents.clone()).await.expect(201);
    let release = json!({ "app": "default", "contents": contents, "reason": "INC-2" });
    operator.post("/admin/v1/claims/release", &release).await.expect(200);
    let late = caller.settle(&granted, "success").await.expect(200);
    assert_eq!(late.body["late"], true);
    one(("late outcome", &late.body["expires_at"]), &running, &contents).await;
}

/// Checks that all answers about a record name one end, the one that was named before. Returns it.
async fn one((way, named): (&str, &Value), gateways: &[Gateway], contents: &Value) -> Value {
    assert!(named.is_string(), "{way}: {named}");
    let mut ends = Vec::new();
    for gateway in gateways {
        ends.extend(ends_by(gateway, contents).await);
    }
    assert!(ends.iter().all(|(_, end)| end == named), "{way}: {named}, and then {ends:?}");
    named.clone()
}

/// The end in each kind of answer of a gateway.
async fn ends_by(gateway: &Gateway, contents: &Value) -> Vec<(&'static str, Value)> {
    let (caller, operator) = (gateway.client(), alice(gateway));
    let of = |answer: &Answer| answer.body["expires_at"].clone();
    let duplicate = caller.claim(contents.clone()).await.expect(409);
    let waited = caller.post("/v1/claims", &json!({ "contents": contents, "wait": "100ms" })).await.expect(409);
    let batch = json!({ "items": [{ "contents": contents }] });
    let batch = caller.post("/v1/claims/batch", &batch).await.expect(200);
    let lookup = caller.get(&duplicate.path("")).await.expect(200);
    let show = json!({ "app": "default", "contents": contents });
    let show = operator.post("/admin/v1/claims/show", &show).await.expect(200);
    let words = ["claim", "show", "--app", "default", "--operation", "default", &contents.to_string()];
    let printed = Terminal::at(gateway).run(&[&words[..], &["--output", "json"]].concat()).expect(0).out;
    let printed: Value = serde_json::from_str(&printed).unwrap();
    let mut ends = vec![
        ("duplicate", of(&duplicate)),
        ("duplicate of a call that waited", of(&waited)),
        ("item of a batch", batch.body["items"][0]["expires_at"].clone()),
        ("lookup", of(&lookup)),
        ("operator's lookup", of(&show)),
        ("command", printed["expires_at"].clone()),
    ];
    if lookup.body["state"] == "in_progress" {
        let again = json!({ "contents": contents, "attempt_nonce": NONCE });
        let again = caller.post("/v1/claims", &again).await.expect(201);
        ends.push(("repeat by nonce", again.body["lease_expires_at"].clone()));
    }
    let list = operator.get("/admin/v1/claims?app=default").await;
    if list.status == 501 {
        return ends;
    }
    let listed = list.body["claims"].as_array().expect("a list").iter();
    let listed: Vec<_> = listed.filter(|claim| claim["global_id"] == lookup.body["global_id"]).collect();
    assert_eq!(listed.len(), 1, "{}", list.text);
    ends.push(("operator's list", listed[0]["expires_at"].clone()));
    ends
}
