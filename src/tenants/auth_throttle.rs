//! Callers that prove nothing: counted, and past a rate no process needs, made to wait for their answer. A valid
//! credential is never refused or delayed because others failed, and nothing here grows with what an attacker sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::clock::Clock;

/// How many failures at once are answered without a delay.
const BURST: u32 = 500;

/// How often one more may follow, in the long run.
const INTERVAL: Duration = Duration::from_millis(10);

/// How long an answer beyond that is held back.
const DELAY: Duration = Duration::from_secs(1);

/// How many answers are held back at a time. More are answered at once: keeping them would cost more than it slows down
/// an attacker, who cannot guess a secret at any rate.
const DELAYED_MAX: usize = 256;

/// How often the log may tell of failures.
const LOGGED_EVERY: Duration = Duration::from_secs(10);

/// What one process remembers of all failures: a bucket, a count, and who waits.
pub struct AuthThrottle {
    clock: Arc<dyn Clock>,
    /// The log line about failures.
    message: &'static str,
    /// When, in monotonic nanoseconds, the bucket is full again. The further ahead, the emptier it is.
    full_at: AtomicU64,
    delayed: Arc<Semaphore>,
    /// Failures that the log has not told of.
    untold: AtomicU64,
    /// When the log may tell of failures again, in monotonic nanoseconds.
    tell_at: AtomicU64,
}

/// What is to be done with a failure's answer.
#[derive(Debug)]
pub enum Penalty {
    /// It goes out as it is.
    None,
    /// There were too many: it goes out after this time, and its connection is closed. The place is to be kept until then.
    Delay(Duration, OwnedSemaphorePermit),
    /// There were too many, and too many of them wait: it goes out, and its connection is closed.
    Close,
}

impl AuthThrottle {
    /// A throttle without failures so far. `message` is its line in the log.
    pub fn new(clock: Arc<dyn Clock>, message: &'static str) -> Self {
        let delayed = Arc::new(Semaphore::new(DELAYED_MAX));
        let (full_at, untold, tell_at) = Default::default();
        Self { clock, message, full_at, delayed, untold, tell_at }
    }

    /// A caller has proved nothing.
    pub fn failed(&self) -> Penalty {
        let now = nanos(self.clock.monotonic());
        self.tell(now);
        let (interval, burst) = (nanos(INTERVAL), u64::from(BURST));
        let take = |full_at: u64| {
            let full_at = full_at.max(now) + interval;
            (full_at <= now + interval * burst).then_some(full_at)
        };
        if self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            return Penalty::None;
        }
        match self.delayed.clone().try_acquire_owned() {
            Ok(place) => Penalty::Delay(DELAY, place),
            Err(_) => Penalty::Close,
        }
    }

    /// Tells the log of failures, now and then. Of none of them it tells who: whatever they sent may be a secret.
    fn tell(&self, now: u64) {
        self.untold.fetch_add(1, Ordering::Relaxed);
        let due = |tell_at: u64| (tell_at <= now).then(|| now + nanos(LOGGED_EVERY));
        if self.tell_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok() {
            let failures = self.untold.swap(0, Ordering::Relaxed);
            tracing::warn!(failures, "{}", self.message);
        }
    }
}

/// Whole nanoseconds: enough for centuries of monotonic time.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::clock::{ManualClock, Timestamp};

    fn throttle() -> (Arc<ManualClock>, AuthThrottle) {
        let clock = Arc::new(ManualClock::at(Timestamp::default()));
        (clock.clone(), AuthThrottle::new(clock, "failures"))
    }

    /// How many of so many failures in a row are answered as they are.
    fn answered(throttle: &AuthThrottle, failures: usize) -> usize {
        (0..failures).filter(|_| matches!(throttle.failed(), Penalty::None)).count()
    }

    #[test]
    fn a_burst_is_answered_and_after_it_the_rate() {
        let (clock, throttle) = throttle();
        let burst = BURST as usize;
        assert_eq!(answered(&throttle, 2 * burst), burst);
        clock.advance(INTERVAL * 3);
        assert_eq!(answered(&throttle, burst), 3);
        clock.advance(Duration::from_hours(1));
        assert_eq!(answered(&throttle, 2 * burst), burst);
    }

    #[test]
    fn many_failures_are_one_line_of_the_log() {
        let (clock, throttle) = throttle();
        let untold = || throttle.untold.load(Ordering::Relaxed);
        answered(&throttle, 100);
        assert_eq!(untold(), 99);
        clock.advance(LOGGED_EVERY);
        answered(&throttle, 1);
        assert_eq!(untold(), 0);
    }

    #[test]
    fn no_more_wait_than_there_are_places() {
        let (_clock, throttle) = throttle();
        answered(&throttle, BURST as usize);
        let mut waiting: Vec<_> = (0..DELAYED_MAX).map(|_| throttle.failed()).collect();
        assert!(waiting.iter().all(|verdict| matches!(verdict, Penalty::Delay(DELAY, _))));
        assert!(matches!(throttle.failed(), Penalty::Close));
        waiting.pop();
        assert!(matches!(throttle.failed(), Penalty::Delay(..)));
    }
}
