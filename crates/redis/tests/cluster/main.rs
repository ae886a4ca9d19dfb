//! The Redis engine on real clusters and behind real Sentinels: the nodes of keys, moved slots, and survival of data.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod acknowledged;
mod conformance;
mod failover;
mod faults;
mod load;
mod resharding;
mod restarted;
mod sentinel;
mod tls;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use oncegate_core::attempt::{Attempt, Issuer, SystemEntropy};
use oncegate_core::claim::{ClaimRequest, ClaimResponse, LateTerms, Outcome, OutcomeRequest, RenewalRequest};
use oncegate_core::clock::{Clock, SystemClock};
use oncegate_core::engine::conformance::fresh_claim;
use oncegate_core::engine::{BatchClaim, Claims as _, Determinate, Engine, EngineError, Topology as _};
use oncegate_core::record::Contents;
use oncegate_redis::{Options, Redis};

use oncegate_testkit::redis_cluster::RedisCluster;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::shared::Shared;

/// Deadline of the callers here: as long as the gateway's default.
const DEADLINE: Duration = Duration::from_secs(1);

/// A monotonic instant.
fn now() -> Duration {
    static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::new);
    CLOCK.monotonic()
}

fn since(started: Duration) -> Duration {
    now().saturating_sub(started)
}

fn open(url: &str) -> Redis {
    let options = Options { health_check_interval: Duration::from_millis(50), ..Options::default() };
    Redis::open(url, options).expect("a good URL")
}

fn attempt() -> Attempt {
    static ISSUER: LazyLock<Issuer> =
        LazyLock::new(|| Issuer::new(Arc::new(SystemClock::new()), Arc::new(SystemEntropy)));
    ISSUER.issue(None)
}

/// The same operation, tried by another attempt.
fn again(ask: &ClaimRequest) -> ClaimRequest {
    ClaimRequest { attempt: attempt(), ..ask.clone() }
}

fn settle(ask: &ClaimRequest, outcome: Outcome) -> OutcomeRequest {
    let late = LateTerms { operation: None, contents: Contents::Unverified, terms: ask.terms };
    OutcomeRequest { key: ask.key.clone(), attempt: ask.attempt.clone(), outcome, late: Some(late) }
}

fn renew(ask: &ClaimRequest, lease: Option<Duration>) -> RenewalRequest {
    RenewalRequest { key: ask.key.clone(), attempt: ask.attempt.clone(), lease }
}

fn success(result: &str) -> Outcome {
    Outcome::Success { result: Some(result.into()), retention: None }
}

async fn granted(engine: &impl Engine, ask: &ClaimRequest) {
    let answer = answered(engine, ask).await;
    assert!(matches!(answer, ClaimResponse::Granted(_)), "expected a grant, got {answer:?}");
}

async fn is_duplicate(engine: &impl Engine, ask: &ClaimRequest) -> bool {
    matches!(answered(engine, ask).await, ClaimResponse::Duplicate(_))
}

