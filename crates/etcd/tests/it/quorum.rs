//! A member without a connection to the others grants nothing and reports nothing.

use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Topology as _};
use oncegate_etcd::Options;
use oncegate_testkit::etcd_cluster::EtcdCluster;

use super::{again, granted, is_duplicate, serves_again};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_nothing_is_granted_and_nothing_is_read() {
    let Some(cluster) = EtcdCluster::start().await else { return };
    let engine = oncegate_etcd::open(&cluster.url(), Options::default()).unwrap();
    serves_again(&engine).await;
    let request = fresh_claim();
    granted(&engine, &request).await;
    for member in [1, 2] {
        cluster.freeze(member);
    }
    // The member that is left has the claim, and a connection of the engine.
    for _ in 0..5 {
        assert!(engine.read(&request.key).await.is_err());
        assert!(engine.claim(&fresh_claim(), DEADLINE).await.is_err());
        assert!(engine.probe().await.is_err());
    }
    for member in [1, 2] {
        cluster.thaw(member);
    }
    serves_again(&engine).await;
    assert!(is_duplicate(&engine, &again(&request)).await);
}
