//! Chains and witnesses whose engines are one server under two names. The addresses differ, so only the servers show it.

use serde_json::json;

use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::gateway::Gateway;
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::tcp_proxy::TcpProxy;
use oncegate_testkit::wait::until;
#[cfg(feature = "zookeeper")]
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;

use super::{SOON, chain_of, granted, watching};
use crate::support::chain::{chain, switch};
use crate::support::command::oncegate_with;
use crate::support::gateway;

/// Message of the log about such a chain.
const LOGGED: &str = "Two names in a chain are one server";

async fn says(gateway: &Gateway, part: &str) {
    until(part, SOON, async || chain(gateway).await["failover"]["next_switch"].as_str().unwrap().contains(part)).await;
    gateway.logged(LOGGED, 1).await;
}

/// Asserts that the witness counts as out, so that the chain cannot be switched.
async fn is_no_witness(gateway: &Gateway, engine: &str) {
    says(gateway, "the witness is out: ").await;
    says(gateway, &format!("witness `w` is on the same server as engine `{engine}`")).await;
    granted(gateway).await;
    let refused = switch(gateway, "b").await;
    assert_eq!(refused.code(), (503, "store_unavailable"), "{}", refused.text);
    assert_eq!(chain(gateway).await["epoch"], 0);
}

/// Checks such a configuration with the command. Returns its exit code and its output.
async fn checked(a: &str, b: &str, w: &str) -> (Option<i32>, String) {
    let config = chain_of("[chains.default]\n", a, b, w);
    let run = tokio::task::spawn_blocking(move || {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("gateway.toml"), config).unwrap();
        oncegate_with(folder.path(), &["config", "check", "--connect", "--config", "gateway.toml"], &[])
    });
    let ended = run.await.unwrap();
    (ended.code, ended.out + &ended.err)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_witness_on_the_etcd_of_an_engine_counts_as_out() {
    let (Some(a), Some(etcd)) = (RedisServer::start().await, EtcdCluster::start_one().await) else { return };
    let way = TcpProxy::start_any(etcd.addresses()[0].parse().unwrap()).await;
    let witness = format!("etcd://{}/other?members=fixed", way.address());
    let (code, said) = checked(&a.url(), &etcd.url(), &witness).await;
    assert!(
        code == Some(0)
            && said.contains("engine w: its servers have the same name as those of engine b (etcd cluster "),
        "{said}"
    );
    let gateway = watching(&a.url(), &etcd.url(), &witness).start().await;
    is_no_witness(&gateway, "b").await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_witness_on_the_postgresql_of_an_engine_counts_as_out() {
    let (Some(server), Some(b)) = (PostgresServer::start().await, RedisServer::start().await) else { return };
    let witness = server.database("witness").await.replace("127.0.0.1", "localhost");
    let gateway = watching(&server.database("chain").await, &b.url(), &witness).start().await;
    is_no_witness(&gateway, "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_engines_on_one_redis_are_not_switched() {
    let (Some(redis), Some(witness)) = (RedisServer::start().await, EtcdCluster::start_one().await) else { return };
    let way = TcpProxy::start(redis.address()).await;
    let other = format!("redis://{}/1", way.address());
    let (code, said) = checked(&redis.url(), &other, &witness.url()).await;
    assert!(code == Some(2) && said.contains("engines.b: it is the same server as engine a (redis "), "{said}");
    let gateway = watching(&redis.url(), &other, &witness.url()).start().await;
    says(&gateway, "engine `b` is on the same server as engine `a`, and both are out together").await;
    granted(&gateway).await;
    let refused = switch(&gateway, "b").await;
    assert_eq!(refused.code(), (503, "store_incompatible"), "{}", refused.text);
    assert!(refused.text.contains("engine `b` is on the same server"), "{}", refused.text);
    assert_eq!(chain(&gateway).await["epoch"], 0);
}

/// Without a witness, such a chain can be used. The log says what it is.
#[cfg(feature = "zookeeper")]
#[tokio::test(flavor = "multi_thread")]
async fn two_names_of_one_zookeeper_are_reported_in_a_chain_without_a_witness() {
    let Some(zookeeper) = ZooKeeperCluster::start_one().await else { return };
    let other = zookeeper.patient_url().replace("127.0.0.1", "localhost");
    let config = |b: &str| {
        format!(
            "{}[engines]\na = {:?}\nb = {b:?}\n[chains.default]\nengines = [\"a\", \"b\"]\n",
            crate::admin::operators(),
            zookeeper.patient_url()
        )
    };
    let gateway = gateway::on_configured().config(&config(&other)).start().await;
    granted(&gateway).await;
    gateway.logged(LOGGED, 1).await;
    assert_eq!(chain(&gateway).await["failover"], json!(null));
}
