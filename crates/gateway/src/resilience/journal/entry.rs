//! What the journal keeps: grants and outcomes that were answered while the store was out, and overlaps that were noticed
//! when it was back.

use std::sync::Arc;

use crate::domain::attempt::Attempt;
use crate::domain::claim::{ClaimRequest, OutcomeRequest, RenewalRequest};
use crate::domain::clock::Timestamp;
use crate::domain::outage_policy::OutagePolicy;
use crate::domain::record::Key;
use crate::domain::tenant::{AppKey, Operation};

/// The place of an entry in the journal: later ones are greater, over restarts too.
pub type Seq = u64;

/// Something that a policy has answered for, and the store has not been told yet.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The chain whose store is to be told.
    pub chain: Arc<str>,
    /// The policy that gave the answer.
    pub policy: OutagePolicy,
    /// When, by this gateway's wall clock: not later than what the caller counts from.
    pub at: Timestamp,
    /// What was answered for.
    pub deed: Deed,
}

/// What a policy has answered for.
#[derive(Clone, Debug)]
pub enum Deed {
    /// A claim was granted.
    Granted(ClaimRequest),
    /// A granted claim's lease was extended.
    Renewed(RenewalRequest),
    /// An outcome was taken.
    Reported(OutcomeRequest),
}

impl Entry {
    /// The claim that it is about.
    pub fn key(&self) -> &Key {
        match &self.deed {
            Deed::Granted(request) => &request.key,
            Deed::Renewed(request) => &request.key,
            Deed::Reported(request) => &request.key,
        }
    }

    /// Whose deed it is.
    pub fn attempt(&self) -> &Attempt {
        match &self.deed {
            Deed::Granted(request) => &request.attempt,
            Deed::Renewed(request) => &request.attempt,
            Deed::Reported(request) => &request.attempt,
        }
    }

    /// Whose claim it is.
    pub fn app(&self) -> &AppKey {
        &self.key().app
    }

    /// The operation, where the entry knows it.
    pub fn operation(&self) -> Option<&Operation> {
        match &self.deed {
            Deed::Granted(request) => Some(&request.operation),
            Deed::Renewed(_) => None,
            Deed::Reported(request) => request.late.as_ref()?.operation.as_ref(),
        }
    }
}
