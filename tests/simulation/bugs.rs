//! Bugs to plant, in the store or in a gateway. The simulation must find each of them: otherwise a passing run proves
//! nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::call::Answered;
use oncegate_core::claim::{
    ClaimRequest, ClaimResponse, Grant, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use oncegate_core::engine::{
    BatchClaim, ChangeResponse, Channel, ClaimSink, Claims, Determinate, Engine, EngineError, KEPT_PREFIX, Metadata,
    RecordChange, RecordName, RecordView, Records, SharedRecord, Subscription, claim_each,
};
use oncegate_core::operator::{
    ListRequest, ListedClaim, LockListRequest, LockPage, ReleaseRequest, ReleaseResponse, UnknownsPage, UnknownsRequest,
};
use oncegate_core::outage::grants::{DegradedGrant, Grants};
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::record::{ClaimState, Key, LiveClaim};
use oncegate_core::terms::Retention;
use oncegate_gateway::Failure;
use oncegate_gateway::claim::{ClaimAnswer, Granted};
use oncegate_gateway::resilience::chain::Times;
use oncegate_outage::deadline::DELIVERY_DEADLINE;
use oncegate_outage::journal::memory::Flaw;

use crate::clock::{StoreClock, instant, micros};
use crate::locks;
use crate::world::World;

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A failure deletes the record of any attempt.
    DeleteWithoutCompare,
    /// A failure deletes a success.
    FailureUndoesSuccess,
    /// A claim of a key in progress is answered as a repeat by its holder.
    NonceIgnored,
    /// The sweeper deletes a claim at its first end, before any renewal.
    SweeperDeletesRenewed,
    /// A renewal may also shorten a lease.
    RenewalShortens,
    /// An outcome without a claim is acknowledged, and not stored.
    LateOutcomeDropped,
    /// Fences count down.
    FenceFalls,
    /// A claim with an unknown result is answered as granted.
    TimeoutTakenAsClaimed,
    /// A claim with an unknown result is answered as refused.
    TimeoutTakenAsRefused,
    /// A claim with an unknown result is retried by another attempt.
    RetryByAnotherAttempt,
    /// A claim with an unknown result is released.
    UnknownClaimUndone,
    /// An outcome with an unknown result is answered as done.
    TimeoutTakenAsSettled,
    /// A repeated claim is answered with the whole lease.
    LeaseReportedTooLong,
    /// After one failure a store is not used for too long.
    SlowToComeBack,
    /// A duplicate is answered from memory, without a call to the store.
    DuplicateFromMemory,
    /// A gateway that decides alone forgets its own grants.
    LocalForgets,
    /// The answer of a policy is reported as an answer of the store.
    PolicyNotReported,
    /// A policy answers for an app that has not chosen it.
    PolicyNotChosen,
    /// The journal acknowledges an entry before it is on disk.
    JournalNotSynced,
    /// Part of an entry stays on a full disk.
    HalfAnEntryStays,
    /// A spooled outcome is recorded as delivered, and never is.
    DeliveryDropped,
    /// A spooled outcome is recorded as delivered before it is.
    DeliveryTooLate,
    /// A degraded grant is not compared with the record in the store.
    OverlapNotReported,
    /// A lease that a policy renewed is not renewed in the store: the store has executed the claim late, for its first
    /// lease.
    RenewalNotDelivered,
    /// A record with the same nonce is not read.
    SameTryNotDetected,
    /// A degraded grant is written with too late an end.
    GrantTooLong,
    /// A degraded grant replaces those that other gateways have written.
    GrantsOverwritten,
    /// Degraded grants are kept for a second.
    GrantsEndTooSoon,
    /// A chain opens on its new store before all gateways have seen that it closes on the old one.
    SwitchedAtOnce,
    /// A gateway keeps an old state of its chain.
    SwitchNotSeen,
    /// A grant freeze is shorter than the longest lease.
    GrantFreezeTooShort,
    /// A gateway takes a store that lost its data, or lacks the claims of the other one, for one that has all claims.
    GrantFreezeForgotten,
    /// A claim that was certainly not executed, as after `MOVED`, is answered as granted.
    MovedTakenAsClaimed,
    /// A claim that too few replicas have is answered as granted.
    ShortfallTakenAsClaimed,
    /// Claims still go to the former primary of a shard after a failover.
    StaleSlotMap,
    /// A gateway that restarts numbers the shards differently.
    ShardsRenumbered,
    /// A lock is granted to requests that have not queued, before queued ones.
    LockQueueIgnored,
    /// A ticket of a lock stays in the queue after its request has ended.
    LockTicketOutlivesOwner,
    /// The holds of an owner are a number, and a repeated request increases it.
    LockCounter,
    /// The fences of a lock are counted in memory, and from one again after the start of a gateway.
    LockFenceRestarts,
}

