//! The newest outages that the breakers of an engine have seen, for operators.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::breaker::BreakerState;
use serde::Serialize;

/// Changes that are kept for a shard, and shown of an engine.
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

/// The newest changes of a shard.
#[derive(Default)]
pub(super) struct Changes(Mutex<VecDeque<BreakerChange>>);

impl Changes {
    /// Keeps a change. The trials of an outage are part of it, and no changes: a breaker that opens again after one was open all the time.
    pub(super) fn add(&self, change: BreakerChange) {
        if change.state == BreakerState::HalfOpen {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.front().map_or(BreakerState::Closed, |earlier| earlier.state) == change.state {
            return;
        }
        kept.truncate(KEPT - 1);
        let reason = change.reason.map(|reason| reason[..reason.floor_char_boundary(REASON_MAX)].to_owned());
        kept.push_front(BreakerChange { reason, ..change });
    }

    fn all(&self) -> Vec<BreakerChange> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Returns the newest changes of all shards, the newest first.
pub(super) fn newest<'a>(shards: impl Iterator<Item = &'a Changes>) -> Vec<BreakerChange> {
    let mut all: Vec<_> = shards.flat_map(Changes::all).collect();
    all.sort_by_key(|change| Reverse(change.at));
    all.truncate(KEPT);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(second: u64, shard: u16, state: BreakerState) -> BreakerChange {
        let reason = (state == BreakerState::Open).then(|| "é".repeat(REASON_MAX));
        BreakerChange { at: Timestamp::from_micros(second * 1_000_000), shard: Some(shard), state, reason }
    }

    fn seen(shards: &[Changes]) -> Vec<(u64, Option<u16>, BreakerState)> {
        let newest = newest(shards.iter());
        newest.iter().map(|change| (change.at.as_micros() / 1_000_000, change.shard, change.state)).collect()
    }

    #[test]
    fn an_outage_is_two_changes_however_many_trials_it_has() {
        let shards = [Changes::default(), Changes::default()];
        shards[0].add(change(1, 0, BreakerState::Closed));
        assert_eq!(seen(&shards), [], "closed from the start");
        for second in [2, 4, 6] {
            shards[0].add(change(second, 0, BreakerState::Open));
            shards[0].add(change(second + 1, 0, BreakerState::HalfOpen));
        }
        shards[1].add(change(7, 1, BreakerState::Open));
        shards[0].add(change(8, 0, BreakerState::Closed));
        let expected =
            [(8, Some(0), BreakerState::Closed), (7, Some(1), BreakerState::Open), (2, Some(0), BreakerState::Open)];
        assert_eq!(seen(&shards), expected);
        assert_eq!(newest(shards.iter())[1].reason.as_ref().map(String::len), Some(REASON_MAX));
    }

    /// A shard that is out does not open again because others have pushed out its change.
    #[test]
    fn the_newest_are_kept_and_each_shard_knows_its_own_state() {
        let shards: [_; 40] = std::array::from_fn(|_| Changes::default());
        for round in 0..2 {
            for (number, shard) in (0..40_u16).zip(&shards) {
                shard.add(change(u64::from(number) + 40 * round, number, BreakerState::Open));
            }
        }
        let seen = seen(&shards);
        let ends = (seen.len(), seen[0].0, seen[KEPT - 1].0);
        assert_eq!(ends, (KEPT, 39, 24));
    }
}
