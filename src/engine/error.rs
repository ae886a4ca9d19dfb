//! Failures of engines, told apart by what the caller may do next: certain ones and uncertain ones.

/// A call that an engine could not answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EngineError {
    /// It certainly did not happen.
    #[error(transparent)]
    Determinate(#[from] Determinate),
    /// It may have happened.
    #[error(transparent)]
    Indeterminate(#[from] Indeterminate),
}

/// The call certainly changed nothing. It may be repeated with any attempt. Each carries what an operator should know.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Determinate {
    /// The store cannot be reached or does not serve now: down, loading, read-only.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// The store has no room for a new claim.
    #[error("the store is full: {0}")]
    Full(String),
    /// The gateway grants nothing for now, whatever the store would say; no outage, so no policy for outages applies.
    #[error("no claims are granted for now: {0}")]
    Paused(String),
    /// The store must not be used as it is: it evicts, it is too old, or a record in it cannot be read.
    #[error("the store cannot be used: {0}")]
    Incompatible(String),
}

/// The call may have happened: it timed out, or its reply was lost. It may be repeated with the same attempt only, so
/// that it recognises itself.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the store's answer is not known: {0}")]
pub struct Indeterminate(pub String);

impl EngineError {
    /// The store is not available.
    pub fn unavailable(why: impl Into<String>) -> Self {
        Determinate::Unavailable(why.into()).into()
    }

    /// The gateway grants nothing for now.
    pub fn paused(why: impl Into<String>) -> Self {
        Determinate::Paused(why.into()).into()
    }

    /// The store must not be used as it is.
    pub fn incompatible(why: impl Into<String>) -> Self {
        Determinate::Incompatible(why.into()).into()
    }

    /// Returns the failure as it is for a call that changes nothing: there an uncertain outcome only means that the store
    /// is unavailable.
    #[must_use]
    pub fn of_read(self) -> Self {
        self.without_effect().into()
    }

    /// Returns the failure of a call that changes nothing: it is always certain.
    pub fn without_effect(self) -> Determinate {
        match self {
            Self::Determinate(why) => why,
            Self::Indeterminate(why) => Determinate::Unavailable(why.to_string()),
        }
    }

    /// The engine has been asked, and has ended without an answer.
    pub fn unsaid() -> Self {
        Self::indeterminate("the engine did not say")
    }

    /// The call may have happened.
    pub fn indeterminate(why: impl Into<String>) -> Self {
        Indeterminate(why.into()).into()
    }
}
