//! Unknown claims that this gateway has met: in outcomes that it accepted, and in answers to repeats. It does not
//! search for them, so a claim that no caller came back for is not here. A few are looked up at intervals, so that
//! claims settled elsewhere leave the list.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use hashbrown::HashMap;
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::EngineError;
use oncegate_core::record::{ClaimState, Key};
use oncegate_core::tenant::AppKey;

use super::{Gateway, within};
use crate::tenants::App;

/// Most claims of an app, and of all apps.
const APP_MAX: usize = 1000;
const MAX: usize = 100_000;

/// Claims that are looked up at a time, and for how long.
const LOOKED_UP: usize = 32;
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// The unknown claims that this gateway has met.
#[derive(Default)]
pub(super) struct MetUnknowns {
    /// Their number. While it is zero, outcomes need not take the lock.
    count: AtomicUsize,
    met: Mutex<Met>,
}

#[derive(Default)]
struct Met {
    /// The order of the lookups.
    claims: BTreeMap<Key, MetClaim>,
    by_app: HashMap<AppKey, usize>,
    /// The last claim that was looked up.
    looked_up: Option<Key>,
}

#[derive(Clone)]
struct MetClaim {
    since: Timestamp,
    chain: Box<str>,
}

/// Unknown claims of an app that this gateway has met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetUnknownsOf {
    /// The app.
    pub app: AppKey,
    /// Their number, at most 1000.
    pub count: usize,
    /// Time at which the oldest one became unknown, as far as is known.
    pub oldest_at: Timestamp,
}

impl MetUnknowns {
    /// Adds a claim, unless there are too many.
    pub(super) fn add(&self, app: &App, key: &Key, since: Timestamp) {
        let met = &mut *self.met();
        let of_app = met.by_app.get(&key.app).copied().unwrap_or_default();
        if met.claims.contains_key(key) || of_app >= APP_MAX || met.claims.len() >= MAX {
            return;
        }
        met.claims.insert(key.clone(), MetClaim { since, chain: app.chain.as_str().into() });
        met.by_app.insert(key.app.clone(), of_app + 1);
        self.count.store(met.claims.len(), Ordering::Relaxed);
    }

