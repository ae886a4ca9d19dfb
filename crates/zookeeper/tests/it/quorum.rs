//! A member without a connection to the others grants nothing and reports nothing.

use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Topology as _};
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;
use oncegate_zookeeper::Options;

use super::{again, granted, is_duplicate, serves_again};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_nothing_is_granted_and_nothing_is_read() {
    let Some(cluster) = ZooKeeperCluster::start().await else { return };
    // Only the leader is left: it has the claim, and acts as the leader until it misses the others.
    let leader = cluster.leader().unwrap();
    let url = format!("zookeeper://{}?members=fixed&tick=150ms", cluster.addresses()[leader]);
    let engine = oncegate_zookeeper::open(&url, Options::default()).unwrap();
    serves_again(&engine).await;
    let request = fresh_claim();
    granted(&engine, &request).await;
    let followers: Vec<_> = (0..cluster.size()).filter(|member| *member != leader).collect();
    for member in &followers {
        cluster.freeze(*member);
    }
    for _ in 0..5 {
        assert!(engine.read(&request.key).await.is_err());
        assert!(engine.claim(&fresh_claim(), DEADLINE).await.is_err());
        assert!(engine.probe().await.is_err());
    }
    for member in followers {
        cluster.thaw(member);
    }
    serves_again(&engine).await;
    assert!(is_duplicate(&engine, &again(&request)).await);
}

/// Only replies are lost, or nothing comes through at all, and the member sees its clients as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_behind_a_broken_cable_is_left_and_each_call_has_one_effect() {
    let Some(cluster) = ZooKeeperCluster::start().await else { return };
    let addresses = cluster.addresses();
    let proxy = TcpProxy::start(addresses[0].parse().unwrap()).await;
    let url = format!("zookeeper://{},{},{}?members=fixed", proxy.address(), addresses[1], addresses[2]);
    let engine = oncegate_zookeeper::open(&url, Options::default()).unwrap();
    serves_again(&engine).await;
    for mode in [Mode::HalfOpen, Mode::Blackhole] {
        proxy.set(mode);
        for _ in 0..3 {
            let request = fresh_claim();
            // A lost call is repeated with the same attempt.
            super::soon("a grant", async || engine.claim(&request, DEADLINE).await.is_ok()).await;
            assert!(is_duplicate(&engine, &again(&request)).await);
        }
        proxy.set(Mode::Pass);
        serves_again(&engine).await;
    }
}
