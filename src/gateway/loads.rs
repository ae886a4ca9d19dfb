//! How much the results of duplicates may take while batches load them from the store, and until the batches are answered:
//! one bound for the gateway, of which an app gets half. A single call loads one result and is bounded by its own permit.

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::limits::Limits;
use crate::domain::tenant::AppKey;

/// Permits are counted in this many bytes.
const UNIT: usize = 1024;

/// The most claims of one app's batches that are asked for in one go.
const CHUNK_MAX: usize = 256;

/// The bound on results in memory.
pub(super) struct Loads {
    all: Pools,
    /// Those of apps whose batches are under way, and perhaps of some that are done.
    apps: Mutex<HashMap<AppKey, Arc<Pools>>>,
    /// Units that an app may load, and keep.
    share: (usize, usize),
    /// Units of the largest result.
    result: usize,
}

/// Units that are free.
struct Pools {
    /// For what the store was asked for. Waited for: a store answers soon.
    loading: Arc<Semaphore>,
    /// For results that wait for the rest of their batch. Never waited for: a result without room is left out instead, so
    /// batches cannot wait for each other.
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

impl Loads {
    /// Three quarters of `limits.batch_result_bytes` for results that are loaded, the rest for those that wait for their batch.
    pub(super) fn new(limits: &Limits) -> Self {
        let result = limits.result_bytes.div_ceil(UNIT).max(1);
        let kept = (limits.batch_result_bytes / UNIT / 4).min(Semaphore::MAX_PERMITS / 3);
        // Each app can load one result at least.
        let loading = (3 * kept).max(2 * result);
        Self { all: Pools::of((loading, kept)), apps: Mutex::default(), share: (loading / 2, kept / 2), result }
    }

    /// The share of an app.
    pub(super) fn of(&self, app: &AppKey) -> Share<'_> {
        let mut apps = self.apps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = apps.get(app) {
            return Share { loads: self, own: own.clone() };
        }
        // Permits outlive the share that they were taken from.
        let is_used = |own: &Arc<Pools>| Arc::strong_count(own) > 1 || own.is_taken();
        apps.retain(|_, own| is_used(own));
        let own = Arc::new(Pools::of(self.share));
        apps.insert(app.clone(), own.clone());
        Share { loads: self, own }
    }
}

/// What an app's batches may take.
pub(super) struct Share<'a> {
    loads: &'a Loads,
    own: Arc<Pools>,
}

/// Room for the results of some claims, until they are answered.
pub(super) struct Loading {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

/// Room for the results of a batch, until it is answered.
#[derive(Default)]
pub struct Kept(Option<[OwnedSemaphorePermit; 2]>);

impl Share<'_> {
    /// How many claims to ask for in one go: so many that two chunks can be under way.
    pub(super) fn chunk(&self) -> usize {
        (self.loads.share.0 / 2 / self.loads.result).clamp(1, CHUNK_MAX)
    }

    /// Waits until the results of so many claims have room. First for the app's own share, so that an app that is over it
    /// waits without keeping others from theirs.
    pub(super) async fn load(&self, claims: usize) -> Loading {
        let units = u32::try_from((claims * self.loads.result).min(self.loads.share.0)).unwrap_or(u32::MAX);
        let own = acquire(&self.own.loading, units).await;
        Loading { _own: own, _all: acquire(&self.loads.all.loading, units).await }
    }

    /// Makes room for one more result of a batch; false if there is none.
    pub(super) fn keep(&self, bytes: usize, kept: &mut Kept) -> bool {
        let Ok(units) = u32::try_from(bytes.div_ceil(UNIT)) else { return false };
        let take = |pool: &Arc<Semaphore>| pool.clone().try_acquire_many_owned(units).ok();
        let Some(more) = take(&self.own.kept).and_then(|own| Some([own, take(&self.loads.all.kept)?])) else {
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
        // Nobody closes it.
        Err(_closed) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Room for twelve results while they are loaded and for four that are kept; for an app half of it.
    fn loads() -> Loads {
        let limits = Limits { result_bytes: 64 << 10, batch_result_bytes: 16 * (64 << 10), ..Limits::default() };
        Loads::new(&limits)
    }

    #[test]
    fn an_app_that_is_over_its_share_waits_alone() {
        let loads = loads();
        let [shop, bank] = ["shop", "bank"].map(|app| loads.of(&app.parse().unwrap()));
        let first = shop.load(3).now_or_never().unwrap();
        assert!(shop.load(4).now_or_never().is_none());
        let second = bank.load(6).now_or_never().unwrap();
        drop(first);
        assert!(shop.load(6).now_or_never().is_some());
        drop(second);
        assert!(shop.load(1000).now_or_never().is_some(), "never more than the share");
    }

    #[test]
    fn the_gateways_bound_holds_over_all_apps() {
        let loads = loads();
        let [shop, bank, third] = ["shop", "bank", "third"].map(|app| loads.of(&app.parse().unwrap()));
        let taken = [shop.load(6), bank.load(6)].map(|load| load.now_or_never().unwrap());
        assert!(third.load(1).now_or_never().is_none());
        drop(taken);
        assert!(third.load(1).now_or_never().is_some());
    }

    #[test]
    fn a_result_without_room_is_not_kept_and_a_batch_gives_all_back() {
        let loads = loads();
        let [shop, bank] = ["shop", "bank"].map(|app| loads.of(&app.parse().unwrap()));
        let (mut kept, mut of_bank) = (Kept::default(), Kept::default());
        let fits = (0..10).filter(|_| shop.keep(64 << 10, &mut kept)).count();
        assert_eq!(fits, 2);
        assert!(bank.keep(64 << 10, &mut of_bank) && shop.keep(0, &mut kept));
        drop(kept);
        assert!(shop.keep(2 * (64 << 10), &mut Kept::default()));
    }

    #[test]
    fn apps_without_batches_are_forgotten() {
        let loads = loads();
        for app in ["a", "b", "c", "d"] {
            drop(loads.of(&app.parse().unwrap()).load(1).now_or_never());
        }
        assert_eq!(loads.apps.lock().unwrap().len(), 1);
        let mut kept = Kept::default();
        assert!(loads.of(&"e".parse().unwrap()).keep(1, &mut kept));
        loads.of(&"f".parse().unwrap());
        assert_eq!(loads.apps.lock().unwrap().len(), 2, "what is kept counts until it is given back");
    }
}
