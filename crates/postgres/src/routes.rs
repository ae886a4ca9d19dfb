//! Routes calls to connection workers. A call uses the worker of the calls in progress on its key, so that none
//! overtakes another. Other calls take the first worker that has room. So few calls share a statement and a commit, and
//! many are spread.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use oncegate_driver::Readiness;

/// Number of calls in progress at a worker above which the next worker is used. About half of them are in the running
/// statement, and so many rows take the server as long as the commit. Measured: with a lower number, a second
/// connection costs more than it gains.
const ROOM: usize = 128;

/// Keys of one slot take the same route. Many more than calls under way at once, so that this is rarely noticed.
const SLOTS: usize = 4096;

/// A slot: the worker in the high bits, the number of calls under way on its keys in the low ones.
const WORKER_SHIFT: u32 = 24;
const COUNT_MASK: u32 = (1 << WORKER_SHIFT) - 1;

/// The calls under way, by key and by worker.
pub(super) struct Routes {
    slots: Box<[AtomicU32]>,
    workers: Box<[Load]>,
}

struct Load {
    calls: AtomicUsize,
    readiness: Arc<Readiness>,
}

/// The route of a call, which is under way until this is dropped.
pub(super) struct Route {
    routes: Arc<Routes>,
    slot: usize,
    pub(super) worker: usize,
}

impl Routes {
    pub(super) fn new(workers: impl Iterator<Item = Arc<Readiness>>) -> Arc<Self> {
        let load = |readiness| Load { calls: AtomicUsize::new(0), readiness };
        Arc::new(Self {
            slots: (0..SLOTS).map(|_| AtomicU32::default()).collect(),
            workers: workers.map(load).collect(),
        })
    }

    /// Returns the route of a new call on this key.
    pub(super) fn take(self: &Arc<Self>, key: &impl Hash) -> Route {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let slot = usize::try_from(hasher.finish() % SLOTS as u64).unwrap_or(0);
        let fresh = u32::try_from(self.with_room()).unwrap_or(0) << WORKER_SHIFT;
        let join = |held| Some(if held & COUNT_MASK == 0 { fresh } else { held } + 1);
        let held = self.slots[slot].fetch_update(Ordering::AcqRel, Ordering::Acquire, join);
        // The closure always returns something.
        let held = held.map_or(fresh, |before| join(before).unwrap_or(fresh));
        let worker = usize::try_from(held >> WORKER_SHIFT).unwrap_or(0);
        self.workers[worker].calls.fetch_add(1, Ordering::Relaxed);
        Route { routes: self.clone(), slot, worker }
    }

    /// Returns the first worker that is ready and has room. Without one, returns the ready worker with the fewest
    /// calls. Without a ready one, returns the worker that became unready last: the others have waited longer, and
    /// may wait longer still.
    fn with_room(&self) -> usize {
        let mut best = (true, u64::MAX, 0);
        for (worker, load) in self.workers.iter().enumerate() {
            let (ready, calls) = (load.readiness.is_ready(), load.calls.load(Ordering::Relaxed));
            if ready && calls < ROOM {
                return worker;
            }
            let badness = if ready { calls as u64 } else { u64::MAX - load.readiness.last_loss() };
            best = best.min((!ready, badness, worker));
        }
        best.2
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        self.routes.workers[self.worker].calls.fetch_sub(1, Ordering::Relaxed);
        self.routes.slots[self.slot].fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_core::global_id::GlobalId;
    use oncegate_core::record::{Key, Realm};

    fn key(number: u32) -> Key {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        Key { app: "shop".parse().unwrap(), realm: Realm::Api, global_id: GlobalId::from_bytes(bytes) }
    }

    fn ready(workers: usize) -> Arc<Routes> {
        let routes = Routes::new((0..workers).map(|_| Arc::default()));
        routes.workers.iter().for_each(|load| load.readiness.set(true));
        routes
    }

    #[test]
    fn few_calls_share_a_worker_and_many_are_spread() {
        let routes = ready(3);
        let taken: Vec<_> = (0..1000).map(|number| routes.take(&key(number))).collect();
        assert!(taken[..ROOM].iter().all(|route| route.worker == 0));
        let count = |worker| taken.iter().filter(|route| route.worker == worker).count();
        assert!((0..3).all(|worker| (250..420).contains(&count(worker))), "{} {} {}", count(0), count(1), count(2));
    }

    #[test]
    fn calls_on_a_key_take_one_route_until_the_last_has_ended() {
        let routes = ready(2);
        routes.workers[0].readiness.set(false);
        let first = routes.take(&key(1));
        routes.workers[0].readiness.set(true);
        routes.workers[1].readiness.set(false);
        let second = routes.take(&key(1));
        drop(first);
        let third = routes.take(&key(1));
        assert_eq!((second.worker, third.worker), (1, 1));
        drop((second, third));
        assert_eq!(routes.take(&key(1)).worker, 0);
    }

    #[test]
    fn a_worker_that_is_not_ready_is_passed_over_while_another_is() {
        let routes = ready(3);
        routes.workers[0].readiness.set(false);
        assert!((0..500).map(|number| routes.take(&key(number))).all(|route| route.worker == 1));
        let taken: Vec<_> = (0..500).map(|number| routes.take(&key(number))).collect();
        assert!(taken.iter().all(|route| route.worker != 0));
        drop(taken);
        // Without any, returns the one that was ready last.
        for worker in [1, 0, 2, 0] {
            for other in [0, 1, 2, worker] {
                routes.workers[other].readiness.set(false);
            }
            assert!((0..30).map(|number| routes.take(&key(number))).all(|route| route.worker == worker));
        }
    }

    #[test]
    fn routes_are_given_back() {
        let routes = ready(2);
        drop((0..1000).map(|number| routes.take(&key(number))).collect::<Vec<_>>());
        assert!(routes.workers.iter().all(|load| load.calls.load(Ordering::Relaxed) == 0));
        assert!(routes.slots.iter().all(|slot| slot.load(Ordering::Relaxed) & COUNT_MASK == 0));
    }
}
