//! Sizes of the work of a run.

use crate::scenario::Scenario;

/// Claims in one batch, if nothing else is asked for.
const BATCH: u64 = 100;

/// Sizes of the work of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Claims in one batch: all but the last are new, the last repeats the first.
    pub(crate) batch: u64,
    /// Bytes of text in the result of a success.
    pub(crate) result_bytes: usize,
    /// Operations among which the orders are divided.
    pub(crate) operations: u64,
}

impl Sizes {
    /// Returns the usual sizes of a scenario.
    pub(crate) fn of(scenario: Scenario) -> Self {
        Self { batch: BATCH, result_bytes: scenario.result_bytes(), operations: 1 }
    }
}
