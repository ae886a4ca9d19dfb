//! The outage journal as operators see it: its status, and its undelivered entries.

use serde::Serialize;

use super::clock::Timestamp;
use super::global_id::GlobalId;
use super::outage_policy::OutagePolicy;
use super::record::Realm;
use super::tenant::{AppKey, Operation};

/// Undelivered entries of the outage journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct SpoolStatus {
    /// Number of grants and outcomes.
    pub entries: usize,
    /// Their size in bytes.
    pub bytes: u64,
    /// Their maximum size in bytes; the limit of one app may be lower.
    pub bytes_max: u64,
    /// Time at which the oldest one was answered.
    pub oldest_at: Option<Timestamp>,
    /// The journal accepted its last entry. Otherwise policies fail closed.
    pub takes: bool,
}

/// An undelivered entry of the outage journal. Has no contents, results or attempts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SpooledEntry {
    /// Its number, which rises over the entries of a gateway.
    pub id: u64,
    /// Time at which the call was answered.
    pub answered_at: Timestamp,
    /// The app.
    pub app: AppKey,
    /// The operation, if the entry has it.
    pub operation: Option<Operation>,
    /// The realm of the claim.
    pub realm: Realm,
    /// The claim.
    pub global_id: GlobalId,
    /// The answer.
    pub answer: SpooledAnswer,
    /// The policy that answered.
    pub policy: OutagePolicy,
    /// The chain whose store gets it.
    pub chain: String,
    /// Error of the last delivery of its claim; `None` if none was tried.
    pub last_failure: Option<String>,
}

/// The answer that a policy gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SpooledAnswer {
    /// A claim was granted.
    Granted,
    /// A lease was extended.
    Renewed,
    /// A success was accepted.
    Success,
    /// A failure was accepted.
    Failure,
    /// An unknown outcome was accepted.
    Unknown,
}

/// The entries to list.
#[derive(Clone, Default, Debug)]
pub struct SpoolFilter {
    /// Only those of this app.
    pub app: Option<AppKey>,
    /// Only those with a larger number.
    pub after: Option<u64>,
}

impl SpoolFilter {
    /// Reports whether an entry of this number and app passes.
    pub fn passes(&self, id: u64, app: &AppKey) -> bool {
        self.after.is_none_or(|after| id > after) && self.app.as_ref().is_none_or(|wanted| wanted == app)
    }
}
