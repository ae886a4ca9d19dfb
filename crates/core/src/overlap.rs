//! Overlaps: operations that two attempts were granted, because an outage policy answered instead of the store. Detected once the
//! store is available again, and reported; they cannot be undone.

use serde::{Serialize, Serializer};

use super::attempt::{Attempt, AttemptHash};
use super::clock::Timestamp;
use super::global_id::GlobalId;
use super::outage_policy::OutagePolicy;
use super::record::{ClaimState, Realm};
use super::tenant::{AppKey, Operation};

/// An operation that two attempts were granted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Overlap {
    /// Its number, which rises over the overlaps of a gateway.
    pub id: u64,
    /// The app.
    pub app: AppKey,
    /// The operation, if known.
    pub operation: Option<Operation>,
    /// The realm of the claim.
    pub realm: Realm,
    /// The claim.
    pub global_id: GlobalId,
    /// The policy that answered instead of the store.
    pub policy: OutagePolicy,
    /// The attempt that the policy granted, or whose outcome it accepted.
    pub ours: MaskedAttempt,
    /// The attempt in the store.
    pub theirs: MaskedAttempt,
    /// State of the claim in the store when the overlap was detected.
    pub state: ClaimState,
    /// When it was detected, by this gateway's wall clock.
    pub noticed_at: Timestamp,
}

/// An attempt without its nonce, for logs and reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct MaskedAttempt {
    /// When it was issued, by the clock of its gateway.
    #[serde(serialize_with = "micros")]
    pub timestamp: Timestamp,
    /// Distinguishes it from others without revealing it.
    #[serde(rename = "attempt_hash")]
    pub hash: AttemptHash,
}

impl From<&Attempt> for MaskedAttempt {
    fn from(attempt: &Attempt) -> Self {
        Self { timestamp: attempt.timestamp(), hash: attempt.hash() }
    }
}

/// Writes a timestamp as a number of microseconds, as attempts have it.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn micros<S: Serializer>(timestamp: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(timestamp.as_micros())
}
