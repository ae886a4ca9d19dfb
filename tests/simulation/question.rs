//! The calls of an engine as values, so that the network and the store treat them alike.

use std::ops::Deref;
use std::time::Duration;

use oncegate::domain::attempt::Attempt;
use oncegate::domain::claim::{
    ClaimRequest, ClaimResponse, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate::domain::operator::{ReleaseRequest, ReleaseResponse};
use oncegate::domain::record::{ClaimState, Key, LiveClaim};
use oncegate::engine::{Engine, EngineError};
use oncegate::resilience::deadline_budget::DELIVERY_DEADLINE;

use crate::bugs::MARKS;
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
pub(crate) trait Question: Clone + Send + Sync + 'static {
    /// What it is called in traces.
    const NAME: &'static str;
    /// Whether it may make a store grow by a claim.
    const CLAIMS: bool = false;
    /// Whether it may end a claim.
    const ENDS: bool = false;
    /// Whether it only looks.
    const READS: bool = false;
    type Answer: Clone + Send + Into<Told> + 'static;

    fn key(&self) -> &Key;

    /// Whose call it is.
    fn whose(&self) -> Name;

    /// How a caller who waits for it is found.
    fn asked_by(&self) -> Name {
        self.whose()
    }

    /// Whether a gateway asks for itself, to tell the store what was answered in its place.
    fn is_delivery(&self) -> bool;

    /// Its attempt, if it has one.
    fn attempt(&self) -> Option<&Attempt> {
        None
    }

    /// The outcome that it reports.
    fn reports(&self) -> Option<&'static str> {
        None
    }

    fn put(&self, engine: &dyn Engine) -> impl Future<Output = Result<Self::Answer, EngineError>> + Send;

    /// What it must have come to.
    fn compare(&self, reference: &mut Reference, now: u64, answer: &Self::Answer) -> Result<(), Broken>;

    /// Whether the answer is that another holds the claim.
    fn is_of_another(_: &Self::Answer) -> bool {
        false
    }

    /// The claim whose mark this has left, by its global ID, and the nonce of its grant.
    fn marks(&self, _: &Self::Answer) -> Option<(String, u64)> {
        None
    }

    /// The record that a lookup found.
    fn found(_: &Self::Answer) -> Option<LiveClaim> {
        None
    }

    /// The answer for a trace: what, of whom, and how many milliseconds are left.
    fn brief(answer: &Self::Answer) -> (&'static str, Name, u64);
}

/// An answer of the store, and when it was given.
#[derive(Clone)]
pub(crate) struct Taken<Answer> {
    pub(crate) answer: Answer,
    /// By the store's clock, in microseconds.
    pub(crate) store_now: u64,
    /// In the time that really passes.
    pub(crate) at: Duration,
    /// Which store gave it.
    pub(crate) store: u16,
    /// What it found there.
    pub(crate) met: Met,
}

/// What a call finds in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Met {
    /// Nothing, or its own attempt.
    Itself,
    /// Another try.
    Another,
    /// Its own try under another attempt, of which no mark tells that a policy granted it.
    ItsTry,
    /// Its own try under another attempt, which is known to be the same.
    ItsMarkedTry,
}

/// Any answer of the store.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Told {
    Claimed(ClaimResponse),
    Settled(OutcomeResponse),
    Renewed(RenewalResponse),
    Read,
    /// What a lookup found, which a claim call at the same gateway may be answered from while its chain holds back grants.
    Found(LiveClaim),
    Released(ReleaseResponse),
}

impl Question for Timed<ClaimRequest> {
    const NAME: &'static str = "claim";
    const CLAIMS: bool = true;
    type Answer = ClaimResponse;

    fn key(&self) -> &Key {
        &self.key
    }

    fn whose(&self) -> Name {
        Name::of(&self.attempt)
    }

    fn asked_by(&self) -> Name {
        // The caller does not know its attempt yet.
        Name::nonce(self.whose().nonce)
    }

    fn is_delivery(&self) -> bool {
        self.deadline == DELIVERY_DEADLINE
    }

    fn attempt(&self) -> Option<&Attempt> {
        Some(&self.attempt)
    }

    async fn put(&self, engine: &dyn Engine) -> Result<ClaimResponse, EngineError> {
        engine.claim(self, self.deadline).await
    }

    fn compare(&self, reference: &mut Reference, now: u64, answer: &ClaimResponse) -> Result<(), Broken> {
        reference.claim(now, self, answer)
    }

    fn is_of_another(answer: &ClaimResponse) -> bool {
        matches!(answer, ClaimResponse::Duplicate(_) | ClaimResponse::Mismatch(_))
    }

    fn marks(&self, answer: &ClaimResponse) -> Option<(String, u64)> {
        let of = self.contents.as_str().trim_matches('"').split_once('/')?.0;
        let is_mark = self.operation.as_ref() == MARKS && matches!(answer, ClaimResponse::Granted(_));
        is_mark.then(|| (of.to_owned(), self.whose().nonce))
    }

    fn brief(answer: &ClaimResponse) -> (&'static str, Name, u64) {
        match answer {
            ClaimResponse::Granted(grant) => {
                let what = match (grant.repeated, grant.taken_over) {
                    (true, _) => "repeated",
                    (_, true) => "taken over",
                    _ => "granted",
                };
                (what, Name::of(&grant.attempt), millis(grant.lease_left))
            }
            ClaimResponse::Duplicate(held) => {
                let what = match held.record.state {
                    ClaimState::InProgress => "duplicate in progress",
                    ClaimState::Succeeded => "duplicate succeeded",
                    ClaimState::Unknown => "duplicate unknown",
                };
                (what, Name::of(&held.record.attempt), millis(held.left))
            }
            ClaimResponse::Mismatch(_) => ("mismatch", Name::default(), 0),
        }
    }
}

