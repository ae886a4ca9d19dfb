//! Outage policies, which answer calls while a store is unavailable.

use serde::{Deserialize, Serialize};

/// The policy that answered instead of the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutagePolicy {
    /// This process decided alone, from its local claims.
    Local,
    /// Granted without a check.
    FailOpen,
    /// In the journal, to be delivered.
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
