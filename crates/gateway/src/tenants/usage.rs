//! Counts of one process for an app. They survive changes of the app's settings, but not the process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use oncegate_core::clock::{Timestamp, micros};

use super::quota::Charged;
use super::secret::SecretDigest;

/// Resolution of last uses: further uses of a secret within it are not recorded.
pub const USE_RECORDED_EVERY: Duration = Duration::from_mins(1);

/// Time between two warnings of claim calls without an operation.
const WARNED_EVERY: Duration = Duration::from_hours(1);

/// Counts of one app in this process.
#[derive(Debug, Default)]
pub struct Usage {
    last_uses: Mutex<HashMap<SecretDigest, Arc<LastUse>>>,
    /// Microseconds of the monotonic clock until which no further warning is logged.
    warned_until: AtomicU64,
    /// Charges against its quotas.
    pub(super) charged: Charged,
}

impl Usage {
    /// Returns the records of these secrets, in their order, and drops the records of all others.
    pub(super) fn last_uses(&self, secrets: &[SecretDigest]) -> Vec<Arc<LastUse>> {
        let mut last_uses = self.last_uses.lock().unwrap_or_else(PoisonError::into_inner);
        last_uses.retain(|secret, _| secrets.contains(secret));
        secrets.iter().map(|secret| last_uses.entry(secret.clone()).or_default().clone()).collect()
    }

    /// Returns when this process last saw a secret used, to the minute.
    pub fn last_use(&self, secret: &SecretDigest) -> Option<Timestamp> {
        let last_uses = self.last_uses.lock().unwrap_or_else(PoisonError::into_inner);
        last_uses.get(secret).and_then(|last_use| last_use.get())
    }

    /// Returns whether to warn now of a claim call without an operation: once in an hour. `now` is of the monotonic clock.
    pub fn may_warn_of_missing_operation(&self, now: Duration) -> bool {
        let (now, until) = (micros(now), self.warned_until.load(Ordering::Relaxed));
        let next = now.saturating_add(micros(WARNED_EVERY));
        now >= until && self.warned_until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Wall-clock time of a secret's last use; 0 if it was not used.
#[derive(Debug, Default)]
pub(super) struct LastUse(AtomicU64);

impl LastUse {
    /// Records a use. Most calls only read, so that cores do not compete for the cache line.
    pub(super) fn record(&self, now: Timestamp) {
        let noted = Timestamp::from_micros(self.0.load(Ordering::Relaxed));
        if now.since(noted) >= USE_RECORDED_EVERY {
            self.0.store(now.as_micros(), Ordering::Relaxed);
        }
    }

    fn get(&self) -> Option<Timestamp> {
        Some(self.0.load(Ordering::Relaxed)).filter(|micros| *micros != 0).map(Timestamp::from_micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_recorded_to_the_minute() {
        let last_use = LastUse::default();
        assert_eq!(last_use.get(), None);
        let noon = Timestamp::from_micros(1_700_000_000_000_000);
        last_use.record(noon);
        last_use.record(noon.plus(USE_RECORDED_EVERY.saturating_sub(Duration::from_secs(1))));
        assert_eq!(last_use.get(), Some(noon));
        last_use.record(noon.plus(USE_RECORDED_EVERY));
        assert_eq!(last_use.get(), Some(noon.plus(USE_RECORDED_EVERY)));
    }

    #[test]
    fn a_missing_operation_is_warned_of_once_in_an_hour() {
        let usage = Usage::default();
        let at = |minutes| usage.may_warn_of_missing_operation(Duration::from_mins(minutes));
        assert_eq!([0, 0, 59, 60, 61, 119, 120].map(at), [true, false, false, true, false, false, true]);
    }

    #[test]
    fn records_of_revoked_secrets_are_dropped() {
        let usage = Usage::default();
        let [old, new] = ["old", "new"].map(SecretDigest::of);
        let noon = Timestamp::from_micros(1_700_000_000_000_000);
        usage.last_uses(std::slice::from_ref(&old))[0].record(noon);
        assert_eq!(usage.last_uses(&[old.clone(), new.clone()]).len(), 2);
        assert_eq!((usage.last_use(&old), usage.last_use(&new)), (Some(noon), None));
        usage.last_uses(std::slice::from_ref(&new));
        assert_eq!(usage.last_use(&old), None);
    }
}
