//! Engines that are one cluster under two names.

use oncegate_core::engine::conformance::fresh_claim;
use oncegate_core::engine::{Common, Engine, Topology as _};

use super::{Cluster, granted, open};

/// Returns what the stores of two engines have in common.
async fn common(one: &impl Engine, other: &impl Engine) -> Common {
    let (one, other) = (one.identity().expect("it is connected"), other.identity().expect("it is connected"));
    one.common_with(&other).await.expect("it answers")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_cluster_is_known_under_another_name_and_with_another_prefix() {
    let (Some(cluster), Some(elsewhere)) = (Cluster::start_one().await, Cluster::start_one().await) else { return };
    let store = open(&cluster.url());
    assert!(store.identity().is_none(), "it has not answered yet");
    let renamed = open(&cluster.url().replace("127.0.0.1", "localhost"));
    let beside = open(&format!("{}?prefix=/beside", cluster.url()));
    let elsewhere = open(&elsewhere.url());
    for engine in [&store, &renamed, &beside, &elsewhere] {
        granted(engine, &fresh_claim()).await;
    }
    assert_eq!(common(&store, &renamed).await, Common::Data);
    assert_eq!((common(&store, &beside).await, common(&beside, &store).await), (Common::Servers, Common::Servers));
    assert_eq!(
        (common(&store, &elsewhere).await, common(&elsewhere, &beside).await),
        (Common::Nothing, Common::Nothing)
    );
}
