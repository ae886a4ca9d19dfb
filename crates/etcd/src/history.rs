//! What one gateway has seen of the history of the store: which revisions are old, and when a warning is due.

use std::collections::VecDeque;
use std::time::Duration;

/// History that is older than this is expected to be compacted.
const AGE_EXPECTED: Duration = Duration::from_mins(10);

/// Time between two warnings.
const BETWEEN_WARNINGS: Duration = Duration::from_hours(1);

/// Revisions that are remembered, over the age of the history that is kept.
const SAMPLES: u32 = 10;

/// What one gateway has seen of the history.
pub(super) struct History {
    /// History of at least this age is compacted, or is expected to be.
    pub(super) age: Duration,
    samples: VecDeque<Sample>,
    /// The next look at the history, by this gateway's monotonic clock.
    next: Duration,
    warned_at: Option<Duration>,
}

/// A revision of the store, and a time at which it was the newest or an older one.
#[derive(Clone, Copy)]
struct Sample {
    revision: i64,
    seen_at: Duration,
}

impl History {
    /// Returns the state of a gateway that has seen nothing yet. History of this age is compacted, or is expected to be.
    pub(super) fn new(age: Option<Duration>) -> Self {
        Self { age: age.unwrap_or(AGE_EXPECTED), samples: VecDeque::new(), next: Duration::ZERO, warned_at: None }
    }

    /// Records a revision. Returns the newest one that is old enough, if a look at the history is due.
    pub(super) fn due(&mut self, now: Duration, revision: i64) -> Option<i64> {
        let is_old = |sample: &Sample| now.saturating_sub(sample.seen_at) >= self.age;
        while self.samples.get(1).is_some_and(is_old) {
            self.samples.pop_front();
        }
        // The data were lost. What was seen before means nothing any more.
        self.samples.retain(|sample| sample.revision <= revision);
        if self.samples.back().is_none_or(|last| now.saturating_sub(last.seen_at) >= self.age / SAMPLES) {
            self.samples.push_back(Sample { revision, seen_at: now });
        }
        let oldest = *self.samples.front()?;
        if now < self.next || now.saturating_sub(oldest.seen_at) < self.age {
            return None;
        }
        self.next = now + self.age / 4;
        Some(oldest.revision)
    }

    /// Returns whether a warning is due, and records that it is given.
    pub(super) fn is_warning_due(&mut self, now: Duration) -> bool {
        let is_due = self.warned_at.is_none_or(|last| now.saturating_sub(last) >= BETWEEN_WARNINGS);
        if is_due {
            self.warned_at = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);

    #[test]
    fn the_newest_revision_that_is_old_enough_is_compacted_and_no_newer_one() {
        let mut history = History::new(Some(SEC * 60));
        let mut compacted = Vec::new();
        for second in 0..200 {
            let now = SEC * second;
            // A revision is the number of the second in which it was the newest.
            if let Some(old) = history.due(now, second.into()) {
                let age = i64::from(second) - old;
                assert!((60..70).contains(&age), "at {second}: {old}");
                compacted.push(second);
            }
        }
        assert!(compacted.first().is_some_and(|first| *first >= 60), "{compacted:?}");
        assert!((8..=10).contains(&compacted.len()), "each quarter of the age: {compacted:?}");
    }

    #[test]
    fn revisions_of_lost_data_are_forgotten() {
        let mut history = History::new(Some(SEC * 60));
        assert_eq!(history.due(SEC, 1000), None);
        assert_eq!(history.due(SEC * 59, 7), None);
        assert_eq!(history.due(SEC * 100, 8), None, "revision 7 was seen 41 s ago");
        assert_eq!(history.due(SEC * 120, 9), Some(7));
    }

    #[test]
    fn a_warning_is_given_once_an_hour() {
        let mut history = History::new(None);
        let minutes = (0..200).filter(|minute| history.is_warning_due(SEC * 60 * *minute));
        assert_eq!(minutes.collect::<Vec<_>>(), [0, 60, 120, 180]);
    }
}
