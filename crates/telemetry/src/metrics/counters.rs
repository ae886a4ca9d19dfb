//! Counters that are created by their first increment: an event that never happens has no series.

use std::sync::OnceLock;

use metrics::Counter;

/// Counters of one metric, by index in a fixed set of label values.
pub(super) struct Counters<const COUNT: usize>([OnceLock<Counter>; COUNT]);

impl<const COUNT: usize> Default for Counters<COUNT> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const COUNT: usize> Counters<COUNT> {
    pub(super) const fn new() -> Self {
        Self([const { OnceLock::new() }; COUNT])
    }

    /// Counts one, with a handle that `make` creates at the first time.
    pub(super) fn increment(&self, index: usize, make: impl FnOnce() -> Counter) {
        if let Some(counter) = self.0.get(index) {
            counter.get_or_init(make).increment(1);
        }
    }
}