    /// Removes a claim that is not unknown any more.
    pub(super) fn remove(&self, key: &Key) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let met = &mut *self.met();
        if met.claims.remove(key).is_some() {
            let of_app = met.by_app.get(&key.app).copied().unwrap_or_default();
            if of_app > 1 {
                met.by_app.insert(key.app.clone(), of_app - 1);
            } else {
                met.by_app.remove(&key.app);
            }
            self.count.store(met.claims.len(), Ordering::Relaxed);
        }
    }

    /// Returns the next claims to look up: those after the last one, then from the beginning.
    fn next(&self) -> Vec<(Key, MetClaim)> {
        let met = &mut *self.met();
        let last = met.looked_up.as_ref();
        let after = met.claims.range((last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        let up_to_last = last.into_iter().flat_map(|last| met.claims.range(..=last));
        let next: Vec<_> =
            after.chain(up_to_last).take(LOOKED_UP).map(|(key, claim)| (key.clone(), claim.clone())).collect();
        met.looked_up = next.last().map(|(key, _)| key.clone());
        next
    }

    fn by_app(&self) -> Vec<MetUnknownsOf> {
        let met = self.met();
        let mut oldest: HashMap<&AppKey, Timestamp> = HashMap::new();
        for (key, claim) in &met.claims {
            let at = oldest.entry(&key.app).or_insert(claim.since);
            *at = claim.since.min(*at);
        }
        let of = |(app, oldest_at): (&AppKey, Timestamp)| {
            let count = met.by_app.get(app).copied().unwrap_or_default();
            MetUnknownsOf { app: app.clone(), count, oldest_at }
        };
        oldest.into_iter().map(of).collect()
    }

    fn met(&self) -> MutexGuard<'_, Met> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gateway {
    /// Returns how many unknown claims of each app this gateway has met. Calls no store.
    pub fn met_unknowns(&self) -> Vec<MetUnknownsOf> {
        self.met_unknowns.by_app()
    }

    /// Looks up some of the unknown claims that this gateway has met, and forgets those with another state by now.
    pub async fn look_up_met_unknowns(&self) {
        let look_up = async |(key, claim): (Key, MetClaim)| {
            let chain = self.engines.chains.get(&*claim.chain);
            let found = match chain {
                Some(chain) => within(LOOK_UP_TIMEOUT, chain.policies.engine().read(&key)).await,
                None => Ok(None),
            };
            let is_over = |found: Result<Option<ClaimState>, EngineError>| {
                found.is_ok_and(|state| state != Some(ClaimState::Unknown))
            };
            if is_over(found.map(|live| live.map(|live| live.record.state))) {
                self.met_unknowns.remove(&key);
            }
        };
        join_all(self.met_unknowns.next().into_iter().map(look_up)).await;
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::engine::conformance::fresh_claim;

    use super::*;

    fn at(second: u64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    fn key(app: &App) -> Key {
        Key { app: app.key.clone(), ..fresh_claim().key }
    }

    #[test]
    fn claims_are_counted_by_app_up_to_a_bound_until_they_are_removed() {
        let app = |key: &str| App::for_tests(key, &[], fresh_claim().terms, Duration::from_secs(1));
        let (shop, bank, met) = (app("shop"), app("bank"), MetUnknowns::default());
        let keys: Vec<_> = (0..APP_MAX + 5).map(|_| key(&shop)).collect();
        for (second, key) in (10..).zip(&keys) {
            met.add(&shop, key, at(second));
            met.add(&shop, key, at(1));
        }
        let of_bank = key(&bank);
        met.add(&bank, &of_bank, at(7));
        let counts = || {
            let mut counts: Vec<_> =
                met.by_app().into_iter().map(|of| (of.app.to_string(), of.count, of.oldest_at)).collect();
            counts.sort();
            counts
        };
        assert_eq!(counts(), [("bank".to_owned(), 1, at(7)), ("shop".to_owned(), APP_MAX, at(10))]);
        met.remove(&of_bank);
        met.remove(&of_bank);
        met.remove(&keys[0]);
        assert_eq!(counts(), [("shop".to_owned(), APP_MAX - 1, at(11))]);
        met.add(&shop, &keys[APP_MAX], at(3));
        assert_eq!(counts(), [("shop".to_owned(), APP_MAX, at(3))]);
    }

    #[test]
    fn each_claim_is_looked_up_in_its_turn() {
        let shop = App::for_tests("shop", &[], fresh_claim().terms, Duration::from_secs(1));
        let met = MetUnknowns::default();
        assert!(met.next().is_empty());
        let mut keys: Vec<_> = (0..LOOKED_UP + 2).map(|_| key(&shop)).collect();
        keys.sort();
        for key in &keys {
            met.add(&shop, key, at(1));
        }
        met.remove(&keys[1]);
        let next = || met.next().into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        let first = next();
        assert_eq!((first.len(), &first[0], &first[1]), (LOOKED_UP, &keys[0], &keys[2]));
        let second = next();
        assert_eq!((&second[0], &second[1]), (&keys[LOOKED_UP + 1], &keys[0]));
        for key in &keys[2..] {
            met.remove(key);
        }
        assert_eq!(next(), keys[..1]);
    }

    #[test]
    fn a_claim_that_becomes_unknown_again_and_again_is_looked_up_once_at_a_time() {
        let shop = App::for_tests("shop", &[], fresh_claim().terms, Duration::from_secs(1));
        let (key, met) = (key(&shop), MetUnknowns::default());
        for second in 1..100 {
            met.add(&shop, &key, at(second));
            met.remove(&key);
        }
        met.add(&shop, &key, at(100));
        for _ in 0..2 {
            let next: Vec<_> = met.next().into_iter().map(|(key, _)| key).collect();
            assert_eq!(next, std::slice::from_ref(&key));
        }
    }
}
