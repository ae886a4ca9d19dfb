//! The gateways that share a chain, as each of them lists them.

use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::commands::Terminal;
use super::{alice, operated};

const SOON: Duration = Duration::from_mins(1);

async fn gateways(gateway: &Gateway) -> Vec<Value> {
    let chains = alice(gateway).get("/admin/v1/gateways").await.expect(200).body["chains"].clone();
    chains[0]["gateways"].as_array().unwrap().clone()
}

#[tokio::test]
async fn gateways_of_one_store_know_each_other() {
    let Some(server) = RedisServer::start().await else { return };
    let same = "[console]\norigin = \"https://og-a.ops.example\"\n";
    let [one, other, different] = [
        operated(&server.url()).config(same).start().await,
        operated(&server.url()).start().await,
        operated(&server.url()).config("[defaults]\nlease = \"31s\"\n").start().await,
    ];
    for gateway in [&one, &other, &different] {
        until("all three are listed", SOON, async || gateways(gateway).await.len() == 3).await;
        let shown = gateways(gateway).await;
        assert_eq!(shown.iter().filter(|shown| shown["here"] == true).count(), 1, "{shown:?}");
        assert_eq!((&shown[0]["here"], &shown[0]["stage"]), (&json!(true), &json!("ready")));
        let with_origin = shown.iter().filter(|shown| shown["origin"] == "https://og-a.ops.example");
        assert_eq!(with_origin.count(), 1, "{shown:?}");
        assert!(shown.iter().all(|shown| shown["version"] == env!("CARGO_PKG_VERSION")), "{shown:?}");
    }
    let settings = async |gateway: &Gateway| gateways(gateway).await[0]["settings"].clone();
    assert_eq!(settings(&one).await, settings(&other).await, "the console's table is each gateway's own");
    assert_ne!(settings(&one).await, settings(&different).await);
    let printed = Terminal::at(&one).run(&["gateways"]).expect(0).out;
    assert!(printed.starts_with("Chain default, as of ") && printed.contains("(asked)"), "{printed}");
}

#[tokio::test]
async fn a_gateway_whose_store_is_its_own_is_alone_and_says_why() {
    let gateway = operated("memory:").start().await;
    let shown = alice(&gateway).get("/admin/v1/gateways").await.expect(200).body;
    assert_eq!(shown["chains"][0]["gateways"].as_array().map(Vec::len), Some(1), "{shown}");
    assert!(shown["chains"][0]["detail"].as_str().unwrap().contains("belongs to one gateway"), "{shown}");
    assert_eq!(shown["chains"][0]["read_at"], Value::Null);
}

#[tokio::test]
async fn a_store_that_is_out_leaves_what_was_read_last() {
    let Some(server) = RedisServer::start().await else { return };
    let [one, other] = [operated(&server.url()).start().await, operated(&server.url()).start().await];
    until("both are listed", SOON, async || gateways(&one).await.len() == 2).await;
    drop(server);
    let chain = async || alice(&one).get("/admin/v1/gateways").await.expect(200).body["chains"][0].clone();
    until("the failure is shown", SOON, async || chain().await["detail"].is_string()).await;
    let shown = chain().await;
    assert!(shown["read_at"].is_string() && shown["gateways"].as_array().unwrap().len() == 2, "{shown}");
    drop(other);
}
