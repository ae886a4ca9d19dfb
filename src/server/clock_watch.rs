//! Detects steps of the host's wall clock: it then runs ahead of the monotonic clock, or behind it. No lease of the memory and disk
//! engines depends on it, but timestamps do, and so does a store on the same host.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::clock::{Clock, Timestamp, millis};
use oncegate_telemetry::metrics::clock::ClockMetrics;

/// Shortest step. Time daemons slew the clock by less than a millisecond a second.
const STEP_MIN: Duration = Duration::from_millis(250);

/// Longest time between the readings of both clocks. After a longer one they cannot be compared.
const READING_MAX: Duration = Duration::from_millis(20);

/// Watch of the wall clock.
pub(super) struct ClockWatch {
    clock: Arc<dyn Clock>,
    metrics: ClockMetrics,
    /// Both clocks, as they were read last.
    last: Option<(Timestamp, Duration)>,
}

/// A step of the wall clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Forward(Duration),
    Back(Duration),
}

impl ClockWatch {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, metrics: ClockMetrics::default(), last: None }
    }

    /// Counts and logs a step since the last check.
    pub(super) fn check(&mut self) {
        let Some(step) = self.step() else { return };
        let (direction, by) = match step {
            Step::Forward(by) => ("forward", by),
            Step::Back(by) => ("back", by),
        };
        self.metrics.stepped();
        tracing::warn!(
            direction,
            step_ms = millis(by),
            "The wall clock of this host was stepped, or the host was suspended. Timestamps before and after cannot be \
             compared, and a store on this host may end leases too early or too late. Check its time service"
        );
    }

    fn step(&mut self) -> Option<Step> {
        let before = self.clock.monotonic();
        let wall = self.clock.wall();
        if self.clock.monotonic().saturating_sub(before) > READING_MAX {
            return None;
        }
        let (last_wall, last) = self.last.replace((wall, before))?;
        let expected = last_wall.plus(before.saturating_sub(last));
        let (forward, back) = (wall.since(expected), expected.since(wall));
        if forward >= STEP_MIN {
            Some(Step::Forward(forward))
        } else if back >= STEP_MIN {
            Some(Step::Back(back))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::clock::ManualClock;
    use oncegate_telemetry::metrics::Metrics;

    use super::*;

    const NOON: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_step_is_found_once_in_either_direction_and_a_slew_is_none() {
        let clock = Arc::new(ManualClock::at(NOON));
        let mut watch = ClockWatch::new(clock.clone());
        assert_eq!(watch.step(), None, "nothing is known before");
        let mut after = |to: fn(Timestamp) -> Timestamp| {
            clock.advance(SECOND);
            clock.step_wall(to(clock.wall()));
            watch.step()
        };
        assert_eq!(after(|now| now), None);
        assert_eq!(after(|now| now.plus(Duration::from_hours(1))), Some(Step::Forward(Duration::from_hours(1))));
        assert_eq!(after(|now| now), None, "once");
        assert_eq!(after(|now| now.minus(Duration::from_hours(2))), Some(Step::Back(Duration::from_hours(2))));
        assert_eq!(after(|now| now.plus(STEP_MIN)), Some(Step::Forward(STEP_MIN)));
        for _ in 0..1000 {
            assert_eq!(after(|now| now.plus(Duration::from_millis(1))), None, "slewed");
        }
    }

    #[test]
    fn each_step_is_counted() {
        let metrics = Metrics::install();
        let clock = Arc::new(ManualClock::at(NOON));
        let mut watch = ClockWatch::new(clock.clone());
        for hours in [0, 1, 0, 2, 0] {
            clock.step_wall(clock.wall().plus(Duration::from_hours(hours)));
            watch.check();
        }
        let text = metrics.render();
        assert!(text.contains("\noncegate_clock_steps_total 2\n"), "{text}");
    }

    /// A clock whose readings take a second.
    struct Slow(ManualClock);

    impl Clock for Slow {
        fn wall(&self) -> Timestamp {
            self.0.advance(SECOND);
            self.0.wall()
        }

        fn monotonic(&self) -> Duration {
            self.0.monotonic()
        }
    }

    #[test]
    fn clocks_that_were_not_read_at_one_instant_are_not_compared() {
        let clock = Arc::new(Slow(ManualClock::at(NOON)));
        let mut watch = ClockWatch::new(clock.clone());
        for _ in 0..3 {
            assert_eq!(watch.step(), None);
            clock.0.step_wall(NOON);
        }
    }
}
