//! Counts of the calls of the last ten seconds, by the second. Approximate where two threads meet in the first call of a
//! second, and without a lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::CallResult;

const SECONDS: usize = 10;

/// The last seconds. Each replaces one that is too old.
#[derive(Debug, Default)]
pub(super) struct Window([Second; SECONDS]);

#[derive(Debug, Default)]
struct Second {
    /// Number of the second, plus one; 0 if it counts nothing.
    number: AtomicU64,
    /// Calls by [`CallResult`].
    calls: [AtomicU32; 3],
}

/// Calls by result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    pub(super) all: u64,
    pub(super) slow: u64,
    pub(super) failed: u64,
}

impl Window {
    /// Counts a call.
    pub(super) fn count(&self, result: CallResult, now: Duration) {
        let number = now.as_secs() + 1;
        let second = &self.0[usize::try_from(number).unwrap_or(0) % SECONDS];
        let old = second.number.load(Ordering::Relaxed);
        if old != number && second.number.compare_exchange(old, number, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            second.calls.iter().for_each(|calls| calls.store(0, Ordering::Relaxed));
        }
        second.calls[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts of the last ten seconds.
    pub(super) fn sum(&self, now: Duration) -> Counts {
        let oldest = (now.as_secs() + 2).saturating_sub(SECONDS as u64).max(1);
        let recent = self.0.iter().filter(|second| second.number.load(Ordering::Relaxed) >= oldest);
        recent.fold(Counts::default(), |sum, second| {
            let calls = second.calls.each_ref().map(|calls| u64::from(calls.load(Ordering::Relaxed)));
            let [answered, slow, failed] = calls;
            Counts { all: sum.all + answered + slow + failed, slow: sum.slow + slow, failed: sum.failed + failed }
        })
    }

    /// Discards all counts.
    pub(super) fn clear(&self) {
        self.0.iter().for_each(|second| second.number.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_discarded_one_by_one() {
        let window = Window::default();
        for second in 0..30 {
            window.count(CallResult::Answered, Duration::from_secs(second));
            window.count(CallResult::Slow, Duration::from_secs(second));
            window.count(CallResult::Failed, Duration::from_secs(second));
            let seconds = (second + 1).min(10);
            let counts = Counts { all: 3 * seconds, slow: seconds, failed: seconds };
            assert_eq!(window.sum(Duration::from_secs(second)), counts, "{second}");
        }
        assert_eq!(window.sum(Duration::from_secs(38)), Counts { all: 3, slow: 1, failed: 1 });
        assert_eq!(window.sum(Duration::from_secs(39)), Counts::default());
        window.count(CallResult::Answered, Duration::from_secs(40));
        window.clear();
        assert_eq!(window.sum(Duration::from_secs(40)), Counts::default());
    }
}
