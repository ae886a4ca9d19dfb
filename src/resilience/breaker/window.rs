//! What became of the calls of the last ten seconds, counted by the second. Approximate where two threads meet in a
//! second's first call, and without a lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::Verdict;

/// How many seconds are looked at.
const SECONDS: usize = 10;

/// Counts by the second, each second in the place of one that is too old.
#[derive(Debug, Default)]
pub(super) struct Window([Second; SECONDS]);

#[derive(Debug, Default)]
struct Second {
    /// Which second this is, plus one; 0 if none yet.
    number: AtomicU64,
    all: AtomicU32,
    slow: AtomicU32,
    failed: AtomicU32,
}

/// Calls, and what became of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counted {
    pub(super) all: u32,
    pub(super) slow: u32,
    pub(super) failed: u32,
}

impl Window {
    /// Counts a call.
    pub(super) fn count(&self, verdict: Verdict, now: Duration) {
        let number = now.as_secs() + 1;
        let second = &self.0[usize::try_from(number).unwrap_or(0) % SECONDS];
        let known = second.number.load(Ordering::Relaxed);
        if known != number
            && second.number.compare_exchange(known, number, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            second.clear();
        }
        second.all.fetch_add(1, Ordering::Relaxed);
        match verdict {
            Verdict::Answered => {}
            Verdict::Slow => drop(second.slow.fetch_add(1, Ordering::Relaxed)),
            Verdict::Failed => drop(second.failed.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// The calls of the last ten seconds.
    pub(super) fn sum(&self, now: Duration) -> Counted {
        let oldest = (now.as_secs() + 2).saturating_sub(SECONDS as u64).max(1);
        let recent = self.0.iter().filter(|second| second.number.load(Ordering::Relaxed) >= oldest);
        recent.fold(Counted::default(), |sum, second| Counted {
            all: sum.all.saturating_add(second.all.load(Ordering::Relaxed)),
            slow: sum.slow.saturating_add(second.slow.load(Ordering::Relaxed)),
            failed: sum.failed.saturating_add(second.failed.load(Ordering::Relaxed)),
        })
    }

    /// Forgets all calls.
    pub(super) fn clear(&self) {
        for second in &self.0 {
            second.clear();
        }
    }
}

impl Second {
    fn clear(&self) {
        self.all.store(0, Ordering::Relaxed);
        self.slow.store(0, Ordering::Relaxed);
        self.failed.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_forgotten_one_by_one() {
        let window = Window::default();
        for second in 0..30 {
            window.count(Verdict::Answered, Duration::from_secs(second));
            window.count(Verdict::Slow, Duration::from_secs(second));
            window.count(Verdict::Failed, Duration::from_secs(second));
            let seconds = u32::try_from(second + 1).unwrap().min(10);
            let counted = Counted { all: 3 * seconds, slow: seconds, failed: seconds };
            assert_eq!(window.sum(Duration::from_secs(second)), counted, "{second}");
        }
        assert_eq!(window.sum(Duration::from_secs(38)), Counted { all: 3, slow: 1, failed: 1 });
        assert_eq!(window.sum(Duration::from_secs(39)), Counted::default());
        window.count(Verdict::Answered, Duration::from_secs(40));
        window.clear();
        assert_eq!(window.sum(Duration::from_secs(40)), Counted::default());
    }
}
