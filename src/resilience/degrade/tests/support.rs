//! A store that goes and comes back, and gateways before it.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use tempfile::TempDir;

use super::super::*;
use crate::domain::attempt::{AttemptHash, SystemEntropy};
use crate::domain::claim::{LateTerms, Outcome};
use crate::domain::clock::{ManualClock, Timestamp};
use crate::domain::degraded::Degraded;
use crate::domain::overlap::{Overlap, Overlaps};
use crate::domain::record::Contents;
use crate::engine::Determinate;
use crate::engine::conformance::fresh_claim;
use crate::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use crate::resilience::journal::memory::Disk;
use crate::resilience::journal::{Bounds, Journal};

pub(super) const ROOMY: Bounds = Bounds { bytes: 1 << 30, app_bytes: 1 << 30 };

/// How a store answers one of its gateways.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Way {
    /// As it should.
    Whole,
    /// Not at all, and certainly nothing is done.
    Gone,
    /// It does what it is asked, and the answer is lost.
    ReplyLost,
    /// It answers that it has no room.
    Full,
    /// It does what it is asked when it is let, and then answers.
    Slow,
    /// It does what it is asked when it is let, and the answer is lost.
    SlowReplyLost,
    /// As it should, and a millisecond passes after each call.
    EachTakesAMillisecond,
}

/// The way from a gateway to its store.
pub(super) struct Line {
    store: Arc<dyn Engine>,
    clock: Arc<ManualClock>,
    way: AtomicU8,
    pub(super) calls: AtomicUsize,
    /// Lets what is slow go on.
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
impl Engine for Line {
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimResponse, EngineError> {
        self.go(self.store.claim(request)).await
    }
    async fn settle(&self, request: &OutcomeRequest) -> Result<OutcomeResponse, EngineError> {
        self.go(self.store.settle(request)).await
    }
    async fn renew(&self, request: &RenewalRequest) -> Result<RenewalResponse, EngineError> {
        self.go(self.store.renew(request)).await
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
    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        self.go(self.store.get_metadata(name)).await
    }
    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        self.go(self.store.compare_and_set_metadata(name, expected, new)).await
    }
    async fn probe(&self) -> Result<(), EngineError> {
        self.go(self.store.probe()).await
    }
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
}

/// A store, a gateway whose line to it can be cut, and what the gateway keeps on its disk.
pub(super) struct World {
    pub(super) clock: Arc<ManualClock>,
    /// Reached directly: as another gateway sees it.
    pub(super) store: Arc<dyn Engine>,
    pub(super) line: Arc<Line>,
    pub(super) gateway: Degrading,
    pub(super) keeper: Arc<Keeper>,
    pub(super) folder: TempDir,
}

impl World {
    pub(super) async fn new() -> Self {
        Self::with(ROOMY).await
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
        let (gateway, keeper) = start(&folder, &line, &clock, bounds).await;
        Self { clock, store, line, gateway, keeper, folder }
    }

    /// The gateway as it is after its process was ended and started again, with the store as far away as before.
    pub(super) async fn restarted(mut self) -> Self {
        self.gateway.close().await;
        self.keeper.close().await;
        (self.gateway, self.keeper) = start(&self.folder, &self.line, &self.clock, ROOMY).await;
        self
    }

    /// The gateway as it starts anew, with its journal on this disk.
    pub(super) async fn started_on(mut self, disk: &Disk) -> Self {
        self.gateway.close().await;
        let (journal, recovered) = Journal::open_in_memory(disk, ROOMY).unwrap();
        self.keeper = Arc::new(Keeper::over(journal, recovered, self.clock.clone()));
        let (line, keeper) = (self.line.clone(), self.keeper.clone());
        self.gateway = Degrading::start("default", line, keeper, self.clock.clone(), Arc::new(SystemEntropy));
        self
    }

    /// Lets the store answer again, and waits until it has been told everything.
    pub(super) async fn back(&self) {
        self.line.set(Way::Whole);
        self.gateway.deliver_all(Duration::from_secs(5)).await.unwrap();
        assert_eq!(self.keeper.waiting(), 0);
        assert!(!self.gateway.0.book.has_waiting());
    }

