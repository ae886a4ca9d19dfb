//! The retry budget of an engine: a tenth of the calls may be retried, so that a store in trouble gets few more calls.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oncegate_core::rate_limiter::{Allowance, RateLimiter};

/// Calls that pay for one retry.
const CALLS_PER_RETRY: u32 = 10;
/// Most retries that are saved. Few, since they are spent when trouble begins.
const SAVED_MAX: u32 = 50;
/// Retries that are always available, so that a gateway with few calls may retry, too.
pub const FLOOR: u32 = 5;
/// Time after which one of the [`FLOOR`] is available again.
const FLOOR_EVERY: Duration = Duration::from_secs(1);

/// Retries that may be made, shared by all calls of an engine.
#[derive(Debug, Default)]
pub struct RetryBudget {
    /// Calls that have paid for no retry yet.
    calls: AtomicU32,
    floor: RateLimiter,
}

impl RetryBudget {
    /// Counts a call.
    pub fn deposit(&self) {
        // It is usually full. Then nothing is written to memory that other threads read. A few calls over the limit do
        // no harm.
        if self.calls.load(Ordering::Relaxed) < SAVED_MAX * CALLS_PER_RETRY {
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes one retry; returns whether there was one. `now` is of the monotonic clock.
    pub fn withdraw(&self, now: Duration) -> bool {
        let paid = |calls: u32| calls.checked_sub(CALLS_PER_RETRY);
        self.calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, paid).is_ok()
            || self.floor.charge(FLOOR_EVERY, Allowance::burst(FLOOR_EVERY * FLOOR), now).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_calls_and_the_floor_may_be_retried() {
        let budget = RetryBudget::default();
        let mut retries = 0;
        for _ in 0..10_000 {
            budget.deposit();
            retries += u32::from(budget.withdraw(Duration::ZERO));
        }
        assert_eq!(retries, 1000 + FLOOR);
    }

    #[test]
    fn a_quiet_gateway_may_retry_five_calls_and_one_more_each_second() {
        let budget = RetryBudget::default();
        let taken = |at| (0..100).filter(|_| budget.withdraw(Duration::from_secs(at))).count();
        assert_eq!(taken(100), 5);
        assert_eq!(taken(100), 0);
        assert_eq!(taken(102), 2);
        assert_eq!(taken(1_000_000), 5, "no more is saved");
    }

    #[test]
    fn at_most_fifty_retries_are_saved() {
        let budget = RetryBudget::default();
        (0..1_000_000).for_each(|_| budget.deposit());
        let taken = (0..1000).filter(|_| budget.withdraw(Duration::ZERO)).count();
        assert_eq!(taken, 55);
    }
}
