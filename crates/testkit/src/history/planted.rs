//! A store with a bug planted in it, and the gateway before it, as one service on virtual time: the proof that the checker
//! catches what it is there to catch. Each bug is one that such programs have had.

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

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Nothing.
    None,
    /// A failure deletes what stands, whosever it is.
    DeleteWithoutCompare,
    /// A claim whose request was lost is answered as granted.
    TimeoutTakenAsClaimed,
    /// A claim whose answer was lost is answered as a duplicate.
    TimeoutTakenAsDuplicate,
    /// A repeated PRE is told to be a duplicate of itself.
    NonceIgnored,
    /// A claim whose answer was lost is given back behind its caller's back.
    UndoOfUnknownClaim,
    /// A renewal sets the lease's end, also to an earlier one.
    LateRenewalShortens,
    /// A sweeper deletes what had expired when it looked, not when it deletes.
    SweeperDeletesRenewed,
    /// A claim whose answer was lost is tried again as another attempt.
    RetryWithAnotherAttempt,
    /// A failure deletes a success.
    FailureUndoesSuccess,
    /// A success that finds nothing is answered, and not kept.
    LateOutcomeDropped,
    /// Whoever asks again is told the whole lease, not what is left.
    LeaseToldTooLong,
    /// A lease that has ended still blocks.
    LeaseNeverEnds,
    /// Looking and writing are two steps.
    CheckThenSet,
    /// A fence is drawn, and the claim granted a good while later.
    FenceDrawnEarly,
}

/// Virtual time: the runtime's, which passes only when nobody has anything to do.
pub struct VirtualClock(tokio::time::Instant);

impl VirtualClock {
    /// A clock that starts now, under a runtime whose time is paused.
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

/// Randomness that nobody asks for: callers bring their nonces.
struct NoEntropy;

impl Entropy for NoEntropy {
    fn bits(&self) -> u64 {
        0
    }
}

/// How often a request, and how often a reply, is lost, in a hundred.
const LOST_PERCENT: u32 = 10;
/// How long one way takes at most.
const LATENCY: Duration = Duration::from_millis(8);
/// When a gateway gives up waiting.
const DEADLINE: Duration = Duration::from_millis(30);

/// What stands for a key.
#[derive(Clone)]
struct Slot {
    record: Record,
    fence: u64,
    ends: Option<Duration>,
}

/// The store and its gateway. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Planted {
    bug: Bug,
    clock: Arc<dyn Clock>,
    issuer: Arc<Issuer>,
    random: Arc<Mutex<SmallRng>>,
    slots: Arc<Mutex<(u64, HashMap<String, Slot>)>>,
}

impl Planted {
    /// A store with this bug, whose network does what a seed says.
    pub fn new(bug: Bug, seed: u64, clock: Arc<dyn Clock>) -> Self {
        let issuer = Arc::new(Issuer::new(clock.clone(), Arc::new(NoEntropy)));
        let random = Arc::new(Mutex::new(SmallRng::seed_from_u64(seed)));
        Self { bug, clock, issuer, random, slots: Arc::default() }
    }

    fn is_lost(&self) -> bool {
        self.random.lock().expect("no panic").random_ratio(LOST_PERCENT, 100)
    }

    async fn travel(&self) {
        self.dawdle(LATENCY).await;
    }

    /// Takes a while, at most so long.
    async fn dawdle(&self, longest: Duration) {
        let length = self.random.lock().expect("no panic").random_range(Duration::ZERO..longest);
        sleep(length).await;
    }

    /// What stands now.
    fn look(&self, key: &str) -> Option<(LiveClaim, Slot)> {
        let slot = self.slots.lock().expect("no panic").1.get(key)?.clone();
        let left = slot.ends.map(|ends| ends.saturating_sub(self.clock.monotonic()));
        let left =
            if self.bug == Bug::LeaseNeverEnds { left.map(|left| left.max(Duration::from_secs(1))) } else { left };
        Some((LiveClaim::judge(slot.record.clone(), left, Some(slot.fence))?, slot))
    }

    fn draw_fence(&self) -> u64 {
        let fence = &mut self.slots.lock().expect("no panic").0;
        *fence += 1;
        *fence
    }

