//! Refusals of calls by a store that answers: it is full, or must not be used.

use std::time::Duration;

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{Determinate, EngineError};
use serde::Serialize;

/// Time after which a refusal says nothing about the present. Longer than the pause between two probes: a store that must not be
/// used refuses these too.
const REFUSAL_LASTS: Duration = Duration::from_mins(1);

/// Shortest time between two log lines about refusals. Each refused call may have another reason.
const REFUSAL_LOG_PAUSE: Duration = Duration::from_secs(1);

/// Refusal of calls by a store that answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Refusal {
    /// Kind of the last one.
    pub kind: RefusalKind,
    /// Reason of the last one, for operators.
    pub reason: String,
    /// Time of the first one of this kind, with less than a minute between each and the next.
    pub since: Timestamp,
    /// Time of the last one.
    pub last_at: Timestamp,
    #[serde(skip)]
    logged_at: Timestamp,
}

/// Kind of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The store has no room for a new claim.
    Full,
    /// The store must not be used in its present state, or a record in it cannot be read.
    Incompatible,
}

impl Refusal {
    /// Returns the first refusal of its kind.
    pub fn new(kind: RefusalKind, reason: &str, at: Timestamp) -> Self {
        Self { kind, reason: reason.to_owned(), since: at, last_at: at, logged_at: at }
    }

    /// Returns the reason and kind of a failure, if the store refused the call for a reason that is no outage.
    pub(super) fn of(failure: &EngineError) -> Option<(RefusalKind, &str)> {
        match failure {
            EngineError::Determinate(Determinate::Full(reason)) => Some((RefusalKind::Full, reason)),
            EngineError::Determinate(Determinate::Incompatible(reason)) => Some((RefusalKind::Incompatible, reason)),
            EngineError::Determinate(Determinate::Unavailable(_) | Determinate::Paused(_))
            | EngineError::Indeterminate(_) => None,
        }
    }

    /// Returns the refusal that follows another one, and true if it is new for the log.
    pub(super) fn next(before: Option<&Self>, kind: RefusalKind, reason: &str, now: Timestamp) -> (Self, bool) {
        let same_kind = before.filter(|before| before.kind == kind && before.is_present(now));
        let is_new = same_kind.is_none_or(|before| before.reason != reason);
        let is_logged = is_new && before.is_none_or(|before| now.since(before.logged_at) >= REFUSAL_LOG_PAUSE);
        let refusal = Self {
            since: same_kind.map_or(now, |before| before.since),
            logged_at: before.filter(|_| !is_logged).map_or(now, |before| before.logged_at),
            ..Self::new(kind, reason, now)
        };
        (refusal, is_logged)
    }

    pub(super) fn is_present(&self, now: Timestamp) -> bool {
        now.since(self.last_at) < REFUSAL_LASTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_logged_once_for_its_reason_and_at_most_each_second() {
        let at = |ms: u64| Timestamp::from_micros(ms * 1000);
        let mut last: Option<Refusal> = None;
        let mut is_logged = |reason, ms| {
            let (next, is_logged) = Refusal::next(last.as_ref(), RefusalKind::Incompatible, reason, at(ms));
            last = Some(next);
            is_logged
        };
        assert!(is_logged("a", 1000));
        assert!(!is_logged("a", 5000), "the same");
        assert!(is_logged("b", 5001));
        assert!(!is_logged("c", 5002), "too soon");
        assert!(is_logged("b", 6001));
        assert!(!is_logged("b", 66_000));
        assert!(is_logged("b", 126_000), "a minute without any");
    }
}
