//! Suspects: operations that may have been executed twice. They cannot be undone; an operator looks each one up, and says what he
//! found.

use serde::{Deserialize, Serialize, Serializer};

use super::attempt::{Attempt, AttemptHash};
use super::clock::Timestamp;
use super::global_id::GlobalId;
use super::outage_policy::OutagePolicy;
use super::record::{ClaimState, Realm};
use super::tenant::{AppKey, Operation};

/// An operation that may have been executed twice.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Suspect {
    /// Its number, which rises over the suspects of a gateway.
    pub id: u64,
    /// Its kind and cause.
    #[serde(flatten)]
    pub cause: Cause,
    /// The app.
    pub app: AppKey,
    /// The operation, if known.
    pub operation: Option<Operation>,
    /// The realm of the claim.
    pub realm: Realm,
    /// The claim.
    pub global_id: GlobalId,
    /// The attempt that a policy granted, or that reported an outcome although it did not hold the claim.
    pub ours: MaskedAttempt,
    /// The attempt in the store, if known.
    pub theirs: Option<MaskedAttempt>,
    /// State of the claim in the store when the suspect was detected, if known.
    pub state: Option<ClaimState>,
    /// Time of its detection, by this gateway's wall clock.
    pub noticed_at: Timestamp,
    /// The findings of an operator who has looked it up.
    pub checked: Option<Check>,
}

/// The reason why an operation is suspected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", content = "cause", rename_all = "snake_case")]
pub enum Cause {
    /// Two attempts were granted, because this policy answered instead of the store.
    Overlap(OutagePolicy),
    /// An attempt reported that it ran, or may have, while another attempt held the claim.
    Double(Superseded),
}

/// The outcome of an attempt that did not hold its claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Superseded {
    /// Succeeded.
    SupersededSuccess,
    /// Its outcome is unknown.
    SupersededUnknown,
}

/// The kind of a suspect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SuspectKind {
    /// Two attempts were granted.
    Overlap,
    /// Two attempts have run, or may have.
    Double,
}

/// The suspects to list.
#[derive(Clone, Default, Debug)]
pub struct SuspectFilter {
    /// Only these kinds; all if empty.
    pub kinds: Vec<SuspectKind>,
    /// Only those of this app.
    pub app: Option<AppKey>,
    /// Only checked suspects, or only unchecked ones.
    pub checked: Option<bool>,
    /// The oldest come first, rather than the newest.
    pub oldest_first: bool,
    /// Only those after the one with this number, in their order.
    pub after: Option<u64>,
}

/// The suspects of an app and a kind that no operator has checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UncheckedSuspects {
    /// The app.
    pub app: AppKey,
    /// The kind.
    pub kind: SuspectKind,
    /// Their number.
    pub count: usize,
    /// Time at which the oldest one was detected.
    pub oldest_at: Timestamp,
}

/// The findings of an operator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// Number of times that the operation has had its effect.
    pub found: Found,
    /// The reason, for readers of the list and of the audit trail.
    pub reason: String,
    /// The operator: the name of his token.
    pub who: String,
    /// Time of the check, by the gateway's wall clock.
    #[serde(rename = "at")]
    pub checked_at: Timestamp,
}

/// Number of times that an operation has had its effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// Ran once. No action is needed.
    Once,
    /// Ran twice. The second effect needs to be undone.
    Twice,
    /// Not at all.
    Never,
}

/// An attempt without its nonce, for logs and reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct MaskedAttempt {
    /// Time of its issue, by the clock of its gateway.
    #[serde(serialize_with = "micros")]
    pub timestamp: Timestamp,
    /// Distinguishes it from others without revealing it.
    #[serde(rename = "attempt_hash")]
    pub hash: AttemptHash,
}

impl Cause {
    /// Returns the kind.
    pub fn kind(self) -> SuspectKind {
        match self {
            Self::Overlap(_) => SuspectKind::Overlap,
            Self::Double(_) => SuspectKind::Double,
        }
    }
}

impl Found {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Once, Self::Twice, Self::Never];

    /// Returns the name in requests and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Twice => "twice",
            Self::Never => "never",
        }
    }
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
