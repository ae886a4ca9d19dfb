//! Bugs to plant, in the store or in a gateway. The simulation has to find every one of them; what finds nothing where
//! something is, proves nothing where it finds nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use oncegate::domain::attempt::{Attempt, Nonce};
use oncegate::domain::claim::{
    ClaimRequest, ClaimResponse, Grant, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate::domain::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use oncegate::domain::outage_policy::OutagePolicy;
use oncegate::domain::record::{ClaimState, Key, LiveClaim};
use oncegate::domain::terms::{Retention, Terms};
use oncegate::engine::{Capabilities, Determinate, Engine, EngineError, Metadata};
use oncegate::gateway::claim::{ClaimAnswer, Granted};
use oncegate::gateway::{ClaimView, Failure};
use oncegate::resilience::chain::Times;
use oncegate::resilience::deadline_budget::DELIVERY_DEADLINE;
use oncegate::resilience::journal::memory::Flaw;

use crate::clock::{StoreClock, micros};
use crate::world::World;

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A failure deletes whatever stands.
    DeleteWithoutCompare,
    /// A failure deletes a success.
    FailureUndoesSuccess,
    /// Who claims what is in progress is taken for its holder.
    NonceIgnored,
    /// The sweeper deletes by the end that a claim had at first.
    SweeperDeletesRenewed,
    /// A renewal sets the end, also to an earlier one.
    RenewalShortens,
    /// An outcome that finds no claim is acknowledged and forgotten.
    LateOutcomeDropped,
    /// Fences count down.
    FenceFalls,
    /// A claim whose answer is not known is told as granted.
    TimeoutTakenAsClaimed,
    /// A claim whose answer is not known is told as refused.
    TimeoutTakenAsRefused,
    /// A claim whose answer is not known is tried again by another attempt.
    RetryByAnotherAttempt,
    /// A claim whose answer is not known is released again.
    UnknownClaimUndone,
    /// An outcome whose answer is not known is told as done.
    TimeoutTakenAsSettled,
    /// A repeated claim is told the whole lease.
    LeaseToldTooLong,
    /// What has failed once is left alone for too long.
    SlowToComeBack,
    /// A duplicate is told again from memory, without asking the store.
    DuplicateFromMemory,
    /// A gateway that decides alone forgets what it has granted.
    LocalForgets,
    /// What a policy has answered is told as the store's word.
    PolicyUnsaid,
    /// A policy answers for an app that has not chosen it.
    PolicyUnasked,
    /// The journal answers before its disk has what it was given.
    JournalNotSynced,
    /// What the journal's disk had no room for stays there half.
    HalfAnEntryStays,
    /// An outcome that waited is taken for delivered, and is not.
    DeliveryDropped,
    /// An outcome that waited is taken for delivered before it is.
    DeliveryTooLate,
    /// What a degraded grant is compared with is not looked at.
    OverlapNotNoticed,
    /// A lease that a policy renewed is not renewed in the store, which has executed the claim late for its first lease.
    RenewalNotDelivered,
    /// What stands under the same nonce is not looked at.
    SameTryNotSeen,
    /// The mark of a grant says that it lasted longer.
    MarkTooLong,
    /// A chain is open on its new store before all have seen that it is closing.
    SwitchedAtOnce,
    /// A gateway goes on with what it knew of its chain.
    SwitchNotSeen,
    /// A chain holds for less than the longest lease.
    HoldTooShort,
    /// A gateway that starts after a loss of data knows nothing of it.
    HoldForgotten,
}

/// Where in a gateway something stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layer {
    /// Before an engine.
    Engine,
    /// Between the chain and the policies.
    Chain,
}

/// The operation of marks.
pub(crate) const MARKS: &str = "oncegate:degraded-grant";

/// How long [`Bug::SlowToComeBack`] leaves a store alone, in microseconds.
const LEFT_ALONE_MICROS: u64 = 5_000_000;

impl Bug {
    /// The store's engine, with the bug if it is one of stores.
    pub(crate) fn in_store(self, inner: Arc<dyn Engine>, clock: &Arc<StoreClock>) -> Arc<dyn Engine> {
        let (clock, first_ends) = (clock.clone(), Mutex::default());
        match self {
            Self::DeleteWithoutCompare
            | Self::FailureUndoesSuccess
            | Self::NonceIgnored
            | Self::SweeperDeletesRenewed
            | Self::RenewalShortens
            | Self::LateOutcomeDropped
            | Self::FenceFalls => Arc::new(BuggyStore { inner, bug: self, clock, first_ends }),
            _ => inner,
        }
    }

