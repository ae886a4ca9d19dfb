//! What was refused because a quota of its app was used up: the handles of one app.

use metrics::{Counter, counter};

use super::{QUOTA_EXCEEDED, labels};

labels! {
    /// Which quota of an app.
    Quota {
        RequestsPerSecond = "requests_per_second",
        ClaimBytesPerSecond = "claim_bytes_per_second",
        RequestsInFlight = "requests_in_flight",
    }
}

/// The handles of one app.
pub(super) struct QuotaMetrics(Vec<Counter>);

impl QuotaMetrics {
    pub(super) fn new(app: &str) -> Self {
        let exceeded = |quota: &&'static str| counter!(QUOTA_EXCEEDED, "app" => app.to_owned(), "quota" => *quota);
        Self(Quota::LABELS.iter().map(exceeded).collect())
    }

    pub(super) fn exceeded(&self, quota: Quota) {
        self.0[quota as usize].increment(1);
    }
}
