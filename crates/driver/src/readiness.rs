//! Readiness of a worker to answer at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts the times that any worker became unready, to order them.
static LOSSES: AtomicU64 = AtomicU64::new(0);

/// Readiness of a worker: it has a connection that answers as quickly as it should.
#[derive(Default, Debug)]
pub struct Readiness {
    ready: AtomicBool,
    /// The number of its last loss.
    loss: AtomicU64,
}

impl Readiness {
    /// Sets it.
    pub fn set(&self, ready: bool) {
        if !ready {
            self.loss.store(LOSSES.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// Returns whether the worker is ready.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Returns the number of the last time that the worker became unready: a higher number is more recent.
    pub fn last_loss(&self) -> u64 {
        self.loss.load(Ordering::Relaxed)
    }
}
