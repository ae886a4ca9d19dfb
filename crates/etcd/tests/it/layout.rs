//! Stored form of the engine in etcd, as operators and other releases see it.

use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Determinate, Engine, EngineError, Metadata};
use oncegate_testkit::etcd_cluster::EtcdCluster;

use super::{again, granted, is_duplicate, key, open, settle, success};

/// Returns a field of the key as `etcdctl` shows it.
fn field(cluster: &EtcdCluster, key: &str, name: &str) -> Option<u64> {
    let shown = cluster.ctl(&["get", key, "--write-out=fields"]);
    shown.lines().find_map(|line| line.strip_prefix(&format!("\"{name}\" : "))?.parse().ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_name_what_they_hold_and_a_fence_is_the_revision_of_its_grant() {
    let Some(cluster) = EtcdCluster::start_one().await else { return };
    let engine = open(&cluster.url());
    let request = fresh_claim();
    let fence = granted(&engine, &request).await.fence;
    assert_eq!(fence, field(&cluster, &key(&request), "ModRevision"));
    engine.settle(&settle(&request, success("1")), DEADLINE).await.unwrap();
    assert!(field(&cluster, &key(&request), "ModRevision") > fence, "it was written again");
    assert_eq!(engine.read(&request.key).await.unwrap().unwrap().fence, fence, "and has the fence of its attempt");
    let engine: &dyn Engine = &engine;
    engine.compare_and_set_metadata("chain.a", None, &Metadata::new("{}").unwrap()).await.unwrap();
    let keys = cluster.ctl(&["get", "--prefix", "/oncegate/", "--keys-only"]);
    for expected in [&key(&request), "/oncegate/m/chain.a", "/oncegate/clock", "/oncegate/marker"] {
        assert!(keys.lines().any(|line| line == expected), "{expected} of {keys}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_cannot_be_read_is_refused_and_left_as_it_is() {
    let Some(cluster) = EtcdCluster::start_one().await else { return };
    let engine = open(&cluster.url());
    let request = fresh_claim();
    cluster.ctl(&["put", &key(&request), "of a later release"]);
    let claimed = engine.claim(&request, DEADLINE).await;
    assert!(matches!(claimed, Err(EngineError::Determinate(Determinate::Incompatible(_)))), "{claimed:?}");
    let settled = engine.settle(&settle(&request, success("1")), DEADLINE).await;
    assert!(matches!(settled, Err(EngineError::Determinate(Determinate::Incompatible(_)))), "{settled:?}");
    assert!(engine.read(&request.key).await.is_err());
    assert!(cluster.ctl(&["get", &key(&request)]).contains("of a later release"));
    granted(&engine, &fresh_claim()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_with_different_prefixes_share_a_cluster_and_no_claims() {
    let Some(cluster) = EtcdCluster::start_one().await else { return };
    let (one, other) = (open(&cluster.url()), open(&format!("{}/other", cluster.url())));
    let request = fresh_claim();
    granted(&one, &request).await;
    granted(&other, &again(&request)).await;
    assert!(is_duplicate(&open(&format!("{}?prefix=oncegate", cluster.url())), &again(&request)).await);
}