/// The first answer to a claim, repeated until there is one: on a busy machine, a call may come too late.
async fn answered(engine: &impl Engine, ask: &ClaimRequest) -> ClaimResponse {
    for _ in 0..1000 {
        if let Ok(answer) = engine.claim(ask, DEADLINE).await {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the store does not come back");
}

/// Returns the reason why a call certainly did not happen.
fn unavailable<T: std::fmt::Debug>(answer: Result<T, EngineError>) -> String {
    match answer {
        Err(EngineError::Determinate(Determinate::Unavailable(why))) => why,
        other => panic!("expected the store to be unavailable, got {other:?}"),
    }
}

/// Waits until something holds.
async fn soon(what: &str, holds: impl AsyncFnMut() -> bool) {
    oncegate_testkit::wait::until(what, Duration::from_secs(15), holds).await;
}

/// The name of a claim in the store.
fn name(ask: &ClaimRequest) -> String {
    format!("og:{{{}}}:{}", ask.key.global_id, ask.key.app)
}

/// Keys of each of three shards, so many that each has some.
fn many() -> Vec<ClaimRequest> {
    (0..60).map(|_| fresh_claim()).collect()
}

/// Three primaries for tests that leave them as they are.
async fn three_primaries() -> Option<Arc<RedisCluster>> {
    static PRIMARIES: Shared<RedisCluster> = Shared::new();
    PRIMARIES.get(RedisCluster::start(3, 0)).await
}

/// A claim whose key is on this node.
fn claim_on(cluster: &RedisCluster, node: usize) -> ClaimRequest {
    (0..1000).map(|_| fresh_claim()).find(|ask| cluster.primary_of(&name(ask)) == node).expect("a key of each shard")
}

#[tokio::test]
async fn keys_are_spread_over_the_primaries_and_found_again() {
    let Some(cluster) = three_primaries().await else { return };
    let (redis, other) = (open(&cluster.url()), open(&format!("redis+cluster://{}", cluster.nodes[1].address())));
    for ask in many() {
        granted(&redis, &ask).await;
        assert!(is_duplicate(&other, &again(&ask)).await, "one seed is enough");
        let node = &cluster.nodes[cluster.primary_of(&name(&ask))];
        assert_eq!(node.query_words::<i64>(&["EXISTS", &name(&ask)]), 1);
    }
    for node in &cluster.nodes {
        assert!(node.query::<i64>("DBSIZE") > 5, "each has its share, and a marker");
    }
}

#[tokio::test]
async fn a_batch_is_split_by_primary_and_each_item_answered_by_itself() {
    let Some(mut cluster) = RedisCluster::start(3, 0).await else { return };
    let redis = open(&cluster.url());
    let asks = many();
    soon("all are granted", async || {
        batch(&redis, &asks).await.iter().all(|answer| matches!(answer, Ok(ClaimResponse::Granted(_))))
    })
    .await;

    let dead = cluster.primary_of(&name(&asks[0]));
    let of_dead: Vec<_> = asks.iter().map(|ask| cluster.primary_of(&name(ask)) == dead).collect();
    cluster.nodes[dead].kill();
    let again: Vec<_> = asks.iter().map(again).collect();
    // Each connection notices it separately.
    soon("the dead shard refuses its own items only", async || {
        batch(&redis, &again).await.into_iter().zip(&of_dead).all(|(answer, of_dead)| match answer {
            Ok(ClaimResponse::Duplicate(_)) => !of_dead,
            Err(EngineError::Determinate(_)) => *of_dead,
            Err(EngineError::Indeterminate(_)) if *of_dead => false,
            other => panic!("{other:?}"),
        })
    })
    .await;
}

/// The answers to claims that are made together.
async fn batch(redis: &Redis, asks: &[ClaimRequest]) -> Vec<Result<ClaimResponse, EngineError>> {
    let answers: Vec<_> = asks.iter().map(|_| std::sync::Mutex::new(None)).collect();
    let sink = |at: usize, answer| assert!(answers[at].lock().unwrap().replace(answer).is_none(), "answered once");
    let claims: Vec<_> = asks.iter().map(|request| BatchClaim { request, deadline: DEADLINE }).collect();
    redis.claim_batch(&claims, &sink).await;
    answers.into_iter().map(|answer| answer.into_inner().unwrap().expect("an answer")).collect()
}

#[tokio::test]
async fn a_dead_shard_fails_its_own_keys_at_once_and_no_others() {
    let Some(mut cluster) = RedisCluster::start(3, 0).await else { return };
    let redis = open(&cluster.url());
    let (on_dead, on_other) = (claim_on(&cluster, 0), claim_on(&cluster, 1));
    granted(&redis, &on_dead).await;
    granted(&redis, &on_other).await;
    cluster.nodes[0].kill();
    soon("it is certain that nothing happens", async || {
        matches!(redis.claim(&again(&on_dead), DEADLINE).await, Err(EngineError::Determinate(_)))
    })
    .await;
    let calls = async {
        for _ in 0..50 {
            unavailable(redis.claim(&again(&on_dead), DEADLINE).await);
            assert!(is_duplicate(&redis, &again(&on_other)).await);
        }
    };
    // Sent again until the deadline, the calls would take a minute.
    tokio::time::timeout(Duration::from_secs(10), calls).await.expect("at once");
    redis.probe().await.expect("a dead shard does not make the engine unavailable");
}

#[tokio::test]
async fn metadata_and_markers_have_a_hash_tag_and_lost_data_is_noticed_per_primary() {
    let Some(mut cluster) = RedisCluster::start(3, 0).await else { return };
    let redis = open(&cluster.url());
    let note = oncegate_core::engine::Metadata::new("a").unwrap();
    let engine: &dyn Engine = &redis;
    assert!(engine.compare_and_set_metadata("chain.main", None, &note).await.unwrap());
    assert_eq!(engine.get_metadata("chain.main").await.unwrap(), Some(note));
    let at = cluster.primary_of("og:metadata:{chain.main}");
    assert_eq!(cluster.nodes[at].query::<i64>("EXISTS og:metadata:{chain.main}"), 1);
    let has_marker = |node: &RedisServer| node.query::<Vec<String>>("KEYS og:{*}:marker").len() == 1;
    soon("every primary has a marker", async || cluster.nodes.iter().all(has_marker)).await;
    assert_eq!(redis.data_lost(), 0);

    // It keeps its slots, and nothing else.
    tokio::time::sleep(Duration::from_millis(100)).await;
    cluster.nodes[1].kill();
    cluster.nodes[1].restart().await;
    soon("the loss is noticed", async || redis.data_lost() == 1).await;
}

#[tokio::test]
async fn a_wrong_seed_says_what_to_write() {
    let Some(alone) = RedisServer::start().await else { return };
    let redis = open(&format!("redis+cluster://{}", alone.address()));
    let why = redis.claim(&fresh_claim(), DEADLINE).await.unwrap_err().to_string();
    assert!(why.contains("write redis://"), "{why}");

    let Some(unjoined) = RedisServer::start_with(&["cluster-enabled yes", "cluster-port 0"]).await else { return };
    let redis = open(&format!("redis+cluster://{}", unjoined.address()));
    let why = redis.claim(&fresh_claim(), DEADLINE).await.unwrap_err().to_string();
    assert!(why.contains("joined no cluster with slots"), "{why}");
    let single = open(&unjoined.url());
    let why = single.claim(&fresh_claim(), DEADLINE).await.unwrap_err().to_string();
    assert!(why.contains("redis+cluster://"), "{why}");
}

#[tokio::test]
async fn a_node_behind_the_url_of_one_server_takes_no_call_for_any_key() {
    let Some(cluster) = three_primaries().await else { return };
    let at_node = open(&cluster.nodes[0].url());
    // Also for keys that are on this node.
    for claim in many().into_iter().chain([claim_on(&cluster, 0)]) {
        let why = at_node.claim(&claim, DEADLINE).await.unwrap_err();
        assert!(matches!(&why, EngineError::Determinate(Determinate::Incompatible(_))), "{why:?}");
        assert!(why.to_string().contains("write redis+cluster://"), "{why}");
    }
    let why = at_node.probe().await.unwrap_err().to_string();
    assert!(why.contains("write redis+cluster://"), "{why}");
}

#[tokio::test]
async fn uncovered_slots_are_refused_and_the_others_served() {
    let Some(cluster) = RedisCluster::start(3, 0).await else { return };
    let (on_uncovered, on_other) = (claim_on(&cluster, 0), claim_on(&cluster, 1));
    for node in &cluster.nodes {
        node.query::<()>("CLUSTER DELSLOTSRANGE 0 5460");
    }
    let redis = open(&cluster.url());
    granted(&redis, &on_other).await;
    let why = unavailable(redis.claim(&on_uncovered, DEADLINE).await);
    assert!(why.contains("answers for slot") || why.contains("CLUSTERDOWN"), "{why}");
}
