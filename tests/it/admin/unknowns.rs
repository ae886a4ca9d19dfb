//! Unknown claims of all apps, on every engine, also after all gateways were killed.

use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::commands::Terminal;
use super::{alice, operated};
use crate::support::caller::{self, caller};
use crate::support::table::rows;

const SOON: Duration = Duration::from_secs(30);

async fn unknowns(gateway: &Gateway, query: &str) -> Value {
    alice(gateway).get(&format!("/admin/v1/unknowns{query}")).await.expect(200).body
}

/// App and global ID of each, in order.
async fn listed(gateway: &Gateway, query: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let found = unknowns(gateway, query).await["unknowns"].clone();
    found.as_array().unwrap().iter().map(|claim| (text(&claim["app"]), text(&claim["global_id"]))).collect()
}

#[tokio::test]
async fn unknown_claims_are_listed_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    unknown_claims_are_listed(&format!("disk:{}", folder.path().join("claims").display())).await;
}

#[tokio::test]
async fn unknown_claims_are_listed_on_redis() {
    let Some(server) = RedisServer::start().await else { return };
    unknown_claims_are_listed(&server.url()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn unknown_claims_are_listed_on_postgres() {
    let Some(server) = oncegate_testkit::postgres_server::PostgresServer::start().await else { return };
    unknown_claims_are_listed(&server.url()).await;
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn unknown_claims_are_listed_on_etcd() {
    let Some(cluster) = oncegate_testkit::etcd_cluster::EtcdCluster::start_one().await else { return };
    unknown_claims_are_listed(&cluster.patient_url()).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn unknown_claims_are_listed_on_zookeeper() {
    let Some(cluster) = oncegate_testkit::zookeeper_cluster::ZooKeeperCluster::start_one().await else { return };
    unknown_claims_are_listed(&cluster.patient_url()).await;
}

async fn unknown_claims_are_listed(engine: &str) {
    let turns = "[apps.bank.operations.\"transfer\"]\non_lease_end = \"unknown\"\n";
    let setup = operated(engine).config(&format!("{}{}{turns}", caller::app("shop"), caller::app("bank")));
    let mut gateway = setup.start().await;
    let (shop, bank) = (caller(&gateway, "shop"), caller(&gateway, "bank"));
    let reported = shop.claim(json!({ "order": "secret-order" })).await.expect(201);
    shop.report(&reported, json!({ "outcome": "unknown" })).await.expect(200);
    let transfer =
        |contents: &str, lease: &str| json!({ "operation": "transfer", "contents": contents, "lease": lease });
    let done = bank.post("/v1/claims", &transfer("done", "10m")).await.expect(201);
    bank.report(&done, json!({ "outcome": "success" })).await.expect(200);
    bank.post("/v1/claims", &transfer("running", "10m")).await.expect(201);
    let crashed = bank.post("/v1/claims", &transfer("crashed", "4s")).await.expect(201);
    // Its entry is as safe as the claim.
    gateway.kill();
    let gateway = setup.start().await;

    let id = |claim: &oncegate_testkit::client::Answer| claim.body["global_id"].as_str().unwrap().to_owned();
    let (of_shop, of_bank) = (("shop".to_owned(), id(&reported)), ("bank".to_owned(), id(&crashed)));
    until("both are listed, the oldest first", SOON, async || {
        listed(&gateway, "").await == [of_shop.clone(), of_bank.clone()]
    })
    .await;
    assert_eq!(listed(&gateway, "?app=bank").await, [of_bank]);
    let some = unknowns(&gateway, "?limit=1").await;
    assert_eq!(
        (&some["more"], &some["failed"], some["unknowns"].as_array().unwrap().len()),
        (&json!(true), &json!([]), 1)
    );
    let shown = &some["unknowns"][0];
    assert_eq!((&shown["realm"], &shown["state"]), (&json!("api"), &json!("unknown")));
    assert_eq!(shown["contents"], json!({ "order": "secret-order" }));
    assert!(shown["since"].as_str() > shown["claimed_at"].as_str().map(|at| &at[..19]), "{shown}");
    let printed = Terminal::at(&gateway).run(&["unknowns"]).expect(0).out;
    let row = &rows(&printed)[0];
    assert_eq!((&*row["APP"], &*row["GLOBAL ID"]), ("shop", &*of_shop.1), "{printed}");

    let settle = json!({ "app": "shop", "global_id": of_shop.1, "outcome": "success", "reason": "INC-42" });
    alice(&gateway).post("/admin/v1/claims/settle", &settle).await.expect(200);
    assert_eq!(listed(&gateway, "?app=shop").await, []);
    for (wrong, status) in [("?app=other", 404), ("?limit=0", 400), ("?limit=1001", 400), ("?state=unknown", 400)] {
        assert_eq!(alice(&gateway).get(&format!("/admin/v1/unknowns{wrong}")).await.status, status, "{wrong}");
    }
}

#[tokio::test]
async fn apps_whose_store_does_not_answer_are_named() {
    let Some(mut server) = RedisServer::start().await else { return };
    let chains = "[engines]\nlocal = \"memory:\"\n[chains.here]\nengines = [\"local\"]\n[apps.here]\ndisabled = true\nchain = \"here\"\n";
    let setup = operated(&server.url()).config(&format!("{}{chains}", caller::app("shop")));
    let gateway = setup.env("ONCEGATE_DEFAULTS__DEADLINE", "1s").start().await;
    server.kill();
    let failed = async || {
        let answer = unknowns(&gateway, "").await;
        answer["failed"][0]["app"] == "shop" && answer["failed"].as_array().unwrap().len() == 1
    };
    until("the app is named", SOON, failed).await;
    let refused = alice(&gateway).get("/admin/v1/unknowns?app=shop").await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    alice(&gateway).get("/admin/v1/unknowns?app=here").await.expect(200);
}