impl Question for Timed<OutcomeRequest> {
    const NAME: &'static str = "settle";
    const ENDS: bool = true;
    type Answer = OutcomeResponse;

    fn key(&self) -> &Key {
        &self.key
    }

    fn whose(&self) -> Name {
        Name::of(&self.attempt)
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

    async fn put(&self, engine: &dyn Engine) -> Result<OutcomeResponse, EngineError> {
        engine.settle(self, self.deadline).await
    }

    fn compare(&self, reference: &mut Reference, now: u64, answer: &OutcomeResponse) -> Result<(), Broken> {
        reference.settle(now, self, answer)
    }

    fn is_of_another(answer: &OutcomeResponse) -> bool {
        matches!(answer, OutcomeResponse::Superseded { .. })
    }

    fn brief(answer: &OutcomeResponse) -> (&'static str, Name, u64) {
        let (what, left) = match answer {
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
        (what, Name::default(), millis(left))
    }
}

impl Question for Timed<RenewalRequest> {
    const NAME: &'static str = "renew";
    type Answer = RenewalResponse;

    fn key(&self) -> &Key {
        &self.key
    }

    fn whose(&self) -> Name {
        Name::of(&self.attempt)
    }

    fn is_delivery(&self) -> bool {
        self.deadline == DELIVERY_DEADLINE
    }

    fn attempt(&self) -> Option<&Attempt> {
        Some(&self.attempt)
    }

    async fn put(&self, engine: &dyn Engine) -> Result<RenewalResponse, EngineError> {
        engine.renew(self, self.deadline).await
    }

    fn compare(&self, reference: &mut Reference, now: u64, answer: &RenewalResponse) -> Result<(), Broken> {
        reference.renew(now, self, answer)
    }

    fn is_of_another(answer: &RenewalResponse) -> bool {
        matches!(answer, RenewalResponse::Superseded { .. })
    }

    fn brief(answer: &RenewalResponse) -> (&'static str, Name, u64) {
        let (what, left) = match answer {
            RenewalResponse::Renewed { left } => ("renewed", Some(*left)),
            RenewalResponse::LeaseLost => ("lease lost", None),
            RenewalResponse::AlreadySucceeded => ("already succeeded", None),
            RenewalResponse::Superseded { left, .. } => ("superseded", *left),
        };
        (what, Name::default(), millis(left))
    }
}

impl Question for ReleaseRequest {
    const NAME: &'static str = "release";
    const ENDS: bool = true;
    type Answer = ReleaseResponse;

    fn key(&self) -> &Key {
        &self.key
    }

    fn whose(&self) -> Name {
        Name::of(&self.attempt)
    }

    fn is_delivery(&self) -> bool {
        false
    }

    async fn put(&self, engine: &dyn Engine) -> Result<ReleaseResponse, EngineError> {
        engine.release(self).await
    }

    fn compare(&self, reference: &mut Reference, now: u64, answer: &ReleaseResponse) -> Result<(), Broken> {
        reference.release(now, self, *answer)
    }

    fn brief(answer: &ReleaseResponse) -> (&'static str, Name, u64) {
        let what = match answer {
            ReleaseResponse::Done => "released",
            ReleaseResponse::Absent => "absent",
            ReleaseResponse::Superseded => "superseded",
        };
        (what, Name::default(), 0)
    }
}

/// A lookup.
impl Question for Key {
    const NAME: &'static str = "read";
    const READS: bool = true;
    type Answer = Option<LiveClaim>;

    fn key(&self) -> &Key {
        self
    }

    fn whose(&self) -> Name {
        Name::default()
    }

    /// Whoever reads, reads alike.
    fn is_delivery(&self) -> bool {
        false
    }

    fn found(answer: &Option<LiveClaim>) -> Option<LiveClaim> {
        answer.clone()
    }

    async fn put(&self, engine: &dyn Engine) -> Result<Option<LiveClaim>, EngineError> {
        engine.read(self).await
    }

    fn compare(&self, reference: &mut Reference, now: u64, answer: &Option<LiveClaim>) -> Result<(), Broken> {
        reference.read(now, answer.as_ref())
    }

    fn brief(answer: &Option<LiveClaim>) -> (&'static str, Name, u64) {
        match answer {
            None => ("absent", Name::default(), 0),
            Some(held) => ("found", Name::of(&held.record.attempt), millis(held.left)),
        }
    }
}

/// What a report is called in traces.
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

impl From<ClaimResponse> for Told {
    fn from(claimed: ClaimResponse) -> Self {
        Self::Claimed(claimed)
    }
}

impl From<OutcomeResponse> for Told {
    fn from(settled: OutcomeResponse) -> Self {
        Self::Settled(settled)
    }
}

impl From<RenewalResponse> for Told {
    fn from(renewed: RenewalResponse) -> Self {
        Self::Renewed(renewed)
    }
}

impl From<ReleaseResponse> for Told {
    fn from(released: ReleaseResponse) -> Self {
        Self::Released(released)
    }
}

impl From<Option<LiveClaim>> for Told {
    fn from(_: Option<LiveClaim>) -> Self {
        Self::Read
    }
}
