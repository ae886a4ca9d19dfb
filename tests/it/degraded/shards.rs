//! A cluster of three primaries, one or two of them stopped: their keys follow the outage policies, and the others continue.

use std::time::Duration;

use futures_util::future::join_all;
use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::redis_cluster::RedisCluster;
use oncegate_testkit::wait::{answered_within, until};
use serde_json::{Value, json};

use super::{TIMEOUT, delivered, policy, setup};
use crate::support::caller::caller;
use crate::support::exposition::Page;

/// Longest time of a call to a shard that answers, on a busy machine.
const AT_ONCE: Duration = Duration::from_millis(700);

/// An earlier granted claim, and the node that keeps it.
struct Held {
    contents: Value,
    granted: Answer,
    node: usize,
}

/// Grants claims, as many on each of three nodes.
async fn held(cluster: &RedisCluster, client: &Client, app: &str, of_each: usize) -> Vec<Held> {
    let mut held: Vec<Held> = Vec::new();
    while held.len() < 3 * of_each {
        let contents = fresh::contents();
        let granted = client.granted(&json!({ "contents": contents, "lease": "10m" })).await;
        let node = node_of(cluster, &granted, app);
        if held.iter().filter(|other| other.node == node).count() < of_each {
            held.push(Held { contents, granted, node });
        }
    }
    held
}

fn node_of(cluster: &RedisCluster, answer: &Answer, app: &str) -> usize {
    cluster.primary_of(&format!("og:{{{}}}:{app}", answer.body["global_id"].as_str().expect("an ID")))
}

/// The addresses of the primaries whose breaker is not closed.
async fn open_breakers(gateway: &Gateway) -> Vec<String> {
    let readyz = gateway.admin_client().get("/readyz?verbose").await.expect(200);
    let nodes = readyz.body["engines"]["primary"]["nodes"].as_array().cloned().unwrap_or_default();
    let open = nodes.iter().filter(|node| node["breaker"].as_str().is_some_and(|breaker| breaker != "closed"));
    open.map(|node| node["address"].as_str().expect("an address").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_primary_takes_down_its_keys_only() {
    let Some(cluster) = RedisCluster::start_with(3, 0, &["appendonly yes", "appendfsync always"]).await else { return };
    let gateway = setup(cluster.url()).start().await;
    let (closed, spooling, local) =
        (caller(&gateway, "closed"), caller(&gateway, "spooling"), caller(&gateway, "local"));
    let claims = held(&cluster, &closed, "closed", 3).await;
    let outcomes = held(&cluster, &spooling, "spooling", 12).await;
    let address = |node: usize| cluster.nodes[node].address().to_string();

    cluster.nodes[0].freeze();
    let dead = claims.iter().find(|held| held.node == 0).expect("one of each node");
    until("the breaker of its shard is open, and no other", TIMEOUT, async || {
        drop(closed.claim(dead.contents.clone()).await);
        open_breakers(&gateway).await == [address(0)]
    })
    .await;
    for held in &claims {
        let again = answered_within(AT_ONCE, closed.claim(held.contents.clone())).await;
        let expected = if held.node == 0 { (503, "store_unavailable") } else { (409, "duplicate") };
        assert_eq!(again.code(), expected, "node {}: {}", held.node, again.text);
    }
    for held in outcomes.iter().filter(|held| held.node == 2) {
        spooling.settle(&held.granted, "success").await.expect(200);
    }
    let mut by_policy = 0;
    while by_policy < 3 {
        let answer = local.claim(fresh::contents()).await.expect(201);
        let is_of_dead = node_of(&cluster, &answer, "local") == 0;
        assert_eq!(policy(&answer), is_of_dead.then_some("local"), "{}", answer.text);
        by_policy += usize::from(is_of_dead);
    }

    // Two of them: outcomes of both wait. The entries of the shard that is back first do not wait for the other.
    cluster.nodes[1].freeze();
    let reported = outcomes.iter().filter(|held| held.node != 2).map(|held| spooling.settle(&held.granted, "success"));
    for answer in join_all(reported).await {
        answer.expect(202);
    }
    let admin = gateway.admin_client();
    let waiting = Page::get(&admin).await.sum("oncegate_spool_entries", &[]);
    assert_eq!(waiting, 24 + 3);
    cluster.nodes[1].thaw();
    until("outcomes of the shard that is back are delivered", TIMEOUT, async || {
        Page::get(&admin).await.sum("oncegate_spool_entries", &[]) < waiting
    })
    .await;
    assert!(open_breakers(&gateway).await.contains(&address(0)), "the other one is still stopped");

    cluster.nodes[0].thaw();
    delivered(&gateway).await;
    until("all breakers are closed", TIMEOUT, async || {
        drop(closed.claim(dead.contents.clone()).await);
        open_breakers(&gateway).await.is_empty()
    })
    .await;
    for held in &claims {
        assert_eq!(closed.claim(held.contents.clone()).await.body["state"], "in_progress");
    }
    for held in &outcomes {
        assert_eq!(spooling.claim(held.contents.clone()).await.body["state"], "succeeded", "node {}", held.node);
    }
}
