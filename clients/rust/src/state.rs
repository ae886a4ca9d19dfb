//! State of a claim.

/// State of a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum State {
    /// Its work runs.
    InProgress,
    /// Its work is finished.
    Succeeded,
    /// Unknown whether its work has happened.
    Unknown,
    /// Had no effect, and can be claimed again.
    Released,
    /// Observe mode: it was only looked at.
    Observed,
    /// A gateway has accepted the outcome and delivers it later.
    Spooled,
    /// Of a later version of the gateway.
    Other(String),
}

impl State {
    pub(crate) fn of(name: &str) -> Self {
        match name {
            "in_progress" => Self::InProgress,
            "succeeded" => Self::Succeeded,
            "unknown" => Self::Unknown,
            "released" => Self::Released,
            "observed" => Self::Observed,
            "spooled" => Self::Spooled,
            other => Self::Other(other.to_owned()),
        }
    }

    /// Returns its name, the same in every language.
    pub fn name(&self) -> &str {
        match self {
            Self::InProgress => "in_progress",
            Self::Succeeded => "succeeded",
            Self::Unknown => "unknown",
            Self::Released => "released",
            Self::Observed => "observed",
            Self::Spooled => "spooled",
            Self::Other(name) => name,
        }
    }
}
