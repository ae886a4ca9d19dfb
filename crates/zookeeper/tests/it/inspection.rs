//! `oncegate config check --connect`: the answer for each kind of mistake.

use oncegate_core::engine::conformance::fresh_claim;
use oncegate_driver::scheme::Inspection;
use oncegate_testkit::certificates::Authority;
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;
use oncegate_testkit::zookeeper_nodes::Nodes;

use super::auth::with_user;
use super::engines::inspected::{assert_problem, assert_usable, inspect_until};
use super::{granted, nodes, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_named_server_is_reported_and_no_node_is_written() {
    let Some(mut cluster) = ZooKeeperCluster::start().await else { return };
    let children = nodes(&cluster).children("/");
    let found = assert_usable(&(cluster.url() + "?heap=1GiB")).await;
    assert!(found.warnings.is_empty(), "{found:?}");
    assert_eq!(nodes(&cluster).children("/"), children, "no node is written");
    for address in cluster.addresses() {
        let fact = found.facts.iter().find(|fact| fact.starts_with(&address)).expect("a line for each");
        for part in ["ZooKeeper 3.9.4", "the quorum answers", "of 256 MiB of data"] {
            assert!(fact.contains(part), "{part}: {fact}");
        }
    }
    let modes = |mode: &str| found.facts.iter().filter(|fact| fact.contains(mode)).count();
    assert_eq!((modes(": leader, "), modes(": follower, ")), (1, 2), "{found:?}");
    // Nodes of a gateway are checked too, and not changed.
    granted(&open(&cluster.url()), &fresh_claim()).await;
    assert_usable(&cluster.url()).await;
    let metadata = nodes(&cluster).children("/oncegate/m");
    assert!(metadata.is_empty(), "{metadata:?}");
    cluster.kill(1);
    let gone = cluster.addresses().swap_remove(1);
    assert_problem(&cluster.url(), &format!("{gone} does not answer")).await;
    cluster.freeze(2);
    let left = format!("zookeeper://{}", cluster.addresses()[0]);
    assert_problem(&left, "quorum").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chroot_that_is_not_there_or_closed_and_nodes_of_another_user_are_named() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    assert_problem(&format!("{}/shop", cluster.url()), "make it (zkCli.sh: create /shop)").await;
    nodes(&cluster).create("/shop", b"", false);
    let found = assert_usable(&format!("{}/shop?prefix=a/b", cluster.url())).await;
    assert!(found.warnings[0].contains("the only server"), "{found:?}");
    assert_eq!(nodes(&cluster).children("/shop"), [""; 0]);
    // A user without the right to create nodes below it.
    Nodes::connect(&cluster.addresses()[0], Some("admin:hunter2")).create("/closed", b"", true);
    assert_problem(&format!("{}/closed", cluster.url()), "no rights to /closed").await;
    let own = with_user(&cluster, "gateway:hunter2");
    granted(&open(&own), &fresh_claim()).await;
    assert_usable(&own).await;
    for stranger in [cluster.url(), with_user(&cluster, "gateway:hunter3")] {
        assert_problem(&stranger, "no rights to /oncegate").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_two_ensembles_and_tls_on_one_side_only_are_named() {
    let Some(one) = ZooKeeperCluster::start_one().await else { return };
    let Some(other) = ZooKeeperCluster::start_one().await else { return };
    let both = format!("{},{}", one.url(), other.addresses()[0]);
    let what = "name the servers of one ensemble";
    let is_of_both = |found: &Inspection| found.problems.iter().filter(|problem| problem.contains(what)).count() == 2;
    assert_eq!(inspect_until(&both, what, is_of_both).await.problems.len(), 2);
    for cluster in [&one, &other] {
        granted(&open(&cluster.url()), &fresh_claim()).await;
    }
    let what = "have different data";
    inspect_until(&both, what, |found| found.problems.iter().any(|problem| problem.contains(what))).await;
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    let Some(tls) = super::tls::cluster(folder.path(), &authority).await else { return };
    let keys = super::tls::keys(folder.path(), "ca.pem");
    assert_usable(&(tls.url() + &keys)).await;
    assert_problem(&tls.url().replace("zookeepers://", "zookeeper://"), "write zookeepers://").await;
    let secure = one.url().replace("zookeeper://", "zookeepers://");
    assert_problem(&(secure + &keys), "write zookeeper:// in place of zookeepers://").await;
}