    /// Where in a gateway it is.
    fn layer(self) -> Option<Layer> {
        match self {
            Self::TimeoutTakenAsClaimed
            | Self::TimeoutTakenAsRefused
            | Self::RetryByAnotherAttempt
            | Self::UnknownClaimUndone
            | Self::TimeoutTakenAsSettled
            | Self::LeaseToldTooLong
            | Self::SlowToComeBack
            | Self::DuplicateFromMemory
            | Self::SwitchNotSeen
            | Self::HoldForgotten => Some(Layer::Engine),
            Self::DeliveryDropped
            | Self::DeliveryTooLate
            | Self::OverlapNotNoticed
            | Self::RenewalNotDelivered
            | Self::SameTryNotSeen
            | Self::MarkTooLong => Some(Layer::Chain),
            _ => None,
        }
    }

    /// What is wrong with the disk of a gateway with the bug.
    pub(crate) fn of_disk(self) -> Flaw {
        match self {
            Self::JournalNotSynced => Flaw::SyncsNothing,
            Self::HalfAnEntryStays => Flaw::CutsNothing,
            _ => Flaw::None,
        }
    }

    /// How long things take in a chain with the bug.
    pub(crate) fn of_times(self, times: Times) -> Times {
        if self == Self::SwitchedAtOnce { Times { closing: Duration::ZERO, ..times } } else { times }
    }

    /// The answer to a claim call, with the bug if it is one of the policies. `granted` is what a grant would be.
    pub(crate) fn in_answer(
        self,
        answer: Result<ClaimAnswer, Failure>,
        granted: impl FnOnce(OutagePolicy) -> Granted,
    ) -> Result<ClaimAnswer, Failure> {
        match (self, answer) {
            (Self::LocalForgets, Ok(ClaimAnswer::Duplicate(found))) if found.degraded == Some(OutagePolicy::Local) => {
                Ok(ClaimAnswer::Granted(granted(OutagePolicy::Local)))
            }
            (Self::PolicyUnsaid, Ok(answer)) => Ok(match answer {
                ClaimAnswer::Granted(own) => ClaimAnswer::Granted(Granted { degraded: None, ..own }),
                ClaimAnswer::Duplicate(found) => ClaimAnswer::Duplicate(ClaimView { degraded: None, ..found }),
                ClaimAnswer::Mismatch(mismatch, _) => ClaimAnswer::Mismatch(mismatch, None),
            }),
            (Self::PolicyUnasked, Err(_)) => Ok(ClaimAnswer::Granted(granted(OutagePolicy::FailOpen))),
            (_, answer) => answer,
        }
    }

    /// What stands in a gateway, with the bug if it is one of those.
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
            notes: OnceLock::new(),
        })
    }
}

struct BuggyStore {
    inner: Arc<dyn Engine>,
    bug: Bug,
    clock: Arc<StoreClock>,
    /// When claims ended at first, by the store's clock.
    first_ends: Mutex<Vec<(u64, Key, Attempt)>>,
}

impl BuggyStore {
    async fn release(&self, key: &Key, attempt: &Attempt) -> Result<ReleaseResponse, EngineError> {
        self.inner.release(&ReleaseRequest { key: key.clone(), attempt: attempt.clone() }).await
    }

