//! Metrics of an engine's breaker and retries.

use metrics::{Counter, Gauge, counter, gauge};

use super::{BREAKER_STATE, RETRIES, labels};

labels! {
    /// Result of a retry.
    RetryResult {
        Answered = "answered",
        Failed = "failed",
        OverBudget = "over_budget",
    }
}

/// Metrics of one engine.
pub struct BreakerMetrics {
    state: Gauge,
    retries: Vec<Counter>,
}

impl BreakerMetrics {
    /// Returns the metrics of the engine of this name, whose breaker counts as closed at first.
    pub fn new(engine: &str) -> Self {
        let retries = |result: &&'static str| counter!(RETRIES, "engine" => engine.to_owned(), "result" => *result);
        let metrics = Self {
            state: gauge!(BREAKER_STATE, "engine" => engine.to_owned()),
            retries: RetryResult::LABELS.iter().map(retries).collect(),
        };
        metrics.state.set(0.0);
        metrics
    }

    /// Sets the breaker's state: 0 closed, 1 half-open, 2 open.
    pub fn set_state(&self, state: u8) {
        self.state.set(f64::from(state));
    }

    /// Counts a retry, or a call that could not be retried.
    pub fn retried(&self, result: RetryResult) {
        self.retries[result as usize].increment(1);
    }
}
