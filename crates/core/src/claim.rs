//! Requests and responses of claim calls, outcome calls and renewals, and their effects on a store. The table of transitions is in
//! `transitions`.

#[cfg(test)]
mod tests;
mod transitions;

use std::time::Duration;

pub use self::transitions::{claim, granted, renew, settle};
use super::attempt::Attempt;
use super::caller::Caller;
use super::canonical::Canonical;
use super::clock::Timestamp;
use super::record::{ClaimState, Contents, DIGEST_BYTES, Key, LiveClaim, Record, Sha256Digest};
use super::tenant::Operation;
use super::terms::{Retention, Terms};

/// A claim call.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// The key to claim.
    pub key: Key,
    /// The attempt that is to hold the claim.
    pub attempt: Attempt,
    /// The operation within the app.
    pub operation: Operation,
    /// The canonical contents.
    pub contents: Canonical,
    /// Contents longer than this are stored as their digest; 0 means always.
    pub contents_stored_bytes: usize,
    /// The SHA-256 of the fingerprint.
    pub fingerprint: Option<Sha256Digest>,
    /// The name of the caller, which is stored and decides nothing.
    pub caller: Option<Caller>,
    /// The terms, including the lease.
    pub terms: Terms,
    /// Take over a claim of another attempt that is `unknown`. For the same attempt, restore a lease that has ended.
    pub take_over: bool,
    /// True if the caller waits for the claim that blocks it. Shared stores then mark that claim, or the granted one,
    /// so that its end is notified.
    pub waits: bool,
}

impl ClaimRequest {
    /// Returns how many bytes of contents and fingerprint a grant stores.
    pub fn stored_bytes(&self) -> u64 {
        let contents = self.contents.as_str().len();
        let contents = if contents <= self.contents_stored_bytes { contents as u64 } else { DIGEST_BYTES };
        contents + self.fingerprint.map_or(0, |_| DIGEST_BYTES)
    }

    /// Returns the record that a grant stores.
    pub fn record(&self) -> Record {
        Record {
            attempt: self.attempt.clone(),
            state: ClaimState::InProgress,
            operation: Some(self.operation.clone()),
            caller: self.caller.clone(),
            contents: Contents::keep(&self.contents, self.contents_stored_bytes),
            fingerprint: self.fingerprint,
            terms: self.terms,
            result: None,
            late: false,
            taken_over: false,
        }
    }
}

/// An outcome call.
#[derive(Clone, Debug)]
pub struct OutcomeRequest {
    /// The key of the claim.
    pub key: Key,
    /// The attempt that holds the claim.
    pub attempt: Attempt,
    /// The outcome.
    pub outcome: Outcome,
    /// Record for an outcome without a live claim; nothing if the attempt is too old.
    pub late: Option<LateTerms>,
}

impl OutcomeRequest {
    /// Returns the size of the result in bytes.
    pub fn result_bytes(&self) -> u64 {
        match &self.outcome {
            Outcome::Success { result: Some(result), .. } => result.len() as u64,
            Outcome::Success { result: None, .. } | Outcome::Failure | Outcome::Unknown => 0,
        }
    }

    /// Returns the record if there is no live claim: nothing for a failure, or for an attempt that is too old.
    pub fn late_record(&self) -> Option<Record> {
        let late = self.late.as_ref()?;
        let (state, result, retention) = match &self.outcome {
            Outcome::Success { result, retention } => (ClaimState::Succeeded, result.clone(), *retention),
            Outcome::Unknown => (ClaimState::Unknown, None, None),
            Outcome::Failure => return None,
        };
        Some(Record {
            attempt: self.attempt.clone(),
            state,
            operation: late.operation.clone(),
            caller: None,
            contents: late.contents.clone(),
            fingerprint: None,
            terms: Terms { retention: retention.unwrap_or(late.terms.retention), ..late.terms },
            result,
            late: true,
            taken_over: false,
        })
    }
}

/// Outcome of the work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Completed; must never run again.
    Success {
        /// JSON text for duplicates.
        result: Option<Box<str>>,
        /// The retention, if not that of the claim's terms.
        retention: Option<Retention>,
    },
    /// Certainly nothing happened.
    Failure,
    /// The caller does not know whether anything happened.
    Unknown,
}

/// The record of an outcome that finds no live claim.
#[derive(Clone, Debug)]
pub struct LateTerms {
    /// The operation, if the outcome named it.
    pub operation: Option<Operation>,
    /// The contents, if the outcome had them and they give the global ID.
    pub contents: Contents,
    /// The terms.
    pub terms: Terms,
}

impl LateTerms {
    /// Returns the terms of a claim.
    pub fn of(claim: Record) -> Self {
        Self { operation: claim.operation, contents: claim.contents, terms: claim.terms }
    }
}

/// A renewal.
#[derive(Clone, Debug)]
pub struct RenewalRequest {
    /// The key of the claim.
    pub key: Key,
    /// The attempt that holds the claim.
    pub attempt: Attempt,
    /// The new lease, from now on; that of the claim's terms if left out.
    pub lease: Option<Duration>,
}

