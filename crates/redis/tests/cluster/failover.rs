//! Primaries that are replaced by plan or come back, and replicas that die. Costs of faults under load are in `faults`.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::engine::{Claims as _, Topology as _};
use oncegate_redis::{Options, Redis};
use oncegate_testkit::redis_cluster::slot_of;
use oncegate_testkit::redis_server::RedisServer;

use super::load::{Load, NOTHING, lost};
use super::{DEADLINE, RedisCluster, again, claim_on, granted, is_duplicate, open, soon};

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_failover_loses_nothing_and_is_not_seen() {
    let Some(cluster) = RedisCluster::start(3, 1).await else { return };
    // Each call has time enough on a busy machine: one without a clear answer is a fault.
    let patience = Duration::from_secs(20);
    let options = Options { response_timeout: patience, ..Options::default() };
    let redis = Arc::new(Redis::open(&cluster.url(), options).expect("a good URL"));
    let load = Load::start_with(&redis, 16, patience);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let replica = cluster.replicas_of(0)[0];
    cluster.nodes[replica].query::<()>("CLUSTER FAILOVER");
    soon("the replica took over", async || !cluster.replicas_of(replica).is_empty()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let ledger = load.stop().await;
    assert_eq!((ledger.doubled, lost(&*redis, &ledger).await), (0, NOTHING), "of {}", ledger.granted.len());
    assert_eq!(ledger.failed(), 0, "slowest {:?}", ledger.slowest());
    assert_eq!(redis.data_lost(), 0);
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
        redis.claim(&held, DEADLINE).await.is_err_and(|failure| failure.is_shortfall())
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

/// Each connection and each batch begins or ends with an ECHO, so a server without any got nothing of the engine's.
fn has_batches(node: &RedisServer) -> bool {
    node.query::<String>("INFO commandstats").contains("cmdstat_echo")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_comes_back_as_a_replica_gets_no_batches() {
    let Some(mut cluster) = RedisCluster::start(3, 1).await else { return };
    let redis = open(&cluster.url());
    let held = claim_on(&cluster, 0);
    granted(&redis, &held).await;
    cluster.nodes[0].kill();
    cluster.taken_over(slot_of(&super::name(&held)), 0).await;
    // Only a refresh shows it: the former primary redirects no more.
    soon("the shard is back", async || redis.claim(&again(&held), DEADLINE).await.is_ok()).await;
    cluster.nodes[0].restart().await;
    cluster.settled().await;
    for _ in 0..50 {
        granted(&redis, &claim_on(&cluster, cluster.primary_of(&super::name(&held)))).await;
    }
    assert!(!has_batches(&cluster.nodes[0]), "{}", cluster.nodes[0].query::<String>("INFO commandstats"));
}

/// It still acts as the primary until it reaches the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_former_primary_is_not_believed_even_if_it_alone_answers() {
    let Some(mut cluster) = RedisCluster::start_apart(3, 1, &[]).await else { return };
    let redis = open(&cluster.url());
    let held = claim_on(&cluster, 0);
    granted(&redis, &held).await;
    cluster.kill(0);
    cluster.taken_over(slot_of(&super::name(&held)), 0).await;
    soon("the shard is back", async || redis.claim(&again(&held), DEADLINE).await.is_ok()).await;
    for node in &cluster.nodes[1..] {
        node.query::<()>("CONFIG SET cluster-node-timeout 30000");
    }
    cluster.cut_off(0);
    cluster.nodes[0].restart().await;
    let asked = || {
        let stats: String = cluster.nodes[0].query("INFO commandstats");
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_cluster|slots:calls="));
        calls.and_then(|calls| calls.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    cluster.nodes[1..].iter().for_each(RedisServer::freeze);
    let before = asked();
    soon("it was asked, and its view judged", async || {
        // A call that is not answered asks for a refresh.
        let _ = redis.claim(&again(&held), DEADLINE).await;
        asked() >= before + 2
    })
    .await;
    cluster.nodes[1..].iter().for_each(RedisServer::thaw);
    soon("the others answer again", async || redis.claim(&again(&held), DEADLINE).await.is_ok()).await;
    for _ in 0..20 {
        let _ = redis.claim(&again(&held), DEADLINE).await;
    }
    assert!(!has_batches(&cluster.nodes[0]), "{}", cluster.nodes[0].query::<String>("INFO commandstats"));
}
