//! What was refused because a quota of its app was used up: the handles of one app.

use metrics::counter;

use super::{Counters, QUOTA_EXCEEDED, labels};

labels! {
    /// Which quota of an app.
    Quota {
        RequestsPerSecond = "requests_per_second",
        ClaimBytesPerSecond = "claim_bytes_per_second",
        RequestsInFlight = "requests_in_flight",
    }
}

/// The handles of one app.
pub(super) struct QuotaMetrics(Counters<{ Quota::LABELS.len() }>);

impl QuotaMetrics {
    pub(super) const fn new() -> Self {
        Self(Counters::new())
    }

    pub(super) fn exceeded(&self, app: &str, quota: Quota) {
        let quota_label = Quota::LABELS[quota as usize];
        self.0.increment(quota as usize, || counter!(QUOTA_EXCEEDED, "app" => app.to_owned(), "quota" => quota_label));
    }
}
