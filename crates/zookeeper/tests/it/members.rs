//! What operators see of the servers.

use oncegate_core::engine::{Node, NodeRole};
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;

use super::engines::{count, shown};
use super::{nodes, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_server_is_shown_with_its_role_its_version_and_whether_it_answers() {
    let Some(mut cluster) = ZooKeeperCluster::start().await else { return };
    let engine = open(&cluster.url());
    let nodes = shown("three servers", &engine, |nodes| nodes.len() == 3 && nodes.iter().all(|node| node.up)).await;
    assert_eq!((count(&nodes, NodeRole::Leader), count(&nodes, NodeRole::Follower)), (1, 2), "{nodes:?}");
    for node in &nodes {
        assert_eq!((node.version.as_deref(), node.warnings.len(), node.shard), (Some("3.9.4"), 0, 0), "{node:?}");
    }
    let leader = cluster.leader().expect("a leader");
    let (killed, frozen) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.kill(killed);
    let addresses = cluster.addresses();
    let is_silent = |nodes: &[Node], member: usize| {
        let node = nodes.iter().find(|node| node.address == addresses[member]);
        node.is_some_and(|node| !node.up && node.role == NodeRole::Unknown && node.version.is_none())
    };
    shown("a killed server", &engine, |nodes| is_silent(nodes, killed)).await;
    cluster.restart(killed);
    shown("it is back", &engine, |nodes| nodes.iter().all(|node| node.up)).await;
    cluster.freeze(frozen);
    shown("a frozen server", &engine, |nodes| is_silent(nodes, frozen)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_server_has_a_warning() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    let engine = open(&cluster.url());
    let nodes = shown("the server", &engine, |nodes| nodes.iter().any(|node| node.up)).await;
    assert!(nodes.len() == 1 && nodes[0].warnings[0].contains("the only server"), "{nodes:?}");
}

/// As by a change of the ensemble with `reconfig`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_join_later_are_learnt_in_a_session_that_goes_on() {
    let Some(cluster) = ZooKeeperCluster::start_with(1, &["skipACL=yes"]).await else { return };
    let Some(other) = ZooKeeperCluster::start_one().await else { return };
    let engine = open(&cluster.url());
    shown("the server", &engine, |nodes| nodes.len() == 1 && nodes[0].up).await;
    let joined = other.addresses().remove(0);
    let configuration = format!("server.2=127.0.0.1:2888:3888:participant;{joined}\nversion=100000000");
    nodes(&cluster).set("/zookeeper/config", configuration.as_bytes());
    shown("the other server", &engine, |nodes| nodes.iter().any(|node| node.up && node.address == joined)).await;
}
