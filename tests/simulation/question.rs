//! The calls of an engine as values, so that the network and the store treat them alike.

use std::time::Duration;

use oncegate::domain::attempt::Attempt;
use oncegate::domain::claim::{Claim, Claimed, Outcome, Renew, Renewed, Settle, Settled};
use oncegate::domain::operator::{Release, Released};
use oncegate::domain::record::{Held, Key, State};
use oncegate::engine::{Engine, EngineError};
use oncegate::resilience::journal::DELIVERY_DEADLINE;

use crate::bugs::MARKS;
use crate::reference::{Broken, Reference};
use crate::trace::Name;

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
    fn found(_: &Self::Answer) -> Option<Held> {
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
    Claimed(Claimed),
    Settled(Settled),
    Renewed(Renewed),
    Read,
    /// What a lookup found, which a claim call at the same gateway may be answered from while its chain holds back grants.
    Found(Held),
    Released(Released),
}

impl Question for Claim {
    const NAME: &'static str = "claim";
    const CLAIMS: bool = true;
    type Answer = Claimed;

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

    async fn put(&self, engine: &dyn Engine) -> Result<Claimed, EngineError> {
        engine.claim(self).await
    }

    fn compare(&self, reference: &mut Reference, now: u64, answer: &Claimed) -> Result<(), Broken> {
        reference.claim(now, self, answer)
    }

    fn is_of_another(answer: &Claimed) -> bool {
        matches!(answer, Claimed::Duplicate(_) | Claimed::Mismatch(_))
    }

    fn marks(&self, answer: &Claimed) -> Option<(String, u64)> {
        let of = self.contents.as_str().trim_matches('"').split_once('/')?.0;
        let is_mark = self.operation.as_ref() == MARKS && matches!(answer, Claimed::Granted(_));
        is_mark.then(|| (of.to_owned(), self.whose().nonce))
    }

    fn brief(answer: &Claimed) -> (&'static str, Name, u64) {
        match answer {
            Claimed::Granted(grant) => {
                let what = match (grant.repeated, grant.taken_over) {
                    (true, _) => "repeated",
                    (_, true) => "taken over",
                    _ => "granted",
                };
                (what, Name::of(&grant.attempt), millis(grant.lease_left))
            }
            Claimed::Duplicate(held) => {
                let what = match held.record.state {
                    State::InProgress => "duplicate in progress",
                    State::Succeeded => "duplicate succeeded",
                    State::Unknown => "duplicate unknown",
                };
                (what, Name::of(&held.record.attempt), millis(held.left))
            }
            Claimed::Mismatch(_) => ("mismatch", Name::default(), 0),
            Claimed::Degraded(_, answer) => Self::brief(answer),
        }
    }
}

impl Question for Settle {
    const NAME: &'static str = "settle";
    const ENDS: bool = true;
    type Answer = Settled;

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

    async fn put(&self, engine: &dyn Engine) -> Result<Settled, EngineError> {
        engine.settle(self).await
    }

    fn compare(&self, reference: &mut Reference, now: u64, answer: &Settled) -> Result<(), Broken> {
        reference.settle(now, self, answer)
    }

    fn is_of_another(answer: &Settled) -> bool {
        matches!(answer, Settled::Superseded { .. })
    }

    fn brief(answer: &Settled) -> (&'static str, Name, u64) {
        let (what, left) = match answer {
            Settled::Done { state: None, late, .. } => (if *late == Some(true) { "absent" } else { "released" }, None),
            Settled::Done { late: Some(true), left, .. } => ("recorded late", *left),
            Settled::Done { state: Some(State::Succeeded), left, .. } => ("succeeded", *left),
            Settled::Done { left, .. } => ("unknown", *left),
            Settled::AlreadySucceeded => ("already succeeded", None),
            Settled::Superseded { left, .. } => ("superseded", *left),
            Settled::Expired => ("expired", None),
            Settled::Spooled => ("spooled", None),
            Settled::Degraded(_, answer) => return Self::brief(answer),
        };
        (what, Name::default(), millis(left))
    }
}

impl Question for Renew {
    const NAME: &'static str = "renew";
    type Answer = Renewed;

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

    async fn put(&self, engine: &dyn Engine) -> Result<Renewed, EngineError> {
        engine.renew(self).await
    }

    fn compare(&self, reference: &mut Reference, now: u64, answer: &Renewed) -> Result<(), Broken> {
        reference.renew(now, self, answer)
    }

    fn is_of_another(answer: &Renewed) -> bool {
        matches!(answer, Renewed::Superseded { .. })
    }

    fn brief(answer: &Renewed) -> (&'static str, Name, u64) {
        let (what, left) = match answer {
            Renewed::Renewed { left } => ("renewed", Some(*left)),
            Renewed::LeaseLost => ("lease lost", None),
            Renewed::AlreadySucceeded => ("already succeeded", None),
            Renewed::Superseded { left, .. } => ("superseded", *left),
            Renewed::Degraded(_, answer) => return Self::brief(answer),
        };
        (what, Name::default(), millis(left))
    }
}

impl Question for Release {
    const NAME: &'static str = "release";
    const ENDS: bool = true;
    type Answer = Released;

    fn key(&self) -> &Key {
        &self.key
    }

    fn whose(&self) -> Name {
        Name::of(&self.attempt)
    }

    fn is_delivery(&self) -> bool {
        false
    }

    async fn put(&self, engine: &dyn Engine) -> Result<Released, EngineError> {
        engine.release(self).await
    }

    fn compare(&self, reference: &mut Reference, now: u64, answer: &Released) -> Result<(), Broken> {
        reference.release(now, self, *answer)
    }

    fn brief(answer: &Released) -> (&'static str, Name, u64) {
        let what = match answer {
            Released::Done => "released",
            Released::Absent => "absent",
            Released::Superseded => "superseded",
        };
        (what, Name::default(), 0)
    }
}

/// A lookup.
impl Question for Key {
    const NAME: &'static str = "read";
    const READS: bool = true;
    type Answer = Option<Held>;

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

    fn found(answer: &Option<Held>) -> Option<Held> {
        answer.clone()
    }

    async fn put(&self, engine: &dyn Engine) -> Result<Option<Held>, EngineError> {
        engine.read(self).await
    }

    fn compare(&self, reference: &mut Reference, now: u64, answer: &Option<Held>) -> Result<(), Broken> {
        reference.read(now, answer.as_ref())
    }

    fn brief(answer: &Option<Held>) -> (&'static str, Name, u64) {
        match answer {
            None => ("absent", Name::default(), 0),
            Some(held) => ("found", Name::of(&held.record.attempt), millis(held.left)),
        }
    }
}

/// What a report is called in traces.
pub(crate) fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Success { .. } => "POST success",
        Outcome::Failure => "POST failure",
        Outcome::Unknown => "POST unknown",
    }
}

fn millis(left: Option<Duration>) -> u64 {
    left.map_or(0, |left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
}

impl From<Claimed> for Told {
    fn from(claimed: Claimed) -> Self {
        Self::Claimed(claimed)
    }
}

impl From<Settled> for Told {
    fn from(settled: Settled) -> Self {
        Self::Settled(settled)
    }
}

impl From<Renewed> for Told {
    fn from(renewed: Renewed) -> Self {
        Self::Renewed(renewed)
    }
}

impl From<Released> for Told {
    fn from(released: Released) -> Self {
        Self::Released(released)
    }
}

impl From<Option<Held>> for Told {
    fn from(_: Option<Held>) -> Self {
        Self::Read
    }
}
