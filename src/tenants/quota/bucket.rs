//! A rate with a burst, as one number: the instant by which all that was drawn is paid for, if it is paid for as fast as
//! the rate allows (the generic cell rate algorithm). No timer, no lock, eight bytes.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What is drawn of one rate. Every draw is counted in the time that the rate takes for it.
#[derive(Debug, Default)]
pub struct Bucket(AtomicU64);

/// How much may be owed.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// With what is drawn now.
    pub most: Duration,
    /// As long as no more than this is owed, anything may be drawn, however large.
    pub always_below: Duration,
}

/// The time that a rate takes for so many units. At least what it really takes, so that no rounding adds up to more.
pub fn cost(units: u64, rate: NonZeroU32) -> Duration {
    let nanos = (u128::from(units) * 1_000_000_000).div_ceil(u128::from(rate.get()));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// How many units a rate makes in this time.
pub fn units(time: Duration, rate: NonZeroU32) -> u64 {
    let units = time.as_nanos().saturating_mul(rate.get().into()) / 1_000_000_000;
    u64::try_from(units).unwrap_or(u64::MAX)
}

impl Bucket {
    /// Draws `cost` if there is room for it.
    ///
    /// # Errors
    /// How long until there would be; nothing was drawn.
    pub fn draw(&self, cost: Duration, room: Room, now: Duration) -> Result<(), Duration> {
        let (cost, now) = (nanos(cost), nanos(now));
        let (most, always_below) = (nanos(room.most), nanos(room.always_below));
        let mut wait = 0;
        let drawn = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid_at| {
            let owed = paid_at.saturating_sub(now);
            let after = owed.saturating_add(cost);
            if after <= most || owed <= always_below {
                return Some(paid_at.max(now).saturating_add(cost));
            }
            wait = (after - most).min(owed - always_below);
            None
        });
        drawn.map(drop).map_err(|_| Duration::from_nanos(wait))
    }

    /// Gives back `cost`, which was drawn before.
    pub fn give_back(&self, cost: Duration) {
        let give_back = |paid_at: u64| Some(paid_at.saturating_sub(nanos(cost)));
        let _always = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give_back);
    }

    /// What is owed.
    pub fn owed(&self, now: Duration) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed).saturating_sub(nanos(now)))
    }

    /// Forgets what is owed.
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
    use crate::domain::clock::{Clock, ManualClock, Timestamp};

    fn rate(units: u32) -> NonZeroU32 {
        NonZeroU32::new(units).unwrap()
    }

    fn room(burst: Duration) -> Room {
        Room { most: burst, always_below: Duration::ZERO }
    }

    #[test]
    fn a_burst_passes_at_once_and_then_as_fast_as_the_rate() {
        let clock = ManualClock::at(Timestamp::default());
        let (bucket, rate, room) = (Bucket::default(), rate(10), room(Duration::from_secs(1)));
        let draw = || bucket.draw(cost(1, rate), room, clock.monotonic());
        assert_eq!((0..20).filter(|_| draw().is_ok()).count(), 10);
        assert_eq!(draw(), Err(Duration::from_millis(100)));
        for _ in 0..50 {
            clock.advance(Duration::from_millis(99));
            assert_eq!(draw(), Err(Duration::from_millis(1)));
            clock.advance(Duration::from_millis(1));
            assert_eq!(draw(), Ok(()));
        }
        clock.advance(Duration::from_hours(1));
        assert_eq!((0..20).filter(|_| draw().is_ok()).count(), 10, "what is saved up is bounded");
    }

    #[test]
    fn what_is_larger_than_the_burst_passes_when_nothing_is_owed_and_is_paid_for_after() {
        let clock = ManualClock::at(Timestamp::default());
        let (bucket, rate, room) = (Bucket::default(), rate(100), room(Duration::from_secs(1)));
        let draw = |units| bucket.draw(cost(units, rate), room, clock.monotonic());
        assert_eq!(draw(1000), Ok(()));
        assert_eq!(draw(1), Err(Duration::from_millis(9_010)));
        assert_eq!(draw(1000), Err(Duration::from_secs(10)));
        clock.advance(Duration::from_secs(10));
        assert_eq!(draw(1000), Ok(()));
    }

    proptest! {
        #[test]
        fn never_more_than_the_rate_and_one_burst_in_any_window(
            per_second in 1_u32..5_000,
            burst_ms in 1_u64..5_000,
            steps in prop::collection::vec((0_u64..200, 1_u64..50), 1..400),
        ) {
            let clock = ManualClock::at(Timestamp::default());
            let (rate, burst) = (rate(per_second), Duration::from_millis(burst_ms));
            let bucket = Bucket::default();
            let mut drawn: Vec<(Duration, u64)> = Vec::new();
            for (pause_ms, units) in steps {
                clock.advance(Duration::from_millis(pause_ms));
                if bucket.draw(cost(units, rate), room(burst), clock.monotonic()).is_ok() {
                    drawn.push((clock.monotonic(), units));
                }
            }
            prop_assert!(!drawn.is_empty(), "the first one always passes");
            let largest = drawn.iter().map(|(_, units)| *units).max().unwrap_or_default();
            for (place, (from, _)) in drawn.iter().enumerate() {
                let mut sum = 0;
                for (until, units) in &drawn[place..] {
                    sum += units;
                    let window = until.saturating_sub(*from);
                    let most = super::units(window.saturating_add(burst), rate).max(super::units(window, rate) + largest);
                    prop_assert!(sum <= most, "{sum} in {window:?}, at most {most}");
                }
            }
        }

        #[test]
        fn who_waits_as_told_gets_through(
            per_second in 1_u32..1_000_000,
            burst_ms in 1_u64..5_000,
            units in prop::collection::vec(1_u64..100_000, 1..50),
        ) {
            let clock = ManualClock::at(Timestamp::default());
            let (bucket, rate, room) = (Bucket::default(), rate(per_second), room(Duration::from_millis(burst_ms)));
            for units in units {
                if let Err(wait) = bucket.draw(cost(units, rate), room, clock.monotonic()) {
                    // The clock counts microseconds.
                    clock.advance(wait + Duration::from_micros(1));
                    prop_assert_eq!(bucket.draw(cost(units, rate), room, clock.monotonic()), Ok(()));
                }
            }
        }

        #[test]
        fn a_rate_that_is_kept_to_is_never_refused(per_second in 1_u32..1_000, burst_ms in 1_u64..2_000) {
            let clock = ManualClock::at(Timestamp::default());
            let (bucket, rate, room) = (Bucket::default(), rate(per_second), room(Duration::from_millis(burst_ms)));
            for _ in 0..200 {
                prop_assert_eq!(bucket.draw(cost(1, rate), room, clock.monotonic()), Ok(()));
                clock.advance(cost(1, rate) + Duration::from_micros(1));
            }
        }

        #[test]
        fn nothing_overflows(units: u64, rate in 1_u32.., now: u64, most: u64, below: u64) {
            let (rate, now) = (self::rate(rate), Duration::from_nanos(now));
            let room = Room { most: Duration::from_nanos(most), always_below: Duration::from_nanos(below) };
            let bucket = Bucket::default();
            for _ in 0..3 {
                let _either = bucket.draw(cost(units, rate), room, now);
                bucket.give_back(cost(units, rate));
                let _owed = super::units(bucket.owed(Duration::ZERO), rate);
            }
        }
    }

    #[test]
    fn what_is_given_back_can_be_drawn_again_and_no_more() {
        let clock = ManualClock::at(Timestamp::default());
        let (bucket, rate, room) = (Bucket::default(), rate(10), room(Duration::from_secs(1)));
        let drawn = || (0..50).filter(|_| bucket.draw(cost(1, rate), room, clock.monotonic()).is_ok()).count();
        assert_eq!(drawn(), 10);
        bucket.give_back(cost(4, rate));
        assert_eq!(drawn(), 4);
        clock.advance(Duration::from_hours(1));
        bucket.give_back(cost(4, rate));
        assert_eq!(drawn(), 10);
    }

    #[test]
    fn threads_together_draw_no_more_than_one_would() {
        let bucket = Arc::new(Bucket::default());
        let (rate, room) = (rate(1_000), room(Duration::from_secs(1)));
        let draw = |now| bucket.draw(cost(1, rate), room, now).is_ok();
        for second in 0..20 {
            let now = Duration::from_secs(second);
            let drawn: usize = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..4).map(|_| scope.spawn(|| (0..1_000).filter(|_| draw(now)).count())).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(drawn, 1_000, "in second {second}");
        }
    }
}
