//! Overlaps: two attempts that each were told to go ahead with the same operation, because a policy had to answer for a
//! store that was out. Noticed when the store is back, and reported; nothing undoes them.

use super::attempt::{Attempt, AttemptHash};
use super::clock::Timestamp;
use super::global_id::GlobalId;
use super::outage_policy::OutagePolicy;
use super::record::ClaimState;
use super::tenant::{AppKey, Operation};

/// Two attempts at one operation, where one should have been stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Overlap {
    /// Its number; a gateway's later overlaps have greater ones.
    pub id: u64,
    /// Whose operation.
    pub app: AppKey,
    /// Which operation, where it is known.
    pub operation: Option<Operation>,
    /// The claim.
    pub global_id: GlobalId,
    /// The policy that answered for the store.
    pub policy: OutagePolicy,
    /// The attempt that the policy let pass, or whose outcome it took.
    pub ours: MaskedAttempt,
    /// The attempt that the store holds.
    pub theirs: MaskedAttempt,
    /// Where the claim that the store holds stood when that was noticed.
    pub state: ClaimState,
    /// When, by this gateway's wall clock.
    pub noticed_at: Timestamp,
}

/// An attempt as others may see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MaskedAttempt {
    /// When it was issued, by the clock of its gateway.
    pub timestamp: Timestamp,
    /// Tells it from others without giving it away.
    pub hash: AttemptHash,
}

impl From<&Attempt> for MaskedAttempt {
    fn from(attempt: &Attempt) -> Self {
        Self { timestamp: attempt.timestamp(), hash: attempt.hash() }
    }
}

/// Where overlaps are kept.
pub trait Overlaps: Send + Sync + 'static {
    /// At most so many, the newest first: all, or those of an app, that are older than the one of this number.
    fn newest(&self, app: Option<&AppKey>, before: Option<u64>, limit: usize) -> Vec<Overlap>;
}
