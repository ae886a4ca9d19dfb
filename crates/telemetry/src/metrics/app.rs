//! Metrics of one app: claims and outcomes by operation, and refusals by quota.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use metrics::{Histogram, counter, histogram};

use super::locks::{LockMetrics, LockResult};
use super::observed::{ObservedMetrics, WouldBe};
use super::quota::Quota;
use super::waits::{WaitEnd, WaitMetrics, Waiting};
use super::{
    CLAIM_DURATION, CLAIMS, ClaimResult, Counters, OUTCOMES, OutcomeResult, QUOTA_EXCEEDED, ReportedOutcome,
    SUSPECTED_DOUBLE_EXECUTIONS,
};

/// Label of all operations without their own label.
const OTHER: &str = "other";

/// Metrics of one app.
pub struct AppMetrics {
    app: Box<str>,
    /// Operations with their own label: the configured ones, and the first others that were seen.
    operations: ArcSwap<HashMap<Box<str>, Arc<OperationMetrics>>>,
    operations_max: usize,
    other: OperationMetrics,
    claim_duration: OnceLock<Histogram>,
    quotas: Counters<{ Quota::LABELS.len() }>,
    waits: WaitMetrics,
    locks: LockMetrics,
}

struct OperationMetrics {
    claims: Counters<{ ClaimResult::LABELS.len() }>,
    outcomes: Counters<{ ReportedOutcome::LABELS.len() * OutcomeResult::LABELS.len() }>,
    /// Only for observed operations.
    observed: OnceLock<Box<ObservedMetrics>>,
}

impl AppMetrics {
    /// Returns the metrics of an app. Its configured operations have their own labels, as do up to `seen_max`
    /// others. Labels of `previous` are kept: their number is bounded over all changes of an app.
    pub fn new<'a>(
        app: &str,
        configured: impl IntoIterator<Item = &'a str>,
        seen_max: usize,
        previous: Option<&Self>,
    ) -> Self {
        let mut operations = previous.map(|previous| previous.operations.load_full()).unwrap_or_default();
        let mut configured_count = 0;
        for name in configured {
            if !operations.contains_key(name) {
                Arc::make_mut(&mut operations).insert(name.into(), Arc::new(OperationMetrics::new()));
            }
            configured_count += 1;
        }
        // Present from the start, so that an alert sees the first increment.
        counter!(SUSPECTED_DOUBLE_EXECUTIONS, "app" => app.to_owned()).absolute(0);
        Self {
            app: app.into(),
            operations: ArcSwap::new(operations),
            operations_max: configured_count + seen_max,
            other: OperationMetrics::new(),
            claim_duration: OnceLock::new(),
            quotas: Counters::new(),
            waits: WaitMetrics::default(),
            locks: LockMetrics::default(),
        }
    }

    /// Counts a claim call.
    pub fn claimed(&self, operation: &str, result: ClaimResult, took: Duration) {
        self.count(Some(operation), |name, metrics| {
            metrics.claims.increment(result as usize, || {
                let (app, operation) = (self.app.to_string(), name.to_owned());
                counter!(CLAIMS, "app" => app, "operation" => operation, "result" => ClaimResult::LABELS[result as usize])
            });
        });
        let duration = || histogram!(CLAIM_DURATION, "app" => self.app.to_string());
        self.claim_duration.get_or_init(duration).record(took.as_secs_f64());
    }

    /// Counts an outcome call; without an operation, under `other`.
    pub fn settled(&self, operation: Option<&str>, outcome: ReportedOutcome, result: OutcomeResult) {
        self.count(operation, |name, metrics| {
            let index = outcome as usize * OutcomeResult::LABELS.len() + result as usize;
            metrics.outcomes.increment(index, || {
                let (app, operation) = (self.app.to_string(), name.to_owned());
                let (outcome, result) =
                    (ReportedOutcome::LABELS[outcome as usize], OutcomeResult::LABELS[result as usize]);
                counter!(OUTCOMES, "app" => app, "operation" => operation, "outcome" => outcome, "result" => result)
            });
        });
    }

    /// Counts a claim that observe mode let through.
    pub fn observed_claim(&self, operation: &str, would_be: WouldBe) {
        self.count(Some(operation), |name, metrics| metrics.observed().claimed(&self.app, name, would_be));
    }

    /// Counts the outcome of a claim that observe mode let through; without an operation, under `other`.
    pub fn observed_outcome(&self, operation: Option<&str>, outcome: ReportedOutcome, would_be: WouldBe) {
        self.count(operation, |name, metrics| metrics.observed().settled(&self.app, name, outcome, would_be));
    }

    /// Counts a request or batch item that was refused because a quota was used up.
    pub fn quota_exceeded(&self, quota: Quota) {
        let label = Quota::LABELS[quota as usize];
        self.quotas
            .increment(quota as usize, || counter!(QUOTA_EXCEEDED, "app" => self.app.to_string(), "quota" => label));
    }

    /// Counts a claim call that begins to wait, until the result is dropped.
    pub fn begin_wait(&self) -> Waiting {
        self.waits.begin(&self.app)
    }

    /// Counts the end of a wait.
    pub fn end_wait(&self, end: WaitEnd) {
        self.waits.end(&self.app, end);
    }

    /// Counts a request for a lock, answered after this time.
    pub fn lock_acquired(&self, result: LockResult, waited: Duration) {
        self.locks.called(&self.app, result);
        self.locks.waited(&self.app, waited);
    }

    /// Counts a release, a withdrawal or a renewal of a lock.
    pub fn lock_called(&self, result: LockResult) {
        self.locks.called(&self.app, result);
    }

    /// Records how long a hold lasted.
    pub fn lock_held_for(&self, time: Duration) {
        self.locks.held(&self.app, time);
    }

    /// Runs `count` with the metrics and the label of an operation.
    fn count(&self, operation: Option<&str>, count: impl FnOnce(&str, &OperationMetrics)) {
        let known = self.operations.load();
        match operation.and_then(|name| known.get_key_value(name)) {
            Some((name, metrics)) => count(name, metrics),
            None => match operation.filter(|_| known.len() < self.operations_max).and_then(|name| self.add(name)) {
                Some((name, metrics)) => count(&name, &metrics),
                None => count(OTHER, &self.other),
            },
        }
    }

    /// Creates a label for an operation, unless other threads have taken the last one.
    #[cold]
    fn add(&self, name: &str) -> Option<(Box<str>, Arc<OperationMetrics>)> {
        let new = Arc::new(OperationMetrics::new());
        self.operations.rcu(|known| {
            let mut known = HashMap::clone(known);
            if known.len() < self.operations_max {
                known.entry(name.into()).or_insert_with(|| new.clone());
            }
            known
        });
        self.operations.load().get_key_value(name).map(|(name, metrics)| (name.clone(), metrics.clone()))
    }
}

