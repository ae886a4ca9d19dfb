//! Permits to wait, for a claim or for a lock: a bound on how many callers wait at once. An app gets half of it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use oncegate_core::tenant::AppKey;

/// The permits of callers that wait.
pub(super) struct WaitPermits {
    max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_app: HashMap<AppKey, usize>,
}

/// A caller that waits, until this is dropped.
pub(super) struct WaitPermit<'a>(&'a WaitPermits, AppKey);

impl WaitPermits {
    pub(super) fn new(max: usize) -> Self {
        Self { max, taken: Mutex::default() }
    }

    /// Takes a permit; `None` if no more callers of the app may wait.
    pub(super) fn take(&self, app: &AppKey) -> Option<WaitPermit<'_>> {
        let mut taken = self.taken();
        let of_app = taken.by_app.get(app).copied().unwrap_or_default();
        if taken.all >= self.max || of_app >= self.max.div_ceil(2) {
            return None;
        }
        taken.all += 1;
        taken.by_app.insert(app.clone(), of_app + 1);
        Some(WaitPermit(self, app.clone()))
    }

    /// Returns the number of callers that wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        let taken = self.taken();
        assert_eq!(taken.by_app.values().sum::<usize>(), taken.all);
        assert!(taken.by_app.values().all(|of_app| *of_app > 0));
        taken.all
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WaitPermit<'_> {
    fn drop(&mut self) {
        let mut taken = self.0.taken();
        taken.all -= 1;
        let of_app = taken.by_app.get(&self.1).copied().unwrap_or_default();
        if of_app > 1 {
            taken.by_app.insert(self.1.clone(), of_app - 1);
        } else {
            taken.by_app.remove(&self.1);
        }
    }
}
