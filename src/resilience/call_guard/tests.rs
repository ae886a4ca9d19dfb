//! Stories of an engine whose store is slow, silent, failing and back, on a paused clock; and the conformance suite.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32};

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::super::retry_budget::FLOOR;
use super::*;
use crate::domain::attempt::SystemEntropy;
use crate::domain::claim::{
    ClaimRequest, ClaimResponse, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::domain::clock::{ManualClock, Timestamp};
use crate::domain::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::domain::record::{Key, LiveClaim};
use crate::engine::conformance::{Subject, fresh_claim};
use crate::engine::faulty::Faulty;
use crate::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use crate::engine::{BatchClaim, Capabilities, Determinate, Metadata};

const DEADLINE: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// The clock that the runtime of a test advances when nothing is left to do.
struct PausedClock(Instant);

impl PausedClock {
    #[expect(clippy::disallowed_methods, reason = "it is the test's own clock")]
    fn start() -> Arc<Self> {
        Arc::new(Self(Instant::now()))
    }
}

impl Clock for PausedClock {
    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000).plus(self.monotonic())
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

fn guarded(engine: Arc<dyn Engine>) -> CallGuard {
    CallGuard::new(engine, "primary", DEADLINE, PausedClock::start(), Arc::new(SystemEntropy))
}

fn memory() -> (Arc<ManualClock>, Arc<Memory>) {
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
    (clock.clone(), Arc::new(Memory::new(clock, BYTES_MAX_DEFAULT)))
}

fn open() -> Subject {
    Subject::by_hand(|clock| {
        let memory = Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT));
        Arc::new(CallGuard::new(memory, "primary", DEADLINE, clock, Arc::new(SystemEntropy)))
    })
}

crate::conformance!(async { Some(open()) });

