//! What was answered while a store was out, what waits for it, and what came to light when it was back.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};

use super::{
    DEGRADED_ANSWERS, JOURNAL_ERRORS, OVERLAPS, SPOOL_BYTES, SPOOL_ENTRIES, SPOOL_OLDEST, SUSPECTED_DOUBLE_EXECUTIONS,
};
use crate::telemetry::metrics::labels;

labels! {
    /// The policy that gave an answer.
    Policy {
        Local = "local",
        FailOpen = "fail_open",
        Spool = "spool",
    }
}

/// The handles of a process.
pub struct OutageMetrics {
    entries: Gauge,
    bytes: Gauge,
    oldest: Gauge,
    errors: Counter,
    /// By app; only those that a policy has answered for, so at most as many as are configured.
    apps: Mutex<HashMap<String, ByPolicy>>,
}

struct ByPolicy {
    answers: Vec<Counter>,
    overlaps: Vec<Counter>,
    suspected: Counter,
}

impl OutageMetrics {
    /// The handles; nothing waits.
    pub fn new() -> Self {
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

    /// Counts an answer.
    pub fn answered(&self, app: &str, policy: Policy) {
        self.of(app, |by| by.answers[policy as usize].increment(1));
    }

    /// Counts an overlap.
    pub fn overlapped(&self, app: &str, policy: Policy) {
        self.of(app, |by| by.overlaps[policy as usize].increment(1));
    }

    /// Counts a success or an unknown outcome that a policy took and the store refused.
    pub fn suspected(&self, app: &str) {
        self.of(app, |by| by.suspected.increment(1));
    }

    /// Counts an entry that the journal did not take, or could not give back.
    pub fn journal_failed(&self) {
        self.errors.increment(1);
    }

    /// Says what waits for stores.
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

impl Default for OutageMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl ByPolicy {
    fn new(app: &str) -> Self {
        let handle = |name: &'static str| {
            let handle = move |policy: &&'static str| counter!(name, "app" => app.to_owned(), "policy" => *policy);
            Policy::LABELS.iter().map(handle).collect()
        };
        let suspected = counter!(SUSPECTED_DOUBLE_EXECUTIONS, "app" => app.to_owned());
        Self { answers: handle(DEGRADED_ANSWERS), overlaps: handle(OVERLAPS), suspected }
    }
}

pub(super) fn describe() {
    describe_counter!(DEGRADED_ANSWERS, "Answers given by a policy because the store did not answer");
    describe_counter!(OVERLAPS, "Operations that two attempts were told to go ahead with, because a store was out");
    describe_gauge!(SPOOL_ENTRIES, "Grants and outcomes in the journal that no store has been told of yet");
    describe_gauge!(SPOOL_BYTES, "How much of the journal they take");
    describe_gauge!(SPOOL_OLDEST, "How long the oldest of them has waited");
    describe_counter!(JOURNAL_ERRORS, "Entries that the journal did not take, or found damaged");
}
