//! What stands before an engine: its breaker, and the calls that are repeated. The handles of one engine.

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};

use super::{BREAKER_STATE, RETRIES, labels};

labels! {
    /// What became of a call that was to be repeated.
    RetryResult {
        Answered = "answered",
        Failed = "failed",
        OverBudget = "over_budget",
    }
}

/// The handles of one engine.
pub struct BreakerMetrics {
    state: Gauge,
    retries: Vec<Counter>,
}

impl BreakerMetrics {
    /// The handles of the engine of this name. Its breaker counts as closed until told otherwise.
    pub fn new(engine: &str) -> Self {
        let retries = |result: &&'static str| counter!(RETRIES, "engine" => engine.to_owned(), "result" => *result);
        let metrics = Self {
            state: gauge!(BREAKER_STATE, "engine" => engine.to_owned()),
            retries: RetryResult::LABELS.iter().map(retries).collect(),
        };
        metrics.state.set(0.0);
        metrics
    }

    /// Says how the breaker stands: 0 closed, 1 half open, 2 open.
    pub fn set_state(&self, state: u8) {
        self.state.set(f64::from(state));
    }

    /// Counts a call that was repeated, or was to be.
    pub fn retried(&self, result: RetryResult) {
        self.retries[result as usize].increment(1);
    }
}

pub(super) fn describe() {
    describe_gauge!(BREAKER_STATE, "How the engine's breaker stands: 0 closed, 1 half open, 2 open");
    describe_counter!(
        RETRIES,
        "Calls repeated because the first try failed or its answer was lost, by what became of it"
    );
}
