//! Failures of engines, certain and uncertain ones. The caller must treat the two differently.

/// A call without an answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EngineError {
    /// Certainly changed nothing.
    #[error(transparent)]
    Determinate(#[from] Determinate),
    /// May have changed something.
    #[error(transparent)]
    Indeterminate(#[from] Indeterminate),
}

/// The call certainly changed nothing, so it may be repeated with any attempt. Each variant holds the reason, for operators.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Determinate {
    /// The store cannot be reached, or does not serve now: it is down, loading or read-only.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// The store has no room for a new claim.
    #[error("the store is full: {0}")]
    Full(String),
    /// The gateway grants nothing for now, even if the store would. This is not an outage, so no outage policy applies.
    #[error("no claims are granted for now: {0}")]
    Paused(String),
    /// The store must not be used in its present state: it evicts, it is too old, or a record in it cannot be read.
    #[error("the store cannot be used: {0}")]
    Incompatible(String),
}

/// The call may have changed something: it timed out, or its reply was lost. It may be repeated only with the same attempt, so
/// that it finds its own effect.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the store's answer is not known: {why}")]
pub struct Indeterminate {
    /// The reason, for operators.
    pub why: String,
    /// The store has answered, but too few replicas have acknowledged the write. That is no outage: no breaker opens, and no
    /// outage policy applies.
    pub is_shortfall: bool,
}

impl EngineError {
    /// Returns [`Determinate::Unavailable`].
    pub fn unavailable(why: impl Into<String>) -> Self {
        Determinate::Unavailable(why.into()).into()
    }

    /// Returns [`Determinate::Paused`].
    pub fn paused(why: impl Into<String>) -> Self {
        Determinate::Paused(why.into()).into()
    }

    /// Returns [`Determinate::Incompatible`].
    pub fn incompatible(why: impl Into<String>) -> Self {
        Determinate::Incompatible(why.into()).into()
    }

    /// Returns the failure of a call that changes nothing. For such a call an uncertain outcome only means that the
    /// store is unavailable.
    #[must_use]
    pub fn of_read(self) -> Self {
        // The data that was read may be lost with the server; then the answer would be wrong.
        if self.is_shortfall() { self } else { self.without_effect().into() }
    }

    /// Returns the failure of a call that changes nothing: it is always certain.
    pub fn without_effect(self) -> Determinate {
        match self {
            Self::Determinate(why) => why,
            Self::Indeterminate(uncertain) => Determinate::Unavailable(uncertain.why),
        }
    }

    /// Returns the reason alone, to be part of another message.
    pub fn reason(&self) -> &str {
        match self {
            Self::Determinate(why) => why.reason(),
            Self::Indeterminate(uncertain) => &uncertain.why,
        }
    }

    /// Returns the failure of a call that ended without an answer.
    pub fn no_answer() -> Self {
        Self::indeterminate("the engine returned no answer")
    }

    /// Returns whether the store did not answer. A store that is full, or cannot read a record, has answered.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Indeterminate(why) => !why.is_shortfall,
            Self::Determinate(why) => why.is_unavailable(),
        }
    }

    /// Returns whether too few replicas have acknowledged the write.
    pub fn is_shortfall(&self) -> bool {
        matches!(self, Self::Indeterminate(why) if why.is_shortfall)
    }

    /// Returns whether the call may have happened.
    pub fn is_uncertain(&self) -> bool {
        matches!(self, Self::Indeterminate(_))
    }

    /// Returns [`Indeterminate`].
    pub fn indeterminate(why: impl Into<String>) -> Self {
        Indeterminate { why: why.into(), is_shortfall: false }.into()
    }

    /// Returns [`Indeterminate`], because too few replicas have acknowledged the write.
    pub fn shortfall(why: impl Into<String>) -> Self {
        Indeterminate { why: why.into(), is_shortfall: true }.into()
    }
}

impl Determinate {
    /// Returns the reason alone, to be part of another message.
    pub fn reason(&self) -> &str {
        match self {
            Self::Unavailable(why) | Self::Full(why) | Self::Paused(why) | Self::Incompatible(why) => why,
        }
    }

    /// Returns whether the store cannot be reached, or does not serve now.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortfall_of_replicas_is_uncertain_and_no_outage() {
        let facts = |error: EngineError| (error.is_uncertain(), error.is_shortfall(), error.is_unavailable());
        assert_eq!(facts(EngineError::shortfall("1 of 2 replicas")), (true, true, false));
        assert_eq!(facts(EngineError::no_answer()), (true, false, true));
        assert_eq!(facts(EngineError::unavailable("down")), (false, false, true));
        assert_eq!(facts(EngineError::incompatible("too old")), (false, false, false));
    }

    #[test]
    fn a_reason_is_told_once() {
        let why = EngineError::indeterminate("no answer within 500 ms");
        assert_eq!(why.reason(), "no answer within 500 ms");
        assert_eq!(why.without_effect().to_string(), "the store is not available: no answer within 500 ms");
        let again = EngineError::unavailable(EngineError::unavailable("it is down").reason());
        assert_eq!(again.to_string(), "the store is not available: it is down");
    }
}
