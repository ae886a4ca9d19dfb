//! A store with a planted bug, and the gateway before it, as one service on virtual time: the proof that the checker
//! finds such bugs. Similar programs have had each of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::attempt::{Attempt, Entropy, Issuer};
use oncegate_core::claim::{
    self, ClaimRequest, ClaimResponse, Effect, LateTerms, Outcome, OutcomeResponse, RenewalResponse,
};
use oncegate_core::clock::{Clock, Timestamp};
use oncegate_core::record::{ClaimState, Contents, LiveClaim, Record};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;

use super::model;
use super::record::{Answer, Call, Reply};
use super::workload::Service;

/// A bug to plant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// No bug.
    None,
    /// A failure deletes the stored record, also of another attempt.
    DeleteWithoutCompare,
    /// A claim call without an answer is reported as granted.
    TimeoutTakenAsClaimed,
    /// A claim call without an answer is reported as a duplicate.
    TimeoutTakenAsDuplicate,
    /// A repeated claim call is answered as a duplicate of itself.
    NonceIgnored,
    /// A claim call without an answer is released without its caller's knowledge.
    UndoOfUnknownClaim,
    /// A renewal may also shorten a lease.
    LateRenewalShortens,
    /// A sweeper deletes a record that had expired when it was read, and was renewed since.
    SweeperDeletesRenewed,
    /// A claim call without an answer is retried as another attempt.
    RetryWithAnotherAttempt,
    /// A failure deletes a success.
    FailureUndoesSuccess,
    /// A success for an ended claim is confirmed, and not stored.
    LateOutcomeDropped,
    /// A repeated claim call is answered with the whole lease, not with the rest.
    LeaseReportedTooLong,
    /// A lease that has ended blocks other claims.
    LeaseNeverEnds,
    /// Read and write are two steps.
    CheckThenSet,
    /// A fence is issued long before the claim is granted.
    FenceIssuedEarly,
}

/// Virtual time: the runtime's, which advances only when all tasks wait.
pub struct VirtualClock(tokio::time::Instant);

impl VirtualClock {
    /// Starts a clock under a runtime whose time is paused.
    #[expect(clippy::disallowed_methods, reason = "the paused time of the runtime is the clock here")]
    pub fn start() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl Clock for VirtualClock {
    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000).plus(self.monotonic())
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Entropy that is not needed, since callers bring their nonces.
struct NoEntropy;

impl Entropy for NoEntropy {
    fn bits(&self) -> u64 {
        0
    }
}

/// Share of requests, and of replies, that are lost.
const LOST_PERCENT: u32 = 10;
/// Longest time of one way.
const LATENCY: Duration = Duration::from_millis(8);
/// Deadline of a gateway for the reply.
const DEADLINE: Duration = Duration::from_millis(30);

/// Stored record of a key.
#[derive(Clone)]
struct Slot {
    record: Record,
    fence: u64,
    ends: Option<Duration>,
}

/// The store and its gateway. Cheap to clone; all clones share one state.
#[derive(Clone)]
pub struct BuggyService {
    bug: Bug,
    clock: Arc<dyn Clock>,
    issuer: Arc<Issuer>,
    random: Arc<Mutex<SmallRng>>,
    slots: Arc<Mutex<(u64, HashMap<String, Slot>)>>,
}

impl BuggyService {
    /// Creates a store with this bug, and a network with faults from a seed.
    pub fn new(bug: Bug, seed: u64, clock: Arc<dyn Clock>) -> Self {
        let issuer = Arc::new(Issuer::new(clock.clone(), Arc::new(NoEntropy)));
        let random = Arc::new(Mutex::new(SmallRng::seed_from_u64(seed)));
        Self { bug, clock, issuer, random, slots: Arc::default() }
    }

    fn is_lost(&self) -> bool {
        self.random.lock().expect("no panic").random_ratio(LOST_PERCENT, 100)
    }

    async fn travel(&self) {
        self.delay(LATENCY).await;
    }

    /// Waits for a random time up to this.
    async fn delay(&self, longest: Duration) {
        let length = self.random.lock().expect("no panic").random_range(Duration::ZERO..longest);
        sleep(length).await;
    }

    /// Returns the live claim of a key, and its record.
    fn read(&self, key: &str) -> Option<(LiveClaim, Slot)> {
        let slot = self.slots.lock().expect("no panic").1.get(key)?.clone();
        let left = slot.ends.map(|ends| ends.saturating_sub(self.clock.monotonic()));
        let left =
            if self.bug == Bug::LeaseNeverEnds { left.map(|left| left.max(Duration::from_secs(1))) } else { left };
        Some((LiveClaim::of_stored(slot.record.clone(), left, None, Some(slot.fence))?, slot))
    }

