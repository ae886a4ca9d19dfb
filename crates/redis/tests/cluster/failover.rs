//! Primaries that die, are replaced by plan, or come back; and replicas that die.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::engine::Engine;

use oncegate_testkit::output::print;

use super::load::{Load, lost};
use super::{DEADLINE, RedisCluster, again, claim_on, granted, is_duplicate, now, open, since, soon};

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_failover_loses_nothing_and_is_not_seen() {
    let Some(cluster) = RedisCluster::start(3, 1).await else { return };
    let redis = Arc::new(open(&cluster.url()));
    let load = Load::start(&redis, 16);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let replica = cluster.replicas_of(0)[0];
    cluster.nodes[replica].query::<()>("CLUSTER FAILOVER");
    soon("the replica took over", async || !cluster.replicas_of(replica).is_empty()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let ledger = load.stop().await;
    assert_eq!((ledger.doubled, lost(&*redis, &ledger).await), (0, 0), "of {}", ledger.granted.len());
    assert_eq!((ledger.refused, ledger.unknown), (0, 0), "slowest {:?}", ledger.slowest);
    assert_eq!(redis.data_lost(), 0);
}

/// Kills the primary of the first shard under load, and brings it back as a replica.
async fn kill_under_load(query: &str, replicas: usize) -> (usize, usize, usize) {
    let config = ["appendonly yes", "appendfsync everysec"];
    let Some(mut cluster) = RedisCluster::start_with(3, replicas, &config).await else { return (0, 0, 1) };
    let redis = Arc::new(open(&format!("{}?{query}", cluster.url())));
    let (on_dead, on_other) = (claim_on(&cluster, 0), claim_on(&cluster, 1));
    granted(&*redis, &on_dead).await;
    granted(&*redis, &on_other).await;
    let load = Load::start(&redis, 16);
    tokio::time::sleep(Duration::from_millis(300)).await;
    cluster.nodes[0].kill();
    let mut slowest_other = Duration::ZERO;
    let started = now();
    while since(started) < Duration::from_millis(500) {
        let asked = now();
        assert!(is_duplicate(&*redis, &again(&on_other)).await, "the other shards are untouched");
        slowest_other = slowest_other.max(since(asked));
    }
    let key = super::name(&on_dead);
    cluster.taken_over(&key, 0).await;
    let asked = query.strip_prefix("replicas=").map_or(0, |asked| asked.parse().expect("a number"));
    if asked >= replicas {
        // Too few are left to acknowledge until it is back.
        cluster.nodes[0].restart().await;
        cluster.settled().await;
    }
    let ready = now();
    let is_back = async || is_duplicate_or_gone(&*redis, &on_dead).await;
    soon("the shard is back", is_back).await;
    let back = since(ready);
    print(format_args!("{query}: back {back:?} after it could be; slowest of others {slowest_other:?}"));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let ledger = load.stop().await;
    let lost = lost(&*redis, &ledger).await;
    let (granted, doubled) = (ledger.granted.len(), ledger.doubled);
    let (refused, unknown) = (ledger.refused, ledger.unknown);
    print(format_args!(
        "{query}: granted {granted}, lost {lost}, doubled {doubled}, refused {refused}, unknown {unknown}"
    ));
    (lost, ledger.doubled, ledger.granted.len())
}

async fn is_duplicate_or_gone(redis: &dyn Engine, ask: &oncegate_core::claim::ClaimRequest) -> bool {
    redis.claim(&again(ask), DEADLINE).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_loses_nothing_that_all_its_replicas_acknowledged() {
    let (lost, doubled, granted) = kill_under_load("replicas=1", 1).await;
    assert_eq!((lost, doubled), (0, 0), "of {granted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_of_three_loses_nothing_that_both_replicas_acknowledged() {
    let (lost, doubled, granted) = kill_under_load("replicas=2", 2).await;
    assert_eq!((lost, doubled), (0, 0), "of {granted}");
}

/// Nobody promises that the replica with the newest data is promoted.
#[tokio::test(flavor = "multi_thread")]
async fn what_one_of_two_replicas_loses_is_counted() {
    let (lost, doubled, granted) = kill_under_load("replicas=1", 2).await;
    assert!(lost + doubled <= granted / 2, "lost {lost}, doubled {doubled} of {granted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_asynchronous_failover_loses_is_counted() {
    let (lost, doubled, granted) = kill_under_load("connections=2", 1).await;
    assert!(lost + doubled <= granted / 2, "lost {lost}, doubled {doubled} of {granted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_replica_a_shard_answers_outcome_unknown_and_grants_stay() {
    let Some(mut cluster) = RedisCluster::start(3, 1).await else { return };
    let redis = open(&format!("{}?replicas=1", cluster.url()));
    let (held, on_other, new) = (claim_on(&cluster, 0), claim_on(&cluster, 1), claim_on(&cluster, 0));
    granted(&redis, &held).await;
    let replica = cluster.replicas_of(0)[0];
    cluster.nodes[replica].kill();
    soon("its answers are not known", async || {
        redis.claim(&again(&held), DEADLINE).await.is_err_and(|failure| failure.is_shortfall())
    })
    .await;
    let failure = redis.claim(&new, DEADLINE).await.unwrap_err();
    assert!(failure.is_shortfall() && !failure.is_unavailable(), "{failure}");
    assert!(failure.to_string().contains("of the 1 that replicas= asks for"), "{failure}");
    assert!(redis.read(&held.key).await.unwrap_err().is_shortfall(), "a lookup, too");
    granted(&redis, &on_other).await;
    redis.probe().await.expect("the server answers");

    cluster.nodes[replica].restart().await;
    cluster.settled().await;
    soon("service is back", async || redis.claim(&new, DEADLINE).await.is_ok()).await;
    assert!(is_duplicate(&redis, &again(&new)).await, "the claim had stayed, and is the same one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_comes_back_as_a_replica_gets_no_writes() {
    let Some(mut cluster) = RedisCluster::start(3, 1).await else { return };
    let redis = open(&cluster.url());
    let held = claim_on(&cluster, 0);
    granted(&redis, &held).await;
    cluster.nodes[0].kill();
    cluster.taken_over(&super::name(&held), 0).await;
    soon("the shard is back", async || redis.claim(&again(&held), DEADLINE).await.is_ok()).await;
    cluster.nodes[0].restart().await;
    cluster.settled().await;
    cluster.nodes[0].query::<()>("CONFIG RESETSTAT");
    for _ in 0..50 {
        granted(&redis, &claim_on(&cluster, cluster.primary_of(&super::name(&held)))).await;
    }
    let stats: String = cluster.nodes[0].query("INFO commandstats");
    assert!(!stats.contains("rejected_calls=1") && !stats.contains("cmdstat_echo"), "{stats}");
}
