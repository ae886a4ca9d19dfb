//! Bytes of the responses that an app keeps for repeats, as this process has stored them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Parts of a retention. The ends of responses in one part are counted together, which keeps the counts small.
const PARTS: u32 = 256;

/// Share of the limit that errors of clients have: one part of these.
const CLIENT_ERROR_PARTS: u64 = 4;

/// Kind of a stored response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResponseKind {
    /// An error of the client, which a stranger can cause at will.
    ClientError,
    /// Any other.
    Other,
}

/// Stored responses until the end of their retention.
#[derive(Debug, Default)]
pub(super) struct StoredResponses(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: Count,
    client_errors: Count,
}

#[derive(Debug, Default)]
struct Count {
    /// Bytes of all stored responses.
    total: u64,
    /// Bytes by the monotonic time at which their retention ends. Responses without an end count in `total` only.
    ends: BTreeMap<Duration, u64>,
}

impl StoredResponses {
    /// Counts a response, unless all of its kind would then be more than their share of `limit`. Returns whether it was counted.
    ///
    /// `retention` is `None` if the response has no end. `now` is monotonic.
    pub(super) fn add(
        &self,
        kind: ResponseKind,
        bytes: u64,
        limit: u64,
        retention: Option<Duration>,
        now: Duration,
    ) -> bool {
        let Counts { all, client_errors } = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_error = kind == ResponseKind::ClientError;
        let has_room = all.has_room(bytes, limit, now)
            && (!is_error || client_errors.has_room(bytes, limit / CLIENT_ERROR_PARTS, now));
        if has_room {
            all.add(bytes, retention, now);
            if is_error {
                client_errors.add(bytes, retention, now);
            }
        }
        has_room
    }

    /// Returns the bytes of all responses whose retention has not ended. `now` is monotonic.
    pub(super) fn total(&self, now: Duration) -> u64 {
        let Counts { all, .. } = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.drop_ended(now);
        all.total
    }
}

impl Count {
    /// Removes the responses whose retention has ended.
    fn drop_ended(&mut self, now: Duration) {
        let kept = self.ends.split_off(&now);
        let ended: u64 = std::mem::replace(&mut self.ends, kept).values().sum();
        self.total -= ended;
    }

    /// Reports whether this many bytes fit within the limit together with those that are still kept.
    fn has_room(&mut self, bytes: u64, limit: u64, now: Duration) -> bool {
        self.drop_ended(now);
        self.total.checked_add(bytes).is_some_and(|total| total <= limit)
    }

    fn add(&mut self, bytes: u64, retention: Option<Duration>, now: Duration) {
        self.total += bytes;
        if let Some(retention) = retention {
            *self.ends.entry(rounded_up(now.saturating_add(retention), retention / PARTS)).or_default() += bytes;
        }
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
    use super::ResponseKind::{ClientError, Other};
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    #[test]
    fn responses_count_until_the_end_of_their_retention() {
        let stored = StoredResponses::default();
        assert!(stored.add(Other, 60, 100, Some(DAY), Duration::ZERO));
        assert!(!stored.add(Other, 41, 100, Some(DAY), DAY / 2), "more than the limit");
        assert!(stored.add(Other, 40, 100, None, DAY / 2), "what is refused is not counted");
        assert!(!stored.add(Other, 1, 100, Some(DAY), DAY / 4 * 3));
        assert!(stored.add(Other, 60, 100, Some(DAY), DAY + DAY / 128), "the first one has ended");
        assert!(!stored.add(Other, 1, 100, Some(DAY), DAY + DAY / 64), "60 bytes, and one without an end");
        assert!(stored.add(Other, 60, 100, Some(DAY), 4 * DAY));
        assert_eq!(stored.total(4 * DAY), 100);
        assert!(!stored.add(Other, 61, 100, Some(DAY), 9 * DAY), "one has no end");
        assert_eq!(stored.total(9 * DAY), 40);
    }

    #[test]
    fn errors_of_clients_use_a_quarter_at_most_and_the_rest_uses_all() {
        let stored = StoredResponses::default();
        assert!(stored.add(ClientError, 20, 100, Some(DAY), Duration::ZERO));
        assert!(!stored.add(ClientError, 6, 100, Some(DAY), Duration::ZERO));
        assert!(stored.add(Other, 80, 100, Some(DAY), DAY / 2), "what is refused is not counted");
        assert!(!stored.add(ClientError, 1, 100, Some(DAY), DAY / 2), "they are part of all");
        assert!(stored.add(ClientError, 20, 100, Some(DAY), DAY + DAY / 64), "the first have ended");
    }

    #[test]
    fn counts_of_many_responses_stay_small() {
        let stored = StoredResponses::default();
        for second in 0..200_000 {
            assert!(stored.add(Other, 1, u64::MAX, Some(DAY), Duration::from_secs(second)));
        }
        assert!(stored.0.lock().unwrap().all.ends.len() <= PARTS as usize + 2);
    }
}
