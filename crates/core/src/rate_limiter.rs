//! A rate limiter with a burst (the generic cell rate algorithm). Its state is one instant: when everything charged so
//! far will be paid for at the configured rate. No timer, no lock, eight bytes.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// State of one limited rate. Charges are expressed as the time that the rate takes for them.
#[derive(Debug, Default)]
pub struct RateLimiter(AtomicU64);

/// Bounds of the debt that a charge may leave.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// Largest debt after the charge.
    pub debt_max: Duration,
    /// While the debt is no larger than this, a charge of any size passes.
    pub always_below: Duration,
}

impl Allowance {
    /// Returns the allowance of a plain rate with this burst. A charge larger than the burst passes when nothing is
    /// owed; otherwise it could never pass.
    pub fn burst(burst: Duration) -> Self {
        Self { debt_max: burst, always_below: Duration::ZERO }
    }
}

/// Returns the time for so many units at a rate. Rounds up, so that many small amounts never exceed the rate.
pub fn cost(units: u64, rate: NonZeroU32) -> Duration {
    let nanos = (u128::from(units) * 1_000_000_000).div_ceil(u128::from(rate.get()));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Returns how many units a rate yields in this time.
pub fn units(time: Duration, rate: NonZeroU32) -> u64 {
    let units = time.as_nanos().saturating_mul(rate.get().into()) / 1_000_000_000;
    u64::try_from(units).unwrap_or(u64::MAX)
}

impl RateLimiter {
    /// Charges `cost` if the allowance permits it. `now` is an instant of one monotonic clock.
    ///
    /// # Errors
    /// The time until the charge would pass; nothing was charged.
    pub fn charge(&self, cost: Duration, allowance: Allowance, now: Duration) -> Result<(), Duration> {
        let (cost, now) = (nanos(cost), nanos(now));
        let (debt_max, always_below) = (nanos(allowance.debt_max), nanos(allowance.always_below));
        let mut wait = 0;
        let charged = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid_at| {
            let debt = paid_at.saturating_sub(now);
            let after = debt.saturating_add(cost);
            if after <= debt_max || debt <= always_below {
                return Some(paid_at.max(now).saturating_add(cost));
            }
            wait = (after - debt_max).min(debt - always_below);
            None
        });
        charged.map(drop).map_err(|_| Duration::from_nanos(wait))
    }

    /// Takes back a charge of `cost`.
    pub fn refund(&self, cost: Duration) {
        let refund = |paid_at: u64| Some(paid_at.saturating_sub(nanos(cost)));
        let _always = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, refund);
    }

    /// Returns the debt.
    pub fn debt(&self, now: Duration) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed).saturating_sub(nanos(now)))
    }

    /// Clears the debt.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Whole nanoseconds: more than five hundred years of them.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::clock::{Clock, ManualClock, Timestamp};

    fn rate(units: u32) -> NonZeroU32 {
        NonZeroU32::new(units).unwrap()
    }

    #[test]
    fn a_burst_passes_at_once_and_then_as_fast_as_the_rate() {
        let clock = ManualClock::at(Timestamp::default());
        let (limiter, rate) = (RateLimiter::default(), rate(10));
        let allowance = Allowance::burst(Duration::from_secs(1));
        let charge = || limiter.charge(cost(1, rate), allowance, clock.monotonic());
        assert_eq!((0..20).filter(|_| charge().is_ok()).count(), 10);
        assert_eq!(charge(), Err(Duration::from_millis(100)));
        for _ in 0..50 {
            clock.advance(Duration::from_millis(99));
            assert_eq!(charge(), Err(Duration::from_millis(1)));
            clock.advance(Duration::from_millis(1));
            assert_eq!(charge(), Ok(()));
        }
        clock.advance(Duration::from_hours(1));
        assert_eq!((0..20).filter(|_| charge().is_ok()).count(), 10, "savings are bounded by the burst");
    }

    #[test]
    fn a_charge_larger_than_the_burst_passes_when_nothing_is_owed_and_is_paid_for_afterwards() {
        let clock = ManualClock::at(Timestamp::default());
        let (limiter, rate) = (RateLimiter::default(), rate(100));
        let allowance = Allowance::burst(Duration::from_secs(1));
        let charge = |units| limiter.charge(cost(units, rate), allowance, clock.monotonic());
        assert_eq!(charge(1000), Ok(()));
        assert_eq!(charge(1), Err(Duration::from_millis(9_010)));
        assert_eq!(charge(1000), Err(Duration::from_secs(10)));
        clock.advance(Duration::from_secs(10));
        assert_eq!(charge(1000), Ok(()));
    }

    #[test]
    fn a_debt_below_the_guaranteed_part_passes_and_the_wait_is_until_the_debt_is_that_small() {
        let clock = ManualClock::at(Timestamp::default());
        let (limiter, rate) = (RateLimiter::default(), rate(100));
        let allowance = Allowance { debt_max: Duration::from_secs(1), always_below: Duration::from_millis(500) };
        let charge = |units| limiter.charge(cost(units, rate), allowance, clock.monotonic());
        assert_eq!(charge(90), Ok(()));
        assert_eq!(charge(1000), Err(Duration::from_millis(400)), "then half a second is owed");
        clock.advance(Duration::from_millis(400));
        assert_eq!(charge(1000), Ok(()));
    }

    proptest! {
        #[test]
        fn no_window_admits_more_than_the_rate_and_one_burst(
            per_second in 1_u32..5_000,
            burst_ms in 1_u64..5_000,
            steps in prop::collection::vec((0_u64..200, 1_u64..50), 1..400),
        ) {
            let clock = ManualClock::at(Timestamp::default());
            let (rate, burst) = (rate(per_second), Duration::from_millis(burst_ms));
            let limiter = RateLimiter::default();
            let mut charged: Vec<(Duration, u64)> = Vec::new();
            for (pause_ms, units) in steps {
                clock.advance(Duration::from_millis(pause_ms));
                if limiter.charge(cost(units, rate), Allowance::burst(burst), clock.monotonic()).is_ok() {
                    charged.push((clock.monotonic(), units));
                }
            }
            prop_assert!(!charged.is_empty(), "the first one always passes");
            let largest = charged.iter().map(|(_, units)| *units).max().unwrap_or_default();
            for (place, (from, _)) in charged.iter().enumerate() {
                let mut sum = 0;
                for (until, units) in &charged[place..] {
                    sum += units;
                    let window = until.saturating_sub(*from);
                    let most = super::units(window.saturating_add(burst), rate).max(super::units(window, rate) + largest);
                    prop_assert!(sum <= most, "{sum} in {window:?}, at most {most}");
                }
            }
        }

        #[test]
        fn a_charge_passes_after_the_returned_wait(
            per_second in 1_u32..1_000_000,
            burst_ms in 1_u64..5_000,
            units in prop::collection::vec(1_u64..100_000, 1..50),
        ) {
            let clock = ManualClock::at(Timestamp::default());
            let (limiter, rate) = (RateLimiter::default(), rate(per_second));
            let allowance = Allowance::burst(Duration::from_millis(burst_ms));
            for units in units {
                if let Err(wait) = limiter.charge(cost(units, rate), allowance, clock.monotonic()) {
                    // The clock counts microseconds.
                    clock.advance(wait + Duration::from_micros(1));
                    prop_assert_eq!(limiter.charge(cost(units, rate), allowance, clock.monotonic()), Ok(()));
                }
            }
        }

        #[test]
        fn a_caller_that_keeps_to_the_rate_is_never_refused(per_second in 1_u32..1_000, burst_ms in 1_u64..2_000) {
            let clock = ManualClock::at(Timestamp::default());
            let (limiter, rate) = (RateLimiter::default(), rate(per_second));
            let allowance = Allowance::burst(Duration::from_millis(burst_ms));
            for _ in 0..200 {
                prop_assert_eq!(limiter.charge(cost(1, rate), allowance, clock.monotonic()), Ok(()));
                clock.advance(cost(1, rate) + Duration::from_micros(1));
            }
        }

        #[test]
        fn nothing_overflows(units: u64, rate in 1_u32.., now: u64, most: u64, below: u64) {
            let (rate, now) = (self::rate(rate), Duration::from_nanos(now));
            let allowance = Allowance { debt_max: Duration::from_nanos(most), always_below: Duration::from_nanos(below) };
            let limiter = RateLimiter::default();
            for _ in 0..3 {
                let _either = limiter.charge(cost(units, rate), allowance, now);
                limiter.refund(cost(units, rate));
                let _debt = super::units(limiter.debt(Duration::ZERO), rate);
            }
        }
    }

    #[test]
    fn a_refund_can_be_charged_again_and_no_more() {
        let clock = ManualClock::at(Timestamp::default());
        let (limiter, rate) = (RateLimiter::default(), rate(10));
        let allowance = Allowance::burst(Duration::from_secs(1));
        let charged =
            || (0..50).filter(|_| limiter.charge(cost(1, rate), allowance, clock.monotonic()).is_ok()).count();
        assert_eq!(charged(), 10);
        limiter.refund(cost(4, rate));
        assert_eq!(charged(), 4);
        clock.advance(Duration::from_hours(1));
        limiter.refund(cost(4, rate));
        assert_eq!(charged(), 10);
    }

    #[test]
    fn threads_together_are_limited_like_one() {
        let limiter = Arc::new(RateLimiter::default());
        let (rate, allowance) = (rate(1_000), Allowance::burst(Duration::from_secs(1)));
        let charge = |now| limiter.charge(cost(1, rate), allowance, now).is_ok();
        for second in 0..20 {
            let now = Duration::from_secs(second);
            let charged: usize = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..4).map(|_| scope.spawn(|| (0..1_000).filter(|_| charge(now)).count())).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(charged, 1_000, "in second {second}");
        }
    }
}
