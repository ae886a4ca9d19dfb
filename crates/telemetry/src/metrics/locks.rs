//! Metrics of one app's locks. Never a lock's name.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Histogram, counter, histogram};

use super::{Counters, LOCK_HOLD_DURATION, LOCK_WAIT_DURATION, LOCKS, labels};

labels! {
    /// Result of a call of a lock.
    LockResult {
        Granted = "granted",
        Repeated = "repeated",
        Held = "held",
        UpgradeRefused = "upgrade_refused",
        LimitDiffers = "limit_differs",
        Withdrawn = "withdrawn",
        NonceReused = "nonce_reused",
        QuotaExceeded = "quota_exceeded",
        Released = "released",
        Renewed = "renewed",
        NotHeld = "not_held",
        StoreUnavailable = "store_unavailable",
        StoreFull = "store_full",
        StoreIncompatible = "store_incompatible",
        OutcomeUnknown = "outcome_unknown",
    }
}

/// Metrics of an app's locks.
#[derive(Default)]
pub(super) struct LockMetrics {
    calls: Calls,
    wait: OnceLock<Histogram>,
    hold: OnceLock<Histogram>,
}

#[derive(Default)]
struct Calls(Counters<{ LockResult::LABELS.len() }>);

impl LockMetrics {
    pub(super) fn called(&self, app: &str, result: LockResult) {
        let label = LockResult::LABELS[result as usize];
        self.calls.0.increment(result as usize, || counter!(LOCKS, "app" => app.to_owned(), "result" => label));
    }

    pub(super) fn waited(&self, app: &str, time: Duration) {
        let histogram = || histogram!(LOCK_WAIT_DURATION, "app" => app.to_owned());
        self.wait.get_or_init(histogram).record(time.as_secs_f64());
    }

    pub(super) fn held(&self, app: &str, time: Duration) {
        let histogram = || histogram!(LOCK_HOLD_DURATION, "app" => app.to_owned());
        self.hold.get_or_init(histogram).record(time.as_secs_f64());
    }
}
