//! The life of a claim: what is asked, what is answered, and the table of transitions as pure functions.
//!
//! A transition takes what the store holds (already judged by the store's clock) and a request, and returns what is to
//! change and what to answer. Engines make the two atomic per key; none of them decides anything by itself.

use std::time::Duration;

use super::attempt::Attempt;
use super::canonical::Canonical;
use super::record::{Contents, Held, Key, Record, Sha256Digest, State};
use super::tenant::Operation;
use super::terms::{Retention, Terms};

/// A PRE: "may I do this?"
#[derive(Clone, Debug)]
pub struct Claim {
    /// What is claimed.
    pub key: Key,
    /// The attempt that will hold it.
    pub attempt: Attempt,
    /// The operation within the app.
    pub operation: Operation,
    /// The canonical contents.
    pub contents: Canonical,
    /// Contents longer than this are kept as their digest; 0 means always.
    pub contents_stored_bytes: usize,
    /// The SHA-256 of what else must be the same on a repeat.
    pub fingerprint: Option<Sha256Digest>,
    /// The terms, the lease among them.
    pub terms: Terms,
    /// Claim even though the claim that stands is `unknown`.
    pub take_over: bool,
}

impl Claim {
    /// The record that a grant puts into the store.
    pub fn record(&self) -> Record {
        Record {
            attempt: self.attempt.clone(),
            state: State::InProgress,
            operation: Some(self.operation.clone()),
            contents: Contents::keep(&self.contents, self.contents_stored_bytes),
            fingerprint: self.fingerprint,
            terms: self.terms,
            result: None,
            late: false,
        }
    }
}

/// A POST: "this is what became of it."
#[derive(Clone, Debug)]
pub struct Settle {
    /// Which claim.
    pub key: Key,
    /// The attempt that reports.
    pub attempt: Attempt,
    /// What became of the operation.
    pub outcome: Outcome,
    /// What to record if no claim stands; nothing if the attempt is too old to be recorded.
    pub late: Option<LateTerms>,
}

/// What became of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Finished; must never run again.
    Success {
        /// JSON text to replay to duplicates.
        result: Option<Box<str>>,
        /// Instead of the retention resolved at PRE.
        retention: Option<Retention>,
    },
    /// Certainly did not happen.
    Failure,
    /// Nobody knows.
    Unknown,
}

/// The terms of an outcome that finds no claim.
#[derive(Clone, Debug)]
pub struct LateTerms {
    /// The operation, where the outcome named it.
    pub operation: Option<Operation>,
    /// The contents, where the outcome carried them and they gave the global ID.
    pub contents: Contents,
    /// How long it is kept.
    pub terms: Terms,
}

/// A renewal: "I am still at it."
#[derive(Clone, Debug)]
pub struct Renew {
    /// Which claim.
    pub key: Key,
    /// The attempt that asks.
    pub attempt: Attempt,
    /// From now on for this long; the lease of the claim's terms if left out.
    pub lease: Option<Duration>,
}

/// What is to change in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing.
    Keep,
    /// This record, from now on for this long (or until somebody's deed).
    Put(Record, Option<Duration>),
    /// The record that stands, from now on for this long.
    Extend(Duration),
    /// The record goes.
    Delete,
}

/// The answer to a PRE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claimed {
    /// Do it.
    Granted(Grant),
    /// Somebody is doing it, has done it, or nobody knows.
    Duplicate(Held),
    /// The same ID with something else in it.
    Mismatch(Mismatch),
}

/// A granted claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The attempt that holds the claim.
    pub attempt: Attempt,
    /// Rises strictly over the attempts of a key; nothing where the engine cannot promise it.
    pub fence: Option<u64>,
    /// An earlier PRE with the same nonce got this claim.
    pub repeated: bool,
    /// The claim that stood was `unknown`, and was taken over.
    pub taken_over: bool,
    /// What the store leaves of the lease; nothing if the whole of it was granted just now.
    pub lease_left: Option<Duration>,
}

/// What differs on a repeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mismatch {
    /// The contents: an MD5 collision, or a store that was tampered with.
    Contents,
    /// The fingerprint.
    Fingerprint,
}

/// The answer to a POST.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Settled {
    /// Taken.
    Done {
        /// Where the claim stands now; nothing if it is gone.
        state: Option<State>,
        /// How long it stays so; nothing if gone or for ever.
        left: Option<Duration>,
        /// The outcome found no claim. Nothing if that cannot be told, because an earlier try's reply was lost.
        late: Option<bool>,
    },
    /// A success stands; it is never undone.
    AlreadySucceeded,
    /// Another attempt's claim stands; it was not touched.
    Superseded {
        /// Where that claim stands.
        state: State,
        /// How long it stays so.
        left: Option<Duration>,
    },
    /// No claim stands, and the attempt is too old for its outcome to be recorded.
    Expired,
}

/// The answer to a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewed {
    /// The claim is held for this long from now.
    Renewed {
        /// What is left of the lease.
        left: Duration,
    },
    /// The attempt holds no claim that could be renewed.
    LeaseLost,
    /// The operation has been reported done.
    AlreadySucceeded,
    /// Another attempt's claim stands.
    Superseded {
        /// Where that claim stands.
        state: State,
        /// How long it stays so.
        left: Option<Duration>,
    },
}

