//! Reports that are written once an hour.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const INTERVAL_SECONDS: u64 = 3600;

/// Time of the last report, as monotonic seconds; 0: there was none.
#[derive(Default)]
pub(super) struct Hourly(AtomicU64);

impl Hourly {
    /// Reports whether a report is due at this monotonic time; the next one is due an hour later.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        let (now, last) = (now.as_secs() + 1, self.0.load(Ordering::Relaxed));
        let is_due = last == 0 || now >= last + INTERVAL_SECONDS;
        is_due && self.0.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_due_once_an_hour() {
        let hourly = Hourly::default();
        let due = [0, 1, 3599, 3600, 3601, 7200].map(|second| hourly.is_due(Duration::from_secs(second)));
        assert_eq!(due, [true, false, false, true, false, true]);
    }
}
