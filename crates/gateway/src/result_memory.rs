//! Memory for the results of duplicates, from their load for a batch until the batch is answered. The gateway has one
//! bound, and an app gets at most half of it. A single call loads one result, and its permit bounds it.

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use oncegate_core::limits::Limits;
use oncegate_core::tenant::AppKey;

/// Permits are counted in this many bytes.
const UNIT: usize = 1024;

/// Maximum number of claims in one call of an engine.
const CHUNK_MAX: usize = 256;

/// The memory of all apps.
pub(super) struct ResultMemory {
    all: Pools,
    /// The memory of apps with batches in flight, and perhaps of some without.
    apps: Mutex<HashMap<AppKey, Arc<Pools>>>,
    /// Units that an app may load, and keep.
    share: (usize, usize),
    /// Units of the largest result.
    result: usize,
}

/// Free units.
struct Pools {
    /// For results that are being loaded. Claims wait for these units: a store answers soon.
    loading: Arc<Semaphore>,
    /// For results that wait for the rest of their batch. Nothing waits for these units, so batches cannot wait for each other:
    /// a result without room is left out.
    kept: Arc<Semaphore>,
}

impl Pools {
    fn of((loading, kept): (usize, usize)) -> Self {
        Self { loading: Arc::new(Semaphore::new(loading)), kept: Arc::new(Semaphore::new(kept)) }
    }

    fn is_taken(&self) -> bool {
        [&self.loading, &self.kept].into_iter().any(|pool| Arc::strong_count(pool) > 1)
    }
}

impl ResultMemory {
    /// Divides `limits.batch_result_bytes`: three quarters for loading results, the rest for keeping them.
    pub(super) fn new(limits: &Limits) -> Self {
        let result = limits.result_bytes.div_ceil(UNIT).max(1);
        let kept = (limits.batch_result_bytes / UNIT / 4).min(Semaphore::MAX_PERMITS / 3);
        // An app can load at least one result.
        let loading = (3 * kept).max(2 * result);
        Self { all: Pools::of((loading, kept)), apps: Mutex::default(), share: (loading / 2, kept / 2), result }
    }

    pub(super) fn of(&self, app: &AppKey) -> AppMemory<'_> {
        let mut apps = self.apps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = apps.get(app) {
            return AppMemory { memory: self, own: own.clone() };
        }
        // Permits outlive the `AppMemory` that they were taken from.
        let is_used = |own: &Arc<Pools>| Arc::strong_count(own) > 1 || own.is_taken();
        apps.retain(|_, own| is_used(own));
        let own = Arc::new(Pools::of(self.share));
        apps.insert(app.clone(), own.clone());
        AppMemory { memory: self, own }
    }
}

/// The memory of an app's batches.
pub(super) struct AppMemory<'a> {
    memory: &'a ResultMemory,
    own: Arc<Pools>,
}

/// Memory for the results of claims in flight. Released on drop.
pub(super) struct LoadPermit {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

/// Memory for the results of a batch. Released on drop, after the batch was answered.
#[derive(Default)]
pub struct KeptResults(Option<[OwnedSemaphorePermit; 2]>);

impl AppMemory<'_> {
    /// Returns how many claims to send in one call: so many that two calls can be in flight.
    pub(super) fn chunk(&self) -> usize {
        (self.memory.share.0 / 2 / self.memory.result).clamp(1, CHUNK_MAX)
    }

    /// Waits for memory for the results of so many claims. Waits first for the app's own memory. So an app that has
    /// none left takes no memory of the gateway while it waits.
    pub(super) async fn load(&self, claims: usize) -> LoadPermit {
        let units = u32::try_from((claims * self.memory.result).min(self.memory.share.0)).unwrap_or(u32::MAX);
        let own = acquire(&self.own.loading, units).await;
        LoadPermit { _own: own, _all: acquire(&self.memory.all.loading, units).await }
    }