/// PRE: what the store holds, the request, and the fence that a new attempt would get.
pub fn claim(held: Option<&Held>, ask: &Claim, fence: Option<u64>) -> (Effect, Claimed) {
    let grant = |taken_over| {
        let attempt = ask.attempt.clone();
        let grant = Grant { attempt, fence, repeated: false, taken_over, lease_left: None };
        (Effect::Put(ask.record(), Some(ask.terms.lease)), Claimed::Granted(grant))
    };
    let Some(held) = held else { return grant(false) };
    if let Some(mismatch) = mismatch(&held.record, ask) {
        return (Effect::Keep, Claimed::Mismatch(mismatch));
    }
    match held.record.state {
        State::InProgress if held.record.attempt.nonce() == ask.attempt.nonce() => {
            let grant = Grant {
                attempt: held.record.attempt.clone(),
                fence: held.fence,
                // The very same attempt is this request's own earlier try, whose reply was lost on the way.
                repeated: held.record.attempt != ask.attempt,
                taken_over: false,
                lease_left: held.left,
            };
            (Effect::Keep, Claimed::Granted(grant))
        }
        State::Unknown if ask.take_over => grant(true),
        State::InProgress | State::Succeeded | State::Unknown => (Effect::Keep, Claimed::Duplicate(held.clone())),
    }
}

/// What is compared first on a repeat. The operation too: other operations have other IDs, unless MD5 was made to
/// collide.
fn mismatch(record: &Record, ask: &Claim) -> Option<Mismatch> {
    let same_operation = record.operation.as_ref().is_none_or(|operation| *operation == ask.operation);
    if !same_operation || !record.contents.matches(&ask.contents) {
        Some(Mismatch::Contents)
    } else if !record.late && record.fingerprint != ask.fingerprint {
        Some(Mismatch::Fingerprint)
    } else {
        None
    }
}

/// POST: what the store holds and the report.
pub fn settle(held: Option<&Held>, ask: &Settle) -> (Effect, Settled) {
    let Some(held) = held else { return settle_absent(ask) };
    let (record, left) = (&held.record, held.left);
    if record.attempt != ask.attempt {
        return (Effect::Keep, Settled::Superseded { state: record.state, left });
    }
    let late = Some(record.late);
    let settled = |state, left| Settled::Done { state: Some(state), left, late };
    match (&ask.outcome, record.state) {
        (Outcome::Success { .. }, State::Succeeded) => (Effect::Keep, settled(State::Succeeded, left)),
        (Outcome::Failure | Outcome::Unknown, State::Succeeded) => (Effect::Keep, Settled::AlreadySucceeded),
        (Outcome::Success { result, retention }, State::InProgress | State::Unknown) => {
            let retention = retention.unwrap_or(record.terms.retention);
            let terms = Terms { retention, ..record.terms };
            let record = Record { state: State::Succeeded, result: result.clone(), terms, ..record.clone() };
            (Effect::Put(record, retention.duration()), settled(State::Succeeded, retention.duration()))
        }
        (Outcome::Failure, State::InProgress | State::Unknown) => {
            (Effect::Delete, Settled::Done { state: None, left: None, late: Some(false) })
        }
        (Outcome::Unknown, State::InProgress) => {
            let left = record.terms.unknown_retention.duration();
            let record = Record { state: State::Unknown, ..record.clone() };
            (Effect::Put(record, left), settled(State::Unknown, left))
        }
        (Outcome::Unknown, State::Unknown) => (Effect::Keep, settled(State::Unknown, left)),
    }
}

/// The row "nothing" of the POST table.
fn settle_absent(ask: &Settle) -> (Effect, Settled) {
    let record = match ask.late_record() {
        None if ask.outcome == Outcome::Failure => {
            return (Effect::Keep, Settled::Done { state: None, left: None, late: Some(true) });
        }
        None => return (Effect::Keep, Settled::Expired),
        Some(record) => record,
    };
    let left = record.settled_retention().duration();
    let answer = Settled::Done { state: Some(record.state), left, late: Some(true) };
    (Effect::Put(record, left), answer)
}

impl Settle {
    /// What is recorded if no claim stands: nothing for a failure, or for an attempt that is too old.
    pub fn late_record(&self) -> Option<Record> {
        let late = self.late.as_ref()?;
        let (state, result, retention) = match &self.outcome {
            Outcome::Success { result, retention } => (State::Succeeded, result.clone(), *retention),
            Outcome::Unknown => (State::Unknown, None, None),
            Outcome::Failure => return None,
        };
        Some(Record {
            attempt: self.attempt.clone(),
            state,
            operation: late.operation.clone(),
            contents: late.contents.clone(),
            fingerprint: None,
            terms: Terms { retention: retention.unwrap_or(late.terms.retention), ..late.terms },
            result,
            late: true,
        })
    }
}

/// Renewal: what the store holds and the request. Never shortens a lease.
pub fn renew(held: Option<&Held>, ask: &Renew) -> (Effect, Renewed) {
    let Some(Held { record, left, .. }) = held else { return (Effect::Keep, Renewed::LeaseLost) };
    if record.attempt != ask.attempt {
        return (Effect::Keep, Renewed::Superseded { state: record.state, left: *left });
    }
    match record.state {
        State::InProgress => {
            let lease = ask.lease.unwrap_or(record.terms.lease);
            match *left {
                Some(left) if left < lease => (Effect::Extend(lease), Renewed::Renewed { left: lease }),
                left => (Effect::Keep, Renewed::Renewed { left: left.unwrap_or(lease) }),
            }
        }
        State::Unknown => (Effect::Keep, Renewed::LeaseLost),
        State::Succeeded => (Effect::Keep, Renewed::AlreadySucceeded),
    }
}
