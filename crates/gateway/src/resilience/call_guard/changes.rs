//! The newest outages that the breakers of an engine have seen, for operators.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::breaker::BreakerState;
use serde::Serialize;

/// Changes that are kept for an engine.
const KEPT: usize = 16;

/// Longest reason, in bytes.
const REASON_MAX: usize = 256;

/// A breaker that opened, or closed again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct BreakerChange {
    /// Time of the change, by this gateway's clock.
    pub at: Timestamp,
    /// Number of the shard, where the store has several.
    pub shard: Option<u16>,
    /// Open or closed.
    pub state: BreakerState,
    /// Of one that opened, what the first call of those that were not answered says.
    pub reason: Option<String>,
}

/// The newest changes of an engine.
#[derive(Default)]
pub(super) struct Changes(Mutex<VecDeque<BreakerChange>>);

impl Changes {
    /// Keeps a change. The trials of an outage are part of it, and no changes: a breaker that opens again after one was open all the time.
    pub(super) fn add(&self, change: BreakerChange) {
        if change.state == BreakerState::HalfOpen {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = kept.iter().find(|earlier| earlier.shard == change.shard).map(|earlier| earlier.state);
        if before.unwrap_or(BreakerState::Closed) == change.state {
            return;
        }
        kept.truncate(KEPT - 1);
        let reason = change.reason.map(|reason| reason[..reason.floor_char_boundary(REASON_MAX)].to_owned());
        kept.push_front(BreakerChange { reason, ..change });
    }

    /// Returns the changes, the newest first.
    pub(super) fn newest(&self) -> Vec<BreakerChange> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_two_changes_however_many_trials_it_has() {
        let changes = Changes::default();
        let add = |second: u64, shard, state| {
            let reason = (state == BreakerState::Open).then(|| "é".repeat(REASON_MAX));
            changes.add(BreakerChange { at: Timestamp::from_micros(second * 1_000_000), shard, state, reason });
        };
        add(1, None, BreakerState::Closed);
        assert_eq!(changes.newest(), [], "closed from the start");
        for second in [2, 4, 6] {
            add(second, None, BreakerState::Open);
            add(second + 1, None, BreakerState::HalfOpen);
        }
        add(8, None, BreakerState::Closed);
        add(9, Some(3), BreakerState::Open);
        let seen = changes.newest();
        let seen: Vec<_> =
            seen.iter().map(|change| (change.at.as_micros() / 1_000_000, change.shard, change.state)).collect();
        assert_eq!(
            seen,
            [(9, Some(3), BreakerState::Open), (8, None, BreakerState::Closed), (2, None, BreakerState::Open)]
        );
        assert_eq!(changes.newest()[0].reason.as_ref().map(String::len), Some(REASON_MAX));
    }

    #[test]
    fn the_newest_are_kept() {
        let changes = Changes::default();
        for number in 0..100_u16 {
            let at = Timestamp::from_micros(u64::from(number));
            changes.add(BreakerChange { at, shard: Some(number), state: BreakerState::Open, reason: None });
        }
        let kept = changes.newest();
        assert_eq!((kept.len(), kept[0].shard, kept[KEPT - 1].shard), (KEPT, Some(99), Some(84)));
    }
}