    /// Takes memory for one more result of a batch. Returns false if there is none.
    pub(super) fn keep(&self, bytes: usize, kept: &mut KeptResults) -> bool {
        let Ok(units) = u32::try_from(bytes.div_ceil(UNIT)) else { return false };
        let take = |pool: &Arc<Semaphore>| pool.clone().try_acquire_many_owned(units).ok();
        let Some(more) = take(&self.own.kept).and_then(|own| Some([own, take(&self.memory.all.kept)?])) else {
            return false;
        };
        match &mut kept.0 {
            None => kept.0 = Some(more),
            Some(kept) => kept.iter_mut().zip(more).for_each(|(kept, more)| kept.merge(more)),
        }
        true
    }
}

async fn acquire(pool: &Arc<Semaphore>, units: u32) -> OwnedSemaphorePermit {
    match pool.clone().acquire_many_owned(units).await {
        Ok(permit) => permit,
        // The pools are never closed.
        Err(_closed) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Memory to load twelve results and to keep four; half of it for an app.
    fn memory() -> ResultMemory {
        let limits = Limits { result_bytes: 64 << 10, batch_result_bytes: 16 * (64 << 10), ..Limits::default() };
        ResultMemory::new(&limits)
    }

    #[test]
    fn an_app_that_has_used_up_its_memory_delays_no_other_app() {
        let memory = memory();
        let [shop, bank] = ["shop", "bank"].map(|app| memory.of(&app.parse().unwrap()));
        let first = shop.load(3).now_or_never().unwrap();
        assert!(shop.load(4).now_or_never().is_none());
        let second = bank.load(6).now_or_never().unwrap();
        drop(first);
        assert!(shop.load(6).now_or_never().is_some());
        drop(second);
        assert!(shop.load(1000).now_or_never().is_some(), "never more than the app may have");
    }

    #[test]
    fn all_apps_together_keep_to_the_bound_of_the_gateway() {
        let memory = memory();
        let [shop, bank, third] = ["shop", "bank", "third"].map(|app| memory.of(&app.parse().unwrap()));
        let taken = [shop.load(6), bank.load(6)].map(|load| load.now_or_never().unwrap());
        assert!(third.load(1).now_or_never().is_none());
        drop(taken);
        assert!(third.load(1).now_or_never().is_some());
    }

    #[test]
    fn a_result_without_room_is_not_kept_and_a_batch_releases_all_its_memory() {
        let memory = memory();
        let [shop, bank] = ["shop", "bank"].map(|app| memory.of(&app.parse().unwrap()));
        let (mut kept, mut of_bank) = (KeptResults::default(), KeptResults::default());
        let fits = (0..10).filter(|_| shop.keep(64 << 10, &mut kept)).count();
        assert_eq!(fits, 2);
        assert!(bank.keep(64 << 10, &mut of_bank) && shop.keep(0, &mut kept));
        drop(kept);
        assert!(shop.keep(2 * (64 << 10), &mut KeptResults::default()));
    }

    #[test]
    fn two_calls_of_an_app_can_be_in_flight() {
        let chunk = |result: usize, all: usize| {
            let limits = Limits { result_bytes: result, batch_result_bytes: all, ..Limits::default() };
            ResultMemory::new(&limits).of(&"shop".parse().unwrap()).chunk()
        };
        assert_eq!(chunk(64 << 10, 16 * (64 << 10)), 3);
        assert_eq!(chunk(64 << 10, 64 << 10), 1, "at least one result can be loaded");
        assert_eq!(chunk(1, 1 << 30), CHUNK_MAX);
    }

    #[test]
    fn an_app_in_use_is_not_forgotten() {
        let memory = memory();
        let shop = memory.of(&"shop".parse().unwrap());
        memory.of(&"bank".parse().unwrap());
        assert!(Arc::ptr_eq(&shop.own, &memory.of(&"shop".parse().unwrap()).own));
    }

    #[test]
    fn apps_without_batches_are_forgotten() {
        let memory = memory();
        for app in ["a", "b", "c", "d"] {
            drop(memory.of(&app.parse().unwrap()).load(1).now_or_never());
        }
        assert_eq!(memory.apps.lock().unwrap().len(), 1);
        let mut kept = KeptResults::default();
        assert!(memory.of(&"e".parse().unwrap()).keep(1, &mut kept));
        memory.of(&"f".parse().unwrap());
        assert_eq!(memory.apps.lock().unwrap().len(), 2, "kept results count until they are released");
    }
}
