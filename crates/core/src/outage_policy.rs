//! Outage policies: what answers a call while its store is unavailable.

use serde::Serialize;

/// The policy that gave an answer in place of the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutagePolicy {
    /// This process decided alone.
    Local,
    /// Granted without asking.
    FailOpen,
    /// Kept on this gateway's disk, to be delivered.
    Spool,
}

impl OutagePolicy {
    /// Returns the name in answers, settings and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::FailOpen => "fail_open",
            Self::Spool => "spool",
        }
    }
}