/// Whatever is lost on the way: a grant is never told twice, a duplicate is only told of a claim that stands, and
/// what is told to be settled is settled.
#[tokio::test(start_paused = true)]
async fn lost_requests_and_replies_never_lie() {
    for seed in 0..300 {
        let (_clock, memory) = memory();
        let engine = guarded(Arc::new(Faulty::new(memory.clone(), seed, 0.4)));
        let first = fresh_claim();
        let mut granted = 0;
        for try_again in [false, true, true] {
            let request = if try_again {
                ClaimRequest { attempt: fresh_claim().attempt, ..first.clone() }
            } else {
                first.clone()
            };
            let held_before = memory.read(&first.key).await.unwrap();
            match engine.claim(&request, DEADLINE).await {
                Ok(ClaimResponse::Granted(grant)) => {
                    granted += 1;
                    assert_eq!(grant.attempt, request.attempt, "seed {seed}");
                    assert!(!grant.repeated, "seed {seed}: its own earlier try is not a repeat");
                    assert_eq!(memory.read(&first.key).await.unwrap().unwrap().record.attempt, request.attempt);
                }
                Ok(ClaimResponse::Duplicate(held)) => {
                    assert_ne!(held.record.attempt, request.attempt, "seed {seed}: a holder is no duplicate of itself");
                    assert!(held_before.is_some(), "seed {seed}: a duplicate of nothing");
                }
                Ok(other) => panic!("seed {seed}: {other:?}"),
                Err(EngineError::Determinate(_)) => {
                    assert_eq!(memory.read(&first.key).await.unwrap(), held_before, "seed {seed}: it did not happen");
                }
                Err(EngineError::Indeterminate(_)) => {}
            }
        }
        assert!(granted <= 1, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_whose_reply_was_lost_is_released_and_not_called_late() {
    let (mut seen_lost, mut seen_plain) = (false, false);
    for seed in 0..200 {
        let (_clock, memory) = memory();
        let request = fresh_claim();
        memory.claim(&request, DEADLINE).await.unwrap();
        let engine = guarded(Arc::new(Faulty::new(memory.clone(), seed, 0.5)));
        let failure = OutcomeRequest {
            key: request.key.clone(),
            attempt: request.attempt.clone(),
            outcome: Outcome::Failure,
            late: None,
        };
        match engine.settle(&failure, DEADLINE).await {
            Ok(OutcomeResponse::Done { state: None, late, .. }) => {
                assert_eq!(memory.read(&request.key).await.unwrap(), None);
                assert_ne!(late, Some(true), "seed {seed}: it was not late");
                seen_lost |= late.is_none();
                seen_plain |= late == Some(false);
            }
            Ok(other) => panic!("seed {seed}: {other:?}"),
            Err(_) => {}
        }
    }
    assert!(seen_lost && seen_plain, "both ways are met");
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_reply_was_lost_is_done() {
    let mut seen_done = 0;
    for seed in 0..200 {
        let (_clock, memory) = memory();
        let request = fresh_claim();
        memory.claim(&request, DEADLINE).await.unwrap();
        let engine = guarded(Arc::new(Faulty::new(memory.clone(), seed, 0.5)));
        let release = ReleaseRequest { key: request.key.clone(), attempt: request.attempt.clone() };
        match engine.release(&release).await {
            Ok(ReleaseResponse::Done) => {
                assert_eq!(memory.read(&request.key).await.unwrap(), None);
                seen_done += 1;
            }
            Ok(other) => panic!("seed {seed}: {other:?}"),
            Err(EngineError::Determinate(_)) => {
                assert!(memory.read(&request.key).await.unwrap().is_some(), "seed {seed}");
            }
            Err(EngineError::Indeterminate(_)) => {}
        }
    }
    assert!(seen_done > 100, "{seen_done}");
}

/// A store that does what a test says, and counts how often it is asked.
struct Store {
    inner: Arc<Memory>,
    takes: Mutex<Duration>,
    /// What is never answered, whatever else is.
    hangs: Mutex<Option<Key>>,
    fails: Mutex<Option<EngineError>>,
    probe_lies: AtomicBool,
    asked: AtomicU32,
    under_way: AtomicU32,
    under_way_most: AtomicU32,
    probed: AtomicU32,
}

const FOREVER: Duration = Duration::from_hours(24);

impl Store {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: memory().1,
            takes: Mutex::new(MS),
            hangs: Mutex::default(),
            fails: Mutex::default(),
            probe_lies: AtomicBool::new(false),
            asked: AtomicU32::new(0),
            under_way: AtomicU32::new(0),
            under_way_most: AtomicU32::new(0),
            probed: AtomicU32::new(0),
        })
    }

    fn takes(&self, time: Duration) {
        *self.takes.lock().unwrap() = time;
    }

    fn fails(&self, failure: impl Into<Option<EngineError>>) {
        *self.fails.lock().unwrap() = failure.into();
    }

    fn is_out(&self) {
        self.fails(EngineError::unavailable("out"));
    }

    fn is_silent(&self) {
        self.takes(FOREVER);
    }

    fn is_well(&self) {
        self.fails(None);
        self.takes(MS);
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }

    async fn serve(&self) -> Result<(), EngineError> {
        let (takes, fails) = (*self.takes.lock().unwrap(), self.fails.lock().unwrap().clone());
        sleep(takes).await;
        fails.map_or(Ok(()), Err)
    }
}

/// Counts a call as under way until it is answered or dropped.
struct UnderWay<'a>(&'a AtomicU32);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Engine for Store {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let most = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.under_way_most.fetch_max(most, Ordering::SeqCst);
        let _under_way = UnderWay(&self.under_way);
        if self.hangs.lock().unwrap().as_ref() == Some(&request.key) {
            sleep(FOREVER).await;
        }
        self.serve().await?;
        self.inner.claim(request, deadline).await
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        self.serve().await?;
        self.inner.settle(request, deadline).await
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        self.serve().await?;
        self.inner.renew(request, deadline).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.serve().await?;
        self.inner.read(key).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.serve().await?;
        self.inner.release(request).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.serve().await?;
        self.inner.list(request).await
    }

    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        self.serve().await?;
        self.inner.get_metadata(name).await
    }

    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        self.serve().await?;
        self.inner.compare_and_set_metadata(name, expected, new).await
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.probed.fetch_add(1, Ordering::SeqCst);
        if self.probe_lies.load(Ordering::SeqCst) { Ok(()) } else { self.serve().await }
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

fn request() -> ClaimRequest {
    fresh_claim()
}

