//! The status of the outage journal, for operators.

use serde::Serialize;

use super::clock::Timestamp;

/// Undelivered entries of the outage journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct SpoolStatus {
    /// Number of grants and outcomes.
    pub entries: usize,
    /// Their size in bytes.
    pub bytes: u64,
    /// Their maximum size in bytes; the limit of one app may be lower.
    pub bytes_max: u64,
    /// When the oldest one was answered.
    pub oldest_at: Option<Timestamp>,
    /// The journal accepted its last entry. Otherwise policies fail closed.
    pub takes: bool,
}
