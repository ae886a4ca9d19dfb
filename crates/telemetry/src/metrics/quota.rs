//! Metrics of one app's quotas.

use metrics::counter;

use super::{Counters, QUOTA_EXCEEDED, labels};

labels! {
    /// Name of a quota.
    Quota {
        RequestsPerSecond = "requests_per_second",
        ClaimBytesPerSecond = "claim_bytes_per_second",
        RequestsInFlight = "requests_in_flight",
    }
}

/// Metrics of one app.
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
