//! A store that becomes unavailable and comes back, and its gateways.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use async_trait::async_trait;
use oncegate_core::attempt::{AttemptHash, SystemEntropy};
use oncegate_core::claim::{LateTerms, Outcome};
pub(super) use oncegate_core::claim::{OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse};
use oncegate_core::clock::{ManualClock, Timestamp};
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use oncegate_core::engine::{
    Backup, BatchClaim, Capabilities, ChangeResponse, Channel, ClaimSink, Claims, Determinate, RecordChange,
    RecordName, RecordView, Records, Subscription, Topology, claim_each,
};
use oncegate_core::operator::{ListRequest, ListedClaim, LockListRequest, LockPage, UnknownsPage, UnknownsRequest};
pub(super) use oncegate_core::operator::{ReleaseRequest, ReleaseResponse};
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::record::{ClaimState, Contents};
pub(super) use oncegate_core::record::{Key, LiveClaim};
use oncegate_core::suspect::{Cause, Suspect, SuspectFilter, SuspectKind};
pub(super) use oncegate_core::terms::OutcomeOnOutage;
use oncegate_telemetry::metrics::Metrics;
use tempfile::TempDir;

use super::super::*;
use crate::journal::memory::Disk;
use crate::journal::{Bounds, Journal};

/// Returns a metric of this process, by its name and labels as they are exported. Call it once before the metric is registered.
pub(super) fn metric(labelled: &str) -> Option<f64> {
    static METRICS: OnceLock<Metrics> = OnceLock::new();
    let text = METRICS.get_or_init(Metrics::install).render();
    text.lines().find_map(|line| line.strip_prefix(labelled)?.trim().parse().ok())
}

/// Returns the policy of an overlap.
pub(super) fn policy_of(overlap: &Suspect) -> Option<OutagePolicy> {
    match overlap.cause {
        Cause::Overlap(policy) => Some(policy),
        Cause::Double(_) => None,
    }
}

pub(super) const ROOMY: Bounds = Bounds { bytes: 1 << 30, app_bytes: 1 << 30 };

/// Behaviour of a store towards one gateway.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Way {
    /// Answers.
    Whole,
    /// Not reached: nothing is done.
    Gone,
    /// Executes the call, and the answer is lost.
    ReplyLost,
    /// Answers that it is full.
    Full,
    /// Executes the call after `go_on`, and answers.
    Slow,
    /// Executes the call after `go_on`, and the answer is lost.
    SlowReplyLost,
    /// Answers, and a millisecond passes after each call.
    EachTakesAMillisecond,
}

/// The connection from a gateway to its store.
pub(super) struct Line {
    store: Arc<dyn Engine>,
    clock: Arc<ManualClock>,
    way: AtomicU8,
    pub(super) calls: AtomicUsize,
    /// Lets slow calls continue.
    pub(super) go_on: Notify,
}

impl Line {
    pub(super) fn set(&self, way: Way) {
        self.way.store(way as u8, Ordering::SeqCst);
    }

    async fn go<Answer>(
        &self,
        call: impl Future<Output = Result<Answer, EngineError>> + Send,
    ) -> Result<Answer, EngineError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match self.way.load(Ordering::SeqCst) {
            way if way == Way::Whole as u8 => call.await,
            way if way == Way::Gone as u8 => Err(EngineError::unavailable("the line is cut")),
            way if way == Way::Full as u8 => Err(Determinate::Full("no room".into()).into()),
            way if way == Way::EachTakesAMillisecond as u8 => {
                let answer = call.await;
                self.clock.advance(Duration::from_millis(1));
                answer
            }
            way if way == Way::Slow as u8 => {
                self.go_on.notified().await;
                call.await
            }
            way => {
                if way == Way::SlowReplyLost as u8 {
                    self.go_on.notified().await;
                }
                drop(call.await);
                Err(EngineError::indeterminate("the reply is lost"))
            }
        }
    }
}

#[async_trait]
impl Claims for Line {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        self.go(self.store.claim(request, deadline)).await
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        claim_each(self, claims, sink).await;
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        self.go(self.store.settle(request, deadline)).await
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        self.go(self.store.renew(request, deadline)).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.go(self.store.read(key)).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.go(self.store.release(request)).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.go(self.store.list(request)).await
    }

    async fn unknowns(&self, request: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        self.go(self.store.unknowns(request)).await
    }
}

