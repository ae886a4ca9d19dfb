//! Callers wait over the memory engine, whose calls are counted.

use std::future::pending;
use std::sync::atomic::AtomicUsize;

use async_trait::async_trait;
use oncegate_core::attempt::{Attempt, Issuer, SystemEntropy};
use oncegate_core::canonical::{Canonical, canonicalize};
use oncegate_core::claim::{Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse};
use oncegate_core::clock::{Clock, SystemClock};
use oncegate_core::engine::conformance::fresh_claim;
use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use oncegate_core::engine::{
    BatchClaim, ChangeResponse, Channel, ClaimSink, Claims, RecordChange, RecordName, RecordView, Records,
    Subscription, claim_each,
};
use oncegate_core::global_id::GlobalId;
use oncegate_core::operator::{
    ListRequest, ListedClaim, LockListRequest, LockPage, ReleaseRequest, ReleaseResponse, UnknownsPage, UnknownsRequest,
};
use oncegate_core::record::ClaimId;
use oncegate_core::tenant::Operation;
use oncegate_core::terms::{LeaseEnd, Retention, Terms};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::*;
use crate::claim::{ClaimAnswer, ClaimCall};
use crate::outcome::OutcomeCall;
use crate::resilience::tests::metric;
use crate::tenants::App;
use crate::{Engines, Gateway};

const LONG: Duration = Duration::from_secs(20);

/// The memory engine, with its calls counted.
struct Counted {
    memory: Memory,
    calls: AtomicUsize,
    /// Claim calls of callers that wait.
    waiting_calls: AtomicUsize,
    notifies: bool,
}

impl Counted {
    fn memory(&self) -> &Memory {
        self.calls.fetch_add(1, Ordering::SeqCst);
        &self.memory
    }
}

#[async_trait]
impl Claims for Counted {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        self.waiting_calls.fetch_add(usize::from(request.waits), Ordering::SeqCst);
        self.memory().claim(request, deadline).await
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        claim_each(self, claims, sink).await;
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        self.memory().settle(request, deadline).await
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        self.memory().renew(request, deadline).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.memory().read(key).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.memory().release(request).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.memory().list(request).await
    }

    async fn unknowns(&self, request: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        self.memory().unknowns(request).await
    }
}

#[async_trait]
impl Records for Counted {
    async fn get_record(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError> {
        self.memory.get_record(name, deadline).await
    }

    async fn change_record(&self, change: &RecordChange, deadline: Duration) -> Result<ChangeResponse, EngineError> {
        self.memory.change_record(change, deadline).await
    }

    async fn list_records(&self, request: &LockListRequest) -> Result<LockPage, EngineError> {
        self.memory.list_records(request).await
    }

    async fn subscribe(&self, channel: &Channel) -> Subscription {
        if self.notifies { self.memory.subscribe(channel).await } else { Subscription::none() }
    }
}

oncegate_core::forward!(Topology for Counted => memory);

struct World {
    gateway: Arc<Gateway>,
    engine: Arc<Counted>,
    app: Arc<App>,
}

fn world(notifies: bool, lease: Duration, waiting: usize) -> World {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let memory = Memory::new(clock.clone(), BYTES_MAX_DEFAULT);
    let [calls, waiting_calls] = [0, 0].map(AtomicUsize::new);
    let engine = Arc::new(Counted { memory, calls, waiting_calls, notifies });
    let entropy = Arc::new(SystemEntropy);
    let engines = Engines::of_one("default", engine.clone(), &clock, entropy.clone());
    let issuer = Issuer::new(clock.clone(), entropy);
    let day = Retention::For(Duration::from_hours(24));
    let terms = Terms { lease, retention: day, unknown_retention: day, on_lease_end: LeaseEnd::Release };
    let app = Arc::new(App::for_tests("shop", &[], terms, LONG));
    let gateway = Arc::new(Gateway::new(engines, issuer, clock, &Limits { waiting, ..Limits::default() }));
    gateway.measure_apps(std::slice::from_ref(&app), 10);
    World { gateway, engine, app }
}

fn contents() -> Canonical {
    canonicalize(b"\"order-1\"").unwrap()
}

fn call() -> ClaimCall {
    ClaimCall::plain(Operation::default(), contents())
}

impl World {
    fn new() -> Self {
        world(true, LONG, 1000)
    }

