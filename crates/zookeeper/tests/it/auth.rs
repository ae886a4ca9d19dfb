//! Users and rights, and the errors for a URL that does not fit the servers.

use oncegate_core::engine::conformance::fresh_claim;
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;
use oncegate_testkit::zookeeper_nodes::Nodes;

use super::engines::refusal;
use super::{again, granted, is_duplicate, nodes, open, soon};

pub(super) fn with_user(cluster: &ZooKeeperCluster, user: &str) -> String {
    cluster.url().replace("zookeeper://", &format!("zookeeper://{user}@"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_belong_to_the_user_that_created_them_alone() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    let (url, request) = (with_user(&cluster, "gateway:hunter2"), fresh_claim());
    granted(&open(&url), &request).await;
    assert!(is_duplicate(&open(&url), &again(&request)).await);
    for stranger in [cluster.url(), with_user(&cluster, "gateway:hunter3"), with_user(&cluster, "other:hunter2")] {
        let why = refusal(&open(&stranger)).await;
        assert!(why.contains("no rights to /oncegate"), "{why}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chroot_must_exist_and_may_belong_to_another_user() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    let url = format!("{}/shop", cluster.url());
    let engine = open(&url);
    let why = refusal(&engine).await;
    assert!(why.contains("create the chroot /shop"), "{why}");
    nodes(&cluster).create("/shop", b"", false);
    super::serves_again(&engine).await;
    // A user without the right to create nodes below it.
    Nodes::connect(&cluster.addresses()[0], Some("admin:hunter2")).create("/closed", b"", true);
    let why = refusal(&open(&format!("{}/closed", cluster.url()))).await;
    assert!(why.contains("no rights to /closed"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_outlives_what_is_remembered_is_refused() {
    let Some(cluster) = ZooKeeperCluster::start_with(1, &["minSessionTimeout=30000", "maxSessionTimeout=60000"]).await
    else {
        return;
    };
    let why = refusal(&open(&cluster.url())).await;
    assert!(why.contains("minSessionTimeout"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ensemble_without_a_quorum_is_unavailable_and_says_so() {
    let Some(mut cluster) = ZooKeeperCluster::start().await else { return };
    for member in [1, 2] {
        cluster.kill(member);
    }
    let engine = open(&cluster.url());
    soon("it says that there is no quorum", async || refusal(&engine).await.contains("quorum")).await;
    for member in [1, 2] {
        cluster.restart(member);
    }
    assert!(cluster.is_ready().await);
    super::serves_again(&engine).await;
}
