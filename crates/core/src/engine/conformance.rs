//! One suite for all engines and all wrappers: one function a rule of the contract, named after what it holds.
//!
//! `oncegate_core::conformance!(open)` makes a test of each rule; `open` is an async function that gives a fresh
//! [`Subject`], or nothing where the engine's server is not installed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::metadata::{METADATA_BYTES_MAX, Metadata};
use super::{BatchClaim, Engine, EngineError};
use crate::domain::attempt::{Attempt, Issuer, Nonce, SystemEntropy};
use crate::domain::canonical::Canonical;
use crate::domain::claim::{
    self, ClaimRequest, ClaimResponse, Effect, LateTerms, Mismatch, Outcome, OutcomeRequest, OutcomeResponse,
    RenewalRequest, RenewalResponse,
};
use crate::domain::clock::{Clock as _, ManualClock, SystemClock, Timestamp};
use crate::domain::global_id::GlobalId;
use crate::domain::operator::{self, ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::domain::record::{ClaimState, Contents, Key, LiveClaim, Record};
use crate::domain::tenant::{AppKey, Operation};
use crate::domain::terms::{LeaseEnd, Retention, Terms};

/// An engine to hold to the contract, and how its time passes.
pub struct Subject {
    /// The engine.
    pub engine: Arc<dyn Engine>,
    /// Lets at least this much of the store's time pass: turns a clock that stands by hand, or waits for a real one.
    pub pass: Box<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>,
    /// A span of time that is long beside a call and short beside a test's patience.
    pub tick: Duration,
    /// Whether time stands still unless [`Subject::pass`] is called, so that durations can be compared exactly.
    pub exact_time: bool,
    /// What keeps the engine's server alive.
    pub keep: Box<dyn std::any::Any + Send + Sync>,
}

/// Makes one test of each rule. The argument is an expression that gives a future of an `Option<Subject>`.
#[macro_export]
macro_rules! conformance {
    ($open:expr) => {
        $crate::conformance! { $open;
            a_first_claim_is_granted
            a_second_attempt_is_a_duplicate_and_changes_nothing
            of_many_racing_claims_exactly_one_is_granted
            the_same_nonce_gets_the_same_attempt_and_what_is_left
            the_same_attempt_recognises_itself
            other_contents_under_the_same_key_are_refused
            another_fingerprint_is_refused_in_every_state
            a_success_is_sticky_and_replays_its_result
            the_first_result_stays
            a_failure_frees_the_key_at_once
            an_unknown_claim_blocks_until_it_is_taken_over
            the_holder_settles_its_unknown_claim
            only_the_holder_settles
            a_lease_ends_by_itself
            a_lease_that_may_not_be_guessed_turns_unknown
            a_retention_ends_by_itself
            a_retention_may_last_for_ever
            a_success_may_bring_its_own_retention
            an_unknown_retention_ends_by_itself
            a_renewal_extends_and_never_shortens
            a_renewal_of_what_is_not_held_is_refused
            late_outcomes_are_recorded
            a_late_outcome_that_is_too_old_is_refused
            a_late_record_with_contents_still_compares_them
            a_late_failure_releases_nothing
            apps_do_not_see_each_other
            a_read_tells_what_stands
            long_contents_are_kept_as_a_digest_and_still_compared
            fences_rise_strictly_where_promised
            many_at_once_each_have_their_answer
            claims_of_a_batch_are_each_told_once
            a_release_ends_a_claim_in_any_state
            a_release_by_another_attempt_changes_nothing
            a_released_holder_holds_nothing
            a_release_keeps_fences_rising
            a_list_is_by_global_id_and_pages
            a_list_holds_what_stands
            a_note_is_put_only_where_what_is_expected_stands
            of_many_racing_swaps_of_a_note_exactly_one_is_put
            any_history_agrees_with_the_table
        }
    };
    ($open:expr; $($rule:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $rule() {
            let subject: Option<$crate::engine::conformance::Subject> = $open.await;
            if let Some(subject) = subject {
                $crate::engine::conformance::$rule(&subject).await;
            }
        }
    )*};
}

/// Terms that no test outlives.
fn long_terms() -> Terms {
    Terms {
        lease: Duration::from_hours(1),
        retention: Retention::For(Duration::from_hours(24)),
        unknown_retention: Retention::For(Duration::from_hours(24 * 7)),
        on_lease_end: LeaseEnd::Release,
    }
}

impl Subject {
    /// What each claim of a batch is told.
    async fn claim_batch(&self, requests: Vec<ClaimRequest>) -> Vec<(ClaimRequest, ClaimResponse)> {
        let told: Vec<_> = requests.iter().map(|_| Mutex::new(None)).collect();
        let tell = |place: usize, answer| {
            let before = told[place].lock().expect("no panic").replace(answer);
            assert!(before.is_none(), "{place} is told twice: {before:?}");
        };
        let claims: Vec<_> = requests.iter().map(|request| BatchClaim { request, deadline: DEADLINE }).collect();
        self.engine.claim_batch(&claims, &tell).await;
        let told = told.into_iter().map(|told| told.into_inner().expect("no panic"));
        let told = told.map(|told| told.expect("each is told").expect("the engine answers"));
        requests.into_iter().zip(told).collect()
    }

    /// An engine of this process, on a clock that moves only when a rule says so.
    pub fn on_manual_clock(open: impl FnOnce(Arc<ManualClock>) -> Arc<dyn Engine>) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
        let engine = open(clock.clone());
        let pass = move |duration| -> BoxFuture<'static, ()> {
            clock.advance(duration);
            Box::pin(std::future::ready(()))
        };
        let tick = Duration::from_secs(1);
        Self { engine, pass: Box::new(pass), tick, exact_time: true, keep: Box::new(()) }
    }

    fn ticks(&self, count: u32) -> Duration {
        self.tick * count
    }

    async fn claim(&self, request: &ClaimRequest) -> ClaimResponse {
        self.engine.claim(request, DEADLINE).await.expect("the engine answers")
    }

    async fn granted(&self, request: &ClaimRequest) -> claim::Grant {
        match self.claim(request).await {
            ClaimResponse::Granted(grant) => grant,
            other => panic!("expected a grant, got {other:?}"),
        }
    }

    async fn duplicate(&self, request: &ClaimRequest) -> LiveClaim {
        duplicate(self.claim(request).await)
    }

    /// Runs a rule in which something must stand until a later call finds it. A run in which that call came too late proves
    /// nothing, so the rule is run again with longer ticks.
    async fn in_time<T>(&self, rule: impl AsyncFn(&Pace) -> Result<T, TooLate>) -> T {
        for longer in [1, 2, 4, 8, 16] {
            let pace = Pace { tick: self.tick * longer, clock: SystemClock::new() };
            if let Ok(done) = rule(&pace).await {
                return done;
            }
        }
        panic!("this machine is too busy for any rule about time");
    }

    async fn settle(&self, request: &OutcomeRequest) -> OutcomeResponse {
        self.engine.settle(request, DEADLINE).await.expect("the engine answers")
    }

    async fn renew(&self, request: &RenewalRequest) -> RenewalResponse {
        self.engine.renew(request, DEADLINE).await.expect("the engine answers")
    }

    async fn read(&self, key: &Key) -> Option<LiveClaim> {
        self.engine.read(key).await.expect("the engine answers")
    }

    async fn release(&self, key: &Key, attempt: &Attempt) -> ReleaseResponse {
        let request = ReleaseRequest { key: key.clone(), attempt: attempt.clone() };
        self.engine.release(&request).await.expect("the engine answers")
    }

    async fn list(&self, request: &ListRequest) -> Vec<ListedClaim> {
        self.engine.list(request).await.expect("the engine lists")
    }

    /// What is left must be within one tick below what was promised, and never above.
    fn assert_left(&self, left: Option<Duration>, promised: Duration) {
        let left = left.expect("it ends by itself");
        assert!(left <= promised, "{left:?} is more than {promised:?}");
        let slack = if self.exact_time { Duration::ZERO } else { self.tick.max(Duration::from_secs(10)) };
        assert!(left + slack >= promised, "{left:?} is much less than {promised:?}");
    }
}

