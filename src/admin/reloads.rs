//! The last reload of the configuration, for operators.

use std::sync::{Mutex, PoisonError};

use crate::domain::clock::Timestamp;

/// The last reload of the configuration.
#[derive(Default)]
pub struct Reloads(Mutex<Option<Reload>>);

/// A reload of the configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reload {
    /// When it was tried.
    pub at: Timestamp,
    /// When reloads began to fail; `None` if this one was applied.
    pub failing_since: Option<Timestamp>,
}

impl Reloads {
    /// Keeps the result of a reload at this instant.
    pub fn reloaded(&self, at: Timestamp, is_applied: bool) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.as_ref().and_then(|last| last.failing_since);
        *last = Some(Reload { at, failing_since: (!is_applied).then(|| before.unwrap_or(at)) });
    }

    /// Returns the last reload; `None` before the first.
    pub fn last(&self) -> Option<Reload> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reloads_fail_since_the_first_failure_in_a_row() {
        let reloads = Reloads::default();
        assert_eq!(reloads.last(), None);
        let at = |second: u64| Timestamp::from_micros(second * 1_000_000);
        for (second, is_applied, since) in
            [(1, true, None), (2, false, Some(2)), (3, false, Some(2)), (4, true, None), (5, false, Some(5))]
        {
            reloads.reloaded(at(second), is_applied);
            assert_eq!(reloads.last(), Some(Reload { at: at(second), failing_since: since.map(at) }));
        }
    }
}
