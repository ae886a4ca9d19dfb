//! The calls of an engine as values, so that the network and the store treat them alike.

use std::ops::Deref;
use std::time::Duration;

use oncegate_core::attempt::Attempt;
use oncegate_core::claim::{
    ClaimRequest, ClaimResponse, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::engine::{Engine, EngineError};
use oncegate_core::operator::{ReleaseRequest, ReleaseResponse};
use oncegate_core::record::{ClaimState, Key, LiveClaim};
use oncegate_outage::deadline::DELIVERY_DEADLINE;

use crate::reference::{Broken, Reference};
use crate::trace::Name;

/// A request, and the deadline of its call.
#[derive(Clone)]
pub(crate) struct Timed<Request> {
    pub(crate) request: Request,
    pub(crate) deadline: Duration,
}

impl<Request> Deref for Timed<Request> {
    type Target = Request;

    fn deref(&self) -> &Request {
        &self.request
    }
}

/// A call of an engine.
pub(crate) trait EngineCall: Clone + Send + Sync + 'static {
    /// Name in traces.
    const NAME: &'static str;
    /// True if it may add a claim to a store.
    const CLAIMS: bool = false;
    /// True if it may end a claim.
    const ENDS: bool = false;
    /// True if it changes nothing.
    const READS: bool = false;
    type Answer: Clone + Send + Into<StoreAnswer> + 'static;

    fn key(&self) -> &Key;

    /// Returns the name of its attempt.
    fn attempt_name(&self) -> Name {
        self.attempt().map(Name::of).unwrap_or_default()
    }

    /// Returns the name under which its caller waits for it.
    fn caller_name(&self) -> Name {
        self.attempt_name()
    }

    /// Returns true if a gateway delivers an answer of a policy by it.
    fn is_delivery(&self) -> bool {
        false
    }

    /// Returns its attempt, if it has one.
    fn attempt(&self) -> Option<&Attempt> {
        None
    }

    /// Returns the outcome that it reports.
    fn reports(&self) -> Option<&'static str> {
        None
    }

    fn execute(&self, engine: &dyn Engine) -> impl Future<Output = Result<Self::Answer, EngineError>> + Send;

    /// Compares its answer with the reference.
    fn compare(&self, reference: &mut Reference, now: u64, answer: &Self::Answer) -> Result<(), Broken>;

    /// Returns true if the answer is that another attempt holds the claim.
    fn is_of_another(_: &Self::Answer) -> bool {
        false
    }

    /// Returns the record that a lookup found.
    fn found(_: &Self::Answer) -> Option<LiveClaim> {
        None
    }

    /// Returns the answer for a trace: its kind, its attempt, and the remaining milliseconds.
    fn summary(answer: &Self::Answer) -> (&'static str, Name, u64);
}

/// An answer of the store, and its time.
#[derive(Clone)]
pub(crate) struct Executed<Answer> {
    pub(crate) answer: Answer,
    /// By the store's clock, in microseconds.
    pub(crate) store_now: u64,
    /// By the real time of the world.
    pub(crate) at: Duration,
    /// Number of the store.
    pub(crate) store: u16,
    /// Holder of the claim at that time.
    pub(crate) holder: Holder,
}

/// Holder of a claim when a call reaches the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holder {
    /// None, or the call's own attempt.
    Itself,
    /// Another attempt.
    Another,
    /// The same nonce under another attempt, which the store does not know as a degraded grant.
    SameNonce,
    /// The same nonce under another attempt, which the store knows as a degraded grant.
    DegradedSameNonce,
}

/// Any answer of the store.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum StoreAnswer {
    Claimed(ClaimResponse),
    Settled(OutcomeResponse),
    Renewed(RenewalResponse),
    Read,
    /// Result of a lookup. The same gateway may answer a claim call from it during a grant freeze.
    Found(LiveClaim),
    Released(ReleaseResponse),
}

impl EngineCall for Timed<ClaimRequest> {
    const NAME: &'static str = "claim";
    const CLAIMS: bool = true;
    type Answer = ClaimResponse;