/// How long the ticks of a run are, and a clock to see whether it keeps up.
struct Pace {
    tick: Duration,
    clock: SystemClock,
}

/// A call came so late that what it should find may have ended.
struct TooLate;

impl Pace {
    fn ticks(&self, count: u32) -> Duration {
        self.tick * count
    }

    fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Fails unless what began at `begun` or later, and lasts this long, still stands.
    fn within(&self, begun: Duration, lasts: Duration) -> Result<(), TooLate> {
        if self.now() < begun + lasts { Ok(()) } else { Err(TooLate) }
    }
}

fn duplicate(answer: ClaimResponse) -> LiveClaim {
    match answer {
        ClaimResponse::Duplicate(held) => held,
        other => panic!("expected a duplicate, got {other:?}"),
    }
}

/// A name that no other test has.
fn fresh_note_name() -> String {
    format!("test.{}", attempt().timestamp().as_micros())
}

fn note(text: &str) -> Metadata {
    Metadata::new(text).expect("a short text")
}

fn issuer() -> &'static Issuer {
    static ISSUER: std::sync::OnceLock<Issuer> = std::sync::OnceLock::new();
    ISSUER.get_or_init(|| Issuer::new(Arc::new(SystemClock::new()), Arc::new(SystemEntropy)))
}

fn attempt() -> Attempt {
    issuer().issue(None)
}

/// Deadline of calls in tests: none is to fail for being slow.
pub const DEADLINE: Duration = Duration::from_secs(30);

fn app(name: &str) -> AppKey {
    name.parse().expect("an app key")
}

/// A claim of contents that no other test has.
pub fn fresh_claim() -> ClaimRequest {
    let unique = attempt();
    claim_of("conformance", &format!("{{\"order\":\"{}\"}}", unique.timestamp().as_micros()))
}

fn claim_of(app_name: &str, contents: &str) -> ClaimRequest {
    let (app, operation) = (app(app_name), Operation::default());
    let contents = Canonical::trusted(contents);
    ClaimRequest {
        key: Key { global_id: GlobalId::of(&app, &operation, &contents), app },
        attempt: attempt(),
        operation,
        contents,
        contents_stored_bytes: 1024,
        fingerprint: None,
        terms: long_terms(),
        take_over: false,
    }
}

/// The same operation, tried again by somebody.
fn again(request: &ClaimRequest) -> ClaimRequest {
    ClaimRequest { attempt: attempt(), ..request.clone() }
}

fn settle_of(request: &ClaimRequest, outcome: Outcome) -> OutcomeRequest {
    settle_by(request, &request.attempt, outcome)
}

fn settle_by(request: &ClaimRequest, attempt: &Attempt, outcome: Outcome) -> OutcomeRequest {
    let late = LateTerms { operation: None, contents: Contents::Unverified, terms: request.terms };
    OutcomeRequest { key: request.key.clone(), attempt: attempt.clone(), outcome, late: Some(late) }
}

fn success(result: Option<&str>) -> Outcome {
    Outcome::Success { result: result.map(Into::into), retention: None }
}

fn done(state: Option<ClaimState>, left: Option<Duration>, late: bool) -> OutcomeResponse {
    OutcomeResponse::Done { state, left, late: Some(late) }
}

fn renew_of(request: &ClaimRequest, lease: Option<Duration>) -> RenewalRequest {
    RenewalRequest { key: request.key.clone(), attempt: request.attempt.clone(), lease }
}

/// S1.
pub async fn a_first_claim_is_granted(on: &Subject) {
    let request = fresh_claim();
    let grant = on.granted(&request).await;
    assert_eq!(grant.attempt, request.attempt);
    assert!(!grant.repeated && !grant.taken_over);
    assert_eq!(grant.fence.is_some(), on.engine.capabilities().strict_fence);
}

/// S1, S4.
pub async fn a_second_attempt_is_a_duplicate_and_changes_nothing(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    for _ in 0..3 {
        let held = on.duplicate(&again(&request)).await;
        assert_eq!((held.record.state, &held.record.attempt), (ClaimState::InProgress, &request.attempt));
        on.assert_left(held.left, request.terms.lease);
    }
    assert_eq!(on.settle(&settle_of(&request, Outcome::Failure)).await, done(None, None, false));
}

/// S1: the race, several times over.
pub async fn of_many_racing_claims_exactly_one_is_granted(on: &Subject) {
    for _ in 0..5 {
        let request = fresh_claim();
        let racers: Vec<_> = (0..200)
            .map(|_| {
                let (engine, request) = (on.engine.clone(), again(&request));
                tokio::spawn(async move { engine.claim(&request, DEADLINE).await.map(|answer| (request, answer)) })
            })
            .collect();
        let mut winners = Vec::new();
        for racer in join_all(racers).await {
            match racer.expect("no panic").expect("the engine answers") {
                (request, ClaimResponse::Granted(grant)) => winners.push((request, grant)),
                (_, ClaimResponse::Duplicate(held)) => assert_eq!(held.record.state, ClaimState::InProgress),
                (_, other) => panic!("unexpected {other:?}"),
            }
        }
        assert_eq!(winners.len(), 1, "exactly one of 200 is granted");
        assert_eq!(winners[0].1.attempt, winners[0].0.attempt, "and it is told its own attempt");
    }
}

/// S5.
pub async fn the_same_nonce_gets_the_same_attempt_and_what_is_left(on: &Subject) {
    let request = fresh_claim();
    let first = on.granted(&request).await;
    (on.pass)(on.tick).await;
    let nonce = request.attempt.nonce().clone();
    let repeat = ClaimRequest { attempt: issuer().issue(Some(nonce)), ..request.clone() };
    let second = on.granted(&repeat).await;
    assert!(second.repeated);
    assert_eq!((&second.attempt, second.fence), (&first.attempt, first.fence));
    let left = second.lease_left.expect("a repeat is told what is left");
    assert!(left + on.tick <= request.terms.lease, "the lease is unchanged, not begun anew");
}

/// S5, S9: a call repeated because its reply was lost is answered as the first would have been.
pub async fn the_same_attempt_recognises_itself(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    let grant = on.granted(&request).await;
    assert_eq!((grant.attempt, grant.repeated), (request.attempt.clone(), false));
    assert!(grant.lease_left.is_some());
}

