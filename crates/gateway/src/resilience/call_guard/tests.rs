//! The call guard over a store that is slow, does not answer, fails and recovers, on a paused clock; and the
//! conformance suite.

mod batch;
mod breaker;
mod lost_replies;
mod retries;
mod shards;
mod store;

use std::sync::Mutex;
use std::sync::atomic::AtomicU32;

use async_trait::async_trait;
use futures_util::future::join_all;
use oncegate_core::attempt::SystemEntropy;
use oncegate_core::claim::{
    ClaimRequest, ClaimResponse, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::clock::{ManualClock, Timestamp};
use oncegate_core::engine::conformance::{Subject, fresh_claim};
use oncegate_core::engine::faulty::Faulty;
use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use oncegate_core::engine::{
    BatchClaim, ChangeResponse, Claims as _, Determinate, Metadata, RecordChange, RecordName, RecordView,
};
use oncegate_core::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use oncegate_core::record::{Key, LiveClaim};
use tokio::time::sleep;

use self::store::{FOREVER, Store};
use super::*;
use crate::resilience::retry_budget::FLOOR;
use crate::resilience::tests::{PausedClock, metric};

const DEADLINE: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn guarded(engine: Arc<dyn Engine>) -> CallGuard {
    CallGuard::new(engine, "primary", DEADLINE, PausedClock::start(), Arc::new(SystemEntropy))
}

fn memory() -> (Arc<ManualClock>, Arc<Memory>) {
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
    (clock.clone(), Arc::new(Memory::new(clock, BYTES_MAX_DEFAULT)))
}

fn open() -> Subject {
    Subject::on_manual_clock(|clock| {
        let memory = Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT));
        Arc::new(CallGuard::new(memory, "primary", DEADLINE, clock, Arc::new(SystemEntropy)))
    })
}

oncegate_core::conformance!(async { Some(open()) });

fn request() -> ClaimRequest {
    fresh_claim()
}

/// Lets each of some callers make calls one after the other, with a pause between. Returns the answers.
async fn load(
    engine: &CallGuard,
    callers: usize,
    calls: usize,
    pause: Duration,
) -> Vec<Result<ClaimResponse, EngineError>> {
    let caller = async || {
        let mut answers = Vec::new();
        for _ in 0..calls {
            answers.push(engine.claim(&request(), DEADLINE).await);
            sleep(pause).await;
        }
        answers
    };
    join_all((0..callers).map(|_| caller())).await.into_iter().flatten().collect()
}

fn answered(answers: &[Result<ClaimResponse, EngineError>]) -> usize {
    answers.iter().filter(|answer| answer.is_ok()).count()
}

fn is_open(engine: &CallGuard) -> bool {
    engine.0.breaker(0).state() == BreakerState::Open
}

/// Opens the breaker.
async fn opened(engine: &CallGuard, store: &Store) {
    store.set_out();
    load(engine, 30, 1, MS).await;
    load(engine, 1, 1, MS).await;
    assert!(is_open(engine));
}

/// Waits until a probe was answered.
async fn half_open(engine: &CallGuard) {
    while is_open(engine) {
        sleep(MS).await;
    }
    assert_eq!(engine.0.breaker(0).state(), BreakerState::HalfOpen);
}

async fn timed<T>(call: impl Future<Output = T>) -> (T, Duration) {
    let clock = PausedClock::start();
    let answer = call.await;
    (answer, clock.monotonic())
}

/// Measures the cost of the guard while nothing goes wrong.
#[tokio::test]
#[ignore = "it measures, so run it alone: cargo test --release --lib guard_adds -- --ignored --nocapture"]
async fn time_that_the_guard_adds_to_a_call() {
    const CALLS: u32 = 200_000;
    let clock: Arc<dyn Clock> = Arc::new(oncegate_core::clock::SystemClock::new());
    let bare: Arc<dyn Engine> = Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT));
    let entropy = Arc::new(SystemEntropy);
    let guarded: Arc<dyn Engine> = Arc::new(CallGuard::new(bare.clone(), "primary", DEADLINE, clock.clone(), entropy));
    let held = request();
    bare.claim(&held, DEADLINE).await.unwrap();
    let again = ClaimRequest { attempt: request().attempt, ..held };
    for round in 0..3 {
        for (name, engine) in [("bare", &bare), ("guarded", &guarded)] {
            let started = clock.monotonic();
            for _ in 0..CALLS {
                assert!(matches!(engine.claim(&again, DEADLINE).await, Ok(ClaimResponse::Duplicate(_))));
            }
            let each = clock.monotonic().saturating_sub(started) / CALLS;
            println!("round {round}: {name}: {each:?} a call");
        }
    }
}

/// Makes a batch of claims. Returns the answer of each, and its time.
async fn claim_batch(
    engine: &CallGuard,
    claims: &[(ClaimRequest, Duration)],
) -> Vec<(Result<ClaimResponse, EngineError>, Duration)> {
    let (clock, answers) = (PausedClock::start(), Mutex::new(vec![None; claims.len()]));
    let sink = |position: usize, answer| {
        let before = answers.lock().unwrap()[position].replace((answer, clock.monotonic()));
        assert!(before.is_none(), "{position} is answers twice: {before:?}");
    };
    let claims: Vec<_> = claims.iter().map(|(request, deadline)| BatchClaim { request, deadline: *deadline }).collect();
    engine.claim_batch(&claims, &sink).await;
    answers.into_inner().unwrap().into_iter().map(Option::unwrap).collect()
}
