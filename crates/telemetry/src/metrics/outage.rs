//! Metrics of outage policies: answers, journaled entries that wait for the store, and overlaps found later.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use metrics::{Counter, Gauge, counter, gauge};

use super::{
    DEGRADED_ANSWERS, JOURNAL_ERRORS, OVERLAPS, SPOOL_BYTES, SPOOL_ENTRIES, SPOOL_OLDEST, SUSPECTED_DOUBLE_EXECUTIONS,
    SUSPECTS_DROPPED,
};
use crate::metrics::labels;

labels! {
    /// Policy that gave an answer.
    Policy {
        Local = "local",
        FailOpen = "fail_open",
        Spool = "spool",
    }
}

/// Metrics of a process.
pub struct OutageMetrics {
    entries: Gauge,
    bytes: Gauge,
    oldest: Gauge,
    errors: Counter,
    /// By app. Only apps that a policy has answered for, so no more than are configured.
    apps: Mutex<HashMap<String, ByPolicy>>,
}

struct ByPolicy {
    answers: Vec<Counter>,
    overlaps: Vec<Counter>,
    suspected: Counter,
    suspects_dropped: Counter,
}

impl Default for OutageMetrics {
    /// Returns the metrics, with an empty journal.
    fn default() -> Self {
        let metrics = Self {
            entries: gauge!(SPOOL_ENTRIES),
            bytes: gauge!(SPOOL_BYTES),
            oldest: gauge!(SPOOL_OLDEST),
            errors: counter!(JOURNAL_ERRORS),
            apps: Mutex::default(),
        };
        metrics.waiting(0, 0, Duration::ZERO);
        metrics.errors.absolute(0);
        metrics
    }
}

impl OutageMetrics {
    /// Counts an answer by a policy.
    pub fn answered(&self, app: &str, policy: Policy) {
        self.of(app, |by| by.answers[policy as usize].increment(1));
    }

    /// Counts an overlap.
    pub fn overlapped(&self, app: &str, policy: Policy) {
        self.of(app, |by| by.overlaps[policy as usize].increment(1));
    }

    /// Counts a success or unknown outcome that the store refused, because another attempt held the claim.
    pub fn suspected(&self, app: &str) {
        self.of(app, |by| by.suspected.increment(1));
    }

    /// Counts a suspect that was dropped before an operator had checked it.
    pub fn suspect_dropped(&self, app: &str) {
        self.of(app, |by| by.suspects_dropped.increment(1));
    }

    /// Counts an entry that the journal did not take or has lost.
    pub fn journal_failed(&self) {
        self.errors.increment(1);
    }

    /// Sets number, size and age of the entries that wait for stores.
    pub fn waiting(&self, entries: usize, bytes: u64, oldest: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let as_number = |count: u64| count as f64;
        self.entries.set(as_number(entries as u64));
        self.bytes.set(as_number(bytes));
        self.oldest.set(oldest.as_secs_f64());
    }

    fn of(&self, app: &str, count: impl FnOnce(&ByPolicy)) {
        let mut apps = self.apps.lock().unwrap_or_else(PoisonError::into_inner);
        count(apps.entry_ref(app).or_insert_with(|| ByPolicy::new(app)));
    }
}

impl ByPolicy {
    fn new(app: &str) -> Self {
        let handle = |name: &'static str| {
            let handle = move |policy: &&'static str| counter!(name, "app" => app.to_owned(), "policy" => *policy);
            Policy::LABELS.iter().map(handle).collect()
        };
        let suspected = counter!(SUSPECTED_DOUBLE_EXECUTIONS, "app" => app.to_owned());
        let suspects_dropped = counter!(SUSPECTS_DROPPED, "app" => app.to_owned());
        Self { answers: handle(DEGRADED_ANSWERS), overlaps: handle(OVERLAPS), suspected, suspects_dropped }
    }
}