    /// What [`Bug::SweeperDeletesRenewed`] does now and then.
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
impl Engine for BuggyStore {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        self.sweep().await?;
        let answer = self.inner.claim(request, deadline).await?;
        match (self.bug, answer) {
            (Bug::NonceIgnored, ClaimResponse::Duplicate(held)) if held.record.state == ClaimState::InProgress => {
                let LiveClaim { record, left, fence } = held;
                let (attempt, repeated) = (record.attempt, true);
                Ok(ClaimResponse::Granted(Grant { attempt, fence, repeated, taken_over: false, lease_left: left }))
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

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        let held = self.inner.read(&request.key).await?;
        match (self.bug, held, &request.outcome) {
            (Bug::DeleteWithoutCompare, Some(held), Outcome::Failure)
                if held.record.state == ClaimState::InProgress =>
            {
                self.release(&request.key, &held.record.attempt).await?;
                Ok(OutcomeResponse::Done { state: None, left: None, late: Some(false) })
            }
            (Bug::FailureUndoesSuccess, Some(held), Outcome::Failure) if held.record.attempt == request.attempt => {
                self.release(&request.key, &request.attempt).await?;
                Ok(OutcomeResponse::Done { state: None, left: None, late: Some(false) })
            }
            (Bug::LateOutcomeDropped, None, Outcome::Success { retention, .. }) if request.late.is_some() => {
                let usual = request.late.as_ref().map(|late| late.terms.retention);
                let left = retention.or(usual).and_then(Retention::duration);
                Ok(OutcomeResponse::Done { state: Some(ClaimState::Succeeded), left, late: Some(true) })
            }
            _ => self.inner.settle(request, deadline).await,
        }
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        let answer = self.inner.renew(request, deadline).await?;
        match (self.bug, answer, request.lease) {
            (Bug::RenewalShortens, RenewalResponse::Renewed { left }, Some(lease)) if lease < left => {
                Ok(RenewalResponse::Renewed { left: lease })
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

    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        self.inner.get_metadata(name).await
    }

    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        self.inner.compare_and_set_metadata(name, expected, new).await
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.inner.probe().await
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

struct BuggyGateway {
    inner: Arc<dyn Engine>,
    bug: Bug,
    world: Arc<World>,
    alone_until: AtomicU64,
    /// What [`Bug::DuplicateFromMemory`] remembers.
    duplicate: Mutex<Option<(Key, LiveClaim)>>,
    /// What [`Bug::SwitchNotSeen`] has seen at first.
    notes: OnceLock<Option<Metadata>>,
}

impl BuggyGateway {
    /// What [`Bug::SlowToComeBack`] makes of a call.
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
impl Engine for BuggyGateway {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        if let Some((key, held)) = &*self.duplicate.lock().unwrap_or_else(PoisonError::into_inner)
            && *key == request.key
        {
            return Ok(ClaimResponse::Duplicate(held.clone()));
        }
        if self.bug == Bug::MarkTooLong && request.operation.as_ref() == MARKS {
            let retention = request
                .terms
                .retention
                .duration()
                .map_or(request.terms.retention, |kept| Retention::For(kept + Duration::from_secs(1)));
            let request = ClaimRequest { terms: Terms { retention, ..request.terms }, ..request.clone() };
            return self.inner.claim(&request, deadline).await;
        }
        let whole = Grant {
            attempt: request.attempt.clone(),
            fence: None,
            repeated: false,
            taken_over: false,
            lease_left: None,
        };
        match (self.bug, self.call(|| self.inner.claim(request, deadline)).await) {
            (Bug::TimeoutTakenAsClaimed, Err(EngineError::Indeterminate(_))) => Ok(ClaimResponse::Granted(whole)),
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
            (Bug::LeaseToldTooLong, Ok(ClaimResponse::Granted(grant))) => {
                Ok(ClaimResponse::Granted(Grant { lease_left: None, ..grant }))
            }
            (Bug::OverlapNotNoticed, Ok(ClaimResponse::Duplicate(_))) if deadline == DELIVERY_DEADLINE => {
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

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        let delivered = OutcomeResponse::Done { state: None, left: None, late: None };
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
            (Bug::TimeoutTakenAsSettled, Err(EngineError::Indeterminate(_))) => {
                Ok(OutcomeResponse::Done { state: Some(ClaimState::Succeeded), left: None, late: Some(false) })
            }
            (_, answer) => answer,
        }
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        match request.lease {
            Some(left) if self.bug == Bug::RenewalNotDelivered && deadline == DELIVERY_DEADLINE => {
                Ok(RenewalResponse::Renewed { left })
            }
            _ => self.call(|| self.inner.renew(request, deadline)).await,
        }
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        match self.bug {
            Bug::SameTryNotSeen => Ok(None),
            _ => self.call(|| self.inner.read(key)).await,
        }
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.call(|| self.inner.release(request)).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.inner.list(request).await
    }

    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        let note = self.inner.get_metadata(name).await?;
        match self.bug {
            Bug::SwitchNotSeen => Ok(self.notes.get_or_init(|| note).clone()),
            Bug::HoldForgotten => Ok(note.or(Metadata::new("kept").ok())),
            _ => Ok(note),
        }
    }

    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        self.inner.compare_and_set_metadata(name, expected, new).await
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.inner.probe().await
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn data_lost(&self) -> u64 {
        self.inner.data_lost()
    }
}
