//! The state of the breaker in front of an engine, for operators. Breakers are in `resilience`.

use std::time::Duration;

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

/// The state of a breaker, and its duration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BreakerStatus {
    /// Its state.
    pub state: BreakerState,
    /// Time since the state began, or since the engine was opened.
    pub lasted: Duration,
}
