//! Metrics of the callers of an app that wait for claims in progress.

use std::sync::OnceLock;

use metrics::{Gauge, counter, gauge};

use super::counters::Counters;
use super::{CLAIM_WAITS, CLAIMS_WAITING, labels};

labels! {
    /// Reason for the end of a wait.
    WaitEnd {
        Granted = "granted",
        Settled = "settled",
        TimeOver = "time_over",
        CallerGone = "caller_gone",
        Draining = "draining",
        Failed = "failed",
        Full = "full",
    }
}

/// Metrics of the waiting callers of one app.
#[derive(Default)]
pub struct WaitMetrics {
    waiting: OnceLock<Gauge>,
    ends: Counters<{ WaitEnd::LABELS.len() }>,
}

/// A caller that is counted as waiting until this is dropped.
pub struct Waiting(Gauge);

impl WaitMetrics {
    /// Counts a caller that begins to wait.
    pub(super) fn begin(&self, app: &str) -> Waiting {
        let waiting = self.waiting.get_or_init(|| gauge!(CLAIMS_WAITING, "app" => app.to_owned()));
        waiting.increment(1.0);
        Waiting(waiting.clone())
    }

    /// Counts the end of a wait.
    pub(super) fn end(&self, app: &str, end: WaitEnd) {
        let label = WaitEnd::LABELS[end as usize];
        self.ends.increment(end as usize, || counter!(CLAIM_WAITS, "app" => app.to_owned(), "end" => label));
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
