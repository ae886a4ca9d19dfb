//! Stored form of the engine in ZooKeeper, as operators and other releases see it.

use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Determinate, Engine, EngineError, Metadata};
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;

use super::{again, granted, is_duplicate, key, nodes, open, settle, success};

/// Returns the folder of a node.
fn keys_folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Returns the transaction that wrote a node.
fn written_by(cluster: &ZooKeeperCluster, path: &str) -> Option<u64> {
    nodes(cluster).get(path).and_then(|(_, zxid)| u64::try_from(zxid).ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_name_what_they_hold_and_a_fence_is_the_transaction_of_its_grant() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    let engine = open(&cluster.url());
    let request = fresh_claim();
    let fence = granted(&engine, &request).await.fence;
    assert_eq!(fence, written_by(&cluster, &key(&request)));
    engine.settle(&settle(&request, success("1")), DEADLINE).await.unwrap();
    assert!(written_by(&cluster, &key(&request)) > fence, "it was written again");
    assert_eq!(engine.read(&request.key).await.unwrap().unwrap().fence, fence, "and has the fence of its attempt");
    let engine: &dyn Engine = &engine;
    engine.compare_and_set_metadata("chain.a", None, &Metadata::new("{}").unwrap()).await.unwrap();
    for expected in [&key(&request), "/oncegate/m/chain.a", "/oncegate/clock", "/oncegate/clock5", "/oncegate/marker"] {
        assert!(nodes(&cluster).get(expected).is_some(), "{expected}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_cannot_be_read_is_refused_and_left_as_it_is() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    let engine = open(&cluster.url());
    let request = fresh_claim();
    let (mut nodes, path) = (nodes(&cluster), key(&request));
    granted(&engine, &fresh_claim()).await;
    if nodes.get(keys_folder(&path)).is_none() {
        nodes.create(keys_folder(&path), b"", false);
    }
    nodes.create(&path, b"of a later release", false);
    let claimed = engine.claim(&request, DEADLINE).await;
    assert!(matches!(claimed, Err(EngineError::Determinate(Determinate::Incompatible(_)))), "{claimed:?}");
    let settled = engine.settle(&settle(&request, success("1")), DEADLINE).await;
    assert!(matches!(settled, Err(EngineError::Determinate(Determinate::Incompatible(_)))), "{settled:?}");
    assert!(engine.read(&request.key).await.is_err());
    assert_eq!(nodes.get(&path).map(|(value, _)| value), Some(b"of a later release".to_vec()));
    granted(&engine, &fresh_claim()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_with_different_prefixes_share_a_cluster_and_no_claims() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    let (one, other) = (open(&cluster.url()), open(&format!("{}?prefix=other/gate", cluster.url())));
    let request = fresh_claim();
    granted(&one, &request).await;
    granted(&other, &again(&request)).await;
    assert!(is_duplicate(&open(&format!("{}?prefix=oncegate", cluster.url())), &again(&request)).await);
    assert!(is_duplicate(&open(&format!("{}/other?prefix=gate", cluster.url())), &again(&request)).await);
}