/// That a note was not put is said only of one that does not stand, and that it was only of one that did.
#[tokio::test(start_paused = true)]
async fn a_put_whose_reply_was_lost_is_never_told_wrong() {
    let (mut put, mut not_known) = (0, 0);
    for seed in 0..300 {
        let (_clock, memory) = memory();
        let engine = guarded(Arc::new(Faulty::new(memory.clone(), seed, 0.5)));
        let (old, new) = (Metadata::new("old").unwrap(), Metadata::new("new").unwrap());
        memory.compare_and_set_metadata("n", None, &old).await.unwrap();
        let told = engine.compare_and_set_metadata("n", Some(&old), &new).await;
        let stands = memory.get_metadata("n").await.unwrap();
        match told {
            Ok(true) => {
                assert_eq!(stands, Some(new), "seed {seed}");
                put += 1;
            }
            Ok(false) => panic!("seed {seed}: nobody else was there"),
            Err(EngineError::Determinate(_)) => assert_eq!(stands, Some(old), "seed {seed}"),
            Err(EngineError::Indeterminate(_)) => not_known += 1,
        }
    }
    assert!(put > 150 && not_known > 20, "{put} {not_known}");
}

/// Callers that each ask again as soon as they are answered, with a pause between: what they were told.
async fn load(
    engine: &CallGuard,
    callers: usize,
    calls: usize,
    pause: Duration,
) -> Vec<Result<ClaimResponse, EngineError>> {
    let caller = async || {
        let mut told = Vec::new();
        for _ in 0..calls {
            told.push(engine.claim(&request(), DEADLINE).await);
            sleep(pause).await;
        }
        told
    };
    join_all((0..callers).map(|_| caller())).await.into_iter().flatten().collect()
}

fn answered(told: &[Result<ClaimResponse, EngineError>]) -> usize {
    told.iter().filter(|answer| answer.is_ok()).count()
}

fn is_open(engine: &CallGuard) -> bool {
    engine.0.breaker.state() == BreakerState::Open
}

/// Calls until the breaker opens.
async fn opened(engine: &CallGuard, store: &Store) {
    store.is_out();
    load(engine, 30, 1, MS).await;
    load(engine, 1, 1, MS).await;
    assert!(is_open(engine));
}

/// Waits until a probe has been answered.
async fn half_open(engine: &CallGuard) {
    while is_open(engine) {
        sleep(MS).await;
    }
    assert_eq!(engine.0.breaker.state(), BreakerState::HalfOpen);
}