    fn next_fence(&self) -> u64 {
        let fence = &mut self.slots.lock().expect("no panic").0;
        *fence += 1;
        *fence
    }

    fn write(&self, key: &str, effect: Effect, fence: u64) {
        let now = self.clock.monotonic();
        let slots = &mut self.slots.lock().expect("no panic").1;
        match effect {
            Effect::Keep => {}
            Effect::Delete => drop(slots.remove(key)),
            Effect::Replace(record) => {
                if let Some(slot) = slots.get_mut(key) {
                    slot.record = record;
                }
            }
            Effect::Extend(lasts) => {
                if let Some(slot) = slots.get_mut(key) {
                    slot.ends = Some(now + lasts);
                }
            }
            Effect::Put(record, lasts) => {
                let ends = lasts.map(|lasts| now + lasts);
                let fence =
                    slots.get(key).filter(|own| own.record.attempt == record.attempt).map_or(fence, |own| own.fence);
                if let (Bug::SweeperDeletesRenewed, ClaimState::InProgress, Some(lasts)) =
                    (self.bug, record.state, lasts)
                {
                    tokio::spawn(self.clone().sweep(key.to_owned(), record.attempt.clone(), lasts));
                }
                slots.insert(key.to_owned(), Slot { record, fence, ends });
            }
        }
    }

    /// Deletes the claim at the end of the lease that it had when this began.
    async fn sweep(self, key: String, attempt: Attempt, lease: Duration) {
        sleep(lease).await;
        let slots = &mut self.slots.lock().expect("no panic").1;
        let is_same = |slot: &Slot| slot.record.attempt == attempt && slot.record.state == ClaimState::InProgress;
        if slots.get(&key).is_some_and(is_same) {
            slots.remove(&key);
        }
    }

    /// Executes one call in the store. There is no `await` between read and write, unless that is the bug.
    async fn at_store(&self, key: &str, call: &Call, attempt: &Attempt) -> Answer {
        let early = self.next_fence();
        if self.bug == Bug::FenceIssuedEarly {
            self.delay(DEADLINE * 2).await;
        }
        let current = self.read(key).map(|(claim, _)| claim);
        if self.bug == Bug::CheckThenSet {
            tokio::task::yield_now().await;
            self.travel().await;
        }
        let fence = if self.bug == Bug::FenceIssuedEarly { early } else { self.next_fence() };
        match call {
            Call::Claim { terms, take_over, .. } => {
                let request = ClaimRequest {
                    attempt: attempt.clone(),
                    terms: *terms,
                    take_over: *take_over,
                    ..model::template().clone()
                };
                let (effect, claimed) = claim::claim(current.as_ref(), &request, Some(fence));
                self.write(key, effect, fence);
                self.claimed(&request, claimed)
            }
            Call::Settle { attempt, outcome, terms } => {
                let late = LateTerms { operation: None, contents: Contents::Unverified, terms: *terms };
                let request = model::settle(model::template(), attempt, outcome, late);
                let (mut effect, settled) = claim::settle(current.as_ref(), &request);
                let is_failure = *outcome == Outcome::Failure;
                match self.bug {
                    Bug::DeleteWithoutCompare if is_failure => effect = Effect::Delete,
                    Bug::FailureUndoesSuccess if is_failure && settled == OutcomeResponse::AlreadySucceeded => {
                        effect = Effect::Delete;
                    }
                    Bug::LateOutcomeDropped if current.is_none() => effect = Effect::Keep,
                    _ => {}
                }
                self.write(key, effect, fence);
                settled_as(&settled)
            }
            Call::Renew { attempt, lease } => {
                let request = model::renew(model::template(), attempt, *lease);
                let (mut effect, renewed) = claim::renew(current.as_ref(), &request);
                if self.bug == Bug::LateRenewalShortens && matches!(renewed, RenewalResponse::Renewed { .. }) {
                    effect = Effect::Extend(*lease);
                }
                self.write(key, effect, fence);
                renewed_as(&renewed)
            }
        }
    }