/// S7.
pub async fn other_contents_under_the_same_key_are_refused(on: &Subject) {
    let request = fresh_claim();
    let forged = ClaimRequest { contents: Canonical::trusted("\"forged\""), ..again(&request) };
    on.granted(&request).await;
    assert_eq!(on.claim(&forged).await, ClaimResponse::Mismatch(Mismatch::Contents));
    // The nonce does not excuse other contents, and another operation is other contents.
    let same_nonce = ClaimRequest { attempt: request.attempt.clone(), ..forged.clone() };
    assert_eq!(on.claim(&same_nonce).await, ClaimResponse::Mismatch(Mismatch::Contents));
    let operation = "other".parse().expect("an operation");
    assert_eq!(
        on.claim(&ClaimRequest { operation, ..again(&request) }).await,
        ClaimResponse::Mismatch(Mismatch::Contents)
    );
    on.settle(&settle_of(&request, success(None))).await;
    assert_eq!(on.claim(&forged).await, ClaimResponse::Mismatch(Mismatch::Contents));
    assert_eq!(on.duplicate(&again(&request)).await.record.attempt, request.attempt);
}

/// S7.
pub async fn another_fingerprint_is_refused_in_every_state(on: &Subject) {
    let with = |fingerprint| ClaimRequest { fingerprint, ..fresh_claim() };
    for (first, second) in [(Some([1; 32]), Some([2; 32])), (Some([1; 32]), None), (None, Some([1; 32]))] {
        for outcome in [None, Some(success(None)), Some(Outcome::Unknown)] {
            let request = with(first);
            on.granted(&request).await;
            if let Some(outcome) = outcome {
                on.settle(&settle_of(&request, outcome)).await;
            }
            let other = ClaimRequest { fingerprint: second, take_over: true, ..again(&request) };
            assert_eq!(on.claim(&other).await, ClaimResponse::Mismatch(Mismatch::Fingerprint));
            assert_eq!(on.read(&request.key).await.expect("still there").record.attempt, request.attempt);
        }
    }
}

/// S3.
pub async fn a_success_is_sticky_and_replays_its_result(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    let retention = request.terms.retention.duration();
    let result = "{\"order\": \"A-1\",\n \"total\": 12.50}";
    assert_eq!(
        on.settle(&settle_of(&request, success(Some(result)))).await,
        done(Some(ClaimState::Succeeded), retention, false)
    );
    let held = on.duplicate(&ClaimRequest { take_over: true, ..again(&request) }).await;
    assert_eq!((held.record.state, held.record.result.as_deref()), (ClaimState::Succeeded, Some(result)));
    on.assert_left(held.left, retention.expect("it ends"));
    // The holder's own nonce does not open a success again.
    assert_eq!(on.duplicate(&request).await.record.state, ClaimState::Succeeded);
    for outcome in [Outcome::Failure, Outcome::Unknown] {
        assert_eq!(on.settle(&settle_of(&request, outcome)).await, OutcomeResponse::AlreadySucceeded);
    }
    assert_eq!(on.renew(&renew_of(&request, None)).await, RenewalResponse::AlreadySucceeded);
    assert_eq!(on.duplicate(&again(&request)).await.record.state, ClaimState::Succeeded);
}

/// S5.
pub async fn the_first_result_stays(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    on.settle(&settle_of(&request, success(Some("1")))).await;
    let again_settled = on.settle(&settle_of(&request, success(Some("2")))).await;
    assert!(matches!(
        again_settled,
        OutcomeResponse::Done { state: Some(ClaimState::Succeeded), late: Some(false), .. }
    ));
    assert_eq!(on.read(&request.key).await.expect("kept").record.result.as_deref(), Some("1"));
}

/// A failure frees the key; the old attempt has no power over the new claim.
pub async fn a_failure_frees_the_key_at_once(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    assert_eq!(on.settle(&settle_of(&request, Outcome::Failure)).await, done(None, None, false));
    assert_eq!(on.read(&request.key).await, None);
    let next = again(&request);
    on.granted(&next).await;
    // S2: the old attempt's repeated failure does not delete the newer claim.
    let superseded = on.settle(&settle_of(&request, Outcome::Failure)).await;
    assert!(matches!(superseded, OutcomeResponse::Superseded { state: ClaimState::InProgress, .. }));
    assert_eq!(on.duplicate(&again(&request)).await.record.attempt, next.attempt);
}

/// The state `unknown`.
pub async fn an_unknown_claim_blocks_until_it_is_taken_over(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    let left = request.terms.unknown_retention.duration();
    assert_eq!(on.settle(&settle_of(&request, Outcome::Unknown)).await, done(Some(ClaimState::Unknown), left, false));
    // The holder's own nonce is a duplicate too, and takes nothing over.
    for repeat in [again(&request), request.clone(), ClaimRequest { take_over: true, ..request.clone() }] {
        let held = on.duplicate(&repeat).await;
        assert_eq!(held.record.state, ClaimState::Unknown);
        on.assert_left(held.left, left.expect("it ends"));
    }
    let taker = ClaimRequest { take_over: true, ..again(&request) };
    let grant = on.granted(&taker).await;
    assert!(grant.taken_over && !grant.repeated);
    assert_eq!(grant.attempt, taker.attempt);
    // Only one takes over: now it is in progress again.
    assert_eq!(on.duplicate(&ClaimRequest { take_over: true, ..again(&request) }).await.record.attempt, taker.attempt);
    assert!(matches!(on.settle(&settle_of(&request, success(None))).await, OutcomeResponse::Superseded { .. }));
    assert_eq!(on.renew(&renew_of(&taker, None)).await, RenewalResponse::Renewed { left: long_terms().lease });
}

/// The row "unknown, A".
pub async fn the_holder_settles_its_unknown_claim(on: &Subject) {
    let unknown = async || {
        let request = fresh_claim();
        on.granted(&request).await;
        on.settle(&settle_of(&request, Outcome::Unknown)).await;
        request
    };
    let request = unknown().await;
    let repeated = on.settle(&settle_of(&request, Outcome::Unknown)).await;
    assert!(
        matches!(repeated, OutcomeResponse::Done { state: Some(ClaimState::Unknown), late: Some(false), .. }),
        "{repeated:?}"
    );
    assert_eq!(on.renew(&renew_of(&request, None)).await, RenewalResponse::LeaseLost);
    assert_eq!(on.settle(&settle_of(&request, Outcome::Failure)).await, done(None, None, false));
    let request = unknown().await;
    let retention = request.terms.retention.duration();
    assert_eq!(
        on.settle(&settle_of(&request, success(Some("1")))).await,
        done(Some(ClaimState::Succeeded), retention, false)
    );
}

/// S2: every call of a stranger, in every state, changes nothing.
pub async fn only_the_holder_settles(on: &Subject) {
    for outcome in [None, Some(success(Some("1"))), Some(Outcome::Unknown)] {
        let request = fresh_claim();
        on.granted(&request).await;
        if let Some(outcome) = outcome {
            on.settle(&settle_of(&request, outcome)).await;
        }
        let before = on.read(&request.key).await.expect("kept");
        // The nonce alone and the timestamp alone are not the attempt.
        let same_nonce = issuer().issue(Some(request.attempt.nonce().clone()));
        let same_timestamp = Attempt::new(request.attempt.timestamp(), Nonce::from_bits(7));
        for stranger in [attempt(), same_nonce, same_timestamp] {
            for outcome in [success(None), Outcome::Failure, Outcome::Unknown] {
                let answer = on.settle(&settle_by(&request, &stranger, outcome)).await;
                assert!(
                    matches!(answer, OutcomeResponse::Superseded { state, .. } if state == before.record.state),
                    "{answer:?}"
                );
            }
            let renewal = RenewalRequest { attempt: stranger, ..renew_of(&request, Some(Duration::from_hours(9))) };
            assert!(matches!(on.renew(&renewal).await, RenewalResponse::Superseded { .. }));
        }
        let after = on.read(&request.key).await.expect("kept");
        assert_eq!((&after.record, after.fence), (&before.record, before.fence));
        assert!(after.left <= before.left);
    }
}

