//! Metrics of one operation in observe mode, by the result that enforcing would have had.

use metrics::counter;

use super::{Counters, OBSERVED_CLAIMS, OBSERVED_OUTCOMES, ReportedOutcome, labels};

labels! {
    /// Result that enforcing would have had.
    WouldBe {
        DuplicateInProgress = "duplicate_in_progress",
        DuplicateSucceeded = "duplicate_succeeded",
        DuplicateUnknown = "duplicate_unknown",
        ContentsMismatch = "contents_mismatch",
        FingerprintMismatch = "fingerprint_mismatch",
        // The attempt does not say.
        Other = "other",
    }
}

/// Metrics of one operation.
pub(super) struct ObservedMetrics {
    claims: Counters<{ WouldBe::LABELS.len() }>,
    outcomes: Counters<{ ReportedOutcome::LABELS.len() * WouldBe::LABELS.len() }>,
}

impl ObservedMetrics {
    pub(super) const fn new() -> Self {
        Self { claims: Counters::new(), outcomes: Counters::new() }
    }

    pub(super) fn claimed(&self, app: &str, operation: &str, would_be: WouldBe) {
        self.claims.increment(would_be as usize, || {
            let (app, operation) = (app.to_owned(), operation.to_owned());
            let would_be = WouldBe::LABELS[would_be as usize];
            counter!(OBSERVED_CLAIMS, "app" => app, "operation" => operation, "would_be" => would_be)
        });
    }

    pub(super) fn settled(&self, app: &str, operation: &str, outcome: ReportedOutcome, would_be: WouldBe) {
        let index = outcome as usize * WouldBe::LABELS.len() + would_be as usize;
        self.outcomes.increment(index, || {
            let (app, operation) = (app.to_owned(), operation.to_owned());
            let (outcome, would_be) = (ReportedOutcome::LABELS[outcome as usize], WouldBe::LABELS[would_be as usize]);
            counter!(
                OBSERVED_OUTCOMES,
                "app" => app, "operation" => operation, "outcome" => outcome, "would_be" => would_be
            )
        });
    }
}
