//! A store of shards: a dead shard affects its own keys only.

use oncegate_core::engine::faulty::Fault;
use oncegate_core::engine::sharded::Sharded;
use oncegate_core::engine::{Claims as _, Topology as _};

use super::*;

/// A guard over three shards, whose faults a test sets.
fn sharded() -> (CallGuard, Vec<Arc<Faulty>>) {
    let (store, shards) = three_shards();
    (guarded(store), shards)
}

fn three_shards() -> (Arc<Sharded>, Vec<Arc<Faulty>>) {
    let shards: Vec<_> = (0..3).map(|_| Arc::new(Faulty::always(memory().1, Fault::None))).collect();
    let store = Sharded::new(shards.iter().map(|shard| shard.clone() as Arc<dyn Engine>).collect());
    (Arc::new(store), shards)
}

/// A claim of a shard.
fn claim_of(engine: &CallGuard, shard: u16) -> ClaimRequest {
    std::iter::repeat_with(request).find(|request| engine.shard_of(&request.key) == shard).unwrap()
}

async fn claim(engine: &CallGuard, shard: u16) -> Result<ClaimResponse, EngineError> {
    engine.claim(&claim_of(engine, shard), DEADLINE).await
}

fn states(engine: &CallGuard) -> [BreakerState; 3] {
    [0, 1, 2].map(|shard| engine.0.breaker(shard).state())
}

/// Opens the breaker of a shard.
async fn open_breaker_of(engine: &CallGuard, shard: u16) {
    while engine.0.breaker(shard).state() != BreakerState::Open {
        join_all((0..10).map(|_| claim(engine, shard))).await;
        sleep(100 * MS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_breaker_of_a_dead_shard_opens_and_the_others_stay_closed() {
    let (engine, shards) = sharded();
    for fault in [Fault::Refused, Fault::Silent] {
        shards[1].set(fault);
        open_breaker_of(&engine, 1).await;
        assert_eq!(states(&engine), [BreakerState::Closed, BreakerState::Open, BreakerState::Closed]);
        assert_eq!(engine.breaker().0, BreakerState::Open, "the worst is shown");
        let breakers: Vec<_> = engine.nodes().iter().map(|node| node.breaker.unwrap()).collect();
        assert_eq!(breakers, states(&engine));
        let (refused, took) = timed(claim(&engine, 1)).await;
        assert!(refused.unwrap_err().to_string().contains("shard 1 of the store") && took.is_zero());
        for other in [0, 2] {
            let (answer, took) = timed(claim(&engine, other)).await;
            assert!(answer.is_ok() && took < 5 * MS, "{answer:?} after {took:?}");
        }
        assert_eq!(engine.probe().await, Ok(()), "a dead shard does not make the engine unavailable");

        shards[1].set(Fault::None);
        sleep(Duration::from_secs(1)).await;
        assert!(claim(&engine, 1).await.is_ok());
        sleep(Duration::from_secs(2)).await;
        assert_eq!(states(&engine), [BreakerState::Closed; 3]);
    }
}

#[tokio::test(start_paused = true)]
async fn items_of_a_batch_are_refused_by_the_breaker_of_their_shard_only() {
    let (engine, shards) = sharded();
    shards[2].set(Fault::Refused);
    open_breaker_of(&engine, 2).await;
    let claims: Vec<_> = (0..30).map(|at| (claim_of(&engine, at % 3), DEADLINE)).collect();
    for (at, (answer, took)) in claim_batch(&engine, &claims).await.into_iter().enumerate() {
        assert_eq!(answer.is_ok(), at % 3 != 2, "{at}: {answer:?}");
        assert!(took < 5 * MS, "{at}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_shard_uses_up_no_retries_of_the_others() {
    let (engine, shards) = sharded();
    shards[1].set(Fault::Refused);
    join_all((0..100).map(|_| claim(&engine, 1))).await;
    shards[0].set(Fault::RequestLost);
    let recover = async {
        sleep(MS).await;
        shards[0].set(Fault::None);
    };
    let request = claim_of(&engine, 0);
    let answers = async { tokio::join!(engine.claim(&request, DEADLINE), recover).0 };
    // The pause before the retry is random, and may be shorter than the fault.
    let answers = [answers.await, claim(&engine, 0).await];
    assert!(answers.iter().any(Result::is_ok), "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_shards_are_all_dead_is_down() {
    let up = || metric("oncegate_engine_up{engine=\"all-dead\"}");
    up();
    let (store, shards) = three_shards();
    let engine = CallGuard::new(store, "all-dead", DEADLINE, PausedClock::start(), Arc::new(SystemEntropy));
    for (shard, is_last) in shards.iter().zip([false, false, true]) {
        assert_eq!(up(), Some(1.0));
        shard.set(Fault::Refused);
        assert_eq!(engine.probe().await.is_err(), is_last);
    }
    assert_eq!(up(), Some(0.0));
    shards[2].set(Fault::None);
    assert_eq!((engine.probe().await, up()), (Ok(()), Some(1.0)));
}

/// An engine whose answers are late because they wait for replicas.
#[tokio::test(start_paused = true)]
async fn a_late_answer_of_an_engine_that_waits_for_replicas_is_neither_hedged_nor_held_against_it() {
    let store = Store::new();
    store.waits_for_replicas.store(true, Ordering::SeqCst);
    let engine = guarded(store.clone());
    store.set_time(850 * MS);
    let answers = load(&engine, 50, 2, MS).await;
    assert_eq!((answered(&answers), store.claims()), (100, 100));
    assert_eq!(engine.0.breaker(0).state(), BreakerState::Closed);
    // What never answers is out all the same.
    store.set_silent();
    assert_eq!(answered(&load(&engine, 50, 2, MS).await), 0);
    assert!(is_open(&engine));
}

#[tokio::test(start_paused = true)]
async fn a_lack_of_replicas_is_not_retried_and_opens_no_breaker() {
    let store = Store::new();
    let engine = guarded(store.clone());
    store.set_failure(EngineError::shortfall("too few"));
    let answers = load(&engine, 50, 4, MS).await;
    assert!(answers.iter().all(|answer| answer.as_ref().is_err_and(EngineError::is_shortfall)));
    assert_eq!((store.claims(), engine.0.breaker(0).state()), (200, BreakerState::Closed));
}
