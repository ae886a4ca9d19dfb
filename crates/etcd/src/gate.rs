//! Whether grants are made now: etcd has room, and its clock is not fast. Outcomes, renewals and releases go on in any case.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::Determinate;

use super::proto::StatusResponse;
use super::time::GAIN_MAX;

/// Quota of an etcd that reports none, which is its default.
const QUOTA: u64 = 2 << 30;

/// Looks at the clock that are kept, and the time between two: together ten minutes.
const LOOKS: usize = 60;
const BETWEEN_LOOKS: Duration = Duration::from_secs(10);

/// What makes this gateway refuse grants.
pub(super) struct Gate {
    /// Grants end at this many bytes in use. `None`: 80 % of the quota.
    grant_until: Option<u64>,
    bytes_used: AtomicU64,
    bytes_max: AtomicU64,
    is_clock_fast: AtomicBool,
    looks: Mutex<VecDeque<Look>>,
}

/// The clock at a monotonic time.
#[derive(Clone, Copy)]
struct Look {
    clock: Timestamp,
    /// When the request was sent that has shown it.
    sent_at: Duration,
}

impl Gate {
    pub(super) fn new(grant_until: Option<u64>) -> Self {
        Self {
            grant_until,
            bytes_used: AtomicU64::new(0),
            bytes_max: AtomicU64::new(u64::MAX),
            is_clock_fast: AtomicBool::new(false),
            looks: Mutex::default(),
        }
    }

    /// Returns why nothing is granted now.
    pub(super) fn refusal(&self) -> Option<Determinate> {
        if self.is_clock_fast() {
            let why =
                "the clock in etcd is faster than this gateway's: one of the machines of gateways has a wrong clock";
            return Some(Determinate::Paused(why.into()));
        }
        let (used, max) = (self.bytes_used.load(Ordering::Relaxed), self.bytes_max.load(Ordering::Relaxed));
        let mib = |bytes: u64| bytes >> 20;
        (used >= max).then(|| {
            Determinate::Full(format!("etcd uses {} MiB, and grants end at {} MiB (grant_until)", mib(used), mib(max)))
        })
    }

    /// Records what a member reports of its size.
    pub(super) fn report_size(&self, status: &StatusResponse) {
        let bytes = |reported: i64| u64::try_from(reported).ok().filter(|bytes| *bytes > 0);
        let quota = bytes(status.db_size_quota).unwrap_or(QUOTA);
        self.bytes_max.store(self.grant_until.unwrap_or(quota / 5 * 4), Ordering::Relaxed);
        self.bytes_used.store(bytes(status.db_size_in_use).unwrap_or_default(), Ordering::Relaxed);
    }

    /// Returns whether the clock gains more than it may, by this gateway's own clock.
    pub(super) fn is_clock_fast(&self) -> bool {
        self.is_clock_fast.load(Ordering::Relaxed)
    }

    /// Compares the clock, as a request has shown it that was sent and answered at these monotonic times, with how it was up to ten
    /// minutes ago.
    pub(super) fn compare_clocks(&self, clock: Timestamp, sent_at: Duration, answered_at: Duration) {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let may_gain = |passed: Duration| passed + GAIN_MAX + passed / 1000;
        let is_fast = |look: &Look| clock.since(look.clock) > may_gain(answered_at.saturating_sub(look.sent_at));
        let is_clock_fast = looks.iter().any(is_fast);
        if is_clock_fast != self.is_clock_fast.swap(is_clock_fast, Ordering::Relaxed) {
            if is_clock_fast {
                tracing::error!(
                    "The clock in etcd is faster than this gateway's. Nothing is granted until it is not any more"
                );
            } else {
                tracing::info!("The clock in etcd is not faster than this gateway's any more");
            }
        }
        if looks.back().is_none_or(|last| sent_at >= last.sent_at + BETWEEN_LOOKS) {
            if looks.len() >= LOOKS {
                looks.pop_front();
            }
            looks.push_back(Look { clock, sent_at });
        }
    }

    /// Forgets how the clock was: the store came back without its data.
    pub(super) fn forget_clock(&self) {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.is_clock_fast.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);

    fn status(in_use: i64, quota: i64) -> StatusResponse {
        StatusResponse { db_size_in_use: in_use, db_size_quota: quota, ..StatusResponse::default() }
    }

    #[test]
    fn nothing_is_granted_from_four_fifths_of_the_quota_on_or_from_what_the_url_says() {
        let mib = 1 << 20;
        for (grant_until, quota, last_granted) in
            [(None, 0, 1638 * mib), (None, 1000 * mib, 799 * mib), (Some(64 << 20), 0, 63 * mib)]
        {
            let gate = Gate::new(grant_until);
            assert_eq!(gate.refusal(), None, "no member has reported a size");
            gate.report_size(&status(last_granted, quota));
            assert_eq!(gate.refusal(), None);
            gate.report_size(&status(last_granted + mib, quota));
            assert!(matches!(gate.refusal(), Some(Determinate::Full(_))));
            gate.report_size(&status(0, quota));
            assert_eq!(gate.refusal(), None);
        }
    }

    #[test]
    fn a_clock_that_gains_more_than_it_may_stops_grants_until_that_is_ten_minutes_ago() {
        let gate = Gate::new(None);
        let look = |own: Duration, gained: Duration| {
            gate.compare_clocks(Timestamp::from_micros(1 << 50).plus(own + gained), own, own);
            gate.is_clock_fast()
        };
        for second in 0..100 {
            assert!(!look(SEC * second, GAIN_MAX.mul_f64(f64::from(second % 2))), "it may be ahead by that");
        }
        assert!(look(SEC * 100, SEC));
        assert!(matches!(gate.refusal(), Some(Determinate::Paused(_))));
        for second in 101..750 {
            look(SEC * second, SEC);
        }
        assert!(!gate.is_clock_fast(), "it gains no more");
        // A clock that is late, and one in a thousand, are no reason.
        let gate = Gate::new(None);
        for second in 0..1000 {
            gate.compare_clocks(Timestamp::from_micros(1 << 50).plus(SEC * second / 2), SEC * second, SEC * second);
        }
        assert!(!gate.is_clock_fast());
    }
}