    fn change(&self, key: &str, effect: Effect, fence: u64) {
        let now = self.clock.monotonic();
        let slots = &mut self.slots.lock().expect("no panic").1;
        match effect {
            Effect::Keep => {}
            Effect::Delete => drop(slots.remove(key)),
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

    /// Deletes the claim when the lease is over that it had when this began.
    async fn sweep(self, key: String, attempt: Attempt, lease: Duration) {
        sleep(lease).await;
        let slots = &mut self.slots.lock().expect("no panic").1;
        let stands = |slot: &Slot| slot.record.attempt == attempt && slot.record.state == ClaimState::InProgress;
        if slots.get(&key).is_some_and(stands) {
            slots.remove(&key);
        }
    }

    /// One call at the store. Nothing awaits between looking and writing, unless that is the bug.
    async fn at_store(&self, key: &str, call: &Call, attempt: &Attempt) -> Answer {
        let early = self.draw_fence();
        if self.bug == Bug::FenceDrawnEarly {
            self.dawdle(DEADLINE * 2).await;
        }
        let held = self.look(key).map(|(held, _)| held);
        if self.bug == Bug::CheckThenSet {
            tokio::task::yield_now().await;
            self.travel().await;
        }
        let fence = if self.bug == Bug::FenceDrawnEarly { early } else { self.draw_fence() };
        match call {
            Call::Claim { terms, take_over, .. } => {
                let ask = ClaimRequest {
                    attempt: attempt.clone(),
                    terms: *terms,
                    take_over: *take_over,
                    ..model::template().clone()
                };
                let (effect, claimed) = claim::claim(held.as_ref(), &ask, Some(fence));
                self.change(key, effect, fence);
                self.claimed(&ask, claimed)
            }
            Call::Settle { attempt, outcome, terms } => {
                let late = LateTerms { operation: None, contents: Contents::Unverified, terms: *terms };
                let ask = model::settle(model::template(), attempt, outcome, late);
                let (mut effect, settled) = claim::settle(held.as_ref(), &ask);
                let is_failure = *outcome == Outcome::Failure;
                match self.bug {
                    Bug::DeleteWithoutCompare if is_failure => effect = Effect::Delete,
                    Bug::FailureUndoesSuccess if is_failure && settled == OutcomeResponse::AlreadySucceeded => {
                        effect = Effect::Delete;
                    }
                    Bug::LateOutcomeDropped if held.is_none() => effect = Effect::Keep,
                    _ => {}
                }
                self.change(key, effect, fence);
                settled_as(&settled)
            }
            Call::Renew { attempt, lease } => {
                let ask = model::renew(model::template(), attempt, *lease);
                let (mut effect, renewed) = claim::renew(held.as_ref(), &ask);
                if self.bug == Bug::LateRenewalShortens && matches!(renewed, RenewalResponse::Renewed { .. }) {
                    effect = Effect::Extend(*lease);
                }
                self.change(key, effect, fence);
                renewed_as(&renewed)
            }
        }
    }

    fn claimed(&self, ask: &ClaimRequest, claimed: ClaimResponse) -> Answer {
        match claimed {
            ClaimResponse::Granted(grant) if grant.repeated && self.bug == Bug::NonceIgnored => Answer::Duplicate {
                timestamp: grant.attempt.timestamp().as_micros(),
                state: ClaimState::InProgress,
                result: None,
            },
            ClaimResponse::Granted(grant) => {
                let left = if self.bug == Bug::LeaseToldTooLong { None } else { grant.lease_left };
                Answer::Granted {
                    attempt: grant.attempt,
                    fence: grant.fence,
                    repeated: grant.repeated,
                    taken_over: grant.taken_over,
                    lease: left.unwrap_or(ask.terms.lease),
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

    /// One try: there, and back.
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
impl Service for Planted {
    async fn call(&self, key: &str, call: &Call) -> Reply {
        let begun = self.clock.monotonic();
        let nonce = if let Call::Claim { nonce, .. } = call { Some(nonce.clone()) } else { None };
        let is_claim = nonce.is_some();
        let attempt = self.issuer.issue(nonce.clone());
        let mut answer = self.try_once(key, call, &attempt).await;
        if answer.is_none() && self.bug == Bug::RetryWithAnotherAttempt && is_claim {
            answer = self.try_once(key, call, &self.issuer.issue(None)).await;
        }
        let took = |begun| self.clock.monotonic().saturating_sub(begun);
        match (answer, call) {
            (Some(Answer::Granted { attempt, fence, repeated, taken_over, lease }), _) => {
                let lease = lease.saturating_sub(took(begun));
                Reply::Told(Answer::Granted { attempt, fence, repeated, taken_over, lease })
            }
            (Some(Answer::Renewed { lease }), _) => {
                Reply::Told(Answer::Renewed { lease: lease.saturating_sub(took(begun)) })
            }
            (Some(answer), _) => Reply::Told(answer),
            (None, Call::Claim { terms, .. }) if self.bug == Bug::TimeoutTakenAsClaimed => {
                let lease = terms.lease.saturating_sub(took(begun));
                Reply::Told(Answer::Granted { attempt, fence: None, repeated: false, taken_over: false, lease })
            }
            (None, Call::Claim { .. }) if self.bug == Bug::TimeoutTakenAsDuplicate => {
                let timestamp = attempt.timestamp().as_micros();
                Reply::Told(Answer::Duplicate { timestamp, state: ClaimState::InProgress, result: None })
            }
            (None, _) => {
                sleep(DEADLINE.saturating_sub(took(begun))).await;
                if self.bug == Bug::UndoOfUnknownClaim && is_claim {
                    tokio::spawn(self.clone().undo(key.to_owned(), attempt));
                }
                Reply::Unknown
            }
        }
    }
}

impl Planted {
    /// Gives a claim back that this attempt may have got.
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
        RenewalResponse::Renewed { left } => Answer::Renewed { lease: *left },
        RenewalResponse::LeaseLost => Answer::LeaseLost,
        RenewalResponse::AlreadySucceeded => Answer::AlreadySucceeded,
        RenewalResponse::Superseded { state, .. } => Answer::Superseded { state: *state },
    }
}
