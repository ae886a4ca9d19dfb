//! The state of the breaker in front of an engine, for operators. Breakers are in `resilience`.

use serde::Serialize;

/// State of a breaker, from best to worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// All calls pass.
    Closed,
    /// One call passes, or a growing number at once.
    HalfOpen,
    /// No call passes.
    Open,
}
