//! Entries of the outage journal: grants, renewals and outcomes that policies answered while the store was unavailable.

use std::sync::Arc;

use crate::attempt::Attempt;
use crate::claim::{ClaimRequest, Outcome, OutcomeRequest, RenewalRequest};
use crate::clock::Timestamp;
use crate::outage_policy::OutagePolicy;
use crate::record::Key;
use crate::spool::{SpooledAnswer, SpooledEntry};
use crate::tenant::{AppKey, Operation};

/// Sequence number of an entry: rises, over restarts too.
pub type Seq = u64;

/// The entries that wait on a key, oldest first.
pub type Queue = [(Seq, Arc<Entry>)];

/// An operation that a policy has answered and that is not delivered to the store.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The chain whose store gets it.
    pub chain: Arc<str>,
    /// The policy that gave the answer.
    pub policy: OutagePolicy,
    /// Instant of the answer by this gateway's wall clock: not later than what the caller counts from.
    pub at: Timestamp,
    /// The operation.
    pub journaled: JournaledOperation,
}

/// An operation that a policy has answered.
#[derive(Clone, Debug)]
pub enum JournaledOperation {
    /// A claim was granted.
    Granted(ClaimRequest),
    /// A granted claim's lease was extended.
    Renewed(RenewalRequest),
    /// An outcome was accepted.
    Reported(OutcomeRequest),
}

impl Entry {
    /// Returns the key of the claim.
    pub fn key(&self) -> &Key {
        match &self.journaled {
            JournaledOperation::Granted(request) => &request.key,
            JournaledOperation::Renewed(request) => &request.key,
            JournaledOperation::Reported(request) => &request.key,
        }
    }

    /// Returns the attempt.
    pub fn attempt(&self) -> &Attempt {
        match &self.journaled {
            JournaledOperation::Granted(request) => &request.attempt,
            JournaledOperation::Renewed(request) => &request.attempt,
            JournaledOperation::Reported(request) => &request.attempt,
        }
    }

    /// Returns the app.
    pub fn app(&self) -> &AppKey {
        &self.key().app
    }

    /// Returns the business operation, if the entry has it.
    pub fn operation(&self) -> Option<&Operation> {
        match &self.journaled {
            JournaledOperation::Granted(request) => Some(&request.operation),
            JournaledOperation::Renewed(_) => None,
            JournaledOperation::Reported(request) => request.late.as_ref()?.operation.as_ref(),
        }
    }

    /// Returns the entry as operators see it.
    pub fn shown(&self, seq: Seq, last_failure: Option<String>) -> SpooledEntry {
        let key = self.key();
        let answer = match &self.journaled {
            JournaledOperation::Granted(_) => SpooledAnswer::Granted,
            JournaledOperation::Renewed(_) => SpooledAnswer::Renewed,
            JournaledOperation::Reported(report) => match report.outcome {
                Outcome::Success { .. } => SpooledAnswer::Success,
                Outcome::Failure => SpooledAnswer::Failure,
                Outcome::Unknown => SpooledAnswer::Unknown,
            },
        };
        SpooledEntry {
            id: seq,
            answered_at: self.at,
            app: key.app.clone(),
            operation: self.operation().cloned(),
            realm: key.realm,
            global_id: key.global_id,
            answer,
            policy: self.policy,
            chain: self.chain.to_string(),
            last_failure,
        }
    }
}
