//! The state of a lock after a call to the store, and the present time of the store that follows from it.

use std::time::Duration;

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{EngineError, RecordView, SharedRecord};
use oncegate_core::lock::{LockRecord, LockState};

/// A lock as the store held it.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) record: LockRecord,
    pub(super) stored: Option<SharedRecord>,
    /// The store's instant,
    pub(super) now: Timestamp,
    /// how much it gains on real time,
    pub(super) clock_gain: Duration,
    /// and when it was known, by this gateway's monotonic clock.
    pub(super) at: Duration,
    /// Start of the call that returned it.
    pub(super) sent_at: Duration,
    /// True if it was read after the requests of this round had arrived.
    pub(super) is_fresh: bool,
    /// True if it was read where holds may be granted again.
    pub(super) may_repeat_grants: bool,
}

impl Known {
    /// Returns the lock of a view. The call was sent and answered at these monotonic times.
    pub(super) fn of(view: RecordView, sent_at: Duration, at: Duration) -> Result<Self, EngineError> {
        let RecordView { record: stored, now, clock_gain } = view;
        let record = stored.as_ref().map(|stored| LockRecord::decode(stored.value())).transpose()?;
        let record = record.unwrap_or_default();
        Ok(Self { record, stored, now, clock_gain, at, sent_at, is_fresh: true, may_repeat_grants: false })
    }

    /// Returns the lock at this monotonic time, for requests.
    pub(super) fn state(&self, monotonic: Duration) -> LockState {
        let state = LockState::at(self.record.clone(), self.earliest_now(monotonic));
        let latest = self.latest_now(monotonic);
        // Unless the store's clock may gain, leases begin now: a caller subtracts the time of its call.
        let state = if self.clock_gain.is_zero() { state } else { state.with_leases_from(latest) };
        state.with_turns_from(latest)
    }

    /// Returns a lower bound of the store's now: its clock may run a little slower than ours. The store checks it.
    fn earliest_now(&self, monotonic: Duration) -> Timestamp {
        if self.is_fresh {
            return self.now;
        }
        let passed = monotonic.saturating_sub(self.at);
        self.now.plus(passed.saturating_sub(passed / 500).saturating_sub(self.clock_gain))
    }

    /// Returns an upper bound of the store's now.
    fn latest_now(&self, monotonic: Duration) -> Timestamp {
        self.now.plus(monotonic.saturating_sub(self.sent_at) + self.clock_gain)
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::attempt::Attempt;
    use oncegate_core::lock::{AcquireRequest, AcquireResponse, LockMode, ShortHash};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn known(clock_gain: Duration, is_fresh: bool) -> Known {
        let view = RecordView { record: None, now: Timestamp::from_micros(1_000_000), clock_gain };
        Known { is_fresh, ..Known::of(view, 10 * MS, 20 * MS).unwrap() }
    }

    fn ms(instant: Timestamp) -> u64 {
        instant.as_micros() / 1000
    }

    #[test]
    fn a_clock_that_runs_by_itself_is_followed_and_leases_begin_now() {
        let (fresh, kept) = (known(Duration::ZERO, true), known(Duration::ZERO, false));
        assert_eq!((ms(fresh.earliest_now(1020 * MS)), ms(fresh.latest_now(1020 * MS))), (1000, 2010));
        assert_eq!((ms(kept.earliest_now(1020 * MS)), ms(kept.latest_now(1020 * MS))), (1998, 2010));
        for known in [fresh, kept] {
            let lease = Duration::from_secs(30);
            let request = AcquireRequest {
                attempt: Attempt::new(known.now, "0123456789abcdef".parse().unwrap()),
                owner: ShortHash::of_owner(&"0123456789abcdef".parse().unwrap()),
                mode: LockMode::Exclusive,
                limit: None,
                caller: None,
                lease,
                fair: true,
            };
            let AcquireResponse::Granted(grant) = known.state(1020 * MS).acquire(&request) else {
                panic!("it is free")
            };
            assert_eq!(grant.ends_at, known.earliest_now(1020 * MS).plus(lease));
        }
    }

    #[test]
    fn a_clock_that_may_gain_is_taken_to_be_late_for_ends_and_early_for_new_leases() {
        let (fresh, kept) = (known(500 * MS, true), known(500 * MS, false));
        assert_eq!((ms(fresh.earliest_now(30 * MS)), ms(fresh.latest_now(30 * MS))), (1000, 1520));
        assert_eq!(
            (ms(kept.earliest_now(30 * MS)), ms(kept.latest_now(30 * MS))),
            (1000, 1520),
            "never before it was read"
        );
        assert_eq!((ms(kept.earliest_now(1020 * MS)), ms(kept.latest_now(1020 * MS))), (1498, 2510));
        assert_eq!(kept.state(1020 * MS).now(), kept.earliest_now(1020 * MS));
    }
}