    pub(super) async fn claim(&self, request: &ClaimRequest) -> ClaimResponse {
        self.gateway.claim(request).await.unwrap()
    }

    pub(super) async fn settle(&self, request: &OutcomeRequest) -> OutcomeResponse {
        self.gateway.settle(request).await.unwrap()
    }

    pub(super) fn overlaps(&self) -> Vec<Overlap> {
        self.keeper.newest(None, None, usize::MAX)
    }

    /// The attempts that overlapped, by their hashes: ours, and theirs.
    pub(super) fn overlapping(&self) -> Vec<(AttemptHash, AttemptHash)> {
        self.overlaps().iter().map(|overlap| (overlap.ours.hash, overlap.theirs.hash)).collect()
    }

    /// What the store holds of a claim.
    pub(super) async fn held(&self, request: &ClaimRequest) -> Option<LiveClaim> {
        self.store.read(&request.key).await.unwrap()
    }
}

async fn start(
    folder: &TempDir,
    line: &Arc<Line>,
    clock: &Arc<ManualClock>,
    bounds: Bounds,
) -> (Degrading, Arc<Keeper>) {
    let keeper = Arc::new(Keeper::new(folder.path(), bounds, clock.clone()));
    if keeper.is_there() {
        keeper.open().await.unwrap();
    }
    let entropy = Arc::new(SystemEntropy);
    (Degrading::start("default", line.clone(), keeper.clone(), clock.clone(), entropy), keeper)
}

/// A fresh claim with this policy, issued now by the world's clock.
pub(super) fn request(world: &World, on_outage: ClaimOnOutage) -> ClaimRequest {
    ClaimRequest { on_outage, attempt: attempt(world), ..fresh_claim() }
}

/// An attempt issued now by the world's clock.
pub(super) fn attempt(world: &World) -> crate::domain::attempt::Attempt {
    let nonce = fresh_claim().attempt.nonce().clone();
    crate::domain::attempt::Attempt::new(world.clock.wall(), nonce)
}

/// The same operation, tried by somebody else, now.
pub(super) fn other(world: &World, request: &ClaimRequest) -> ClaimRequest {
    ClaimRequest { attempt: attempt(world), ..request.clone() }
}

pub(super) fn report(request: &ClaimRequest, outcome: Outcome, on_outage: OutcomeOnOutage) -> OutcomeRequest {
    let late =
        LateTerms { operation: Some(request.operation.clone()), contents: Contents::Unverified, terms: request.terms };
    let (key, attempt) = (request.key.clone(), request.attempt.clone());
    OutcomeRequest { key, attempt, outcome, late: Some(late), deadline: request.deadline, on_outage }
}

pub(super) fn success(result: &str) -> Outcome {
    Outcome::Success { result: Some(result.into()), retention: None }
}

pub(super) fn renewal(request: &ClaimRequest) -> RenewalRequest {
    RenewalRequest {
        key: request.key.clone(),
        attempt: request.attempt.clone(),
        lease: None,
        deadline: request.deadline,
    }
}

/// The policy of an answer, and a word for it.
#[track_caller]
pub(super) fn told(answer: &ClaimResponse) -> (Option<Degraded>, &'static str) {
    let (answer, by) = answer.clone().split();
    let word = match answer {
        ClaimResponse::Granted(grant) if grant.repeated => "repeated",
        ClaimResponse::Granted(grant) => {
            assert!(by.is_none() || grant.fence.is_none(), "nobody can promise a fence alone");
            "granted"
        }
        ClaimResponse::Duplicate(_) => "duplicate",
        ClaimResponse::Mismatch(_) => "mismatch",
        ClaimResponse::Degraded(..) => panic!("taken apart"),
    };
    (by, word)
}

pub(super) const LOCAL: Option<Degraded> = Some(Degraded::Local);
pub(super) const FAIL_OPEN: Option<Degraded> = Some(Degraded::FailOpen);
pub(super) const SPOOL: Option<Degraded> = Some(Degraded::Spool);