    fn key(&self) -> &Key {
        &self.key
    }

    fn caller_name(&self) -> Name {
        // The caller does not know its attempt yet.
        Name::nonce(self.attempt_name().nonce)
    }

    fn is_delivery(&self) -> bool {
        self.deadline == DELIVERY_DEADLINE
    }

    fn attempt(&self) -> Option<&Attempt> {
        Some(&self.attempt)
    }

    async fn execute(&self, engine: &dyn Engine) -> Result<ClaimResponse, EngineError> {
        engine.claim(self, self.deadline).await
    }

    fn compare(&self, reference: &mut Reference, now: u64, answer: &ClaimResponse) -> Result<(), Broken> {
        reference.claim(now, self, answer)
    }

    fn is_of_another(answer: &ClaimResponse) -> bool {
        matches!(answer, ClaimResponse::Duplicate(_) | ClaimResponse::Mismatch(_))
    }

    fn summary(answer: &ClaimResponse) -> (&'static str, Name, u64) {
        match answer {
            ClaimResponse::Granted(grant) => {
                let kind = match (grant.repeated, grant.taken_over) {
                    (true, _) => "repeated",
                    (_, true) => "taken over",
                    _ => "granted",
                };
                (kind, Name::of(&grant.attempt), millis(grant.lease_left))
            }
            ClaimResponse::Duplicate(claim) => {
                let kind = match claim.record.state {
                    ClaimState::InProgress => "duplicate in progress",
                    ClaimState::Succeeded => "duplicate succeeded",
                    ClaimState::Unknown => "duplicate unknown",
                };
                (kind, Name::of(&claim.record.attempt), millis(claim.left))
            }
            ClaimResponse::Mismatch(_) => ("mismatch", Name::default(), 0),
        }
    }
}

impl EngineCall for Timed<OutcomeRequest> {
    const NAME: &'static str = "settle";
    const ENDS: bool = true;
    type Answer = OutcomeResponse;

    fn key(&self) -> &Key {
        &self.key
    }

    fn is_delivery(&self) -> bool {
        self.deadline == DELIVERY_DEADLINE
    }

    fn attempt(&self) -> Option<&Attempt> {
        Some(&self.attempt)
    }

    fn reports(&self) -> Option<&'static str> {
        Some(outcome_name(&self.outcome))
    }

    async fn execute(&self, engine: &dyn Engine) -> Result<OutcomeResponse, EngineError> {
        engine.settle(self, self.deadline).await
    }

    fn compare(&self, reference: &mut Reference, now: u64, answer: &OutcomeResponse) -> Result<(), Broken> {
        reference.settle(now, self, answer)
    }

    fn is_of_another(answer: &OutcomeResponse) -> bool {
        matches!(answer, OutcomeResponse::Superseded { .. })
    }

    fn summary(answer: &OutcomeResponse) -> (&'static str, Name, u64) {
        let (kind, left) = match answer {
            OutcomeResponse::Done { state: None, late, .. } => {
                (if *late == Some(true) { "absent" } else { "released" }, None)
            }
            OutcomeResponse::Done { late: Some(true), left, .. } => ("recorded late", *left),
            OutcomeResponse::Done { state: Some(ClaimState::Succeeded), left, .. } => ("succeeded", *left),
            OutcomeResponse::Done { left, .. } => ("unknown", *left),
            OutcomeResponse::AlreadySucceeded => ("already succeeded", None),
            OutcomeResponse::Superseded { left, .. } => ("superseded", *left),
            OutcomeResponse::Expired => ("expired", None),
        };
        (kind, Name::default(), millis(left))
    }
}

impl EngineCall for Timed<RenewalRequest> {
    const NAME: &'static str = "renew";
    type Answer = RenewalResponse;

    fn key(&self) -> &Key {
        &self.key
    }

    fn is_delivery(&self) -> bool {
        self.deadline == DELIVERY_DEADLINE
    }

