//! What observe mode let through, counted by what enforcing would have answered: the handles of one operation.

use metrics::{Counter, counter};

use super::{OBSERVED_CLAIMS, OBSERVED_OUTCOMES, ReportedOutcome, labels};

labels! {
    /// What enforcing would have answered.
    WouldBe {
        DuplicateInProgress = "duplicate_in_progress",
        DuplicateSucceeded = "duplicate_succeeded",
        DuplicateUnknown = "duplicate_unknown",
        ContentsMismatch = "contents_mismatch",
        FingerprintMismatch = "fingerprint_mismatch",
        // The attempt does not tell.
        Other = "other",
    }
}

/// The handles of one operation.
pub(super) struct ObservedMetrics {
    claims: Vec<Counter>,
    outcomes: Vec<Vec<Counter>>,
}

impl ObservedMetrics {
    pub(super) fn new(app: &str, operation: &str) -> Self {
        let claim = |would_be: &&'static str| {
            let (app, operation) = (app.to_owned(), operation.to_owned());
            counter!(OBSERVED_CLAIMS, "app" => app, "operation" => operation, "would_be" => *would_be)
        };
        let outcome = |outcome: &'static str, would_be: &'static str| {
            let (app, operation) = (app.to_owned(), operation.to_owned());
            counter!(
                OBSERVED_OUTCOMES,
                "app" => app, "operation" => operation, "outcome" => outcome, "would_be" => would_be
            )
        };
        Self {
            claims: WouldBe::LABELS.iter().map(claim).collect(),
            outcomes: ReportedOutcome::LABELS
                .iter()
                .map(|reported| WouldBe::LABELS.iter().map(|would_be| outcome(reported, would_be)).collect())
                .collect(),
        }
    }

    pub(super) fn claimed(&self, would_be: WouldBe) {
        self.claims[would_be as usize].increment(1);
    }

    pub(super) fn settled(&self, outcome: ReportedOutcome, would_be: WouldBe) {
        self.outcomes[outcome as usize][would_be as usize].increment(1);
    }
}