/// The change of a record in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// No change.
    Keep,
    /// Store this record, for this long from now on; without an end if there is no time.
    Put(Record, Option<Duration>),
    /// Extend the record, for this long from now on.
    Extend(Duration),
    /// Store this record of the same attempt and state; its end stays.
    Replace(Record),
    /// Delete the record.
    Delete,
}

impl Effect {
    /// Returns whether this ends or settles a live claim. Then the callers that wait for the claim need a notification.
    pub fn ends_claim(&self) -> bool {
        matches!(self, Self::Put(..) | Self::Delete)
    }

    /// Returns the time from now to the end of the stored record; `None` if the record has no end, or keeps its earlier
    /// one.
    pub fn lasts(&self) -> Option<Duration> {
        match self {
            Self::Put(_, lasts) => *lasts,
            Self::Extend(lasts) => Some(*lasts),
            Self::Keep | Self::Replace(_) | Self::Delete => None,
        }
    }
}

/// The answer to a claim call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClaimResponse {
    /// The claim is granted.
    Granted(Grant),
    /// There is a live claim.
    Duplicate(LiveClaim),
    /// A live claim has the same ID and other contents, or another fingerprint.
    Mismatch(Mismatch),
}

/// A granted claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The attempt that holds the claim.
    pub attempt: Attempt,
    /// A number that rises strictly over the attempts of a key; nothing if the engine does not promise it.
    pub fence: Option<u64>,
    /// An earlier claim call with the same nonce got the claim.
    pub repeated: bool,
    /// The live claim was `unknown`, and was taken over.
    pub taken_over: bool,
    /// Remaining time of the lease, by the store's clock; nothing if the whole lease was granted just now.
    pub lease_left: Option<Duration>,
    /// The end of the lease by the store's clock, for display: see [`LiveClaim::ends_at`]. Nothing also for a new grant of a store
    /// that does not answer with it.
    pub lease_ends_at: Option<Timestamp>,
}

/// The difference on a repeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mismatch {
    /// The contents: an MD5 collision, or a store that was tampered with.
    Contents,
    /// The fingerprint.
    Fingerprint,
}

/// The answer to an outcome call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutcomeResponse {
    /// The outcome is accepted.
    Done {
        /// State of the claim now; nothing if it has ended.
        state: Option<ClaimState>,
        /// Remaining time; nothing if the claim has ended, or has no end.
        left: Option<Duration>,
        /// The end by the store's clock, for display: see [`LiveClaim::ends_at`].
        ends_at: Option<Timestamp>,
        /// The outcome found no live claim. Nothing if that is unknown, because the reply of an earlier call was lost.
        late: Option<bool>,
    },
    /// The claim has succeeded, which is final.
    AlreadySucceeded,
    /// Another attempt holds the claim; nothing was changed.
    Superseded {
        /// State of that claim.
        state: ClaimState,
        /// Its remaining time.
        left: Option<Duration>,
    },
    /// There is no live claim, and the attempt is too old to be recorded.
    Expired,
}

/// The answer to a renewal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RenewalResponse {
    /// The lease is extended.
    Renewed {
        /// Remaining time of the lease.
        left: Duration,
        /// The end of the lease by the store's clock, for display: see [`LiveClaim::ends_at`].
        ends_at: Option<Timestamp>,
    },
    /// The attempt holds no claim in progress.
    LeaseLost,
    /// The claim has succeeded.
    AlreadySucceeded,
    /// Another attempt holds the claim.
    Superseded {
        /// State of that claim.
        state: ClaimState,
        /// Its remaining time.
        left: Option<Duration>,
    },
}

/// An answer that may name the end of a claim. The transitions know the duration of an effect, and only the store knows
/// the instant of its end. So an engine that stores an effect completes its answer.
pub trait NamesEnd {
    /// Adds the end that the call has stored, by the store's clock, if the answer names one.
    fn set_end(&mut self, at: Timestamp);

    /// Returns the answer with this end, if the call has stored one.
    #[must_use]
    fn with_end(mut self, at: Option<Timestamp>) -> Self
    where
        Self: Sized,
    {
        if let Some(at) = at {
            self.set_end(at);
        }
        self
    }
}

impl NamesEnd for ClaimResponse {
    fn set_end(&mut self, at: Timestamp) {
        if let Self::Granted(grant) = self {
            grant.lease_ends_at = Some(at);
        }
    }
}

impl NamesEnd for OutcomeResponse {
    fn set_end(&mut self, at: Timestamp) {
        if let Self::Done { left: Some(_), ends_at, .. } = self {
            *ends_at = Some(at);
        }
    }
}

impl NamesEnd for RenewalResponse {
    fn set_end(&mut self, at: Timestamp) {
        if let Self::Renewed { ends_at, .. } = self {
            *ends_at = Some(at);
        }
    }
}

/// A lookup stores nothing.
impl NamesEnd for Option<LiveClaim> {
    fn set_end(&mut self, _: Timestamp) {}
}
