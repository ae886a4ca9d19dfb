//! Answers that a policy gives in place of the store: which policy, and how they are told apart from the store's own.

use serde::Serialize;

use super::claim::{ClaimResponse, OutcomeResponse, RenewalResponse};

/// The policy that gave an answer in place of the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Degraded {
    /// This process decided alone.
    Local,
    /// Granted without asking.
    FailOpen,
    /// Kept on this gateway's disk, to be delivered.
    Spool,
}

impl Degraded {
    /// As answers, settings and metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::FailOpen => "fail_open",
            Self::Spool => "spool",
        }
    }
}

impl ClaimResponse {
    /// The answer itself, and the policy that gave it if the store did not.
    pub fn split(self) -> (Self, Option<Degraded>) {
        match self {
            Self::Degraded(by, answer) => (*answer, Some(by)),
            answer => (answer, None),
        }
    }
}

impl OutcomeResponse {
    /// The answer itself, and the policy that gave it if the store did not.
    pub fn split(self) -> (Self, Option<Degraded>) {
        match self {
            Self::Degraded(by, answer) => (*answer, Some(by)),
            Self::Spooled => (Self::Spooled, Some(Degraded::Spool)),
            answer => (answer, None),
        }
    }
}

impl RenewalResponse {
    /// The answer itself, and the policy that gave it if the store did not.
    pub fn split(self) -> (Self, Option<Degraded>) {
        match self {
            Self::Degraded(by, answer) => (*answer, Some(by)),
            answer => (answer, None),
        }
    }
}