/// Layer of a gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layer {
    /// Before an engine.
    Engine,
    /// Between the chain and the policies.
    Chain,
}

/// Time for which [`Bug::SlowToComeBack`] does not use a store, in microseconds.
const LEFT_ALONE_MICROS: u64 = 5_000_000;

impl Bug {
    /// Returns the store's engine, with the bug if it is one of stores.
    pub(crate) fn in_store(self, inner: Arc<dyn Engine>, clock: &Arc<StoreClock>) -> Arc<dyn Engine> {
        let (clock, first_ends) = (clock.clone(), Mutex::default());
        match self {
            Self::DeleteWithoutCompare
            | Self::FailureUndoesSuccess
            | Self::NonceIgnored
            | Self::SweeperDeletesRenewed
            | Self::RenewalShortens
            | Self::LateOutcomeDropped
            | Self::FenceFalls
            | Self::LockQueueIgnored
            | Self::LockTicketOutlivesOwner => Arc::new(BuggyStore { inner, bug: self, clock, first_ends }),
            _ => inner,
        }
    }

    /// Returns the layer of a gateway that has it.
    fn layer(self) -> Option<Layer> {
        match self {
            Self::TimeoutTakenAsClaimed
            | Self::TimeoutTakenAsRefused
            | Self::RetryByAnotherAttempt
            | Self::UnknownClaimUndone
            | Self::TimeoutTakenAsSettled
            | Self::LeaseReportedTooLong
            | Self::SlowToComeBack
            | Self::DuplicateFromMemory
            | Self::SwitchNotSeen
            | Self::MovedTakenAsClaimed
            | Self::ShortfallTakenAsClaimed
            | Self::StaleSlotMap
            | Self::GrantFreezeForgotten => Some(Layer::Engine),
            Self::DeliveryDropped
            | Self::DeliveryTooLate
            | Self::OverlapNotReported
            | Self::RenewalNotDelivered
            | Self::SameTryNotDetected
            | Self::GrantTooLong
            | Self::GrantsOverwritten
            | Self::GrantsEndTooSoon => Some(Layer::Chain),
            _ => None,
        }
    }

    /// Returns the flaw of the disk of a gateway with the bug.
    pub(crate) fn of_disk(self) -> Flaw {
        match self {
            Self::JournalNotSynced => Flaw::SyncsNothing,
            Self::HalfAnEntryStays => Flaw::CutsNothing,
            _ => Flaw::None,
        }
    }

    /// Returns the times of a chain with the bug.
    pub(crate) fn of_times(self, times: Times) -> Times {
        if self == Self::SwitchedAtOnce { Times { closing: Duration::ZERO, ..times } } else { times }
    }

    /// Returns the answer to a claim call, with the bug if it is one of the policies. `granted` is a possible grant.
    pub(crate) fn in_answer(
        self,
        answer: Result<Answered<ClaimAnswer>, Failure>,
        granted: impl FnOnce() -> Granted,
    ) -> Result<Answered<ClaimAnswer>, Failure> {
        let grant = |policy| Ok(Answered::by_policy(policy, ClaimAnswer::Granted(granted())));
        match (self, answer) {
            (
                Self::LocalForgets,
                Ok(Answered { answer: ClaimAnswer::Duplicate(_), policy: Some(OutagePolicy::Local) }),
            ) => grant(OutagePolicy::Local),
            (Self::PolicyNotReported, Ok(Answered { answer, .. })) => Ok(Answered::by_store(answer)),
            (Self::PolicyNotChosen, Err(_)) => grant(OutagePolicy::FailOpen),
            (_, answer) => answer,
        }
    }

    /// Returns an engine of a gateway, with the bug if it is one of that layer.
    pub(crate) fn in_gateway(self, layer: Layer, inner: Arc<dyn Engine>, world: &Arc<World>) -> Arc<dyn Engine> {
        if self.layer() != Some(layer) {
            return inner;
        }
        Arc::new(BuggyGateway {
            inner,
            bug: self,
            world: world.clone(),
            alone_until: AtomicU64::new(0),
            duplicate: Mutex::default(),
            former: OnceLock::new(),
            notes: OnceLock::new(),
        })
    }
}

struct BuggyStore {
    inner: Arc<dyn Engine>,
    bug: Bug,
    clock: Arc<StoreClock>,
    /// First ends of claims, by the store's clock.
    first_ends: Mutex<Vec<(u64, Key, Attempt)>>,
}

