//! A member without a connection to the others grants nothing and reports nothing.

use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Topology as _};
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