    async fn hold(&self) -> Attempt {
        granted(self.gateway.claim(&self.app, call()).await.unwrap().answer)
    }

    async fn report(&self, attempt: &Attempt, outcome: Outcome) {
        let global_id = GlobalId::of(&self.app.key, &Operation::default(), &contents());
        let report = OutcomeCall {
            id: ClaimId::of_api(global_id),
            attempt: attempt.clone(),
            outcome,
            operation: None,
            contents: None,
        };
        self.gateway.settle(&self.app, report).await.unwrap();
    }

    /// Starts a call that waits, and returns once it does.
    async fn wait(&self, call: ClaimCall, time: Duration) -> JoinHandle<ClaimAnswer> {
        let before = self.waiting();
        let (gateway, app) = (self.gateway.clone(), self.app.clone());
        let waits =
            tokio::spawn(
                async move { gateway.claim_or_wait(&app, call, time, pending()).await.unwrap().answer.answer },
            );
        while self.waiting() == before && !waits.is_finished() {
            sleep(Duration::from_millis(1)).await;
        }
        waits
    }

    fn waiting(&self) -> usize {
        self.gateway.waiters.permits.waiting()
    }

    fn calls(&self) -> usize {
        self.engine.calls.load(Ordering::SeqCst)
    }
}

fn granted(answer: ClaimAnswer) -> Attempt {
    match answer {
        ClaimAnswer::Granted(granted) => granted.attempt,
        other => panic!("expected a grant, got {other:?}"),
    }
}

fn state(answer: &ClaimAnswer) -> ClaimState {
    match answer {
        ClaimAnswer::Duplicate(found) => found.claim.record.state,
        other => panic!("expected a duplicate, got {other:?}"),
    }
}

async fn answered(waits: JoinHandle<ClaimAnswer>) -> ClaimAnswer {
    timeout(Duration::from_secs(10), waits).await.expect("it is answered").unwrap()
}

/// Engines mark the claim then, and notify of its end. Without a mark, each wait lasts until the next poll.
#[tokio::test]
async fn the_store_learns_that_a_caller_waits() {
    let world = World::new();
    let attempt = world.hold().await;
    assert_eq!(world.engine.waiting_calls.load(Ordering::SeqCst), 0);
    let waits = world.wait(call(), LONG).await;
    while world.engine.waiting_calls.load(Ordering::SeqCst) == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    world.report(&attempt, Outcome::Failure).await;
    granted(waits.await.unwrap());
}

#[tokio::test]
async fn after_each_failure_one_caller_is_granted_in_the_order_in_which_they_came() {
    let world = World::new();
    let mut holder = world.hold().await;
    let mut waits = Vec::new();
    for _ in 0..4 {
        waits.push(world.wait(call(), LONG).await);
    }
    for first in waits {
        let others = world.waiting() - 1;
        world.report(&holder, Outcome::Failure).await;
        holder = granted(answered(first).await);
        assert_eq!(world.waiting(), others, "the others keep waiting");
    }
}

/// A caller whose connection broke calls again, with its nonce, and both calls wait.
#[tokio::test]
async fn a_grant_answers_all_calls_with_its_nonce() {
    let world = World::new();
    let holder = world.hold().await;
    let own = || ClaimCall { nonce: Some("0123456789abcdef".parse().unwrap()), ..call() };
    let waits = [world.wait(own(), LONG).await, world.wait(call(), LONG).await, world.wait(own(), LONG).await];
    world.report(&holder, Outcome::Failure).await;
    let [first, other, again] = waits;
    let attempt = granted(answered(first).await);
    assert_eq!(granted(answered(again).await), attempt);
    assert!(!other.is_finished(), "another caller keeps waiting");
}

#[tokio::test]
async fn a_success_answers_all_and_the_store_is_asked_once_for_it() {
    let world = World::new();
    let holder = world.hold().await;
    let mut waits = Vec::new();
    for _ in 0..200 {
        waits.push(world.wait(call(), LONG).await);
    }
    let before = world.calls();
    assert!(before < 50, "callers that come later ask no store: {before} calls");
    world.report(&holder, Outcome::Success { result: Some("7".into()), retention: None }).await;
    for waits in waits {
        let answer = answered(waits).await;
        assert_eq!(state(&answer), ClaimState::Succeeded);
    }
    let calls = world.calls() - before;
    assert!(calls <= 4, "{calls} calls, the outcome included");
    assert_eq!(world.gateway.waiters.permits.waiting(), 0);
}

#[tokio::test]
async fn of_callers_that_would_take_over_an_unknown_claim_one_does() {
    let world = World::new();
    let holder = world.hold().await;
    let plain = world.wait(call(), LONG).await;
    let mut takers = Vec::new();
    for _ in 0..5 {
        takers.push(world.wait(ClaimCall { take_over: true, ..call() }, Duration::from_secs(4)).await);
    }
    world.report(&holder, Outcome::Unknown).await;
    assert_eq!(state(&answered(plain).await), ClaimState::Unknown);
    let mut grants = 0;
    for taker in takers {
        grants += usize::from(matches!(answered(taker).await, ClaimAnswer::Granted(_)));
    }
    assert_eq!(grants, 1);
}

#[tokio::test]
async fn the_end_of_a_lease_grants_the_first_caller() {
    let world = world(true, Duration::from_millis(150), 1000);
    let holder = world.hold().await;
    let (first, second) = (world.wait(call(), LONG).await, world.wait(call(), LONG).await);
    let granted_first = granted(answered(first).await);
    assert_ne!(granted_first, holder);
    assert_ne!(granted(answered(second).await), granted_first, "when that lease has ended, too");
}

#[tokio::test]
async fn a_lost_notification_costs_a_poll() {
    let world = world(false, LONG, 1000);
    let holder = world.hold().await;
    let waits = world.wait(call(), LONG).await;
    world.report(&holder, Outcome::Failure).await;
    granted(timeout(Duration::from_secs(15), waits).await.expect("it polls").unwrap());
}

#[tokio::test]
async fn a_caller_whose_time_is_over_is_answered_with_the_claim_in_the_way() {
    let world = World::new();
    let holder = world.hold().await;
    let waits = world.wait(call(), Duration::from_millis(50)).await;
    match answered(waits).await {
        ClaimAnswer::Duplicate(found) => assert_eq!(found.claim.record.attempt, holder),
        other => panic!("{other:?}"),
    }
    assert_eq!(world.waiting(), 0);
}

#[tokio::test]
async fn a_caller_that_has_gone_is_not_granted() {
    let world = World::new();
    let holder = world.hold().await;
    let (hang_up, gone) = oneshot::channel::<()>();
    let (gateway, app) = (world.gateway.clone(), world.app.clone());
    let first = tokio::spawn(async move {
        let gone = async { drop(gone.await) };
        gateway.claim_or_wait(&app, call(), LONG, gone).await.unwrap().answer.answer
    });
    while world.waiting() == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    let dropped = world.wait(call(), LONG).await;
    let third = world.wait(call(), LONG).await;
    hang_up.send(()).unwrap();
    assert_eq!(state(&answered(first).await), ClaimState::InProgress);
    dropped.abort();
    while world.waiting() > 1 {
        sleep(Duration::from_millis(1)).await;
    }
    world.report(&holder, Outcome::Failure).await;
    granted(answered(third).await);
}

#[tokio::test]
async fn a_drain_answers_all_and_lets_no_more_wait() {
    let world = World::new();
    world.hold().await;
    let waits = [world.wait(call(), LONG).await, world.wait(call(), LONG).await];
    world.gateway.drain_waiters();
    for waits in waits {
        assert_eq!(state(&answered(waits).await), ClaimState::InProgress);
    }
    assert_eq!(state(&answered(world.wait(call(), LONG).await).await), ClaimState::InProgress);
}

#[tokio::test]
async fn beyond_the_share_of_its_app_a_caller_does_not_wait() {
    let world = world(true, LONG, 4);
    world.hold().await;
    let _waits = [world.wait(call(), LONG).await, world.wait(call(), LONG).await];
    let third = timeout(Duration::from_secs(15), answered(world.wait(call(), LONG).await)).await.unwrap();
    assert_eq!((state(&third), world.waiting()), (ClaimState::InProgress, 2));
}

#[tokio::test]
async fn a_mismatch_never_waits() {
    let world = World::new();
    let holder = world.hold().await;
    let other = || ClaimCall { fingerprint: Some(contents()), ..call() };
    assert!(matches!(answered(world.wait(other(), LONG).await).await, ClaimAnswer::Mismatch(..)));
    let _first = world.wait(call(), LONG).await;
    assert!(matches!(answered(world.wait(other(), LONG).await).await, ClaimAnswer::Mismatch(..)), "nor in a queue");
    drop(holder);
}

/// A queue of callers of one key behind this claim, and the ends of their waits.
fn queued(live: &LiveClaim, callers: &[ClaimRequest]) -> (Queue, Vec<oneshot::Receiver<Verdict>>) {
    let mut verdicts = Vec::new();
    let context = CallContext { deadline: LONG, on_outage: ClaimOnOutage::FailClosed };
    let entry = |(number, request): (usize, &ClaimRequest)| {
        let (verdict, receiver) = oneshot::channel();
        verdicts.push(receiver);
        let (number, request) = (u64::try_from(number).unwrap(), Arc::new(request.clone()));
        Entry { number, since: Duration::ZERO, request, context, verdict, is_leaving: Arc::default() }
    };
    let entries = callers.iter().enumerate().map(entry).collect();
    (Queue { entries, live: live.clone(), found_at: Duration::from_secs(1) }, verdicts)
}

#[test]
fn another_claim_in_the_way_answers_the_callers_that_it_concerns_otherwise() {
    let holder = fresh_claim();
    let live = LiveClaim { record: holder.record(), left: Some(LONG), ends_at: None, fence: Some(1) };
    let again =
        |nonce: ClaimRequest| ClaimRequest { key: holder.key.clone(), contents: holder.contents.clone(), ..nonce };
    let mismatch = ClaimRequest { contents: canonicalize(b"2").unwrap(), ..again(fresh_claim()) };
    let callers = [again(fresh_claim()), mismatch, again(fresh_claim()), holder.clone()];
    let (mut queue, mut verdicts) = queued(&live, &callers);
    queue.recheck(Duration::from_secs(2));
    assert_eq!(queue.entries.iter().map(|entry| entry.number).collect::<Vec<_>>(), [0, 2]);
    let at = Duration::from_secs(2);
    assert!(matches!(
        verdicts[1].try_recv(),
        Ok(Verdict::Answered(Ok(Answered { answer: ClaimResponse::Mismatch(_), policy: None }), asked)) if asked == at
    ));
    assert!(matches!(verdicts[3].try_recv(), Ok(Verdict::Again)), "its own claim");
    assert!(queue.remove(1).is_none() && queue.remove(2).is_some());
}

fn queue_of(key: Key) -> QueueName {
    QueueName { chain: "default".into(), key }
}

/// Its time ends while the store is being asked for it. It does not wait for another answer.
#[test]
fn a_caller_whose_time_is_over_gets_the_next_answer() {
    for is_over in [false, true] {
        let waiters = Waiters::new(&Limits::default());
        let holder = fresh_claim();
        let live = LiveClaim { record: holder.record(), left: Some(LONG), ends_at: None, fence: None };
        let context = CallContext { deadline: LONG, on_outage: ClaimOnOutage::FailClosed };
        let caller = Arc::new(ClaimRequest { attempt: fresh_claim().attempt, ..holder.clone() });
        let queue = queue_of(holder.key);
        let (mut ticket, _) = waiters.enter(&queue, &caller, context, Duration::ZERO, (&live, Duration::ZERO)).unwrap();
        let first = waiters.take_first(&queue).unwrap();
        assert!(!is_over || ticket.leave(LONG).is_none(), "the store is being asked");
        let found = Answered::by_store(ClaimResponse::Duplicate(live));
        waiters.answered(&queue, first, Ok(found), LONG);
        assert_eq!(matches!(ticket.verdict.try_recv(), Ok(Verdict::Answered(Ok(_), LONG))), is_over);
    }
}

#[test]
fn the_claim_in_the_way_gets_older() {
    let live = LiveClaim { record: fresh_claim().record(), left: Some(LONG), ends_at: None, fence: None };
    let (mut queue, _verdicts) = queued(&live, &[]);
    assert_eq!(queue.live(Duration::from_secs(4)).left, LONG.checked_sub(Duration::from_secs(3)));
    queue.live.left = None;
    assert_eq!(queue.live(Duration::from_secs(4)).left, None);
}

#[test]
fn a_granted_claim_has_the_attempt_and_the_lease_of_its_grant() {
    let (request, other) = (fresh_claim(), fresh_claim());
    let grant = |lease_left| Grant {
        attempt: other.attempt.clone(),
        fence: Some(7),
        repeated: false,
        taken_over: false,
        lease_left,
        lease_ends_at: None,
    };
    let live = super::granted(&request, &grant(None));
    assert_eq!(
        (live.record.attempt, live.left, live.fence),
        (other.attempt.clone(), Some(request.terms.lease), Some(7))
    );
    assert_eq!(super::granted(&request, &grant(Some(LONG))).left, Some(LONG));
}

#[tokio::test]
async fn the_attempt_of_a_caller_that_has_waited_begins_when_it_is_granted() {
    let world = World::new();
    let holder = world.hold().await;
    let waits = world.wait(call(), LONG).await;
    let clock = SystemClock::new();
    let before = clock.wall();
    world.report(&holder, Outcome::Failure).await;
    let granted = granted(answered(waits).await);
    assert!(granted.timestamp() >= before, "{granted:?}");
}

#[tokio::test]
async fn what_ends_a_wait_is_counted() {
    let ended = |end: &str| metric(&format!("oncegate_claim_waits_total{{app=\"ends\",end=\"{end}\"}}"));
    ended("");
    let mut world = World::new();
    world.app = Arc::new(App { key: "ends".parse().unwrap(), ..(*world.app).clone() });
    world.gateway.measure_apps(std::slice::from_ref(&world.app), 10);
    let holder = world.hold().await;
    let (first, second) = (world.wait(call(), LONG).await, world.wait(call(), LONG).await);
    world.report(&holder, Outcome::Failure).await;
    let next = granted(answered(first).await);
    world.report(&next, Outcome::Success { result: None, retention: None }).await;
    answered(second).await;
    assert_eq!((ended("granted"), ended("settled")), (Some(1.0), Some(1.0)));
}

/// The call with the nonce of a grant asks the store itself, and gets the same grant.
#[tokio::test]
async fn the_wait_of_a_call_that_asks_again_is_counted() {
    let ended = |end: &str| metric(&format!("oncegate_claim_waits_total{{app=\"again\",end=\"{end}\"}}"));
    ended("");
    let mut world = World::new();
    world.app = Arc::new(App { key: "again".parse().unwrap(), ..(*world.app).clone() });
    world.gateway.measure_apps(std::slice::from_ref(&world.app), 10);
    let holder = world.hold().await;
    let own = || ClaimCall { nonce: Some("0123456789abcdef".parse().unwrap()), ..call() };
    let waits = [world.wait(own(), LONG).await, world.wait(own(), LONG).await];
    world.report(&holder, Outcome::Failure).await;
    for waits in waits {
        granted(answered(waits).await);
    }
    assert_eq!(ended("granted"), Some(2.0));
}

/// Another claim with another fingerprint replaces the one that blocks the caller. Without notifications, the next poll
/// finds it.
#[tokio::test]
async fn a_wait_that_ends_with_a_mismatch_is_not_counted_as_granted() {
    let ended = |end: &str| metric(&format!("oncegate_claim_waits_total{{app=\"mismatched\",end=\"{end}\"}}"));
    ended("");
    let mut world = world(false, LONG, 1000);
    world.app = Arc::new(App { key: "mismatched".parse().unwrap(), ..(*world.app).clone() });
    world.gateway.measure_apps(std::slice::from_ref(&world.app), 10);
    let holder = world.hold().await;
    let waits = world.wait(call(), LONG).await;
    world.report(&holder, Outcome::Failure).await;
    let other = ClaimCall { fingerprint: Some(contents()), ..call() };
    granted(world.gateway.claim(&world.app, other).await.unwrap().answer);
    assert!(matches!(answered(waits).await, ClaimAnswer::Mismatch(..)));
    assert_eq!((ended("granted"), ended("settled")), (None, Some(1.0)));
}

#[tokio::test]
async fn a_driver_that_fails_leaves_no_queue() {
    let world = World::new();
    world.hold().await;
    let waits = world.wait(call(), LONG).await;
    let id = GlobalId::of(&world.app.key, &Operation::default(), &contents());
    let queue = queue_of(Key::new(&world.app.key, ClaimId::of_api(id)));
    world.gateway.waiters.abandon(&queue);
    assert!(!world.gateway.waiters.state().queues.contains_key(&queue));
    waits.abort();
}