/// L1, S10.
pub async fn a_lease_ends_by_itself(on: &Subject) {
    let request = on
        .in_time(async |pace| {
            let request = ClaimRequest { terms: Terms { lease: pace.ticks(2), ..long_terms() }, ..fresh_claim() };
            let begun = pace.now();
            on.granted(&request).await;
            let found = on.claim(&again(&request)).await;
            pace.within(begun, pace.ticks(2))?;
            duplicate(found);
            (on.pass)(pace.ticks(3)).await;
            Ok(request)
        })
        .await;
    assert_eq!(on.read(&request.key).await, None);
    assert_eq!(on.renew(&renew_of(&request, None)).await, RenewalResponse::LeaseLost);
    let next = again(&request);
    assert!(!on.granted(&next).await.taken_over);
    assert!(matches!(on.settle(&settle_of(&request, success(None))).await, OutcomeResponse::Superseded { .. }));
}

/// `on_lease_end = "unknown"`.
pub async fn a_lease_that_may_not_be_guessed_turns_unknown(on: &Subject) {
    let terms = Terms { on_lease_end: LeaseEnd::Unknown, ..long_terms() };
    let lapsed = async || {
        let request = on
            .in_time(async |pace| {
                let request = ClaimRequest { terms: Terms { lease: pace.ticks(2), ..terms }, ..fresh_claim() };
                let begun = pace.now();
                on.granted(&request).await;
                let found = on.claim(&again(&request)).await;
                pace.within(begun, pace.ticks(2))?;
                let held = duplicate(found);
                assert_eq!(held.record.state, ClaimState::InProgress);
                assert!(held.left.expect("a lease ends") <= pace.ticks(2));
                (on.pass)(pace.ticks(3)).await;
                Ok(request)
            })
            .await;
        let held = on.duplicate(&request).await;
        assert_eq!((held.record.state, held.left), (ClaimState::Unknown, None));
        assert_eq!(on.renew(&renew_of(&request, None)).await, RenewalResponse::LeaseLost);
        request
    };
    // Its holder settles it, in each way.
    let request = lapsed().await;
    assert_eq!(on.settle(&settle_of(&request, Outcome::Failure)).await, done(None, None, false));
    let request = lapsed().await;
    let retention = terms.retention.duration();
    assert_eq!(
        on.settle(&settle_of(&request, success(None))).await,
        done(Some(ClaimState::Succeeded), retention, false)
    );
    let request = lapsed().await;
    assert_eq!(on.settle(&settle_of(&request, Outcome::Unknown)).await, done(Some(ClaimState::Unknown), None, false));
    // A take-over gets a lease of its own.
    let taker = ClaimRequest { take_over: true, terms, ..again(&request) };
    assert!(on.granted(&taker).await.taken_over);
    let held = on.duplicate(&again(&request)).await;
    assert_eq!((held.record.state, held.record.attempt), (ClaimState::InProgress, taker.attempt));
    on.assert_left(held.left, terms.lease);
}

/// A success is forgotten when its retention ends, not earlier.
pub async fn a_retention_ends_by_itself(on: &Subject) {
    let request = on
        .in_time(async |pace| {
            let terms = Terms { retention: Retention::For(pace.ticks(4)), ..long_terms() };
            let request = ClaimRequest { terms, ..fresh_claim() };
            on.granted(&request).await;
            let begun = pace.now();
            on.settle(&settle_of(&request, success(None))).await;
            (on.pass)(pace.tick).await;
            let found = on.claim(&again(&request)).await;
            pace.within(begun, pace.ticks(4))?;
            duplicate(found);
            (on.pass)(pace.ticks(4)).await;
            Ok(request)
        })
        .await;
    assert_eq!(on.read(&request.key).await, None);
    on.granted(&again(&request)).await;
}

/// `retention = "forever"`.
pub async fn a_retention_may_last_for_ever(on: &Subject) {
    let request = on
        .in_time(async |pace| {
            let terms = Terms { lease: pace.ticks(2), retention: Retention::Forever, ..long_terms() };
            let request = ClaimRequest { terms, ..fresh_claim() };
            let begun = pace.now();
            on.granted(&request).await;
            let settled = on.settle(&settle_of(&request, success(None))).await;
            pace.within(begun, pace.ticks(2))?;
            assert_eq!(settled, done(Some(ClaimState::Succeeded), None, false));
            (on.pass)(pace.ticks(4)).await;
            Ok(request)
        })
        .await;
    assert_eq!(on.duplicate(&again(&request)).await.left, None);
}

/// The outcome's retention goes before the claim's, and is kept with the record.
pub async fn a_success_may_bring_its_own_retention(on: &Subject) {
    for own in [Retention::For(Duration::from_mins(1)), Retention::Forever, Retention::For(Duration::from_hours(999))] {
        let terms = Terms { retention: Retention::For(Duration::from_hours(5)), ..long_terms() };
        let request = ClaimRequest { terms, ..fresh_claim() };
        on.granted(&request).await;
        let outcome = Outcome::Success { result: Some("[1]".into()), retention: Some(own) };
        assert_eq!(
            on.settle(&settle_of(&request, outcome)).await,
            done(Some(ClaimState::Succeeded), own.duration(), false)
        );
        let held = on.read(&request.key).await.expect("kept");
        assert_eq!((held.record.terms.retention, held.record.result.as_deref()), (own, Some("[1]")));
        match own.duration() {
            Some(own) => on.assert_left(held.left, own),
            None => assert_eq!(held.left, None),
        }
    }
}

/// A claim reported unknown is forgotten when its `unknown_retention` ends.
pub async fn an_unknown_retention_ends_by_itself(on: &Subject) {
    // Also where the end of the lease would have meant unknown: it was reported, so it does not outlive its time.
    for on_lease_end in [LeaseEnd::Release, LeaseEnd::Unknown] {
        let request = on
            .in_time(async |pace| {
                let unknown_retention = Retention::For(pace.ticks(2));
                let terms = Terms { unknown_retention, on_lease_end, ..long_terms() };
                let request = ClaimRequest { terms, ..fresh_claim() };
                on.granted(&request).await;
                let begun = pace.now();
                on.settle(&settle_of(&request, Outcome::Unknown)).await;
                let found = on.claim(&again(&request)).await;
                pace.within(begun, pace.ticks(2))?;
                duplicate(found);
                (on.pass)(pace.ticks(3)).await;
                Ok(request)
            })
            .await;
        on.granted(&again(&request)).await;
    }
}

