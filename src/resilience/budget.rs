//! How many calls may be repeated: a tenth of those that are made, so that a store in trouble is not asked twice as much.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::domain::rate_limiter::{Allowance, RateLimiter};

/// Calls that pay for one repeat.
const CALLS_PER_REPEAT: u32 = 10;
/// Repeats that may be saved up. What was saved while all was well is what trouble begins with, so it is little.
const SAVED_MAX: u32 = 50;
/// Repeats that are there at first and again after a while, whatever traffic there is: a quiet gateway may repeat, too.
pub const FLOOR: u32 = 5;
/// How long it takes for one of the [`FLOOR`] to be there again.
const FLOOR_EVERY: Duration = Duration::from_secs(1);

/// Repeats that may be made, shared by all calls of an engine.
#[derive(Debug, Default)]
pub struct Budget {
    /// Calls that were made and have paid for nothing yet.
    calls: AtomicU32,
    floor: RateLimiter,
}

impl Budget {
    /// A call is made.
    pub fn deposit(&self) {
        // Mostly it is full, and then nothing is written that other threads read. A few more than it may hold are no harm.
        if self.calls.load(Ordering::Relaxed) < SAVED_MAX * CALLS_PER_REPEAT {
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes one repeat, `now` by the monotonic clock; whether there was one.
    pub fn withdraw(&self, now: Duration) -> bool {
        let paid = |calls: u32| calls.checked_sub(CALLS_PER_REPEAT);
        self.calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, paid).is_ok() || self.withdraw_floor(now)
    }

    fn withdraw_floor(&self, now: Duration) -> bool {
        self.floor.charge(FLOOR_EVERY, Allowance::burst(FLOOR_EVERY * FLOOR), now).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_calls_may_be_repeated_beyond_the_floor() {
        let budget = Budget::default();
        let mut repeats = 0;
        for _ in 0..10_000 {
            budget.deposit();
            repeats += u32::from(budget.withdraw(Duration::ZERO));
        }
        assert_eq!(repeats, 1000 + FLOOR);
    }

    #[test]
    fn a_quiet_gateway_may_repeat_now_and_then() {
        let budget = Budget::default();
        let taken = |at| (0..100).filter(|_| budget.withdraw(Duration::from_secs(at))).count();
        assert_eq!(taken(100), 5);
        assert_eq!(taken(100), 0);
        assert_eq!(taken(102), 2);
        assert_eq!(taken(1_000_000), 5, "no more is saved");
    }

    #[test]
    fn little_is_saved_for_bad_times() {
        let budget = Budget::default();
        (0..1_000_000).for_each(|_| budget.deposit());
        let taken = (0..1000).filter(|_| budget.withdraw(Duration::ZERO)).count();
        assert_eq!(taken, 55);
    }
}
