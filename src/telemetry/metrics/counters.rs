//! Counters that exist only once they have counted something: what never happens has no series.

use std::sync::OnceLock;

use metrics::Counter;

/// Counters of one metric that come to be when they are first needed, by the place of their labels in a fixed set.
pub(super) struct Counters<const COUNT: usize>([OnceLock<Counter>; COUNT]);

impl<const COUNT: usize> Counters<COUNT> {
    pub(super) const fn new() -> Self {
        Self([const { OnceLock::new() }; COUNT])
    }

    /// Counts one, with the handle that `make` makes the first time.
    pub(super) fn increment(&self, place: usize, make: impl FnOnce() -> Counter) {
        if let Some(counter) = self.0.get(place) {
            counter.get_or_init(make).increment(1);
        }
    }
}
