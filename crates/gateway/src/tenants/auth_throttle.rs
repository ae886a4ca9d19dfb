//! Counts requests without a valid credential and, above a rate that no correct caller needs, delays their answers. A
//! valid credential is never refused or delayed because others failed, and memory does not grow with an attacker's
//! requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use oncegate_core::clock::Clock;
use oncegate_core::rate_limiter::{Allowance, RateLimiter};

/// Failures that are answered at once, after a quiet time.
const BURST: u32 = 500;

/// Interval at which one more failure is answered at once, in the long run.
const INTERVAL: Duration = Duration::from_millis(10);

/// Delay of each answer above that rate.
const DELAY: Duration = Duration::from_secs(1);

/// Answers that are delayed at the same time. Further answers are sent at once: to keep them would cost the gateway
/// more than it would slow down an attacker. A secret cannot be guessed at any rate.
const DELAYED_MAX: usize = 256;

/// Shortest time between two log lines about failures.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Throttle of one listener.
pub struct AuthThrottle {
    clock: Arc<dyn Clock>,
    /// Log message about failures.
    message: &'static str,
    answers: RateLimiter,
    log_lines: RateLimiter,
    delayed: Arc<Semaphore>,
    /// Failures since the last log line.
    unlogged: AtomicU64,
}

/// Treatment of a failure's answer.
#[derive(Debug)]
pub enum Penalty {
    /// Send it at once.
    None,
    /// Send it after this time and close the connection. Hold the permit until then.
    Delay(Duration, OwnedSemaphorePermit),
    /// Send it at once and close the connection: too many answers are delayed already.
    Close,
}

impl AuthThrottle {
    /// Returns a throttle without failures so far. `message` is its log message.
    pub fn new(clock: Arc<dyn Clock>, message: &'static str) -> Self {
        let delayed = Arc::new(Semaphore::new(DELAYED_MAX));
        let (answers, log_lines, unlogged) = Default::default();
        Self { clock, message, answers, log_lines, delayed, unlogged }
    }

    /// Counts a request without a valid credential.
    pub fn failed(&self) -> Penalty {
        let now = self.clock.monotonic();
        self.log(now);
        if self.answers.charge(INTERVAL, Allowance::burst(INTERVAL * BURST), now).is_ok() {
            return Penalty::None;
        }
        match self.delayed.clone().try_acquire_owned() {
            Ok(permit) => Penalty::Delay(DELAY, permit),
            Err(_) => Penalty::Close,
        }
    }

    /// Logs the number of failures, but nothing that was sent: it may be a secret.
    fn log(&self, now: Duration) {
        self.unlogged.fetch_add(1, Ordering::Relaxed);
        if self.log_lines.charge(LOG_INTERVAL, Allowance::burst(LOG_INTERVAL), now).is_ok() {
            let failures = self.unlogged.swap(0, Ordering::Relaxed);
            tracing::warn!(failures, "{}", self.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::clock::{ManualClock, Timestamp};

    use super::*;

    fn throttle() -> (Arc<ManualClock>, AuthThrottle) {
        let clock = Arc::new(ManualClock::at(Timestamp::default()));
        (clock.clone(), AuthThrottle::new(clock, "failures"))
    }

    /// Returns how many of these failures are answered without a penalty.
    fn answered(throttle: &AuthThrottle, failures: usize) -> usize {
        (0..failures).filter(|_| matches!(throttle.failed(), Penalty::None)).count()
    }

    #[test]
    fn a_burst_is_answered_at_once_and_then_the_rate() {
        let (clock, throttle) = throttle();
        let burst = BURST as usize;
        assert_eq!(answered(&throttle, 2 * burst), burst);
        clock.advance(INTERVAL * 3);
        assert_eq!(answered(&throttle, burst), 3);
        clock.advance(Duration::from_hours(1));
        assert_eq!(answered(&throttle, 2 * burst), burst);
    }

    #[test]
    fn many_failures_write_one_log_line() {
        let (clock, throttle) = throttle();
        let unlogged = || throttle.unlogged.load(Ordering::Relaxed);
        answered(&throttle, 100);
        assert_eq!(unlogged(), 99);
        clock.advance(LOG_INTERVAL);
        answered(&throttle, 1);
        assert_eq!(unlogged(), 0);
    }

    #[test]
    fn the_number_of_delayed_answers_is_bounded() {
        let (_clock, throttle) = throttle();
        answered(&throttle, BURST as usize);
        let mut waiting: Vec<_> = (0..DELAYED_MAX).map(|_| throttle.failed()).collect();
        assert!(waiting.iter().all(|verdict| matches!(verdict, Penalty::Delay(DELAY, _))));
        assert!(matches!(throttle.failed(), Penalty::Close));
        waiting.pop();
        assert!(matches!(throttle.failed(), Penalty::Delay(..)));
    }
}
