//! Bytes of the responses that an app keeps for repeats, as this process has stored them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Parts of a retention in which the ends of responses are counted together, so that the counts themselves stay small.
const PARTS: u32 = 256;

/// Stored responses until the end of their retention.
#[derive(Debug, Default)]
pub(super) struct StoredResponses(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Bytes of all that are still kept.
    total: u64,
    /// Bytes by the monotonic time at which they end. Those that are kept for ever are in `total` alone.
    ends: BTreeMap<Duration, u64>,
}

impl StoredResponses {
    /// Counts a response, unless all would then be more than `limit`. Returns whether it was counted.
    ///
    /// `retention` is `None` if it is kept for ever; `now` is monotonic.
    pub(super) fn add(&self, bytes: u64, limit: u64, retention: Option<Duration>, now: Duration) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = counts.ends.split_off(&now);
        let ended: u64 = std::mem::replace(&mut counts.ends, kept).values().sum();
        counts.total -= ended;
        let Some(total) = counts.total.checked_add(bytes).filter(|total| *total <= limit) else { return false };
        counts.total = total;
        if let Some(retention) = retention {
            *counts.ends.entry(rounded_up(now.saturating_add(retention), retention / PARTS)).or_default() += bytes;
        }
        true
    }
}

/// Returns the first multiple of `step` from `time` on.
fn rounded_up(time: Duration, step: Duration) -> Duration {
    let step = step.max(Duration::from_millis(1)).as_millis();
    let rounded = time.as_millis().div_ceil(step).saturating_mul(step);
    Duration::from_millis(u64::try_from(rounded).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    #[test]
    fn responses_count_until_the_end_of_their_retention() {
        let stored = StoredResponses::default();
        assert!(stored.add(60, 100, Some(DAY), Duration::ZERO));
        assert!(!stored.add(41, 100, Some(DAY), DAY / 2), "more than the limit");
        assert!(stored.add(40, 100, None, DAY / 2), "what is refused is not counted");
        assert!(!stored.add(1, 100, Some(DAY), DAY / 4 * 3));
        assert!(stored.add(60, 100, Some(DAY), DAY + DAY / 128), "the first one has ended");
        assert!(!stored.add(1, 100, Some(DAY), DAY + DAY / 64), "60 bytes, and one that is kept for ever");
        assert!(stored.add(60, 100, Some(DAY), 4 * DAY));
        assert!(!stored.add(61, 100, Some(DAY), 9 * DAY), "one is kept for ever");
    }

    #[test]
    fn counts_of_many_responses_stay_small() {
        let stored = StoredResponses::default();
        for second in 0..200_000 {
            assert!(stored.add(1, u64::MAX, Some(DAY), Duration::from_secs(second)));
        }
        assert!(stored.0.lock().unwrap().ends.len() <= PARTS as usize + 2);
    }
}