async fn timed<T>(call: impl Future<Output = T>) -> (T, Duration) {
    let clock = PausedClock::start();
    let answer = call.await;
    (answer, clock.monotonic())
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_not_waited_for_beyond_the_deadline() {
    let store = Store::new();
    store.is_silent();
    let engine = guarded(store.clone());
    let (answer, took) = timed(engine.claim(&request(), DEADLINE)).await;
    assert!(matches!(answer, Err(EngineError::Indeterminate(_))));
    assert!(took <= DEADLINE * 9 / 10, "{took:?}");
    assert_eq!(store.asked(), 2);
    let (answer, took) = timed(engine.claim(&request(), 50 * MS)).await;
    assert!(matches!(answer, Err(EngineError::Indeterminate(_))));
    assert!(took <= 46 * MS, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_waited_for_where_there_is_no_second_try() {
    let store = Store::new();
    store.takes(850 * MS);
    let engine = guarded(store.clone());
    while engine.0.budget.withdraw(engine.0.clock.monotonic()) {}
    assert!(engine.claim(&request(), DEADLINE).await.is_ok());
    assert_eq!(store.asked(), 1);
}

/// A first try is late and then refused, while the second one is out and happens.
#[tokio::test(start_paused = true)]
async fn nothing_is_certain_while_a_second_try_is_out() {
    let store = Store::new();
    store.takes(650 * MS);
    store.fails(EngineError::from(Determinate::Full("full".into())));
    let engine = guarded(store.clone());
    let request = request();
    let make_room = async {
        sleep(540 * MS).await;
        store.fails(None);
        store.takes(200 * MS);
    };
    let (answer, ()) = tokio::join!(engine.claim(&request, DEADLINE), make_room);
    assert_eq!(store.asked(), 2);
    assert!(matches!(answer, Ok(ClaimResponse::Granted(_))), "{answer:?}");
}

/// A first try is late and a duplicate; the claim that stood ends, and the second one gets it. Told only of the first, the
/// caller would hold what it does not know of.
#[tokio::test(start_paused = true)]
async fn a_duplicate_is_not_the_last_word_while_a_second_try_is_out() {
    for (first, second) in [(650, 300), (850, 150)] {
        let store = Store::new();
        let engine = guarded(store.clone());
        let held = request();
        engine.claim(&held, DEADLINE).await.unwrap();
        let request = ClaimRequest { attempt: request().attempt, ..held.clone() };
        store.takes(first * MS);
        let ends = async {
            sleep(540 * MS).await;
            store.takes(second * MS);
        };
        // Between the two.
        let released = async {
            sleep(if first < 700 { 675 } else { 775 } * MS).await;
            let (key, attempt) = (held.key.clone(), held.attempt.clone());
            store.inner.release(&ReleaseRequest { key, attempt }).await.unwrap();
        };
        let (answer, (), ()) = tokio::join!(engine.claim(&request, DEADLINE), ends, released);
        assert_eq!(store.asked(), 3);
        assert!(matches!(answer, Ok(ClaimResponse::Granted(_))), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_try_is_repeated_with_the_same_attempt_and_resolved() {
    for failure in [EngineError::indeterminate("lost"), EngineError::unavailable("for a moment")] {
        let store = Store::new();
        store.fails(failure);
        let engine = guarded(store.clone());
        let request = request();
        let heal = async {
            sleep(MS / 2).await;
            store.fails(None);
        };
        let (answer, ()) = tokio::join!(engine.claim(&request, DEADLINE), heal);
        assert!(matches!(answer, Ok(ClaimResponse::Granted(grant)) if grant.attempt == request.attempt));
        assert_eq!(store.asked(), 2);
    }
}

/// Many are given up after 900 ms, and that opens the breaker. Two others would wait for half a minute.
#[tokio::test(start_paused = true)]
async fn nobody_waits_on_for_a_store_whose_breaker_has_opened() {
    let store = Store::new();
    store.is_silent();
    let engine = guarded(store.clone());
    let (old, young, patient) = (request(), request(), DEADLINE * 30);
    let begun_just_before = async {
        sleep(850 * MS).await;
        timed(engine.claim(&young, patient)).await
    };
    let crowd = load(&engine, 30, 1, MS);
    let (old, young, _crowd) = tokio::join!(timed(engine.claim(&old, patient)), begun_just_before, crowd);
    assert!(is_open(&engine));
    for (answer, took, most) in [(old.0, old.1, 910 * MS), (young.0, young.1, 101 * MS)] {
        assert!(matches!(answer, Err(EngineError::Indeterminate(_))), "it may have happened: {answer:?}");
        assert!(took <= most, "{took:?}");
    }
}

/// All calls take longer than a first try is given.
#[tokio::test(start_paused = true)]
async fn a_brown_out_stays_one() {
    let store = Store::new();
    let engine = guarded(store.clone());
    assert_eq!(answered(&load(&engine, 20, 100, 10 * MS).await), 2000);
    let before = store.asked();
    store.takes(700 * MS);
    let told = load(&engine, 64, 20, MS).await;
    assert_eq!(answered(&told), told.len(), "all are answered");
    assert_eq!(engine.0.breaker.state(), BreakerState::Closed);
    let (asked, offered) = (store.asked() - before, told.len());
    // What was saved up before it is little.
    assert!(asked as usize <= offered + offered / 10 + 55 + 10, "{asked} for {offered}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_now_and_then_is_asked_a_tenth_more_at_most() {
    let store = Store::new();
    let engine = guarded(store.clone());
    let mut offered = 0;
    for round in 0..1000 {
        if round % 5 == 0 {
            store.fails(EngineError::indeterminate("lost"));
        } else {
            store.is_well();
        }
        offered += u32::try_from(load(&engine, 4, 1, MS).await.len()).unwrap();
    }
    assert_eq!(engine.0.breaker.state(), BreakerState::Closed);
    let seconds = u32::try_from(engine.0.clock.monotonic().as_secs()).unwrap() + 1;
    let asked = store.asked();
    assert!(asked <= offered + offered / 10 + FLOOR + seconds, "{asked} for {offered} in {seconds} s");
    assert!(asked >= offered + offered / 20, "the budget is used: {asked} for {offered}");
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_answers_at_once_and_leaves_the_store_alone() {
    let store = Store::new();
    let engine = guarded(store.clone());
    opened(&engine, &store).await;
    let before = store.asked();
    for _ in 0..1000 {
        let (answer, took) = timed(engine.claim(&request(), DEADLINE)).await;
        let Err(EngineError::Determinate(Determinate::Unavailable(why))) = answer else { panic!("{answer:?}") };
        assert!(why.contains("breaker is open"), "{why}");
        assert_eq!(took, Duration::ZERO);
        sleep(MS).await;
    }
    assert_eq!(store.asked(), before);
    let probes = store.probed.load(Ordering::SeqCst);
    assert!((6..=14).contains(&probes), "a second's worth of probes: {probes}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_noticed_within_a_second_under_load() {
    let store = Store::new();
    let engine = guarded(store.clone());
    load(&engine, 64, 100, MS).await;
    store.is_silent();
    let (told, took) = timed(load(&engine, 64, 1, MS)).await;
    assert!(is_open(&engine), "after {took:?}");
    assert!(took < DEADLINE);
    assert!(told.iter().all(Result::is_err));
}

#[tokio::test(start_paused = true)]
async fn service_is_back_within_a_second_of_the_store_also_when_nobody_calls() {
    for callers in [0, 64] {
        let store = Store::new();
        let engine = guarded(store.clone());
        opened(&engine, &store).await;
        sleep(Duration::from_mins(1)).await;
        store.is_well();
        // One call is tried, then more and more.
        for _ in 0..100 {
            load(&engine, callers, 1, MS).await;
            sleep(9 * MS).await;
        }
        if callers > 0 {
            assert_eq!(engine.0.breaker.state(), BreakerState::Closed);
        }
        assert!(engine.claim(&request(), DEADLINE).await.is_ok(), "{callers} callers");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_sent_into_the_void_keeps_nobody_away_a_second_after_the_store_is_back() {
    // Nobody comes in between who could notice that it stays away.
    let store = Store::new();
    let engine = guarded(store.clone());
    opened(&engine, &store).await;
    store.is_well();
    half_open(&engine).await;
    store.is_silent();
    let in_vain = async {
        let (answer, took) = timed(engine.claim(&request(), Duration::from_mins(1))).await;
        assert!(matches!(answer, Err(EngineError::Indeterminate(_))), "{answer:?}");
        assert!(took < Duration::from_secs(1), "{took:?}");
    };
    let others = async {
        sleep(MS).await;
        store.is_well();
        sleep(Duration::from_secs(1)).await;
        assert!(engine.claim(&request(), DEADLINE).await.is_ok());
    };
    tokio::join!(in_vain, others);
}

#[tokio::test(start_paused = true)]
async fn all_who_come_together_after_a_quiet_time_are_served() {
    for store_is_silent in [false, true] {
        let store = Store::new();
        let engine = guarded(store.clone());
        opened(&engine, &store).await;
        if store_is_silent {
            store.is_silent();
        }
        sleep(Duration::from_mins(1)).await;
        store.is_well();
        sleep(Duration::from_secs(1)).await;
        let claims: Vec<_> = (0..64).map(|_| (request(), DEADLINE)).collect();
        let told = claim_batch(&engine, &claims).await;
        assert!(told.iter().all(|(answer, _)| answer.is_ok()), "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_probes_and_nothing_else_is_asked_once_for_each_probe() {
    let store = Store::new();
    let engine = guarded(store.clone());
    store.probe_lies.store(true, Ordering::SeqCst);
    opened(&engine, &store).await;
    let (asked, probed) = (store.asked(), store.probed.load(Ordering::SeqCst));
    store.under_way_most.store(0, Ordering::SeqCst);
    for _ in 0..1000 {
        load(&engine, 16, 1, MS).await;
    }
    let (asked, probed) = (store.asked() - asked, store.probed.load(Ordering::SeqCst) - probed);
    assert!(asked <= probed + 1 && asked > 5, "{asked} calls, {probed} probes");
    assert_eq!(store.under_way_most.load(Ordering::SeqCst), 1, "never two at once");
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_goes_does_not_keep_the_place_of_the_one_call_that_is_tried() {
    let store = Store::new();
    let engine = guarded(store.clone());
    store.probe_lies.store(true, Ordering::SeqCst);
    opened(&engine, &store).await;
    store.fails(None);
    store.is_silent();
    half_open(&engine).await;
    let gone = timeout(10 * MS, engine.claim(&request(), DEADLINE)).await;
    assert!(gone.is_err(), "it was let through, and is not waited for");
    store.is_well();
    assert!(engine.claim(&request(), DEADLINE).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_the_business_meets_and_what_is_no_outage_opens_nothing() {
    let store = Store::new();
    let engine = guarded(store.clone());
    let held = request();
    engine.claim(&held, DEADLINE).await.unwrap();
    for _ in 0..100 {
        let again = ClaimRequest { attempt: request().attempt, ..held.clone() };
        assert!(matches!(engine.claim(&again, DEADLINE).await, Ok(ClaimResponse::Duplicate(_))));
    }
    for failure in [Determinate::Full("full".into()), Determinate::Incompatible("a record".into())] {
        store.fails(EngineError::from(failure.clone()));
        let asked = store.asked();
        for _ in 0..100 {
            assert_eq!(engine.claim(&request(), DEADLINE).await.unwrap_err(), failure.clone().into());
        }
        assert_eq!(store.asked() - asked, 100, "there is no point in asking again");
    }
    // Callers who go, each after a while.
    store.is_silent();
    for _ in 0..100 {
        assert!(timeout(300 * MS, engine.claim(&request(), DEADLINE)).await.is_err());
    }
    assert_eq!(engine.0.breaker.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn an_app_that_asks_for_the_impossible_does_not_shut_out_the_others() {
    let store = Store::new();
    store.takes(90 * MS);
    let engine = guarded(store.clone());
    let hasty = request();
    for _ in 0..200 {
        assert!(engine.claim(&hasty, 50 * MS).await.is_err());
    }
    assert!(engine.claim(&request(), DEADLINE).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_is_let_go_of_is_probed_no_longer() {
    let store = Store::new();
    let engine = guarded(store.clone());
    opened(&engine, &store).await;
    drop(engine);
    sleep(DEADLINE).await;
    assert_eq!(Arc::strong_count(&store), 1);
}

#[tokio::test(start_paused = true)]
async fn many_calls_that_meet_an_outage_are_each_answered_within_the_deadline() {
    let store = Store::new();
    store.is_silent();
    let engine = guarded(store.clone());
    let requests: Vec<_> = (0..500).map(|_| request()).collect();
    let (answers, took) = timed(join_all(requests.iter().map(|request| engine.claim(request, DEADLINE)))).await;
    assert!(answers.iter().all(|answer| matches!(answer, Err(EngineError::Indeterminate(_)))));
    assert!(took <= DEADLINE * 9 / 10, "{took:?}");
    assert!(store.asked() <= 500 + 50 + FLOOR);
}

/// What each claim of a batch was told, and after how long.
async fn claim_batch(
    engine: &CallGuard,
    claims: &[(ClaimRequest, Duration)],
) -> Vec<(Result<ClaimResponse, EngineError>, Duration)> {
    let (clock, told) = (PausedClock::start(), Mutex::new(vec![None; claims.len()]));
    let tell = |place: usize, answer| {
        let before = told.lock().unwrap()[place].replace((answer, clock.monotonic()));
        assert!(before.is_none(), "{place} is told twice: {before:?}");
    };
    let claims: Vec<_> = claims.iter().map(|(request, deadline)| BatchClaim { request, deadline: *deadline }).collect();
    engine.claim_batch(&claims, &tell).await;
    told.into_inner().unwrap().into_iter().map(Option::unwrap).collect()
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_meets_an_outage_is_answered_within_the_deadlines_of_its_items() {
    let store = Store::new();
    store.is_silent();
    let engine = guarded(store.clone());
    let mut claims: Vec<_> = (0..500).map(|_| (request(), DEADLINE)).collect();
    claims.push((request(), 50 * MS));
    for ((answer, took), (_, deadline)) in claim_batch(&engine, &claims).await.iter().zip(&claims) {
        assert!(matches!(answer, Err(EngineError::Indeterminate(_))), "{answer:?}");
        assert!(*took <= *deadline * 9 / 10 + MS, "{took:?} of {deadline:?}");
    }
    assert!(store.asked() <= 501 + 50 + FLOOR);
    assert!(is_open(&engine));
}

#[tokio::test(start_paused = true)]
async fn an_item_that_hangs_is_late_by_itself_and_the_others_are_told_at_once() {
    let store = Store::new();
    let engine = guarded(store.clone());
    let claims: Vec<_> = (0..100).map(|_| (request(), DEADLINE)).collect();
    *store.hangs.lock().unwrap() = Some(claims[7].0.key.clone());
    for (place, (answer, took)) in claim_batch(&engine, &claims).await.into_iter().enumerate() {
        if place == 7 {
            assert!(matches!(answer, Err(EngineError::Indeterminate(_))), "{answer:?}");
            assert!(took > DEADLINE / 2 && took <= DEADLINE * 9 / 10 + MS, "{took:?}");
        } else {
            assert!(matches!(answer, Ok(ClaimResponse::Granted(_))), "{answer:?}");
            assert!(took <= 2 * MS, "{took:?}");
        }
    }
    assert_eq!(store.asked(), 101, "only that one is asked for again");
}

/// The whole batch fails, is late, or is very late, and is well the next time.
#[tokio::test(start_paused = true)]
async fn items_of_a_batch_are_repeated_with_their_attempts_as_far_as_the_budget_goes() {
    for (failure, takes, most) in [
        (Some(EngineError::indeterminate("lost")), MS, 60 * MS),
        (Some(EngineError::unavailable("for a moment")), MS, 60 * MS),
        (None, 300 * MS, 301 * MS),
        (None, FOREVER, 610 * MS),
    ] {
        let store = Store::new();
        let engine = guarded(store.clone());
        load(&engine, 50, 4, MS).await;
        let before = store.asked();
        store.fails(failure.clone());
        store.takes(takes);
        let claims: Vec<_> = (0..20).map(|_| (request(), DEADLINE)).collect();
        let heal = async {
            sleep(MS / 2).await;
            store.is_well();
        };
        let (told, ()) = tokio::join!(claim_batch(&engine, &claims), heal);
        for ((answer, took), (request, _)) in told.into_iter().zip(&claims) {
            assert!(matches!(answer, Ok(ClaimResponse::Granted(grant)) if grant.attempt == request.attempt));
            assert!(took <= most, "{took:?}");
        }
        let again = if takes == 300 * MS { 0 } else { 20 };
        assert_eq!(store.asked() - before, 20 + again, "{failure:?} {takes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_item_of_a_batch_counts_for_the_breaker() {
    let store = Store::new();
    store.is_out();
    let engine = guarded(store.clone());
    let claims: Vec<_> = (0..30).map(|_| (request(), DEADLINE)).collect();
    claim_batch(&engine, &claims).await;
    assert!(is_open(&engine));
    store.is_well();
    // Half open once a probe was answered: one call is tried, and the others are refused at once.
    half_open(&engine).await;
    // Then it lets more and more of them through.
    for let_through in [1, 2, 4, 8_u32] {
        let (before, claims) = (store.asked(), [(); 30].map(|()| (request(), DEADLINE)));
        let told = claim_batch(&engine, &claims).await;
        for (place, ((answer, _), (request, _))) in told.into_iter().zip(&claims).enumerate() {
            match answer {
                Ok(ClaimResponse::Granted(grant)) => {
                    assert_eq!((grant.attempt == request.attempt, place < let_through as usize), (true, true));
                }
                other => {
                    assert!(matches!(other, Err(EngineError::Determinate(_))), "{other:?}");
                    assert!(place >= let_through as usize, "{place} of {let_through}");
                }
            }
        }
        assert_eq!(store.asked() - before, let_through);
    }
}

/// Both tries are under way when the first one is answered.
#[tokio::test(start_paused = true)]
async fn a_full_store_is_no_answer_while_the_second_try_may_still_be_taken() {
    let store = Store::new();
    let engine = guarded(store.clone());
    store.takes(700 * MS);
    store.fails(EngineError::from(Determinate::Full("no room".into())));
    let request = request();
    let second_is_lost = async {
        sleep(500 * MS).await;
        store.is_silent();
    };
    let (answer, ()) = tokio::join!(engine.claim(&request, DEADLINE), second_is_lost);
    assert_eq!(store.asked(), 2);
    assert!(matches!(answer, Err(EngineError::Indeterminate(_))), "{answer:?}");
}

fn failure_of(request: &ClaimRequest) -> OutcomeRequest {
    OutcomeRequest { key: request.key.clone(), attempt: request.attempt.clone(), outcome: Outcome::Failure, late: None }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_the_second_try_has_released_is_not_called_late_by_the_first() {
    let store = Store::new();
    let engine = guarded(store.clone());
    let request = request();
    engine.claim(&request, DEADLINE).await.unwrap();
    let failure = failure_of(&request);
    store.takes(700 * MS);
    let second_overtakes = async {
        sleep(500 * MS).await;
        store.is_silent();
        sleep(150 * MS).await;
        store.inner.settle(&failure, DEADLINE).await.unwrap();
    };
    let (answer, ()) = tokio::join!(engine.settle(&failure, DEADLINE), second_overtakes);
    assert_eq!(answer, Ok(OutcomeResponse::Done { state: None, left: None, late: None }));
}

/// A second try that certainly did nothing casts no doubt on what the first one found.
#[tokio::test(start_paused = true)]
async fn a_failure_that_the_first_try_has_released_is_told_so_if_the_second_was_refused() {
    let store = Store::new();
    let engine = guarded(store.clone());
    let request = request();
    engine.claim(&request, DEADLINE).await.unwrap();
    store.takes(700 * MS);
    let second_is_refused = async {
        sleep(500 * MS).await;
        store.takes(MS);
        store.is_out();
    };
    let failure = failure_of(&request);
    let (answer, ()) = tokio::join!(engine.settle(&failure, DEADLINE), second_is_refused);
    assert_eq!(answer, Ok(OutcomeResponse::Done { state: None, left: None, late: Some(false) }));
}

#[tokio::test(start_paused = true)]
async fn a_ramp_ends_in_its_time_although_all_its_calls_wait() {
    let store = Store::new();
    let engine = guarded(store.clone());
    store.probe_lies.store(true, Ordering::SeqCst);
    opened(&engine, &store).await;
    store.is_well();
    half_open(&engine).await;
    engine.claim(&request(), DEADLINE).await.unwrap();
    // The ramp has begun. Calls into the void take all its places.
    store.is_silent();
    let in_vain = async {
        let (one, other, patient) = (request(), request(), Duration::from_mins(1));
        tokio::join!(engine.claim(&one, patient), engine.claim(&other, patient))
    };
    let others = async {
        sleep(500 * MS).await;
        store.is_well();
        assert!(engine.claim(&request(), DEADLINE).await.is_err(), "no place is left");
        sleep(500 * MS).await;
        assert!(engine.claim(&request(), DEADLINE).await.is_ok());
    };
    tokio::select! {
        _ = in_vain => panic!("they wait for a minute"),
        () = others => {}
    }
}

/// What it costs to be guarded where nothing goes wrong.
#[tokio::test]
#[ignore = "it measures, so run it alone: cargo test --release --lib guard_costs -- --ignored --nocapture"]
async fn what_the_guard_costs() {
    const CALLS: u32 = 200_000;
    let clock: Arc<dyn Clock> = Arc::new(crate::domain::clock::SystemClock::new());
    let bare: Arc<dyn Engine> = Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT));
    let entropy = Arc::new(SystemEntropy);
    let guarded: Arc<dyn Engine> = Arc::new(CallGuard::new(bare.clone(), "primary", DEADLINE, clock.clone(), entropy));
    let held = request();
    bare.claim(&held, DEADLINE).await.unwrap();
    let again = ClaimRequest { attempt: request().attempt, ..held };
    for round in 0..3 {
        for (name, engine) in [("bare", &bare), ("guarded", &guarded)] {
            let begun = clock.monotonic();
            for _ in 0..CALLS {
                assert!(matches!(engine.claim(&again, DEADLINE).await, Ok(ClaimResponse::Duplicate(_))));
            }
            let each = clock.monotonic().saturating_sub(begun) / CALLS;
            println!("round {round}: {name}: {each:?} a call");
        }
    }
}