/// Expiry = max(current, now + lease).
pub async fn a_renewal_extends_and_never_shortens(on: &Subject) {
    for on_lease_end in [LeaseEnd::Release, LeaseEnd::Unknown] {
        let hour = Duration::from_hours(1);
        let request = on
            .in_time(async |pace| {
                let lease = pace.ticks(4);
                let request = ClaimRequest { terms: Terms { lease, on_lease_end, ..long_terms() }, ..fresh_claim() };
                let claimed = pace.now();
                on.granted(&request).await;
                (on.pass)(pace.ticks(2)).await;
                // Without a lease of its own, for as long as the claim was made for.
                let renewal = pace.now();
                let renewed = on.renew(&renew_of(&request, None)).await;
                pace.within(claimed, lease)?;
                assert_eq!(renewed, RenewalResponse::Renewed { left: lease });
                (on.pass)(pace.ticks(3)).await;
                let found = on.claim(&again(&request)).await;
                let longer = on.renew(&renew_of(&request, Some(hour))).await;
                pace.within(renewal, lease)?;
                assert_eq!(duplicate(found).record.state, ClaimState::InProgress);
                assert_eq!(longer, RenewalResponse::Renewed { left: hour });
                Ok(request)
            })
            .await;
        let RenewalResponse::Renewed { left } = on.renew(&renew_of(&request, Some(on.tick))).await else {
            panic!("it is held")
        };
        on.assert_left(Some(left), hour);
        (on.pass)(on.ticks(2)).await;
        assert_eq!(on.duplicate(&again(&request)).await.record.state, ClaimState::InProgress);
        assert_eq!(on.settle(&settle_of(&request, Outcome::Failure)).await, done(None, None, false));
    }
}

/// The renewal column.
pub async fn a_renewal_of_what_is_not_held_is_refused(on: &Subject) {
    let request = fresh_claim();
    assert_eq!(on.renew(&renew_of(&request, None)).await, RenewalResponse::LeaseLost);
    on.granted(&request).await;
    let stranger = RenewalRequest { attempt: attempt(), ..renew_of(&request, None) };
    assert!(matches!(on.renew(&stranger).await, RenewalResponse::Superseded { state: ClaimState::InProgress, .. }));
}

/// S6.
pub async fn late_outcomes_are_recorded(on: &Subject) {
    let request = fresh_claim();
    let retention = request.terms.retention.duration();
    let late = settle_of(&request, success(Some("\"late\"")));
    for _ in 0..2 {
        let OutcomeResponse::Done { state, left, late } = on.settle(&late).await else { panic!("recorded") };
        assert_eq!((state, late), (Some(ClaimState::Succeeded), Some(true)), "repeated or not, it was late");
        on.assert_left(left, retention.expect("it ends"));
    }
    // Nothing is known of its contents, so nothing is compared: not the fingerprint either.
    let held = on.duplicate(&ClaimRequest { fingerprint: Some([3; 32]), ..again(&request) }).await;
    assert_eq!((held.record.state, held.record.contents.clone()), (ClaimState::Succeeded, Contents::Unverified));
    assert_eq!((held.record.result.as_deref(), held.record.operation), (Some("\"late\""), None));

    let request = fresh_claim();
    let unknown = on.settle(&settle_of(&request, Outcome::Unknown)).await;
    assert_eq!(unknown, done(Some(ClaimState::Unknown), request.terms.unknown_retention.duration(), true));
    assert_eq!(on.duplicate(&again(&request)).await.record.state, ClaimState::Unknown);
    assert!(on.granted(&ClaimRequest { take_over: true, ..again(&request) }).await.taken_over);
}

/// S6: refused, not dropped in silence.
pub async fn a_late_outcome_that_is_too_old_is_refused(on: &Subject) {
    let request = fresh_claim();
    for outcome in [success(None), Outcome::Unknown] {
        let too_old = OutcomeRequest { late: None, ..settle_of(&request, outcome) };
        assert_eq!(on.settle(&too_old).await, OutcomeResponse::Expired);
    }
    assert_eq!(on.read(&request.key).await, None);
    // Its age does not matter while the claim stands.
    on.granted(&request).await;
    let old_holder = OutcomeRequest { late: None, ..settle_of(&request, success(None)) };
    assert!(matches!(on.settle(&old_holder).await, OutcomeResponse::Done { state: Some(ClaimState::Succeeded), .. }));
}

/// Late records whose outcome carried the contents compare them like any other.
pub async fn a_late_record_with_contents_still_compares_them(on: &Subject) {
    let request = fresh_claim();
    let late = LateTerms {
        operation: Some(request.operation.clone()),
        contents: Contents::keep(&request.contents, 1024),
        terms: request.terms,
    };
    on.settle(&OutcomeRequest { late: Some(late), ..settle_of(&request, success(None)) }).await;
    on.duplicate(&again(&request)).await;
    let forged = ClaimRequest { contents: Canonical::trusted("\"forged\""), ..again(&request) };
    assert_eq!(on.claim(&forged).await, ClaimResponse::Mismatch(Mismatch::Contents));
}

/// A failure that finds nothing has nothing to do.
pub async fn a_late_failure_releases_nothing(on: &Subject) {
    let request = fresh_claim();
    assert_eq!(on.settle(&settle_of(&request, Outcome::Failure)).await, done(None, None, true));
    let too_old = OutcomeRequest { late: None, ..settle_of(&request, Outcome::Failure) };
    assert_eq!(on.settle(&too_old).await, done(None, None, true));
    on.granted(&request).await;
}

/// S8.
pub async fn apps_do_not_see_each_other(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    // The same global ID under another app, as an MD5 collision would give it.
    let other = ClaimRequest { key: Key { app: app("another"), ..request.key.clone() }, ..again(&request) };
    assert_eq!(on.read(&other.key).await, None);
    assert!(!on.granted(&other).await.repeated);
    assert_eq!(on.settle(&settle_of(&other, Outcome::Failure)).await, done(None, None, false));
    assert_eq!(on.duplicate(&again(&request)).await.record.attempt, request.attempt);
}

/// A lookup shows the record, and what is left of it.
pub async fn a_read_tells_what_stands(on: &Subject) {
    let request = ClaimRequest { fingerprint: Some([9; 32]), operation: Operation::default(), ..fresh_claim() };
    assert_eq!(on.read(&request.key).await, None);
    let grant = on.granted(&request).await;
    let held = on.read(&request.key).await.expect("it stands");
    assert_eq!(held.record, request.record());
    assert_eq!(held.fence, grant.fence);
    on.assert_left(held.left, request.terms.lease);
    on.engine.probe().await.expect("the store answers");
}

/// S7 for contents over `contents_stored_bytes`, also when that bound changes between two calls.
pub async fn long_contents_are_kept_as_a_digest_and_still_compared(on: &Subject) {
    for (first, second) in [(0, 0), (0, 1024), (1024, 0)] {
        let request = ClaimRequest { contents_stored_bytes: first, ..fresh_claim() };
        on.granted(&request).await;
        let repeat = ClaimRequest { contents_stored_bytes: second, ..again(&request) };
        let held = on.duplicate(&repeat).await;
        assert_eq!(matches!(held.record.contents, Contents::Digest(..)), first == 0);
        let forged = ClaimRequest { contents: Canonical::trusted("\"forged\""), ..repeat };
        assert_eq!(on.claim(&forged).await, ClaimResponse::Mismatch(Mismatch::Contents));
    }
}

