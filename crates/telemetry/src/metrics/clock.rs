//! Metrics of the host's clock.

use metrics::{Counter, counter};

use super::CLOCK_STEPS;

/// Metrics of the wall clock.
pub struct ClockMetrics {
    steps: Counter,
}

impl Default for ClockMetrics {
    fn default() -> Self {
        Self { steps: counter!(CLOCK_STEPS) }
    }
}

impl ClockMetrics {
    /// Counts a step.
    pub fn stepped(&self) {
        self.steps.increment(1);
    }
}
