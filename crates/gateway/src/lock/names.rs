//! The locks that this gateway uses, by name: bounded for each app, since each name is a record of the store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use oncegate_core::attempt::Entropy;
use oncegate_core::clock::Clock;
use oncegate_core::engine::{Channel, Engine};
use oncegate_core::limits::Limits;
use oncegate_core::lock::LockName;
use oncegate_core::tenant::AppKey;
use tokio_util::sync::CancellationToken;

use super::queue::Queue;
use crate::tenants::App;

/// Maximum number of names of an app at a gateway, within the time for which a record is kept.
pub(super) const NAMES_MAX: usize = 10_000;

/// The locks of a gateway.
pub(in super::super) struct Locks {
    apps: Mutex<HashMap<AppKey, HashMap<LockName, Arc<Queue>>>>,
    waiting: Mutex<HashMap<AppKey, usize>>,
    /// Maximum number of calls that wait. An app gets half.
    waiting_max: usize,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    draining: CancellationToken,
}

/// A call that may wait, until it is dropped.
pub(super) struct Waiting<'a>(&'a Locks, AppKey);

impl Locks {
    pub(in super::super) fn new(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>, limits: &Limits) -> Self {
        let (apps, waiting) = (Mutex::default(), Mutex::default());
        Self { apps, waiting, waiting_max: limits.waiting, clock, entropy, draining: CancellationToken::new() }
    }

    /// Ends all waits: the calls are answered as if they had not asked to wait.
    pub(in super::super) fn drain(&self) {
        self.draining.cancel();
    }

    /// Returns the queue of a lock; `None` if the app uses as many others, and the name is a new one for a request of a hold. A
    /// chain whose engine changes keeps its queues: each change compares versions.
    pub(super) fn queue(
        &self,
        app: &AppKey,
        name: &LockName,
        engine: &Arc<dyn Engine>,
        is_acquisition: bool,
    ) -> Option<Arc<Queue>> {
        let mut apps = lock(&self.apps);
        let names = apps.entry_ref(app).or_default();
        if let Some(queue) = names.get(name).filter(|queue| queue.is_on(engine)) {
            return Some(queue.clone());
        }
        if names.len() >= NAMES_MAX {
            let now = self.clock.monotonic();
            names.retain(|_, queue| !queue.is_over(now));
        }
        let is_full = names.len() >= NAMES_MAX;
        if is_full && is_acquisition {
            return None;
        }
        let (record, channel) = (super::record_name(app, name), Channel::of_lock(app, name));
        let (clock, entropy, draining) = (self.clock.clone(), self.entropy.clone(), self.draining.clone());
        let queue = Arc::new(Queue::new(record, channel, engine.clone(), clock, entropy, draining));
        // What ends a hold is always possible.
        if !is_full {
            names.insert(name.clone(), queue.clone());
        }
        Some(queue)
    }

    /// Begins the wait of a call, if it asks for one and there is room. Otherwise it is answered at once.
    pub(super) fn begin_wait(&self, app: &App, wait: Duration) -> Option<Waiting<'_>> {
        if wait.is_zero() || self.draining.is_cancelled() {
            return None;
        }
        let mut waiting = lock(&self.waiting);
        let all: usize = waiting.values().sum();
        let own = waiting.entry_ref(&app.key).or_default();
        if all >= self.waiting_max || *own >= self.waiting_max.div_ceil(2) {
            return None;
        }
        *own += 1;
        Some(Waiting(self, app.key.clone()))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.0.waiting);
        if let Some(own) = waiting.get_mut(&self.1) {
            *own -= 1;
            if *own == 0 {
                waiting.remove(&self.1);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
