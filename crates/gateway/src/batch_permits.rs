//! Permits for outcomes of batches: a bound on how many outcomes of one app are in flight at an engine. A batch counts as one
//! request in flight, so without this bound the batches of one app could fill the queue of the engine.

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use tokio::sync::Semaphore;

use oncegate_core::tenant::AppKey;

/// Outcomes of an app's batches in flight: enough for an engine to form a large batch.
const PERMITS: usize = 256;

/// The permits of apps with batches in flight, and perhaps of some without.
#[derive(Default)]
pub(super) struct BatchPermits(Mutex<HashMap<AppKey, Arc<Semaphore>>>);

impl BatchPermits {
    /// Returns the permits of an app, which all its batches share. They are never closed.
    pub(super) fn of(&self, app: &AppKey) -> Arc<Semaphore> {
        let mut apps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = apps.get(app) {
            return own.clone();
        }
        apps.retain(|_, own| Arc::strong_count(own) > 1);
        let own = Arc::new(Semaphore::new(PERMITS));
        apps.insert(app.clone(), own.clone());
        own
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn an_app_with_many_outcomes_in_flight_delays_no_other_app() {
        let permits = BatchPermits::default();
        let [shop, bank, mails] = ["shop", "bank", "mails"].map(|app| app.parse::<AppKey>().unwrap());
        let one_batch = permits.of(&shop);
        let in_flight: Vec<_> = (0..PERMITS).map(|_| one_batch.acquire().now_or_never().unwrap()).collect();
        let another = permits.of(&shop);
        assert!(another.acquire().now_or_never().is_none(), "another batch of the same app");
        assert!(permits.of(&bank).acquire().now_or_never().is_some());
        drop(in_flight);
        assert!(another.acquire().now_or_never().is_some());
        drop((one_batch, another));
        permits.of(&mails);
        assert_eq!(permits.0.lock().unwrap().len(), 1, "a new app removes those without batches");
        let in_use = permits.of(&mails);
        permits.of(&shop);
        assert!(Arc::ptr_eq(&in_use, &permits.of(&mails)), "and no others");
    }
}
