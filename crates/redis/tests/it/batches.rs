//! Batches keep every rule that a single claim keeps: they go another way through the engine.

use std::sync::Mutex;
use std::time::Duration;

use oncegate_core::claim::{ClaimRequest, ClaimResponse, Outcome};
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{BatchClaim, Claims as _, Determinate, EngineError, Topology as _};
use oncegate_redis::{Options, Redis};
use oncegate_testkit::tcp_proxy::Mode;
use tokio::time::timeout;

use super::{RedisServer, again, behind_proxy_with, granted, impatient, is_uncertain, open, settle, soon, success};

type ClaimResult = Result<ClaimResponse, EngineError>;

/// The answers to claims of one batch, in their order.
async fn claim_batch(redis: &Redis, requests: &[ClaimRequest]) -> Vec<ClaimResult> {
    let answers = Mutex::new(Vec::new());
    let sink = |place, answer| answers.lock().unwrap().push((place, answer));
    let claims: Vec<_> = requests.iter().map(|request| BatchClaim { request, deadline: DEADLINE }).collect();
    redis.claim_batch(&claims, &sink).await;
    let mut answers: Vec<(usize, ClaimResult)> = answers.into_inner().unwrap();
    answers.sort_by_key(|(place, _)| *place);
    assert!(answers.iter().map(|(place, _)| *place).eq(0..requests.len()), "each is answered once");
    answers.into_iter().map(|(_, answer)| answer).collect()
}

fn fresh_claims() -> [ClaimRequest; 5] {
    std::array::from_fn(|_| fresh_claim())
}

fn are_all(answers: &[ClaimResult], expected: impl Fn(&Determinate) -> bool) -> bool {
    answers.iter().all(|answer| matches!(answer, Err(EngineError::Determinate(why)) if expected(why)))
}

/// An evicted claim is a double execution.
#[tokio::test]
async fn a_batch_is_not_granted_on_a_server_that_may_evict() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    server.query::<String>("CONFIG SET maxmemory 1gb");
    server.query::<String>("CONFIG SET maxmemory-policy allkeys-lru");
    let is_refused = |why: &Determinate| matches!(why, Determinate::Incompatible(why) if why.contains("noeviction"));
    soon("batches are refused", async || are_all(&claim_batch(&redis, &fresh_claims()).await, is_refused)).await;
    let newcomer = open(&server.url());
    let requests = fresh_claims();
    assert!(are_all(&claim_batch(&newcomer, &requests).await, is_refused), "from its first call on");
    for request in &requests {
        assert_eq!(newcomer.read(&request.key).await, Ok(None));
    }
    let allowing = open(&format!("{}?allow_eviction=true", server.url()));
    assert!(claim_batch(&allowing, &requests).await.iter().all(Result::is_ok));
    server.query::<String>("CONFIG SET maxmemory-policy noeviction");
    soon("batches are granted", async || claim_batch(&redis, &fresh_claims()).await.iter().all(Result::is_ok)).await;
}

#[tokio::test]
async fn a_batch_on_a_full_server_is_granted_nothing_new_and_finds_what_is_there() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let (held, unknown) = (fresh_claim(), fresh_claim());
    granted(&redis, &held).await;
    granted(&redis, &unknown).await;
    redis.settle(&settle(&unknown, Outcome::Unknown), DEADLINE).await.unwrap();
    server.query::<String>("CONFIG SET maxmemory 1");
    let take_over = ClaimRequest { take_over: true, ..again(&unknown) };
    let answers = claim_batch(&redis, &[fresh_claim(), again(&held), held.clone(), take_over, fresh_claim()]).await;
    let [new, other, same, taken, also_new] = &answers[..] else { panic!("{answers:?}") };
    for new in [new, also_new] {
        assert!(matches!(new, Err(EngineError::Determinate(Determinate::Full(_)))), "{new:?}");
    }
    assert!(matches!(other, Ok(ClaimResponse::Duplicate(_))), "{other:?}");
    assert!(matches!(same, Ok(ClaimResponse::Granted(grant)) if grant.lease_left.is_some()), "{same:?}");
    assert!(matches!(taken, Ok(ClaimResponse::Granted(grant)) if grant.taken_over), "{taken:?}");
}

#[tokio::test]
async fn a_batch_on_a_demoted_server_certainly_did_nothing() {
    let Some(server) = RedisServer::start().await else { return };
    // No health check in between: the refused batch itself must report it.
    let redis = Redis::open(&server.url(), Options::default()).unwrap();
    granted(&redis, &fresh_claim()).await;
    server.query::<String>("REPLICAOF 127.0.0.1 1");
    let answers = claim_batch(&redis, &fresh_claims()).await;
    let is_read_only = |why: &Determinate| matches!(why, Determinate::Unavailable(why) if why.contains("READONLY"));
    assert!(are_all(&answers, is_read_only), "{answers:?}");
}

#[tokio::test]
async fn a_batch_that_is_not_answered_is_uncertain_and_its_attempts_recognise_themselves() {
    let Some(server) = RedisServer::start().await else { return };
    let (mut proxy, redis) = behind_proxy_with(&server, impatient()).await;
    let requests = fresh_claims();
    proxy.set(Mode::HalfOpen);
    let limit = impatient().response_timeout * 10;
    let answers = timeout(limit, claim_batch(&redis, &requests)).await.expect("within the response timeout");
    assert!(answers.iter().all(is_uncertain), "{answers:?}");
    proxy.heal().await;
    soon("all are found", async || claim_batch(&redis, &requests).await.iter().all(Result::is_ok)).await;
    for answer in claim_batch(&redis, &requests).await {
        assert!(matches!(&answer, Ok(ClaimResponse::Granted(grant)) if grant.lease_left.is_some()), "{answer:?}");
    }
    let others = claim_batch(&redis, &requests.each_ref().map(again)).await;
    assert!(others.iter().all(|answer| matches!(answer, Ok(ClaimResponse::Duplicate(_)))), "{others:?}");
}

#[tokio::test]
async fn a_batch_on_a_closed_engine_certainly_did_nothing() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    granted(&redis, &fresh_claim()).await;
    timeout(Duration::from_secs(15), redis.close()).await.expect("it closes");
    let answers = claim_batch(&redis, &fresh_claims()).await;
    let is_closed = |why: &Determinate| matches!(why, Determinate::Unavailable(why) if why.contains("closed"));
    assert!(are_all(&answers, is_closed), "{answers:?}");
}

/// An unreadable value is not changed, and does not affect other items.
#[tokio::test]
async fn an_item_of_a_batch_that_cannot_be_read_is_refused_by_itself() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let requests = fresh_claims();
    let name = super::name(&requests[2]);
    server.query_words::<String>(&["SET", &name, "hello"]);
    for (place, answer) in claim_batch(&redis, &requests).await.into_iter().enumerate() {
        let is_damaged = matches!(answer, Err(EngineError::Determinate(Determinate::Incompatible(_))));
        assert_eq!((answer.is_ok(), is_damaged), (place != 2, place == 2), "{place}: {answer:?}");
    }
    assert_eq!(server.query::<String>(&format!("GET {name}")), "hello");
    redis.settle(&settle(&requests[1], success("1")), DEADLINE).await.unwrap();
}
