//! How the breaker before an engine stands, as operators are shown it. What opens and closes one is in `resilience`.

use std::time::Duration;

use serde::Serialize;

/// How a breaker stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All calls are let through.
    Closed,
    /// One call is let through, or more and more at once.
    HalfOpen,
    /// No call is let through.
    Open,
}

/// A breaker's state, and for how long it has been that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// The state.
    pub state: State,
    /// Since it came to it, or since the engine was opened.
    pub lasted: Duration,
}
