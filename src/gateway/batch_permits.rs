//! Permits for outcomes of batches: how many of one app are under way at an engine at once. A batch counts as one request in
//! flight, so without them the batches of one app would fill the engine's queue before the calls of all others.

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::tenant::AppKey;

/// Outcomes of an app's batches that are under way at once: enough for an engine to make a large batch of them.
const PERMITS: usize = 256;

/// The permits of apps whose batches are under way, and perhaps of some that are done.
#[derive(Default)]
pub(super) struct BatchPermits(Mutex<HashMap<AppKey, Arc<Semaphore>>>);

/// The permits of an app.
pub(super) struct AppPermits(Arc<Semaphore>);

impl BatchPermits {
    /// The permits of an app, which all its batches share.
    pub(super) fn of(&self, app: &AppKey) -> AppPermits {
        let mut apps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = apps.get(app) {
            return AppPermits(own.clone());
        }
        apps.retain(|_, own| Arc::strong_count(own) > 1);
        let own = Arc::new(Semaphore::new(PERMITS));
        apps.insert(app.clone(), own.clone());
        AppPermits(own)
    }
}

impl AppPermits {
    /// Waits for a permit, in the order of these calls. `None` cannot come: nobody closes the semaphore.
    pub(super) async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn an_app_with_many_outcomes_under_way_waits_alone() {
        let permits = BatchPermits::default();
        let [shop, bank, mails] = ["shop", "bank", "mails"].map(|app| app.parse::<AppKey>().unwrap());
        let one_batch = permits.of(&shop);
        let under_way: Vec<_> = (0..PERMITS).map(|_| one_batch.acquire().now_or_never().unwrap()).collect();
        let another = permits.of(&shop);
        assert!(another.acquire().now_or_never().is_none(), "another batch of the same app");
        assert!(permits.of(&bank).acquire().now_or_never().is_some());
        drop(under_way);
        assert!(another.acquire().now_or_never().is_some());
        drop((one_batch, another));
        permits.of(&mails);
        assert_eq!(permits.0.lock().unwrap().len(), 1, "an app that comes makes room of those whose batches are done");
    }
}