/// S11.
pub async fn fences_rise_strictly_where_promised(on: &Subject) {
    let request = fresh_claim();
    let mut last = None;
    for round in 0..20 {
        let next = ClaimRequest { take_over: true, ..again(&request) };
        let grant = on.granted(&next).await;
        if on.engine.capabilities().strict_fence {
            let fence = grant.fence.expect("a fence is promised");
            assert!(fence < 1 << 53, "a fence must survive as a double");
            assert!(last.is_none_or(|last| fence > last), "{fence} does not rise above {last:?}");
            last = Some(fence);
            assert_eq!(on.granted(&next).await.fence, last, "a repeat is told the same fence");
        } else {
            assert_eq!(grant.fence, None, "a fence that is not promised is not given");
        }
        let outcome = if round % 2 == 0 { Outcome::Failure } else { Outcome::Unknown };
        on.settle(&settle_of(&next, outcome)).await;
    }
}

/// Calls that come together, which an engine may gather, are answered one by one.
pub async fn many_at_once_each_have_their_answer(on: &Subject) {
    let first: Vec<_> = (0..50).map(|_| fresh_claim()).collect();
    for (request, grant) in first.iter().zip(join_all(first.iter().map(|request| on.granted(request))).await) {
        assert_eq!(grant.attempt, request.attempt);
    }
    let mut requests: Vec<_> = (0..50).map(|_| fresh_claim()).collect();
    requests.push(again(&first[0]));
    requests.push(ClaimRequest { attempt: issuer().issue(Some(first[1].attempt.nonce().clone())), ..first[1].clone() });
    requests.push(ClaimRequest { contents: Canonical::trusted("1"), ..again(&first[2]) });
    let answers = join_all(requests.iter().map(|request| on.engine.claim(request, DEADLINE))).await;
    for (place, answer) in answers.iter().enumerate() {
        match (place, answer.as_ref().expect("the engine answers")) {
            (0..50, ClaimResponse::Granted(grant)) => assert_eq!(grant.attempt, requests[place].attempt),
            (50, ClaimResponse::Duplicate(held)) => assert_eq!(held.record.attempt, first[0].attempt),
            (51, ClaimResponse::Granted(grant)) => assert!(grant.repeated && grant.attempt == first[1].attempt),
            (52, ClaimResponse::Mismatch(mismatch)) => assert_eq!(*mismatch, Mismatch::Contents),
            (_, other) => panic!("item {place}: unexpected {other:?}"),
        }
    }
    let settles: Vec<_> = first.iter().map(|request| settle_of(request, success(None))).collect();
    for answer in join_all(settles.iter().map(|settle| on.engine.settle(settle, DEADLINE))).await {
        assert!(matches!(answer, Ok(OutcomeResponse::Done { state: Some(ClaimState::Succeeded), .. })), "{answer:?}");
    }
}

/// Two batches race for the same keys. Some are held already, one of them by what the second batch asks with.
pub async fn claims_of_a_batch_are_each_told_once(on: &Subject) {
    let first: Vec<_> = (0..300).map(|_| fresh_claim()).collect();
    let second: Vec<_> = first.iter().rev().map(again).collect();
    for request in [&first[0], &first[1], &second[2]] {
        on.granted(request).await;
    }
    let [first, second] =
        join_all([first, second].map(|requests| on.claim_batch(requests))).await.try_into().expect("two");
    let mut granted = 0;
    for (one, other) in first.iter().zip(second.iter().rev()) {
        assert_eq!(one.0.key, other.0.key);
        let grants = [one, other].into_iter().filter_map(|(request, answer)| match answer {
            ClaimResponse::Granted(grant) => Some((request, grant)),
            ClaimResponse::Duplicate(_) => None,
            answer @ ClaimResponse::Mismatch(_) => panic!("unexpected {answer:?}"),
        });
        for (request, grant) in grants {
            assert_eq!(grant.attempt, request.attempt, "each is told its own");
            granted += 1;
        }
    }
    assert_eq!(granted, 300, "each key is granted once");
    on.claim_batch(Vec::new()).await;
}

/// An operator's release, of a claim in each state that there is.
pub async fn a_release_ends_a_claim_in_any_state(on: &Subject) {
    let lapsing = Terms { lease: on.ticks(2), on_lease_end: LeaseEnd::Unknown, ..long_terms() };
    let mut requests = Vec::new();
    for outcome in [None, Some(success(Some("1"))), Some(Outcome::Unknown)] {
        let request = fresh_claim();
        on.granted(&request).await;
        if let Some(outcome) = outcome {
            on.settle(&settle_of(&request, outcome)).await;
        }
        requests.push(request);
    }
    let forever = Outcome::Success { result: None, retention: Some(Retention::Forever) };
    let (kept, late, lapsed) = (fresh_claim(), fresh_claim(), ClaimRequest { terms: lapsing, ..fresh_claim() });
    on.granted(&kept).await;
    on.settle(&settle_of(&kept, forever)).await;
    on.settle(&settle_of(&late, success(None))).await;
    on.granted(&lapsed).await;
    (on.pass)(on.ticks(3)).await;
    requests.extend([kept, late, lapsed]);
    for request in requests {
        let held = on.read(&request.key).await.expect("it stands");
        assert_eq!(on.release(&request.key, &held.record.attempt).await, ReleaseResponse::Done);
        assert_eq!(on.read(&request.key).await, None);
        assert_eq!(on.release(&request.key, &held.record.attempt).await, ReleaseResponse::Absent);
        let grant = on.granted(&again(&request)).await;
        assert!(!grant.taken_over && !grant.repeated);
    }
    // What has ended is absent here too.
    let ended = ClaimRequest { terms: Terms { lease: on.ticks(2), ..long_terms() }, ..fresh_claim() };
    on.granted(&ended).await;
    (on.pass)(on.ticks(3)).await;
    assert_eq!(on.release(&ended.key, &ended.attempt).await, ReleaseResponse::Absent);
}

/// S2: what the operator was shown is what is released, and nothing that came after.
pub async fn a_release_by_another_attempt_changes_nothing(on: &Subject) {
    for outcome in [None, Some(success(Some("1"))), Some(Outcome::Unknown)] {
        let request = fresh_claim();
        on.granted(&request).await;
        if let Some(outcome) = outcome {
            on.settle(&settle_of(&request, outcome)).await;
        }
        let before = on.read(&request.key).await.expect("kept");
        let same_nonce = issuer().issue(Some(request.attempt.nonce().clone()));
        let same_timestamp = Attempt::new(request.attempt.timestamp(), Nonce::from_bits(7));
        for stranger in [attempt(), same_nonce, same_timestamp] {
            assert_eq!(on.release(&request.key, &stranger).await, ReleaseResponse::Superseded);
        }
        // Nor is another app's claim of the same ID touched.
        let other = Key { app: app("another"), ..request.key.clone() };
        assert_eq!(on.release(&other, &request.attempt).await, ReleaseResponse::Absent);
        let after = on.read(&request.key).await.expect("kept");
        assert_eq!((&after.record, after.fence), (&before.record, before.fence));
    }
}

/// A holder whose claim was released under it is told so by whatever it does next.
pub async fn a_released_holder_holds_nothing(on: &Subject) {
    let released = async || {
        let request = fresh_claim();
        on.granted(&request).await;
        assert_eq!(on.release(&request.key, &request.attempt).await, ReleaseResponse::Done);
        request
    };
    let request = released().await;
    assert_eq!(on.renew(&renew_of(&request, None)).await, RenewalResponse::LeaseLost);
    assert_eq!(on.settle(&settle_of(&request, Outcome::Failure)).await, done(None, None, true));
    let recorded = on.settle(&settle_of(&request, success(None))).await;
    assert!(
        matches!(recorded, OutcomeResponse::Done { state: Some(ClaimState::Succeeded), late: Some(true), .. }),
        "{recorded:?}"
    );
    let request = released().await;
    let next = again(&request);
    on.granted(&next).await;
    for outcome in [success(None), Outcome::Failure, Outcome::Unknown] {
        assert!(matches!(on.settle(&settle_of(&request, outcome)).await, OutcomeResponse::Superseded { .. }));
    }
    assert_eq!(on.duplicate(&again(&request)).await.record.attempt, next.attempt);
}

