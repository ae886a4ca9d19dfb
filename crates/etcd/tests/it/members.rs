//! What operators see of the members, and the history that gateways compact.

use oncegate_core::engine::conformance::fresh_claim;
use oncegate_core::engine::{Node, NodeRole};
use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::wait;

use super::engines::{SEEN, count, shown};
use super::{again, granted, is_duplicate, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_member_is_shown_with_its_role_its_version_and_whether_it_answers() {
    let Some(mut cluster) = EtcdCluster::start().await else { return };
    // The others are learnt, and a member that the URL and the list name in different ways is shown once.
    let engine = open(&format!("etcd://{}", cluster.addresses()[0].replace("127.0.0.1", "localhost")));
    let nodes = shown("three members", &engine, |nodes| nodes.len() == 3 && nodes.iter().all(|node| node.up)).await;
    assert_eq!((count(&nodes, NodeRole::Leader), count(&nodes, NodeRole::Follower)), (1, 2), "{nodes:?}");
    for node in &nodes {
        assert!(node.version.as_deref().is_some_and(|version| version.starts_with("3.")), "{node:?}");
        assert!(node.warnings.is_empty() && node.breaker.is_none() && node.shard == 0, "{node:?}");
    }
    let leader = cluster.leader().expect("a leader");
    let (killed, frozen) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.kill(killed);
    let addresses = cluster.addresses();
    let port = |member: usize| addresses[member].rsplit_once(':').expect("a port").1;
    let is_silent = |nodes: &[Node], member: usize| {
        let node = nodes.iter().find(|node| node.address.ends_with(port(member)));
        node.is_some_and(|node| !node.up && node.role == NodeRole::Unknown && node.version.is_none())
    };
    shown("a killed member", &engine, |nodes| is_silent(nodes, killed)).await;
    cluster.restart(killed);
    shown("it is back", &engine, |nodes| nodes.len() == 3 && nodes.iter().all(|node| node.up)).await;
    cluster.freeze(frozen);
    shown("a frozen member", &engine, |nodes| is_silent(nodes, frozen)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_member_a_learner_and_a_proxy_have_a_warning() {
    let Some(mut cluster) = EtcdCluster::start_one().await else { return };
    let warning = |nodes: &[Node], address: &str, part: &str| {
        let node = nodes.iter().find(|node| node.address == address);
        node.is_some_and(|node| node.warnings.iter().any(|warning| warning.contains(part)))
    };
    let (member, engine) = (cluster.addresses().remove(0), open(&cluster.url()));
    shown("a single member", &engine, |nodes| warning(nodes, &member, "the only member")).await;
    let proxy = cluster.add_proxy().await;
    let engine = open(&format!("etcd://{proxy}"));
    granted(&engine, &fresh_claim()).await;
    shown("a proxy", &engine, |nodes| warning(nodes, &proxy, "grpc-proxy")).await;
    let learner = cluster.add_learner().await;
    for url in [format!("etcd://{member},{learner}"), cluster.url()] {
        let engine = open(&url);
        let nodes = shown("a learner", &engine, |nodes| warning(nodes, &learner, "a learner")).await;
        assert_eq!(count(&nodes, NodeRole::Learner), 1, "{nodes:?}");
        granted(&engine, &fresh_claim()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_that_is_older_than_the_url_says_is_compacted_once_for_all_gateways() {
    let Some(cluster) = EtcdCluster::start_one().await else { return };
    let url = cluster.url() + "?compact=10s";
    let (first, second) = (open(&url), open(&url));
    let request = fresh_claim();
    granted(&first, &request).await;
    let is_kept = || cluster.try_ctl(&["get", "/oncegate/clock", "--rev=2"]).is_some();
    assert!(is_kept(), "it is not old");
    wait::until("the history is compacted", SEEN, async || !is_kept()).await;
    assert!(is_duplicate(&second, &again(&request)).await, "what is live stays");
    granted(&second, &fresh_claim()).await;
    // The newest history stays.
    let recent = format!("--rev={}", cluster.revision() - 20);
    assert!(cluster.try_ctl(&["get", "/oncegate/clock", &recent]).is_some(), "{recent}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_members_are_replaced_one_by_one_under_a_gateway_that_knew_the_first_ones() {
    let Some(mut cluster) = EtcdCluster::start().await else { return };
    let engine = open(&cluster.url());
    let mut claims = Vec::new();
    for member in 0..cluster.size() {
        let request = fresh_claim();
        granted(&engine, &request).await;
        claims.push(request);
        cluster.replace(member).await;
        assert!(cluster.is_ready().await);
        let new = cluster.addresses();
        shown("all present members", &engine, |nodes| {
            new.iter().all(|address| nodes.iter().any(|node| node.up && node.address == *address))
        })
        .await;
        for request in &claims {
            assert!(is_duplicate(&engine, &again(request)).await, "after member {member}");
        }
        granted(&engine, &fresh_claim()).await;
    }
}
