//! Which lane a call takes: that of the calls on its key that are under way, so that none overtakes another; else the first
//! lane that has room. Few calls so share a statement and a commit, and many are spread over all connections.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::domain::record::Key;

/// Calls under way in a lane from which on the next lane is taken: about half of them are in the statement that runs, and
/// this many rows take the server as long as the commit. Measured: fewer cost more than a second connection brings.
const ROOM: usize = 128;

/// Keys of one slot go the same way. Many more than calls that are under way at once, so that this is seldom felt.
const SLOTS: usize = 4096;

/// A slot: the lane in the high bits, how many calls of its keys are under way in the low ones.
const LANE_SHIFT: u32 = 24;
const COUNT_MASK: u32 = (1 << LANE_SHIFT) - 1;

/// What is under way, by key and by lane.
pub(super) struct Routes {
    slots: Box<[AtomicU32]>,
    lanes: Box<[Load]>,
    /// How often a lane was not ready any more.
    stumbles: AtomicUsize,
}

#[derive(Default)]
struct Load {
    calls: AtomicUsize,
    /// Whether it has a connection that answers as quickly as one should.
    ready: AtomicBool,
    /// The last time it was not ready any more, as a count of such times in all lanes.
    stumbled: AtomicUsize,
}

/// A lane's way to say whether it is to be given calls on keys that have none under way, as long as any lane is.
pub(super) struct Readiness {
    routes: Arc<Routes>,
    lane: usize,
}

impl Readiness {
    pub(super) fn set(&self, ready: bool) {
        let lane = &self.routes.lanes[self.lane];
        if !ready {
            lane.stumbled.store(self.routes.stumbles.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        lane.ready.store(ready, Ordering::Relaxed);
    }
}

/// A call's place in its lane, until it has been answered or given up.
pub(super) struct Place {
    routes: Arc<Routes>,
    slot: usize,
    pub(super) lane: usize,
}

impl Routes {
    /// For this many lanes, which are not ready yet.
    pub(super) fn new(lanes: usize) -> Arc<Self> {
        Arc::new(Self {
            slots: (0..SLOTS).map(|_| AtomicU32::default()).collect(),
            lanes: (0..lanes).map(|_| Load::default()).collect(),
            stumbles: AtomicUsize::new(0),
        })
    }

    /// A place for a call on this key.
    pub(super) fn take(self: &Arc<Self>, key: &Key) -> Place {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let slot = usize::try_from(hasher.finish() % SLOTS as u64).unwrap_or(0);
        let fresh = u32::try_from(self.with_room()).unwrap_or(0) << LANE_SHIFT;
        let join = |held| Some(if held & COUNT_MASK == 0 { fresh } else { held } + 1);
        let held = self.slots[slot].fetch_update(Ordering::AcqRel, Ordering::Acquire, join);
        // The closure always returns something.
        let held = held.map_or(fresh, |before| join(before).unwrap_or(fresh));
        let lane = usize::try_from(held >> LANE_SHIFT).unwrap_or(0);
        self.lanes[lane].calls.fetch_add(1, Ordering::Relaxed);
        Place { routes: self.clone(), slot, lane }
    }

    /// The readiness of a lane.
    pub(super) fn readiness(self: &Arc<Self>, lane: usize) -> Readiness {
        Readiness { routes: self.clone(), lane }
    }

    /// The first lane that is ready and has room; else the ready one with the fewest calls; else the one that has not been
    /// ready for the shortest time, since what has waited for long may go on to wait.
    fn with_room(&self) -> usize {
        let mut best = (true, usize::MAX, 0);
        for (lane, load) in self.lanes.iter().enumerate() {
            let (ready, calls) = (load.ready.load(Ordering::Relaxed), load.calls.load(Ordering::Relaxed));
            if ready && calls < ROOM {
                return lane;
            }
            let badness = if ready { calls } else { usize::MAX - load.stumbled.load(Ordering::Relaxed) };
            best = best.min((!ready, badness, lane));
        }
        best.2
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.routes.lanes[self.lane].calls.fetch_sub(1, Ordering::Relaxed);
        self.routes.slots[self.slot].fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::global_id::GlobalId;

    fn key(number: u32) -> Key {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        Key { app: "shop".parse().unwrap(), global_id: GlobalId::from_bytes(bytes) }
    }

    fn ready(lanes: usize) -> Arc<Routes> {
        let routes = Routes::new(lanes);
        for lane in 0..lanes {
            routes.readiness(lane).set(true);
        }
        routes
    }

    #[test]
    fn few_calls_share_a_lane_and_many_are_spread() {
        let routes = ready(3);
        let places: Vec<_> = (0..1000).map(|number| routes.take(&key(number))).collect();
        assert!(places[..ROOM].iter().all(|place| place.lane == 0));
        let count = |lane| places.iter().filter(|place| place.lane == lane).count();
        assert!((0..3).all(|lane| (250..420).contains(&count(lane))), "{} {} {}", count(0), count(1), count(2));
    }

    #[test]
    fn calls_on_a_key_stay_together_until_the_last_has_gone() {
        let routes = ready(2);
        routes.readiness(0).set(false);
        let first = routes.take(&key(1));
        routes.readiness(0).set(true);
        routes.readiness(1).set(false);
        let second = routes.take(&key(1));
        drop(first);
        let third = routes.take(&key(1));
        assert_eq!((second.lane, third.lane), (1, 1));
        drop((second, third));
        assert_eq!(routes.take(&key(1)).lane, 0);
    }

    #[test]
    fn a_lane_that_is_not_ready_is_passed_over_while_another_is() {
        let routes = ready(3);
        routes.readiness(0).set(false);
        assert!((0..500).map(|number| routes.take(&key(number))).all(|place| place.lane == 1));
        let places: Vec<_> = (0..500).map(|number| routes.take(&key(number))).collect();
        assert!(places.iter().all(|place| place.lane != 0));
        drop(places);
        // Without any, the one that was ready last.
        for lane in [1, 0, 2, 0] {
            for other in [0, 1, 2, lane] {
                routes.readiness(other).set(false);
            }
            assert!((0..30).map(|number| routes.take(&key(number))).all(|place| place.lane == lane));
        }
    }

    #[test]
    fn places_are_given_back() {
        let routes = ready(2);
        drop((0..1000).map(|number| routes.take(&key(number))).collect::<Vec<_>>());
        assert!(routes.lanes.iter().all(|load| load.calls.load(Ordering::Relaxed) == 0));
        assert!(routes.slots.iter().all(|slot| slot.load(Ordering::Relaxed) & COUNT_MASK == 0));
    }
}
