//! Bounds that the apps of a proxy share: one of several apps has half of a bound at most, and no request waits for a part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oncegate_core::tenant::AppKey;
use oncegate_telemetry::metrics::proxy::BoundMetrics;

/// Units beyond which a share is large. Large bodies leave an eighth of a bound to small ones, so that a few long
/// bodies cannot exclude all others.
const LARGE: usize = 16 << 10;

/// The app that a request counts for; `None` for requests that no route takes.
pub(super) type Payer = Option<AppKey>;

/// The part of a bound that one app may use.
pub(super) struct Account {
    max: usize,
    taken: AtomicUsize,
    all: Arc<Bound>,
}

struct Bound {
    max: usize,
    taken: AtomicUsize,
    metrics: BoundMetrics,
}

/// Units of a bound, returned when this is dropped.
pub(super) struct Share {
    account: Arc<Account>,
    units: usize,
}

/// Divides a bound of `max` units among these apps.
pub(super) fn divide(max: usize, payers: BTreeSet<Payer>, metrics: BoundMetrics) -> BTreeMap<Payer, Arc<Account>> {
    let max_each = if payers.len() > 1 { max / 2 } else { max };
    let all = Arc::new(Bound { max, taken: AtomicUsize::new(0), metrics });
    let account = |payer| {
        let account = Account { max: max_each, taken: AtomicUsize::new(0), all: all.clone() };
        (payer, Arc::new(account))
    };
    payers.into_iter().map(account).collect()
}

impl Account {
    /// Takes this many units. `None` if the app, or all apps together, would have too many; that is counted.
    pub(super) fn take(self: &Arc<Self>, units: usize) -> Option<Share> {
        self.add(units, units).then(|| Share { account: self.clone(), units })
    }

    /// Adds these units to a share, which has `sum` afterwards.
    fn add(&self, units: usize, sum: usize) -> bool {
        let limit = |max: usize| if sum > LARGE { max - max / 8 } else { max };
        let is_added = add(&self.taken, units, limit(self.max)) && {
            let has_room = add(&self.all.taken, units, limit(self.all.max));
            if !has_room {
                self.taken.fetch_sub(units, Ordering::Relaxed);
            }
            has_room
        };
        if !is_added {
            self.all.metrics.reached();
        }
        is_added
    }
}

impl Share {
    /// Takes more units. False if there are too few left; then nothing changes.
    pub(super) fn grow(&mut self, units: usize) -> bool {
        let is_added = self.account.add(units, self.units.saturating_add(units));
        if is_added {
            self.units += units;
        }
        is_added
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.account.taken.fetch_sub(self.units, Ordering::Relaxed);
        self.account.all.taken.fetch_sub(self.units, Ordering::Relaxed);
    }
}

fn add(taken: &AtomicUsize, units: usize, max: usize) -> bool {
    let added = |taken: usize| taken.checked_add(units).filter(|sum| *sum <= max);
    taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, added).is_ok()
}

#[cfg(test)]
mod tests {
    use oncegate_telemetry::metrics::proxy::Bound;

    use super::*;

    fn accounts(max: usize, apps: &[&str]) -> BTreeMap<Payer, Arc<Account>> {
        let payers = apps.iter().map(|app| Some(app.parse().unwrap())).collect();
        divide(max, payers, BoundMetrics::new(Bound::Exchanges))
    }

    #[test]
    fn one_of_several_apps_has_half_and_all_together_have_no_more_than_the_bound() {
        let accounts = accounts(10, &["bank", "shop", "toys"]);
        let [bank, shop, toys] = ["bank", "shop", "toys"].map(|app| accounts[&Some(app.parse().unwrap())].clone());
        let mut of_bank = bank.take(4).unwrap();
        assert!(bank.take(2).is_none() && !of_bank.grow(2) && of_bank.grow(1));
        let of_shop = shop.take(5).unwrap();
        assert!(toys.take(1).is_none(), "all are taken");
        drop(of_shop);
        let _of_toys = toys.take(5).unwrap();
        assert!(shop.take(1).is_none() && bank.take(1).is_none());
        drop(of_bank);
        assert!(shop.take(5).is_some());
    }

    #[test]
    fn large_shares_leave_room_for_small_ones() {
        let accounts = accounts(64 * LARGE, &["shop"]);
        let shop = &accounts[&Some("shop".parse().unwrap())];
        let mut grown = shop.take(LARGE).unwrap();
        let _large = shop.take(54 * LARGE).unwrap();
        assert!(grown.grow(LARGE) && !grown.grow(1) && shop.take(LARGE + 1).is_none());
        let small: Vec<_> = (0..8).map(|_| shop.take(LARGE).unwrap()).collect();
        assert!(shop.take(1).is_none() && small.len() == 8);
    }

    #[test]
    fn one_app_alone_has_all() {
        let accounts = accounts(10, &["shop"]);
        let shop = &accounts[&Some("shop".parse().unwrap())];
        assert!(shop.take(11).is_none() && shop.take(usize::MAX).is_none());
        drop(shop.take(10).unwrap());
        assert!(shop.take(10).is_some());
    }
}