/// S11, over a release of every state.
pub async fn a_release_keeps_fences_rising(on: &Subject) {
    if !on.engine.capabilities().strict_fence {
        return;
    }
    let request = fresh_claim();
    let mut last = None;
    for outcome in [None, Some(success(None)), Some(Outcome::Unknown), None] {
        let next = again(&request);
        let fence = on.granted(&next).await.fence.expect("a fence is promised");
        assert!(last.is_none_or(|last| fence > last), "{fence} does not rise above {last:?}");
        last = Some(fence);
        if let Some(outcome) = outcome {
            on.settle(&settle_of(&next, outcome)).await;
        }
        assert_eq!(on.release(&next.key, &next.attempt).await, ReleaseResponse::Done);
    }
}

/// Pages that follow one another hold every claim once, in order.
pub async fn a_list_is_by_global_id_and_pages(on: &Subject) {
    let (app, mut ids) = lister();
    if !on.engine.capabilities().lists {
        let refused = on.engine.list(&list_of(&app, None, 10)).await;
        assert!(matches!(refused, Err(EngineError::Determinate(_))), "{refused:?}");
        return;
    }
    assert_eq!(on.list(&list_of(&app, None, 10)).await, []);
    for number in 0..25 {
        let request = claim_of(&app, &number.to_string());
        on.granted(&request).await;
        ids.push(request.key.global_id);
    }
    ids.sort();
    let (mut found, mut after) = (Vec::new(), None);
    for expected in [10, 10, 5, 0] {
        let page = on.list(&list_of(&app, after, 10)).await;
        assert_eq!(page.len(), expected);
        after = page.last().map(|last| last.global_id).or(after);
        found.extend(page.into_iter().map(|listed| listed.global_id));
    }
    assert_eq!(found, ids);
    // An ID that names nothing says where to go on as well.
    let between = GlobalId::from_bytes((u128::from_be_bytes(*ids[3].as_bytes()) + 1).to_be_bytes());
    assert_eq!(on.list(&list_of(&app, Some(between), 1)).await[0].global_id, ids[4]);
    let end = GlobalId::from_bytes([0xff; 16]);
    assert_eq!(on.list(&list_of(&app, Some(end), 10)).await, []);
}

/// Claims of the app and in the state that was asked for, as a lookup would tell them; nothing that has gone.
pub async fn a_list_holds_what_stands(on: &Subject) {
    if !on.engine.capabilities().lists {
        return;
    }
    let (app, _) = lister();
    // Its name goes on from the other's, so that its claims lie beside them.
    on.granted(&claim_of(&format!("{app}-1"), "1")).await;
    let short = Terms { lease: on.ticks(2), ..long_terms() };
    let lapsing = Terms { on_lease_end: LeaseEnd::Unknown, ..short };
    let claim = |contents: &str, terms| ClaimRequest { terms, ..claim_of(&app, contents) };
    let [ended, lapsed] = [claim("1", short), claim("2", lapsing)];
    let [running, succeeded, unknown, failed, released] =
        ["3", "4", "5", "6", "7"].map(|text| claim(text, long_terms()));
    for request in [&ended, &lapsed, &running, &succeeded, &unknown, &failed, &released] {
        on.granted(request).await;
    }
    on.settle(&settle_of(&succeeded, success(Some("{\"n\": 1}")))).await;
    on.settle(&settle_of(&unknown, Outcome::Unknown)).await;
    on.settle(&settle_of(&failed, Outcome::Failure)).await;
    on.release(&released.key, &released.attempt).await;
    (on.pass)(on.ticks(3)).await;
    for (state, expected) in [
        (None, vec![&lapsed, &running, &succeeded, &unknown]),
        (Some(ClaimState::InProgress), vec![&running]),
        (Some(ClaimState::Succeeded), vec![&succeeded]),
        (Some(ClaimState::Unknown), vec![&lapsed, &unknown]),
    ] {
        let listed = on.list(&ListRequest { state, ..list_of(&app, None, 100) }).await;
        let mut expected: Vec<_> = expected.into_iter().map(|request| request.key.clone()).collect();
        expected.sort();
        let found: Vec<_> = listed.iter().map(|listed| listed.global_id).collect();
        assert_eq!(found, expected.iter().map(|key| key.global_id).collect::<Vec<_>>(), "{state:?}");
        for (listed, key) in listed.iter().zip(&expected) {
            let held = on.read(key).await.expect("it stands");
            assert_eq!((&listed.claim.record, listed.claim.fence), (&held.record, held.fence));
            assert!(listed.claim.left.is_some() == held.left.is_some() && listed.claim.left >= held.left);
        }
    }
}

/// An app that no other test has, and room for the IDs of its claims.
fn lister() -> (String, Vec<GlobalId>) {
    (format!("lister{}", attempt().timestamp().as_micros()), Vec::new())
}

fn list_of(app_name: &str, after: Option<GlobalId>, limit: usize) -> ListRequest {
    ListRequest { app: app(app_name), state: None, after, limit }
}

/// Gateways agree by notes: nothing is put over what was not expected, and a repeat of what was put is put.
pub async fn a_note_is_put_only_where_what_is_expected_stands(on: &Subject) {
    let (name, other_name) = (fresh_note_name(), fresh_note_name());
    let engine = &on.engine;
    let stands = async || engine.get_metadata(&name).await.expect("the engine answers");
    let swap = async |expected: Option<&Metadata>, new: &Metadata| -> Result<bool, EngineError> {
        engine.compare_and_set_metadata(&name, expected, new).await
    };
    let (first, second) = (note("{\"n\": 1}"), note(&"ü".repeat(METADATA_BYTES_MAX / 2)));
    assert_eq!(stands().await, None);
    assert_eq!(swap(Some(&first), &second).await, Ok(false), "nothing stands there");
    assert_eq!(stands().await, None);
    assert_eq!(swap(None, &first).await, Ok(true));
    assert_eq!(stands().await.as_ref(), Some(&first));
    assert_eq!(swap(None, &second).await, Ok(false), "one stands there");
    assert_eq!(swap(Some(&second), &note("")).await, Ok(false), "another one stands there");
    assert_eq!(stands().await.as_ref(), Some(&first), "and is left");
    assert_eq!(swap(Some(&first), &second).await, Ok(true));
    assert_eq!(swap(Some(&first), &second).await, Ok(true), "a repeat finds it put");
    assert_eq!(swap(Some(&first), &first).await, Ok(false));
    assert_eq!(stands().await.as_ref(), Some(&second));
    assert_eq!(engine.get_metadata(&other_name).await, Ok(None), "another name is another note");
    (on.pass)(on.tick).await;
    assert_eq!(swap(Some(&second), &note("")).await, Ok(true));
    assert_eq!(stands().await, Some(note("")));
}

