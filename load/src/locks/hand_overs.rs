//! Counts of the hand-overs of a lock, and of its grants, in a run.

use std::{cell::Cell, time::Duration};

use tokio::time::Instant;

use crate::report::ratio;

/// Hand-overs and grants of a run. The lock itself makes it one at a time.
#[derive(Debug)]
pub(super) struct HandOvers {
    last: Cell<Option<usize>>,
    count: Cell<u64>,
    grants: Cell<u64>,
    began: Instant,
    measured: Duration,
}

impl HandOvers {
    pub(super) fn start(measured: Duration) -> Self {
        let (last, count, grants) = Default::default();
        Self { last, count, grants, began: Instant::now(), measured }
    }

    pub(super) fn held_by(&self, caller: usize) {
        self.grants.set(self.grants.get() + 1);
        if self.last.replace(Some(caller)) != Some(caller) {
            self.count.set(self.count.get() + 1);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.began.elapsed() >= self.measured
    }

    /// Returns the hand-overs.
    pub(super) fn count(&self) -> u64 {
        self.count.get()
    }

    pub(super) fn grants(&self) -> u64 {
        self.grants.get()
    }

    pub(super) fn each_second(&self) -> f64 {
        ratio(self.count(), 1) / self.measured.as_secs_f64()
    }
}
