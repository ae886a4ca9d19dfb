//! Calls while the disk of PostgreSQL is full. Needs the right to mount a file system, so it is run by hand:
//! `cargo test --test it -- --ignored engine_postgres::full`.

use oncegate_testkit::client::Answer;
use oncegate_testkit::postgres_server::PostgresServer;
use serde_json::{Value, json};

use crate::support::gateway;

/// Small enough to be full after some thousand claims.
const DISK_MIB: u32 = 8;

#[tokio::test]
#[ignore = "mounts a file system, which few machines let a test do"]
async fn a_full_disk_takes_no_new_claims_and_goes_on_with_all_else() {
    let Some(server) = PostgresServer::start_beside_small_disk(DISK_MIB).await else { return };
    // Policies are for stores that do not answer; this one does.
    let policies = "[defaults.on_outage]\nclaim = \"fail_open\"\noutcome = \"spool\"\n";
    let gateway = gateway::on(server.url()).config(policies).start().await;
    let client = gateway.client();
    let claimed = async |contents: Value| client.claim(contents).await;
    let held: [Answer; 4] =
        [claimed(json!(0)).await, claimed(json!(1)).await, claimed(json!(2)).await, claimed(json!(3)).await];
    let place = server.small_disk_path();
    server.execute(&format!("CREATE TABLESPACE small LOCATION '{}'", place.display())).await;
    for what in ["TABLE oncegate_claims", "INDEX oncegate_claims_pkey", "INDEX oncegate_claims_sweep"] {
        server.execute(&format!("ALTER {what} SET TABLESPACE small")).await;
    }
    let padding = "x".repeat(900);
    let mut last_granted = Value::Null;
    let refused = 'filling: loop {
        assert!(last_granted["n"].as_u64().is_none_or(|n| n < 50_000), "it does not fill");
        let first = last_granted["n"].as_u64().map_or(0, |n| n + 1);
        let contents: Vec<_> = (first..first + 100).map(|n| json!({ "n": n, "padding": padding })).collect();
        let items: Vec<_> = contents.iter().map(|contents| json!({ "contents": contents })).collect();
        let answers = client.post("/v1/claims/batch", &json!({ "items": items })).await.expect(200);
        for (contents, answer) in contents.iter().zip(answers.body["items"].as_array().unwrap()) {
            if answer["status"] != 201 {
                break 'filling answer.clone();
            }
            assert_eq!(answer["degraded"], Value::Null);
            last_granted = contents.clone();
        }
    };
    assert_eq!((&refused["status"], &refused["code"]), (&json!(503), &json!("store_full")), "{refused}");
    println!("full after {} claims", last_granted["n"]);

    // The rolled back rows leave room for a few more.
    let mut more = 0;
    let refused = loop {
        let answer = claimed(json!({ "more": more, "padding": padding })).await;
        if answer.status != 201 {
            break answer;
        }
        more += 1;
        assert!(more < 50_000, "it does not fill");
    };
    assert_eq!(refused.code(), (503, "store_full"));
    assert_eq!(claimed(last_granted).await.code(), (409, "duplicate"));
    let [done, failed, unknown, renewed] = &held;
    assert_eq!(client.settle(done, "success").await.expect(200).body["state"], "succeeded");
    assert_eq!(client.settle(unknown, "unknown").await.expect(200).body["state"], "unknown");
    client.renew(renewed, Some("1m")).await.expect(200);
    client.settle(failed, "failure").await.expect(200);
    client.get(&done.path("")).await.expect(200);
    let ready = gateway.admin_client().get("/readyz?verbose").await.expect(200).body;
    assert_eq!((&ready["engines"]["primary"]["up"], &ready["spool"]["entries"]), (&json!(true), &json!(0)), "{ready}");
}
