//! Counts of one process for an app. They survive changes of the app's settings, but not the process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use oncegate_core::clock::Timestamp;

use super::quota::Charged;
use super::secret::SecretDigest;

/// Resolution of last uses: further uses of a secret within it are not recorded.
pub const USE_RECORDED_EVERY: Duration = Duration::from_mins(1);

/// Counts of one app in this process.
#[derive(Debug, Default)]
pub struct Usage {
    last_uses: Mutex<HashMap<SecretDigest, Arc<LastUse>>>,
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