    fn attempt(&self) -> Option<&Attempt> {
        Some(&self.attempt)
    }

    async fn execute(&self, engine: &dyn Engine) -> Result<RenewalResponse, EngineError> {
        engine.renew(self, self.deadline).await
    }

    fn compare(&self, reference: &mut Reference, now: u64, answer: &RenewalResponse) -> Result<(), Broken> {
        reference.renew(now, self, answer)
    }

    fn is_of_another(answer: &RenewalResponse) -> bool {
        matches!(answer, RenewalResponse::Superseded { .. })
    }

    fn summary(answer: &RenewalResponse) -> (&'static str, Name, u64) {
        let (kind, left) = match answer {
            RenewalResponse::Renewed { left, .. } => ("renewed", Some(*left)),
            RenewalResponse::LeaseLost => ("lease lost", None),
            RenewalResponse::AlreadySucceeded => ("already succeeded", None),
            RenewalResponse::Superseded { left, .. } => ("superseded", *left),
        };
        (kind, Name::default(), millis(left))
    }
}

impl EngineCall for ReleaseRequest {
    const NAME: &'static str = "release";
    const ENDS: bool = true;
    type Answer = ReleaseResponse;

    fn key(&self) -> &Key {
        &self.key
    }

    fn attempt_name(&self) -> Name {
        Name::of(&self.attempt)
    }

    async fn execute(&self, engine: &dyn Engine) -> Result<ReleaseResponse, EngineError> {
        engine.release(self).await
    }

    fn compare(&self, reference: &mut Reference, now: u64, answer: &ReleaseResponse) -> Result<(), Broken> {
        reference.release(now, self, *answer)
    }

    fn summary(answer: &ReleaseResponse) -> (&'static str, Name, u64) {
        let kind = match answer {
            ReleaseResponse::Done => "released",
            ReleaseResponse::Absent => "absent",
            ReleaseResponse::Superseded => "superseded",
        };
        (kind, Name::default(), 0)
    }
}

/// A lookup.
impl EngineCall for Key {
    const NAME: &'static str = "read";
    const READS: bool = true;
    type Answer = Option<LiveClaim>;

    fn key(&self) -> &Key {
        self
    }

    fn found(answer: &Option<LiveClaim>) -> Option<LiveClaim> {
        answer.clone()
    }

    async fn execute(&self, engine: &dyn Engine) -> Result<Option<LiveClaim>, EngineError> {
        engine.read(self).await
    }

    fn compare(&self, reference: &mut Reference, now: u64, answer: &Option<LiveClaim>) -> Result<(), Broken> {
        reference.read(now, answer.as_ref())
    }

    fn summary(answer: &Option<LiveClaim>) -> (&'static str, Name, u64) {
        match answer {
            None => ("absent", Name::default(), 0),
            Some(claim) => ("found", Name::of(&claim.record.attempt), millis(claim.left)),
        }
    }
}

/// Returns the name of an outcome in traces.
pub(crate) fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Success { .. } => "outcome call: success",
        Outcome::Failure => "outcome call: failure",
        Outcome::Unknown => "outcome call: unknown",
    }
}

fn millis(left: Option<Duration>) -> u64 {
    left.map_or(0, |left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
}

impl From<ClaimResponse> for StoreAnswer {
    fn from(claimed: ClaimResponse) -> Self {
        Self::Claimed(claimed)
    }
}

impl From<OutcomeResponse> for StoreAnswer {
    fn from(settled: OutcomeResponse) -> Self {
        Self::Settled(settled)
    }
}

impl From<RenewalResponse> for StoreAnswer {
    fn from(renewed: RenewalResponse) -> Self {
        Self::Renewed(renewed)
    }
}

impl From<ReleaseResponse> for StoreAnswer {
    fn from(released: ReleaseResponse) -> Self {
        Self::Released(released)
    }
}

impl From<Option<LiveClaim>> for StoreAnswer {
    fn from(_: Option<LiveClaim>) -> Self {
        Self::Read
    }
}