    fn claimed(&self, request: &ClaimRequest, claimed: ClaimResponse) -> Answer {
        match claimed {
            ClaimResponse::Granted(grant) if grant.repeated && self.bug == Bug::NonceIgnored => Answer::Duplicate {
                timestamp: grant.attempt.timestamp().as_micros(),
                state: ClaimState::InProgress,
                result: None,
            },
            ClaimResponse::Granted(grant) => {
                let left = if self.bug == Bug::LeaseReportedTooLong { None } else { grant.lease_left };
                Answer::Granted {
                    attempt: grant.attempt,
                    fence: grant.fence,
                    repeated: grant.repeated,
                    taken_over: grant.taken_over,
                    lease: left.unwrap_or(request.terms.lease),
                }
            }
            ClaimResponse::Duplicate(LiveClaim { record, .. }) => Answer::Duplicate {
                timestamp: record.attempt.timestamp().as_micros(),
                state: record.state,
                result: record.result,
            },
            other @ ClaimResponse::Mismatch(_) => panic!("all contents are the same: {other:?}"),
        }
    }

    /// Sends one request and waits for its reply. `None` if either is lost.
    async fn try_once(&self, key: &str, call: &Call, attempt: &Attempt) -> Option<Answer> {
        self.travel().await;
        if self.is_lost() {
            return None;
        }
        let answer = self.at_store(key, call, attempt).await;
        self.travel().await;
        (!self.is_lost()).then_some(answer)
    }
}

#[async_trait]
impl Service for BuggyService {
    async fn call(&self, key: &str, call: &Call) -> Reply {
        let started = self.clock.monotonic();
        let nonce = if let Call::Claim { nonce, .. } = call { Some(nonce.clone()) } else { None };
        let is_claim = nonce.is_some();
        let attempt = self.issuer.issue(nonce.clone());
        let mut answer = self.try_once(key, call, &attempt).await;
        if answer.is_none() && self.bug == Bug::RetryWithAnotherAttempt && is_claim {
            answer = self.try_once(key, call, &self.issuer.issue(None)).await;
        }
        let took = |started| self.clock.monotonic().saturating_sub(started);
        match (answer, call) {
            (Some(Answer::Granted { attempt, fence, repeated, taken_over, lease }), _) => {
                let lease = lease.saturating_sub(took(started));
                Reply::Answered(Answer::Granted { attempt, fence, repeated, taken_over, lease })
            }
            (Some(Answer::Renewed { lease }), _) => {
                Reply::Answered(Answer::Renewed { lease: lease.saturating_sub(took(started)) })
            }
            (Some(answer), _) => Reply::Answered(answer),
            (None, Call::Claim { terms, .. }) if self.bug == Bug::TimeoutTakenAsClaimed => {
                let lease = terms.lease.saturating_sub(took(started));
                Reply::Answered(Answer::Granted { attempt, fence: None, repeated: false, taken_over: false, lease })
            }
            (None, Call::Claim { .. }) if self.bug == Bug::TimeoutTakenAsDuplicate => {
                let timestamp = attempt.timestamp().as_micros();
                Reply::Answered(Answer::Duplicate { timestamp, state: ClaimState::InProgress, result: None })
            }
            (None, _) => {
                sleep(DEADLINE.saturating_sub(took(started))).await;
                if self.bug == Bug::UndoOfUnknownClaim && is_claim {
                    tokio::spawn(self.clone().undo(key.to_owned(), attempt));
                }
                Reply::Unknown
            }
        }
    }
}

impl BuggyService {
    /// Releases a claim that this attempt may have been granted.
    async fn undo(self, key: String, attempt: Attempt) {
        sleep(DEADLINE).await;
        let outcome = Outcome::Failure;
        let call = Call::Settle { attempt: attempt.clone(), outcome, terms: model::template().terms };
        self.at_store(&key, &call, &attempt).await;
    }
}

fn settled_as(settled: &OutcomeResponse) -> Answer {
    match settled {
        OutcomeResponse::Done { state, late, .. } => Answer::Done { state: *state, late: *late },
        OutcomeResponse::AlreadySucceeded => Answer::AlreadySucceeded,
        OutcomeResponse::Superseded { state, .. } => Answer::Superseded { state: *state },
        OutcomeResponse::Expired => Answer::Expired,
    }
}

fn renewed_as(renewed: &RenewalResponse) -> Answer {
    match renewed {
        RenewalResponse::Renewed { left, .. } => Answer::Renewed { lease: *left },
        RenewalResponse::LeaseLost => Answer::LeaseLost,
        RenewalResponse::AlreadySucceeded => Answer::AlreadySucceeded,
        RenewalResponse::Superseded { state, .. } => Answer::Superseded { state: *state },
    }
}
