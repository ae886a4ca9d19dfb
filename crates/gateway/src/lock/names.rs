//! The locks that this gateway uses, by name: bounded for each app, since each name is a record of the store.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use oncegate_core::attempt::Entropy;
use oncegate_core::clock::Clock;
use oncegate_core::engine::Channel;
use oncegate_core::limits::Limits;
use oncegate_core::lock::LockName;
use oncegate_core::tenant::AppKey;
use tokio_util::sync::CancellationToken;

use super::queue::Queue;
use crate::resilience::chain::Chain;
use crate::tenants::App;
use crate::wait_permits::{WaitPermit, WaitPermits};
use crate::waiting::Calls;

/// Maximum number of names of an app at a gateway, within the lifetime of a record.
pub(super) const NAMES_MAX: usize = 10_000;

/// The locks of a gateway.
pub(in super::super) struct Locks {
    apps: Mutex<HashMap<AppKey, HashMap<LockName, Arc<Queue>>>>,
    permits: WaitPermits,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    draining: CancellationToken,
}

impl Locks {
    pub(in super::super) fn new(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>, limits: &Limits) -> Self {
        let (permits, draining) = (WaitPermits::new(limits.waiting), CancellationToken::new());
        Self { apps: Mutex::default(), permits, clock, entropy, draining }
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
        chain: &Arc<Chain>,
        is_acquisition: bool,
    ) -> Option<Arc<Queue>> {
        let mut apps = self.apps.lock().unwrap_or_else(PoisonError::into_inner);
        let names = apps.entry_ref(app).or_default();
        match names.get(name) {
            Some(queue) if queue.is_on(chain) => {
                if is_acquisition {
                    queue.expect_record();
                }
                return Some(queue.clone());
            }
            Some(_) => drop(names.remove(name)),
            None => {}
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
        let queue = Arc::new(Queue::new(record, channel, chain.clone(), clock, entropy, draining, !is_full));
        if is_acquisition {
            queue.expect_record();
        }
        // What ends a hold is always possible.
        if !is_full {
            names.insert(name.clone(), queue.clone());
        }
        Some(queue)
    }

    /// Returns the locks that requests wait for here, each with the calls that wait.
    pub(in super::super) fn waited_for(&self) -> Vec<(AppKey, LockName, Calls)> {
        let apps = self.apps.lock().unwrap_or_else(PoisonError::into_inner);
        let queues = apps.iter().flat_map(|(app, names)| names.iter().map(move |(name, queue)| (app, name, queue)));
        let waited_for =
            |(app, name, queue): (&AppKey, &LockName, &Arc<Queue>)| Some((app.clone(), name.clone(), queue.waiting()?));
        queues.filter_map(waited_for).collect()
    }

    /// Begins the wait of a call, if it asks for one and there is room. Otherwise it is answered at once.
    pub(super) fn begin_wait(&self, app: &App, wait: Duration) -> Option<WaitPermit<'_>> {
        let may_wait = !wait.is_zero() && !self.draining.is_cancelled();
        may_wait.then(|| self.permits.take(&app.key))?
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use oncegate_core::attempt::SystemEntropy;
    use oncegate_core::clock::SystemClock;
    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
    use oncegate_core::lock::RECORD_GRACE;
    use tokio::time::sleep;

    use super::*;
    use crate::resilience::chain::Setup;
    use crate::resilience::tests::PausedClock;

    fn locks(clock: Arc<dyn Clock>, waiting: usize) -> Locks {
        Locks::new(clock, Arc::new(SystemEntropy), &Limits { waiting, ..Limits::default() })
    }

    fn chain(clock: &Arc<PausedClock>) -> Arc<Chain> {
        let memory = Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT));
        Arc::new(Chain::start(Setup::of_one("default", memory, clock.clone(), Arc::new(SystemEntropy))))
    }

    #[test]
    fn an_app_has_half_of_the_places_to_wait() {
        const WAIT: Duration = Duration::from_secs(1);
        let [shop, bank] = ["shop", "bank"].map(|key| App::for_tests(key, &[], fresh_claim().terms, WAIT));
        let locks = locks(Arc::new(SystemClock::new()), 5);
        assert!(locks.begin_wait(&shop, Duration::ZERO).is_none(), "it does not ask to wait");
        let take = |app: &App| iter::from_fn(|| locks.begin_wait(app, WAIT)).collect::<Vec<_>>();
        let [of_shop, of_bank] = [take(&shop), take(&bank)];
        assert_eq!((of_shop.len(), of_bank.len()), (3, 2));
        drop(of_shop);
        assert_eq!(take(&bank).len(), 1);
        drop(of_bank);
        assert_eq!(take(&bank).len(), 3);
        assert_eq!(locks.permits.waiting(), 0);
        locks.drain();
        assert!(locks.begin_wait(&shop, WAIT).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn names_are_bounded_until_their_records_have_ended() {
        let clock = PausedClock::start();
        let (first, second) = (chain(&clock), chain(&clock));
        let (locks, app) = (locks(clock, 1), "shop".parse().unwrap());
        let name = |number: usize| format!("n{number}").parse::<LockName>().unwrap();
        let queue = |number, is_acquisition| locks.queue(&app, &name(number), &first, is_acquisition);
        let queues: Vec<_> = (0..NAMES_MAX).map(|number| queue(number, true).unwrap()).collect();
        assert!(queue(NAMES_MAX, true).is_none());
        let unkept = queue(NAMES_MAX, false).unwrap();
        assert!(!Arc::ptr_eq(&unkept, &queue(NAMES_MAX, false).unwrap()), "what ends a hold is possible, and not kept");
        assert!(Arc::ptr_eq(&queues[7], &queue(7, true).unwrap()));
        let switched = locks.queue(&app, &name(7), &second, true).unwrap();
        assert!(!Arc::ptr_eq(&queues[7], &switched), "its app has another chain");
        assert!(Arc::ptr_eq(&switched, &locks.queue(&app, &name(7), &second, true).unwrap()));
        sleep(RECORD_GRACE).await;
        assert!(queue(NAMES_MAX, true).is_none());
        sleep(Duration::from_millis(1)).await;
        let next = queue(NAMES_MAX, true).unwrap();
        assert!(Arc::ptr_eq(&next, &queue(NAMES_MAX, false).unwrap()), "the others have ended");
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_nobody_has_requested_a_hold_of_make_room() {
        let clock = PausedClock::start();
        let chain = chain(&clock);
        let (locks, app) = (locks(clock, 1), "shop".parse().unwrap());
        let name = |number: usize| format!("n{number}").parse::<LockName>().unwrap();
        let queue = |number, is_acquisition| locks.queue(&app, &name(number), &chain, is_acquisition);
        for number in 0..NAMES_MAX {
            queue(number, false).unwrap();
        }
        for number in 0..NAMES_MAX {
            queue(NAMES_MAX + number, true).expect("no name has a record");
        }
        assert!(queue(0, true).is_none());
    }
}
