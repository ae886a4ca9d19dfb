//! Tests of batches: deadlines, order on a key, memory for results.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use oncegate_core::call::CallContext;
use oncegate_core::claim::{
    ClaimRequest, ClaimResponse, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::clock::{Clock, ManualClock, Timestamp};
use oncegate_core::engine::conformance::fresh_claim;
use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use oncegate_core::engine::{BatchClaim, ClaimSink, Claims, claim_each};
use oncegate_core::limits::Limits;
use oncegate_core::operator::{
    ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse, UnknownsPage, UnknownsRequest,
};
use oncegate_core::record::LiveClaim;
use oncegate_core::terms::ClaimOnOutage;
use tokio::time::{Instant, sleep};

use super::answers::FittedAnswer;
use super::*;
use crate::result_memory::ResultMemory;
use oncegate_outage::{OutagePolicies, PolicyClaim};

const SECOND: Duration = Duration::from_secs(1);

/// A call that takes this long, if it is answered at all.
struct Request {
    key: Key,
    deadline: Duration,
    takes: Duration,
}

impl Request {
    fn new(deadline: Duration, takes: Duration) -> Self {
        Self { key: fresh_claim().key, deadline, takes }
    }
}

/// Runs the requests as a batch. Returns the answers, and how long the batch took.
#[expect(clippy::disallowed_methods, reason = "it is the test's own clock")]
async fn answers_of(requests: &[Request]) -> (Vec<Result<Duration, EngineError>>, Duration) {
    let started = Instant::now();
    let call = |request: &Request| {
        let takes = request.takes;
        async move {
            sleep(takes).await;
            Ok(takes)
        }
    };
    (run(requests, |request| (&request.key, request.deadline), || started.elapsed(), call).await, started.elapsed())
}

fn is_unknown(answer: &Result<Duration, EngineError>) -> bool {
    matches!(answer, Err(EngineError::Indeterminate(_)))
}

#[tokio::test(start_paused = true)]
async fn an_item_that_hangs_delays_no_other_answer() {
    let requests = [
        Request::new(SECOND, Duration::MAX),
        Request::new(SECOND, Duration::ZERO),
        Request::new(SECOND * 3, SECOND * 2),
        Request::new(SECOND / 10, SECOND / 2),
    ];
    let (answers, took) = answers_of(&requests).await;
    assert!(is_unknown(&answers[0]) && is_unknown(&answers[3]), "{answers:?}");
    assert_eq!(answers[1..3], [Ok(Duration::ZERO), Ok(SECOND * 2)]);
    assert!(took < SECOND * 2 + SECOND / 10, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_an_item_runs_while_it_waits_for_others_on_its_key() {
    let slow = Request::new(SECOND, SECOND * 6 / 10);
    let same_key = || Request { key: slow.key.clone(), deadline: SECOND, takes: SECOND * 6 / 10 };
    let requests = [same_key(), same_key(), same_key()];
    let (answers, took) = answers_of(&requests).await;
    assert!(answers[0].is_ok() && is_unknown(&answers[1]), "{answers:?}");
    assert!(matches!(answers[2], Err(EngineError::Determinate(_))), "it was not sent: {answers:?}");
    assert!(took < SECOND + SECOND / 10, "{took:?}");
}

/// An engine with a delay for each key.
struct Slow {
    inner: Memory,
    takes: HashMap<Key, Duration>,
    in_flight: InFlight,
}

/// Number of claims in flight, and its maximum so far.
#[derive(Default)]
struct InFlight {
    now: AtomicUsize,
    max: AtomicUsize,
}

#[async_trait]
impl Claims for Slow {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        self.in_flight.max.fetch_max(self.in_flight.now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        sleep(self.takes.get(&request.key).copied().unwrap_or_default()).await;
        let answer = self.inner.claim(request, deadline).await;
        self.in_flight.now.fetch_sub(1, Ordering::Relaxed);
        answer
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        claim_each(self, claims, sink).await;
    }

    async fn settle(&self, _: &OutcomeRequest, _: Duration) -> Result<OutcomeResponse, EngineError> {
        unimplemented!()
    }

    async fn renew(&self, _: &RenewalRequest, _: Duration) -> Result<RenewalResponse, EngineError> {
        unimplemented!()
    }

    async fn read(&self, _: &Key) -> Result<Option<LiveClaim>, EngineError> {
        unimplemented!()
    }

    async fn release(&self, _: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        unimplemented!()
    }

    async fn list(&self, _: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        unimplemented!()
    }

    async fn unknowns(&self, _: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        unimplemented!()
    }
}

oncegate_core::forward!(Records for Slow => inner);

oncegate_core::forward!(Topology for Slow => inner);

/// A claim, and the deadline of its call.
type Timed = (ClaimRequest, Duration);

fn claim(deadline: Duration) -> Timed {
    (fresh_claim(), deadline)
}

fn again((request, deadline): &Timed) -> Timed {
    (ClaimRequest { attempt: fresh_claim().attempt, ..request.clone() }, *deadline)
}

fn policy_claim((request, deadline): &Timed) -> PolicyClaim<'_> {
    PolicyClaim { request, context: CallContext { deadline: *deadline, on_outage: ClaimOnOutage::FailClosed } }
}

fn policies(engine: &Arc<Slow>) -> OutagePolicies {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
    OutagePolicies::without_journal(engine.clone(), &clock)
}

/// Runs the claims as a batch, with the delays of their keys. Returns the answers, and how long the batch took.
#[expect(clippy::disallowed_methods, reason = "it is the test's own clock")]
async fn claimed(requests: &[(Timed, Duration)]) -> (Vec<Result<ClaimResponse, EngineError>>, Duration) {
    let memory = ResultMemory::new(&Limits::default());
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
    let takes = requests.iter().map(|((request, _), takes)| (request.key.clone(), *takes)).collect();
    let engine = Arc::new(Slow { inner: Memory::new(clock, BYTES_MAX_DEFAULT), takes, in_flight: InFlight::default() });
    let started = Instant::now();
    let requests: Vec<_> = requests.iter().map(|(timed, _)| policy_claim(timed)).collect();
    let memory = memory.of(&"shop".parse().unwrap());
    let (answers, _kept) = run_claims(&policies(&engine), &requests, &memory, 0, || started.elapsed()).await;
    (answers.into_iter().map(|answer| answer.map(|fitted| fitted.answered.answer)).collect(), started.elapsed())
}

#[tokio::test(start_paused = true)]
async fn answers_have_the_index_of_their_item_also_behind_expired_ones() {
    let requests = [Duration::ZERO, SECOND, Duration::ZERO, SECOND].map(|deadline| (claim(deadline), Duration::ZERO));
    let (answers, _) = claimed(&requests).await;
    for (index, ((request, _), _)) in requests.iter().enumerate() {
        match &answers[index] {
            Ok(ClaimResponse::Granted(grant)) => {
                assert_eq!((grant.attempt == request.attempt, index % 2), (true, 1));
            }
            other => assert_eq!((matches!(other, Err(EngineError::Determinate(_))), index % 2), (true, 0)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_hangs_delays_no_other_answer() {
    let (answers, took) = claimed(&[
        (claim(SECOND), Duration::MAX),
        (claim(SECOND), Duration::ZERO),
        (claim(SECOND * 3), SECOND * 2),
        (claim(SECOND / 10), SECOND / 2),
        (claim(Duration::ZERO), Duration::ZERO),
    ])
    .await;
    let [hung, quick, slow, late, expired] = &answers[..] else { panic!("{answers:?}") };
    for granted in [quick, slow] {
        assert!(matches!(granted, Ok(ClaimResponse::Granted(_))), "{granted:?}");
    }
    for unknown in [hung, late] {
        assert!(matches!(unknown, Err(EngineError::Indeterminate(_))), "{unknown:?}");
    }
    assert!(matches!(expired, Err(EngineError::Determinate(_))), "it was not sent: {expired:?}");
    assert!(took < SECOND * 2 + SECOND / 10, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn no_more_results_are_loaded_at_once_than_the_app_has_memory_for() {
    const RESULT: usize = 1000;
    let limits = Limits { result_bytes: RESULT, batch_result_bytes: 64 << 10, ..Limits::default() };
    let memory = ResultMemory::new(&limits);
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
    let engine =
        Slow { inner: Memory::new(clock, BYTES_MAX_DEFAULT), takes: HashMap::new(), in_flight: InFlight::default() };
    let mut requests: Vec<_> = (0..200).map(|_| claim(SECOND * 60)).collect();
    for (request, deadline) in &requests {
        engine.inner.claim(request, *deadline).await.unwrap();
        let outcome = Outcome::Success { result: Some("x".repeat(RESULT).into()), retention: None };
        let (key, attempt) = (request.key.clone(), request.attempt.clone());
        let settle = OutcomeRequest { key, attempt, outcome, late: None };
        engine.inner.settle(&settle, SECOND).await.unwrap();
    }
    // And the same key many times in one batch.
    requests.extend(vec![requests[0].clone(); 50]);
    let takes = requests.iter().map(|(request, _)| (request.key.clone(), SECOND / 100)).collect();
    let engine = Arc::new(Slow { takes, ..engine });
    let policies = policies(&engine);
    let again: Vec<_> = requests.iter().map(again).collect();
    let again: Vec<_> = again.iter().map(policy_claim).collect();
    let memory = memory.of(&"shop".parse().unwrap());
    let batches = (0..10).map(|_| run_claims(&policies, &again, &memory, 10 * RESULT, || Duration::ZERO));
    let batches = join_all(batches).await;
    // Three quarters of the memory are for loading, and an app gets half of that.
    assert_eq!(engine.in_flight.max.load(Ordering::Relaxed), 24);
    let mut kept = 0;
    for (answers, _kept) in &batches {
        let fitted: Vec<_> = answers.iter().map(|answer| answer.as_ref().unwrap()).collect();
        let has_result = |fitted: &&&FittedAnswer| match &fitted.answered.answer {
            ClaimResponse::Duplicate(claim) => claim.record.result.is_some(),
            other => panic!("{other:?}"),
        };
        let results = fitted.iter().filter(has_result).count();
        assert_eq!(results + fitted.iter().filter(|fitted| fitted.result_omitted).count(), again.len());
        assert!(results <= 10, "{results}");
        kept += results;
    }
    assert_eq!(kept, 8, "as many as the app has memory for");
}

#[tokio::test(start_paused = true)]
async fn claims_wait_for_earlier_ones_on_their_key_and_for_no_others() {
    let (hangs, quick) = (claim(SECOND), claim(SECOND));
    let (requests, took) = ([&hangs, &quick, &quick, &quick, &hangs], SECOND * 2);
    let takes = |claim: &Timed| if claim.0.key == hangs.0.key { took } else { SECOND / 10 };
    let (answers, took) = claimed(&requests.map(|request| (again(request), takes(request)))).await;
    assert!(matches!(answers[1], Ok(ClaimResponse::Granted(_))), "{answers:?}");
    for later in &answers[2..4] {
        assert!(matches!(later, Ok(ClaimResponse::Duplicate(_))), "{answers:?}");
    }
    assert!(matches!(answers[0], Err(EngineError::Indeterminate(_))), "{answers:?}");
    assert!(matches!(answers[4], Err(EngineError::Determinate(_))), "it was not sent: {answers:?}");
    assert!(took < SECOND + SECOND / 10, "{took:?}");
}