impl BuggyStore {
    async fn release(&self, key: &Key, attempt: &Attempt) -> Result<ReleaseResponse, EngineError> {
        self.inner.release(&ReleaseRequest { key: key.clone(), attempt: attempt.clone(), result: None }).await
    }

    /// Returns the view of a record.
    fn seen(&self, name: &RecordName, view: RecordView) -> RecordView {
        if self.bug != Bug::LockQueueIgnored || !matches!(name, RecordName::Lock(..)) {
            return view;
        }
        RecordView { record: view.record.as_ref().map(locks::without_queue), ..view }
    }

    /// Sweeps as [`Bug::SweeperDeletesRenewed`] does.
    async fn sweep(&self) -> Result<(), EngineError> {
        let now = self.clock.now();
        let due: Vec<_> = {
            let mut ends = self.first_ends.lock().unwrap_or_else(PoisonError::into_inner);
            ends.extract_if(.., |(end, _, _)| *end <= now).collect()
        };
        for (_, key, attempt) in due {
            if self.inner.read(&key).await?.is_some_and(|held| held.record.state == ClaimState::InProgress) {
                self.release(&key, &attempt).await?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Claims for BuggyStore {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        self.sweep().await?;
        let answer = self.inner.claim(request, deadline).await?;
        match (self.bug, answer) {
            (Bug::NonceIgnored, ClaimResponse::Duplicate(held)) if held.record.state == ClaimState::InProgress => {
                let LiveClaim { record, left: lease_left, ends_at: lease_ends_at, fence } = held;
                let (attempt, repeated, taken_over) = (record.attempt, true, record.taken_over);
                Ok(ClaimResponse::Granted(Grant { attempt, fence, repeated, taken_over, lease_left, lease_ends_at }))
            }
            (Bug::FenceFalls, ClaimResponse::Granted(grant)) => {
                let fence = grant.fence.map(|fence| u64::MAX - fence);
                Ok(ClaimResponse::Granted(Grant { fence, ..grant }))
            }
            (Bug::SweeperDeletesRenewed, ClaimResponse::Granted(grant)) if !grant.repeated => {
                let end = self.clock.now() + micros(request.terms.lease);
                let mut ends = self.first_ends.lock().unwrap_or_else(PoisonError::into_inner);
                ends.push((end, request.key.clone(), request.attempt.clone()));
                Ok(ClaimResponse::Granted(grant))
            }
            (_, answer) => Ok(answer),
        }
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        claim_each(self, claims, sink).await;
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        let held = self.inner.read(&request.key).await?;
        match (self.bug, held, &request.outcome) {
            (Bug::DeleteWithoutCompare, Some(held), Outcome::Failure)
                if held.record.state == ClaimState::InProgress =>
            {
                self.release(&request.key, &held.record.attempt).await?;
                Ok(OutcomeResponse::Done { state: None, left: None, ends_at: None, late: Some(false) })
            }
            (Bug::FailureUndoesSuccess, Some(held), Outcome::Failure) if held.record.attempt == request.attempt => {
                self.release(&request.key, &request.attempt).await?;
                Ok(OutcomeResponse::Done { state: None, left: None, ends_at: None, late: Some(false) })
            }
            (Bug::LateOutcomeDropped, None, Outcome::Success { retention, .. }) if request.late.is_some() => {
                let usual = request.late.as_ref().map(|late| late.terms.retention);
                let left = retention.or(usual).and_then(Retention::duration);
                let ends_at = left.map(|left| instant(self.clock.now() + micros(left)));
                Ok(OutcomeResponse::Done { state: Some(ClaimState::Succeeded), left, ends_at, late: Some(true) })
            }
            _ => self.inner.settle(request, deadline).await,
        }
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        let answer = self.inner.renew(request, deadline).await?;
        match (self.bug, answer, request.lease) {
            (Bug::RenewalShortens, RenewalResponse::Renewed { left, ends_at }, Some(lease)) if lease < left => {
                Ok(RenewalResponse::Renewed { left: lease, ends_at })
            }
            (_, answer, _) => Ok(answer),
        }
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.inner.read(key).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.inner.release(request).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.inner.list(request).await
    }

    async fn unknowns(&self, request: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        self.inner.unknowns(request).await
    }
}

#[async_trait]
impl Records for BuggyStore {
    async fn get_record(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError> {
        let view = self.inner.get_record(name, deadline).await?;
        Ok(self.seen(name, view))
    }

    async fn change_record(&self, change: &RecordChange, deadline: Duration) -> Result<ChangeResponse, EngineError> {
        let mut change = change.clone();
        if self.bug == Bug::LockTicketOutlivesOwner && matches!(change.name, RecordName::Lock(..)) {
            let stands = self.inner.get_record(&change.name, deadline).await?.record;
            change = locks::with_old_tickets(&change, stands.as_ref());
        }
        Ok(match self.inner.change_record(&change, deadline).await? {
            ChangeResponse::Refused { view, maybe_stored } => {
                ChangeResponse::Refused { view: self.seen(&change.name, view), maybe_stored }
            }
            stored @ ChangeResponse::Stored(_) => stored,
        })
    }

    async fn list_records(&self, request: &LockListRequest) -> Result<LockPage, EngineError> {
        self.inner.list_records(request).await
    }

    async fn subscribe(&self, channel: &Channel) -> Subscription {
        self.inner.subscribe(channel).await
    }
}

oncegate_core::forward!(Topology for BuggyStore => inner);

struct BuggyGateway {
    inner: Arc<dyn Engine>,
    bug: Bug,
    world: Arc<World>,
    alone_until: AtomicU64,
    /// Memory of [`Bug::DuplicateFromMemory`].
    duplicate: Mutex<Option<(Key, LiveClaim)>>,
    /// Former primary of [`Bug::StaleSlotMap`], once there is one.
    former: OnceLock<Memory>,
    /// First state that [`Bug::SwitchNotSeen`] has read.
    notes: OnceLock<Option<SharedRecord>>,
}

impl BuggyGateway {
    /// Result of a call with [`Bug::SlowToComeBack`].
    async fn call<Answer, Call>(&self, call: impl Fn() -> Call + Send + Sync) -> Result<Answer, EngineError>
    where
        Answer: Send,
        Call: Future<Output = Result<Answer, EngineError>> + Send,
    {
        let now = micros(self.world.time.now());
        if self.bug == Bug::SlowToComeBack && now < self.alone_until.load(Ordering::Relaxed) {
            return Err(EngineError::unavailable("it has failed before"));
        }
        let answer = call().await;
        if answer.is_err() {
            self.alone_until.store(now + LEFT_ALONE_MICROS, Ordering::Relaxed);
        }
        answer
    }
}

#[async_trait]
impl Claims for BuggyGateway {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        if let Some((key, held)) = &*self.duplicate.lock().unwrap_or_else(PoisonError::into_inner)
            && *key == request.key
        {
            return Ok(ClaimResponse::Duplicate(held.clone()));
        }
        if let Some(former) = self.former.get() {
            return former.claim(request, deadline).await;
        }
        let whole = Grant {
            attempt: request.attempt.clone(),
            fence: None,
            repeated: false,
            taken_over: false,
            lease_left: None,
            lease_ends_at: None,
        };
        match (self.bug, self.call(|| self.inner.claim(request, deadline)).await) {
            (Bug::TimeoutTakenAsClaimed, Err(EngineError::Indeterminate(_)))
            | (Bug::MovedTakenAsClaimed, Err(EngineError::Determinate(_))) => Ok(ClaimResponse::Granted(whole)),
            (Bug::ShortfallTakenAsClaimed, Err(why)) if why.is_shortfall() => Ok(ClaimResponse::Granted(whole)),
            (Bug::StaleSlotMap, Err(why)) if why.is_shortfall() => {
                self.former.get_or_init(|| Memory::new(self.world.store_clock.clone(), BYTES_MAX_DEFAULT));
                Err(why)
            }
            (Bug::TimeoutTakenAsRefused, Err(EngineError::Indeterminate(why))) => {
                Err(Determinate::Unavailable(why.why).into())
            }
            (Bug::RetryByAnotherAttempt, Err(EngineError::Indeterminate(_))) => {
                let attempt = Attempt::new(request.attempt.timestamp(), Nonce::from_bits(self.world.rng.next_u64()));
                self.inner.claim(&ClaimRequest { attempt, ..request.clone() }, deadline).await
            }
            (Bug::UnknownClaimUndone, Err(EngineError::Indeterminate(why))) => {
                let (key, attempt) = (request.key.clone(), request.attempt.clone());
                let undo = OutcomeRequest { key, attempt, outcome: Outcome::Failure, late: None };
                let _undone = self.inner.settle(&undo, deadline).await;
                Err(why.into())
            }
            (Bug::LeaseReportedTooLong, Ok(ClaimResponse::Granted(grant))) => {
                Ok(ClaimResponse::Granted(Grant { lease_left: None, ..grant }))
            }
            (Bug::OverlapNotReported, Ok(ClaimResponse::Duplicate(_))) if deadline == DELIVERY_DEADLINE => {
                Ok(ClaimResponse::Granted(whole))
            }
            (Bug::DuplicateFromMemory, Ok(ClaimResponse::Duplicate(held))) => {
                *self.duplicate.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some((request.key.clone(), held.clone()));
                Ok(ClaimResponse::Duplicate(held))
            }
            (_, answer) => answer,
        }
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        claim_each(self, claims, sink).await;
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        let delivered = OutcomeResponse::Done { state: None, left: None, ends_at: None, late: None };
        match self.bug {
            Bug::DeliveryDropped if deadline == DELIVERY_DEADLINE => return Ok(delivered),
            Bug::DeliveryTooLate if deadline == DELIVERY_DEADLINE => {
                let (inner, request) = (self.inner.clone(), request.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    inner.settle(&request, deadline).await
                });
                return Ok(delivered);
            }
            _ => {}
        }
        match (self.bug, self.call(|| self.inner.settle(request, deadline)).await) {
            (Bug::TimeoutTakenAsSettled, Err(EngineError::Indeterminate(_))) => Ok(OutcomeResponse::Done {
                state: Some(ClaimState::Succeeded),
                left: None,
                ends_at: None,
                late: Some(false),
            }),
            (_, answer) => answer,
        }
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        match request.lease {
            Some(left) if self.bug == Bug::RenewalNotDelivered && deadline == DELIVERY_DEADLINE => {
                Ok(RenewalResponse::Renewed { left, ends_at: None })
            }
            _ => self.call(|| self.inner.renew(request, deadline)).await,
        }
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        match self.bug {
            Bug::SameTryNotDetected => Ok(None),
            _ => self.call(|| self.inner.read(key)).await,
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.call(|| self.inner.release(request)).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.inner.list(request).await
    }

    async fn unknowns(&self, request: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        self.inner.unknowns(request).await
    }
}

#[async_trait]
impl Records for BuggyGateway {
    async fn get_record(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError> {
        let found = self.inner.get_record(name, deadline).await?;
        match self.bug {
            Bug::SwitchNotSeen => {
                let record = self.notes.get_or_init(|| found.record).clone();
                Ok(RecordView { record, ..found })
            }
            Bug::GrantFreezeForgotten if is_evidence(name) => {
                let kept = Metadata::new("kept").ok().map(|kept| SharedRecord::plain(&kept));
                Ok(RecordView { record: found.record.or(kept), ..found })
            }
            _ => Ok(found),
        }
    }

    async fn change_record(&self, change: &RecordChange, deadline: Duration) -> Result<ChangeResponse, EngineError> {
        let RecordName::Grants(key) = &change.name else { return self.inner.change_record(change, deadline).await };
        match self.bug {
            Bug::GrantTooLong => {
                let grants = Grants::of_record(Some(&change.new))?;
                let longer = grants
                    .iter()
                    .last()
                    .map(|last| DegradedGrant { until: last.until.plus(Duration::from_secs(1)), ..last.clone() });
                let longer = longer.and_then(|longer| grants.with(&longer, longer.from)).unwrap_or(grants);
                let longer = longer.change(key, change.expected.as_ref(), self.world.rng.next_u64())?;
                self.inner.change_record(&longer, deadline).await
            }
            Bug::OverlapNotReported => match self.inner.change_record(change, deadline).await? {
                ChangeResponse::Refused { view, .. } => Ok(ChangeResponse::Stored(view.now)),
                stored @ ChangeResponse::Stored(_) => Ok(stored),
            },
            Bug::GrantsOverwritten => {
                let expected = self.inner.get_record(&change.name, deadline).await?.record;
                self.inner.change_record(&RecordChange { expected, ..change.clone() }, deadline).await
            }
            Bug::GrantsEndTooSoon => {
                let lasts = Some(Duration::from_secs(1));
                self.inner.change_record(&RecordChange { lasts, ..change.clone() }, deadline).await
            }
            _ => self.inner.change_record(change, deadline).await,
        }
    }

    async fn list_records(&self, request: &LockListRequest) -> Result<LockPage, EngineError> {
        self.inner.list_records(request).await
    }

    async fn subscribe(&self, channel: &Channel) -> Subscription {
        self.inner.subscribe(channel).await
    }
}

oncegate_core::forward!(Topology for BuggyGateway => inner);

/// Returns whether a record says that its store has all claims.
fn is_evidence(name: &RecordName) -> bool {
    matches!(name, RecordName::Metadata(name) if name.starts_with(KEPT_PREFIX))
}