#[async_trait]
impl Records for Line {
    async fn get_record(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError> {
        self.go(self.store.get_record(name, deadline)).await
    }

    async fn change_record(&self, change: &RecordChange, deadline: Duration) -> Result<ChangeResponse, EngineError> {
        self.go(self.store.change_record(change, deadline)).await
    }

    async fn list_records(&self, request: &LockListRequest) -> Result<LockPage, EngineError> {
        self.go(self.store.list_records(request)).await
    }

    async fn subscribe(&self, channel: &Channel) -> Subscription {
        self.store.subscribe(channel).await
    }
}

#[async_trait]
impl Topology for Line {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    oncegate_core::forward!(shards => store);

    async fn probe(&self) -> Result<(), EngineError> {
        self.go(self.store.probe()).await
    }

    async fn probe_shard(&self, shard: u16) -> Result<(), EngineError> {
        self.go(self.store.probe_shard(shard)).await
    }

    fn losses(&self, shard: u16) -> u64 {
        self.store.losses(shard)
    }

    fn data_lost(&self) -> u64 {
        self.store.data_lost()
    }

    fn waits_for_replicas(&self) -> bool {
        self.store.waits_for_replicas()
    }

    async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        self.store.backup().await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

/// A store, a gateway whose connection to it can be cut, and the gateway's disk.
pub(super) struct World {
    pub(super) clock: Arc<ManualClock>,
    /// The store, reached directly, as by another gateway.
    pub(super) store: Arc<dyn Engine>,
    pub(super) line: Arc<Line>,
    pub(super) gateway: OutagePolicies,
    pub(super) journal: Arc<OutageJournal>,
    pub(super) folder: TempDir,
}

impl World {
    pub(super) async fn new() -> Self {
        Self::with(ROOMY).await
    }

    /// Creates a world whose gateway does not reach its store.
    pub(super) async fn cut_off() -> Self {
        let world = Self::new().await;
        world.line.set(Way::Gone);
        world
    }

    /// Creates two gateways of one store, which neither of them reaches.
    pub(super) async fn two_cut_off() -> (Self, Self) {
        let one = Self::cut_off().await;
        let two = one.another_cut_off().await;
        (one, two)
    }

    /// Creates another gateway of the store, which it does not reach.
    pub(super) async fn another_cut_off(&self) -> Self {
        let another = Self::over(self.clock.clone(), self.store.clone(), ROOMY).await;
        another.line.set(Way::Gone);
        another
    }