impl OperationMetrics {
    const fn new() -> Self {
        Self { claims: Counters::new(), outcomes: Counters::new(), observed: OnceLock::new() }
    }

    fn observed(&self) -> &ObservedMetrics {
        self.observed.get_or_init(|| Box::new(ObservedMetrics::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(metrics: &AppMetrics) -> Vec<String> {
        let mut labels: Vec<_> = metrics.operations.load().keys().map(ToString::to_string).collect();
        labels.sort();
        labels
    }

    fn claim(metrics: &AppMetrics, operation: &str) {
        metrics.claimed(operation, ClaimResult::Granted, Duration::ZERO);
    }

    #[test]
    fn configured_operations_and_the_first_others_have_labels() {
        let metrics = AppMetrics::new("shop", ["configured"], 2, None);
        for name in ["a", "b", "a", "c", "d"] {
            claim(&metrics, name);
        }
        metrics.settled(Some("e"), ReportedOutcome::Success, OutcomeResult::Recorded);
        metrics.settled(None, ReportedOutcome::Success, OutcomeResult::Recorded);
        assert_eq!(labels(&metrics), ["a", "b", "configured"]);
    }

    #[test]
    fn changes_of_an_app_do_not_raise_the_number_of_labels() {
        let mut metrics = AppMetrics::new("shop", [], 2, None);
        for round in 0..10 {
            for operation in ["a", "b", "c"] {
                claim(&metrics, &format!("{operation}.{round}"));
            }
            metrics = AppMetrics::new("shop", ["configured"], 2, Some(&metrics));
        }
        assert_eq!(labels(&metrics), ["a.0", "b.0", "configured"]);
    }
}
