//! When a gateway gives way to others. A caller that requests a lock again as soon as it has released it is served by its own gateway
//! within one call to the store. Another gateway learns of the release by a notification and needs two calls, so it would never be in time.

use std::time::Duration;

use oncegate_core::lock::{LockRecord, TICKET_LEASE};
use tokio::time::sleep;

use super::super::actions::Pending;
use super::super::known::Known;
use super::Queue;

/// Calls to the store for which the lock stays free: one for the notification, and two for the change.
const CALLS: u32 = 3;

/// Longest time for which it stays free.
const LONGEST: Duration = Duration::from_millis(20);

/// Grants in a row after which this gateway gives way though no other one has changed the lock: a request there may have found no gap.
const GRANTS_MAX: u32 = 32;

/// A quicker store needs no gap: others get in between while this gateway talks to its caller.
const QUICK_CALL: Duration = Duration::from_micros(300);

/// Turns of this gateway and of others at a lock, as far as it has seen them.
#[derive(Default)]
pub(super) struct Turns {
    /// Last refusal of a change, by the monotonic clock: another gateway had changed the lock.
    refused_at: Option<Duration>,
    /// Own changes since then that freed the lock.
    freed_in_a_row: u32,
    /// Duration of the last call that changed the lock.
    call: Duration,
}

impl Turns {
    /// Notes a refused change.
    pub(super) fn refused(&mut self, now: Duration) {
        (self.refused_at, self.freed_in_a_row) = (Some(now), 0);
    }

    /// Notes a change that was stored by a call of this length.
    pub(super) fn stored(&mut self, record: &LockRecord, sent_at: Duration, at: Duration) {
        self.call = at.saturating_sub(sent_at);
        self.freed_in_a_row += u32::from(record.holds.is_empty());
    }

    /// Returns the end of the time for which a lock that this gateway has freed stays free for others.
    fn free_until(&mut self, freed_at: Duration) -> Option<Duration> {
        let is_shared = self.refused_at.is_some_and(|at| freed_at < at + TICKET_LEASE);
        let is_due = self.freed_in_a_row >= GRANTS_MAX && self.call >= QUICK_CALL;
        if is_due {
            self.freed_in_a_row = 0;
        }
        (is_shared || is_due).then(|| freed_at + (self.call * CALLS).min(LONGEST))
    }
}

impl Queue {
    /// Lets new requests wait, so that another gateway can get a lock that this one has just freed.
    pub(super) async fn give_way(&self, known: Option<&Known>, batch: &[Pending]) {
        let Some(known) = known.filter(|known| known.record.holds.is_empty()) else { return };
        if batch.iter().all(|pending| pending.action.is_acquisition()) {
            let free_until = self.inbox().turns.free_until(known.at).unwrap_or_default();
            let pause = free_until.saturating_sub(self.clock.monotonic());
            if !pause.is_zero() {
                sleep(pause).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_lock_that_others_use_stays_free_for_three_calls() {
        let mut turns = Turns::default();
        turns.stored(&LockRecord::default(), 10 * MS, 12 * MS);
        assert_eq!(turns.free_until(12 * MS), None, "no other gateway uses it");
        turns.refused(13 * MS);
        turns.stored(&LockRecord::default(), 14 * MS, 16 * MS);
        assert_eq!(turns.free_until(16 * MS), Some(22 * MS));
        turns.stored(&LockRecord::default(), 100 * MS, 200 * MS);
        assert_eq!(turns.free_until(200 * MS), Some(220 * MS), "a slow store delays a request only briefly");
        assert_eq!(turns.free_until(13 * MS + TICKET_LEASE), None);
    }

    #[test]
    fn a_lock_that_only_this_gateway_uses_stays_free_now_and_then() {
        let gaps = |call: Duration| {
            let mut turns = Turns::default();
            let mut gaps = 0;
            for number in 0..10 * GRANTS_MAX {
                let at = 10 * MS * number;
                turns.stored(&LockRecord::default(), at, at + call);
                gaps += u32::from(turns.free_until(at + call).is_some());
            }
            gaps
        };
        assert_eq!((gaps(MS), gaps(QUICK_CALL / 2)), (10, 0));
    }
}