    pub(super) async fn with(bounds: Bounds) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
        let store = Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT));
        Self::over(clock, store, bounds).await
    }

    pub(super) async fn over(clock: Arc<ManualClock>, store: Arc<dyn Engine>, bounds: Bounds) -> Self {
        let line = Arc::new(Line {
            store: store.clone(),
            clock: clock.clone(),
            way: AtomicU8::new(0),
            calls: AtomicUsize::new(0),
            go_on: Notify::new(),
        });
        let folder = tempfile::tempdir().unwrap();
        let (gateway, journal) = start(&folder, &line, &clock, bounds).await;
        Self { clock, store, line, gateway, journal, folder }
    }

    /// Restarts the gateway's process; the store does not change.
    pub(super) async fn restarted(mut self) -> Self {
        self.gateway.close().await;
        self.journal.close().await;
        (self.gateway, self.journal) = start(&self.folder, &self.line, &self.clock, ROOMY).await;
        self
    }

    /// Starts the gateway again, with its journal on this disk.
    pub(super) async fn started_on(mut self, disk: &Disk) -> Self {
        self.gateway.close().await;
        let (journal, recovered) = Journal::open_in_memory(disk, ROOMY).unwrap();
        self.journal = Arc::new(OutageJournal::over(journal, recovered, self.clock.clone()));
        let (line, journal) = (self.line.clone(), self.journal.clone());
        self.gateway = OutagePolicies::start("default", line, journal, self.clock.clone(), Arc::new(SystemEntropy));
        self
    }

    /// Makes the store answer again, and waits until everything is delivered.
    pub(super) async fn back(&self) {
        self.line.set(Way::Whole);
        self.gateway.deliver_all(Duration::from_secs(5)).await.unwrap();
        assert_eq!(self.journal.status().entries, 0);
        assert!(!self.gateway.0.local_claims.has_waiting());
    }

    pub(super) async fn claim(&self, claim: &Claim) -> Answered<ClaimResponse> {
        self.try_claim(claim).await.unwrap()
    }

    pub(super) async fn try_claim(&self, claim: &Claim) -> Result<Answered<ClaimResponse>, EngineError> {
        self.gateway.claim(claim, claim.context()).await
    }

    /// The answers to claims of one batch, in their order.
    pub(super) async fn claim_batch(&self, claims: &[Claim]) -> Vec<Result<Answered<ClaimResponse>, EngineError>> {
        let batch: Vec<_> =
            claims.iter().map(|claim| PolicyClaim { request: claim, context: claim.context() }).collect();
        let answers = Mutex::new(Vec::new());
        self.gateway.claim_batch(&batch, &|at, answer| answers.lock().unwrap().push((at, answer))).await;
        let mut answers: Vec<(usize, _)> = answers.into_inner().unwrap();
        answers.sort_by_key(|(at, _)| *at);
        assert!(answers.iter().map(|(at, _)| *at).eq(0..claims.len()), "each is answered once");
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    pub(super) async fn settle(&self, report: &Report) -> Answered<OutcomeAnswer> {
        self.try_settle(report).await.unwrap()
    }

    pub(super) async fn try_settle(&self, report: &Report) -> Result<Answered<OutcomeAnswer>, EngineError> {
        self.gateway.settle(report, report.context()).await
    }

    pub(super) async fn try_renew(&self, request: &RenewalRequest) -> Result<Answered<RenewalResponse>, EngineError> {
        self.gateway.renew(request, DEADLINE).await
    }

    /// Claims through another gateway.
    pub(super) async fn claim_elsewhere(&self, request: &ClaimRequest) -> Answered<ClaimResponse> {
        Answered::by_store(self.store.claim(request, DEADLINE).await.unwrap())
    }

    /// Reports an outcome through another gateway.
    pub(super) async fn settle_elsewhere(&self, request: &OutcomeRequest) -> OutcomeResponse {
        self.store.settle(request, DEADLINE).await.unwrap()
    }

    pub(super) fn overlaps(&self) -> Vec<Suspect> {
        let filter = SuspectFilter { kinds: vec![SuspectKind::Overlap], ..SuspectFilter::default() };
        self.journal.suspects(&filter, usize::MAX)
    }

    /// The attempts that overlapped, by their hashes: ours, and theirs.
    pub(super) fn overlapping(&self) -> Vec<(AttemptHash, AttemptHash)> {
        self.overlaps().iter().map(|overlap| (overlap.ours.hash, overlap.theirs.unwrap().hash)).collect()
    }

    /// Returns the record of a claim in the store.
    pub(super) async fn held(&self, request: &ClaimRequest) -> Option<LiveClaim> {
        self.store.read(&request.key).await.unwrap()
    }
}

async fn start(
    folder: &TempDir,
    line: &Arc<Line>,
    clock: &Arc<ManualClock>,
    bounds: Bounds,
) -> (OutagePolicies, Arc<OutageJournal>) {
    let journal = Arc::new(OutageJournal::new(folder.path(), bounds, clock.clone()));
    if journal.exists() {
        journal.open().await.unwrap();
    }
    let entropy = Arc::new(SystemEntropy);
    (OutagePolicies::start("default", line.clone(), journal.clone(), clock.clone(), entropy), journal)
}

/// A request, and the outage policy of its call.
#[derive(Clone)]
pub(super) struct Call<Request, OnOutage> {
    pub(super) request: Request,
    pub(super) on_outage: OnOutage,
}

pub(super) type Claim = Call<ClaimRequest, ClaimOnOutage>;
pub(super) type Report = Call<OutcomeRequest, OutcomeOnOutage>;

impl<Request: Clone, OnOutage: Copy> Call<Request, OnOutage> {
    pub(super) fn with(&self, change: impl FnOnce(&mut Request)) -> Self {
        let mut request = self.request.clone();
        change(&mut request);
        Self { request, on_outage: self.on_outage }
    }

    pub(super) fn context(&self) -> CallContext<OnOutage> {
        CallContext { deadline: DEADLINE, on_outage: self.on_outage }
    }
}

impl<Request, OnOutage> Deref for Call<Request, OnOutage> {
    type Target = Request;

    fn deref(&self) -> &Request {
        &self.request
    }
}