/// Of two operators at once one is told.
pub async fn of_many_racing_swaps_of_a_note_exactly_one_is_put(on: &Subject) {
    let name = fresh_note_name();
    let mut stands = None;
    for round in 0..5 {
        let racers: Vec<_> = (0..50)
            .map(|racer| {
                let (engine, name, expected) = (on.engine.clone(), name.clone(), stands.clone());
                let new = note(&format!("{round}-{racer}"));
                tokio::spawn(async move {
                    let put = engine.compare_and_set_metadata(&name, expected.as_ref(), &new).await;
                    (put.expect("the engine answers"), new)
                })
            })
            .collect();
        let raced = join_all(racers).await.into_iter().map(|racer| racer.expect("no panic"));
        let winners: Vec<_> = raced.filter(|(put, _)| *put).map(|(_, new)| new).collect();
        assert_eq!(winners.len(), 1, "exactly one of 50 is put");
        stands = on.engine.get_metadata(&name).await.expect("the engine answers");
        assert_eq!(stands.as_ref(), winners.first());
    }
}

/// A random history on a few keys, each answer compared with what the table of transitions says.
pub async fn any_history_agrees_with_the_table(on: &Subject) {
    let seeds: Vec<u64> = match std::option_env!("ONCEGATE_SEED").map(str::parse) {
        Some(Ok(seed)) => vec![seed],
        _ => (0..12).map(|_| attempt().timestamp().as_micros()).collect(),
    };
    for seed in seeds {
        let mut history = History::new(seed);
        for step in 0..150 {
            history.step(on).await.unwrap_or_else(|why| panic!("seed {seed}, step {step}: {why}"));
        }
    }
}

/// What the store should hold, by the table, and the attempts and keys to play with.
struct History {
    random: SmallRng,
    requests: Vec<ClaimRequest>,
    attempts: BTreeMap<Key, Vec<Attempt>>,
    model: BTreeMap<Key, LiveClaim>,
}

impl History {
    fn new(seed: u64) -> Self {
        let requests = (0..3).map(|_| fresh_claim()).collect();
        Self { random: SmallRng::seed_from_u64(seed), requests, attempts: BTreeMap::new(), model: BTreeMap::new() }
    }

    async fn step(&mut self, on: &Subject) -> Result<(), String> {
        let place = self.random.random_range(0..self.requests.len());
        let request = self.requests[place].clone();
        let held = self.model.get(&request.key).cloned();
        match self.random.random_range(0..11) {
            0..4 => {
                let request = self.some_claim(request);
                let (effect, expected) = claim::claim(held.as_ref(), &request, None);
                compare("claim", &on.claim(&request).await.shape(), &expected.shape())?;
                self.attempts.entry(request.key.clone()).or_default().push(request.attempt.clone());
                self.apply(request.key, effect);
            }
            4..8 => {
                let request = self.some_settle(&request);
                let (effect, expected) = claim::settle(held.as_ref(), &request);
                compare("settle", &on.settle(&request).await.shape(), &expected.shape())?;
                self.apply(request.key, effect);
            }
            8 => {
                let attempt = self.some_attempt(&request.key);
                let request = RenewalRequest { key: request.key, attempt, lease: None };
                let (effect, expected) = claim::renew(held.as_ref(), &request);
                compare("renew", &on.renew(&request).await.shape(), &expected.shape())?;
                self.apply(request.key, effect);
            }
            9 => {
                let attempt = self.some_attempt(&request.key);
                let request = ReleaseRequest { key: request.key, attempt };
                let (effect, expected) = operator::release(held.as_ref(), &request);
                compare("release", &on.release(&request.key, &request.attempt).await, &expected)?;
                self.apply(request.key, effect);
            }
            _ => {
                let found = on.read(&request.key).await.map(|held| held.record);
                compare("read", &found, &held.map(|held| held.record))?;
            }
        }
        Ok(())
    }

    /// The claim again, by a new or an old attempt, with or without take-over, now and then with something else in it.
    fn some_claim(&mut self, request: ClaimRequest) -> ClaimRequest {
        let attempt = if self.random.random_bool(0.3) { self.some_attempt(&request.key) } else { attempt() };
        let fingerprint = self.random.random_bool(0.1).then_some([1; 32]);
        let contents = if self.random.random_bool(0.05) { Canonical::trusted("0") } else { request.contents.clone() };
        let on_lease_end = if self.random.random_bool(0.5) { LeaseEnd::Unknown } else { LeaseEnd::Release };
        let terms = Terms { on_lease_end, ..request.terms };
        ClaimRequest { attempt, fingerprint, contents, terms, take_over: self.random.random_bool(0.3), ..request }
    }

    fn some_settle(&mut self, request: &ClaimRequest) -> OutcomeRequest {
        let outcome = match self.random.random_range(0..5) {
            0 => success(None),
            1 => Outcome::Success { result: Some("{\"n\": 1}".into()), retention: Some(Retention::Forever) },
            2 | 3 => Outcome::Failure,
            _ => Outcome::Unknown,
        };
        let attempt = self.some_attempt(&request.key);
        let late = settle_by(request, &attempt, outcome);
        if self.random.random_bool(0.2) { OutcomeRequest { late: None, ..late } } else { late }
    }

    fn some_attempt(&mut self, key: &Key) -> Attempt {
        let known = self.attempts.get(key).map_or(&[][..], Vec::as_slice);
        match known {
            [] => attempt(),
            known if self.random.random_bool(0.6) => known[known.len() - 1].clone(),
            known => known[self.random.random_range(0..known.len())].clone(),
        }
    }

    fn apply(&mut self, key: Key, effect: Effect) {
        match effect {
            Effect::Keep | Effect::Extend(_) => {}
            Effect::Put(record, left) => {
                self.model.insert(key, LiveClaim { record, left, fence: None });
            }
            Effect::Delete => {
                self.model.remove(&key);
            }
        }
    }
}

fn compare<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: expected {expected:?}, found {found:?}")) }
}

/// An answer without its durations and fences, which an engine on a real clock cannot repeat exactly.
trait Shape {
    type Shape: PartialEq + std::fmt::Debug;
    fn shape(&self) -> Self::Shape;
}

impl Shape for ClaimResponse {
    type Shape = (Option<(Attempt, bool, bool)>, Option<Record>, Option<Mismatch>);

    fn shape(&self) -> Self::Shape {
        match self {
            Self::Granted(grant) => (Some((grant.attempt.clone(), grant.repeated, grant.taken_over)), None, None),
            Self::Duplicate(held) => (None, Some(held.record.clone()), None),
            Self::Mismatch(mismatch) => (None, None, Some(*mismatch)),
        }
    }
}

impl Shape for OutcomeResponse {
    type Shape = (&'static str, Option<ClaimState>, Option<bool>, bool);

    fn shape(&self) -> Self::Shape {
        match self {
            Self::Done { state, late, left } => ("done", *state, *late, left.is_none()),
            Self::AlreadySucceeded => ("already succeeded", None, None, false),
            Self::Superseded { state, .. } => ("superseded", Some(*state), None, false),
            Self::Expired => ("expired", None, None, false),
        }
    }
}

impl Shape for RenewalResponse {
    type Shape = (&'static str, Option<ClaimState>);

    fn shape(&self) -> Self::Shape {
        match self {
            Self::Renewed { .. } => ("renewed", None),
            Self::LeaseLost => ("lease lost", None),
            Self::AlreadySucceeded => ("already succeeded", None),
            Self::Superseded { state, .. } => ("superseded", Some(*state)),
        }
    }
}