impl<Request, OnOutage> DerefMut for Call<Request, OnOutage> {
    fn deref_mut(&mut self) -> &mut Request {
        &mut self.request
    }
}

/// Splits an answer and its policy.
pub(super) trait Split {
    type Response;
    fn split(self) -> (Self::Response, Option<OutagePolicy>);
}

impl Split for Answered<ClaimResponse> {
    type Response = ClaimResponse;
    fn split(self) -> (ClaimResponse, Option<OutagePolicy>) {
        (self.answer, self.policy)
    }
}

impl Split for Answered<RenewalResponse> {
    type Response = RenewalResponse;
    fn split(self) -> (RenewalResponse, Option<OutagePolicy>) {
        (self.answer, self.policy)
    }
}

impl Split for Answered<OutcomeAnswer> {
    type Response = OutcomeResponse;
    #[track_caller]
    fn split(self) -> (OutcomeResponse, Option<OutagePolicy>) {
        match self.answer {
            OutcomeAnswer::Response(response) => (response, self.policy),
            OutcomeAnswer::Spooled => panic!("a response was expected, the outcome is spooled"),
        }
    }
}

/// The response in an answer to an outcome call.
#[track_caller]
pub(super) fn response(answered: &Answered<OutcomeAnswer>) -> OutcomeResponse {
    answered.clone().split().0
}

/// Asserts that a success was recorded in time.
#[track_caller]
pub(super) fn assert_succeeded(answered: &Answered<OutcomeAnswer>) {
    let response = response(answered);
    let has_succeeded =
        matches!(response, OutcomeResponse::Done { state: Some(ClaimState::Succeeded), late: Some(false), .. });
    assert!(has_succeeded, "{response:?}");
}

/// The answer to an outcome that was spooled.
pub(super) const SPOOLED_ANSWER: Answered<OutcomeAnswer> =
    Answered { answer: OutcomeAnswer::Spooled, policy: Some(OutagePolicy::Spool) };

/// A fresh claim with this policy, issued now by the world's clock.
pub(super) fn request(world: &World, on_outage: ClaimOnOutage) -> Claim {
    Call { request: ClaimRequest { attempt: attempt(world), ..fresh_claim() }, on_outage }
}

/// An attempt issued now by the world's clock.
pub(super) fn attempt(world: &World) -> oncegate_core::attempt::Attempt {
    let nonce = fresh_claim().attempt.nonce().clone();
    oncegate_core::attempt::Attempt::new(world.clock.wall(), nonce)
}

/// The same operation, claimed by another attempt, now.
pub(super) fn other(world: &World, claim: &Claim) -> Claim {
    claim.with(|request| request.attempt = attempt(world))
}

pub(super) fn report(request: &ClaimRequest, outcome: Outcome, on_outage: OutcomeOnOutage) -> Report {
    let late =
        LateTerms { operation: Some(request.operation.clone()), contents: Contents::Unverified, terms: request.terms };
    let (key, attempt) = (request.key.clone(), request.attempt.clone());
    Call { request: OutcomeRequest { key, attempt, outcome, late: Some(late) }, on_outage }
}

pub(super) fn success(result: &str) -> Outcome {
    Outcome::Success { result: Some(result.into()), retention: None }
}

pub(super) fn renewal(request: &ClaimRequest) -> RenewalRequest {
    RenewalRequest { key: request.key.clone(), attempt: request.attempt.clone(), lease: None }
}

/// The policy of an answer, and a word for it.
#[track_caller]
pub(super) fn summary(answered: &Answered<ClaimResponse>) -> (Option<OutagePolicy>, &'static str) {
    let (answer, by) = answered.clone().split();
    let word = match answer {
        ClaimResponse::Granted(grant) if grant.repeated => "repeated",
        ClaimResponse::Granted(grant) => {
            assert!(by.is_none() || grant.fence.is_none(), "no gateway can promise a fence alone");
            "granted"
        }
        ClaimResponse::Duplicate(_) => "duplicate",
        ClaimResponse::Mismatch(_) => "mismatch",
    };
    (by, word)
}

pub(super) const LOCAL: Option<OutagePolicy> = Some(OutagePolicy::Local);
pub(super) const FAIL_OPEN: Option<OutagePolicy> = Some(OutagePolicy::FailOpen);
pub(super) const SPOOL: Option<OutagePolicy> = Some(OutagePolicy::Spool);
