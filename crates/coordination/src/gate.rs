//! The gate for grants: open while the store has room and its clock is not fast. Outcomes, renewals and releases always
//! pass.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::Determinate;

use super::identity::two_stores;
use super::time::GAIN_MAX;

/// Looks at the clock that are kept, and the time between two: together ten minutes.
const LOOKS: usize = 60;
const BETWEEN_LOOKS: Duration = Duration::from_secs(10);

/// Reasons of this gateway to refuse grants.
pub struct Gate {
    /// Name of the server, for messages.
    engine: &'static str,
    /// The key of the URL that sets the bound, for messages.
    bound: &'static str,
    bytes_used: AtomicU64,
    bytes_max: AtomicU64,
    /// The alarm that the server has raised because its room is used up.
    alarm: AtomicBool,
    is_clock_fast: AtomicBool,
    /// Members in use have different data.
    are_two_stores: AtomicBool,
    looks: Mutex<VecDeque<Look>>,
}

/// The clock at a monotonic time.
#[derive(Clone, Copy)]
struct Look {
    clock: Timestamp,
    /// Time at which the request was sent that has shown it.
    sent_at: Duration,
}

impl Gate {
    /// Creates a gate that is open. `bound` is the key of the URL that sets how much room is used.
    pub fn new(engine: &'static str, bound: &'static str) -> Self {
        Self {
            engine,
            bound,
            bytes_used: AtomicU64::new(0),
            bytes_max: AtomicU64::new(u64::MAX),
            alarm: AtomicBool::new(false),
            is_clock_fast: AtomicBool::new(false),
            are_two_stores: AtomicBool::new(false),
            looks: Mutex::default(),
        }
    }

    /// Returns why nothing is granted now.
    pub fn refusal(&self) -> Option<Determinate> {
        if self.are_two_stores.load(Ordering::Relaxed) {
            return Some(two_stores());
        }
        if self.is_clock_fast() {
            let why = format!(
                "the clock in {} is faster than this gateway's: one of the machines of gateways has a wrong clock",
                self.engine
            );
            return Some(Determinate::Paused(why));
        }
        if self.alarm.load(Ordering::Relaxed) {
            let why = format!(
                "{} has raised an alarm, since its room is used up; make room, and disarm the alarm",
                self.engine
            );
            return Some(Determinate::Full(why));
        }
        let (used, max) = (self.bytes_used.load(Ordering::Relaxed), self.bytes_max.load(Ordering::Relaxed));
        let mib = |bytes: u64| bytes >> 20;
        (used >= max).then(|| {
            let (engine, bound) = (self.engine, self.bound);
            Determinate::Full(format!("{engine} uses {} MiB, and grants end at {} MiB ({bound})", mib(used), mib(max)))
        })
    }

    /// Records how many bytes a member uses, and at how many grants end.
    pub fn report_size(&self, used: u64, max: u64) {
        self.bytes_max.store(max, Ordering::Relaxed);
        self.bytes_used.store(used, Ordering::Relaxed);
    }

    /// Records whether the server has raised an alarm because its room is used up. It may go on writing all the same.
    pub fn report_alarm(&self, is_raised: bool) {
        self.alarm.store(is_raised, Ordering::Relaxed);
    }

    /// Returns whether the server has raised that alarm.
    pub fn has_alarm(&self) -> bool {
        self.alarm.load(Ordering::Relaxed)
    }

    /// Records whether members in use have different data.
    pub(crate) fn report_two_stores(&self, are_two: bool) {
        self.are_two_stores.store(are_two, Ordering::Relaxed);
    }

    /// Returns whether the clock gains more than it may, by this gateway's own clock.
    pub fn is_clock_fast(&self) -> bool {
        self.is_clock_fast.load(Ordering::Relaxed)
    }

    /// Compares the clock with its values of up to ten minutes ago. A request, sent and answered at these monotonic
    /// times, has shown the clock.
    pub fn compare_clocks(&self, clock: Timestamp, sent_at: Duration, answered_at: Duration) {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let may_gain = |passed: Duration| passed + GAIN_MAX + passed / 1000;
        let is_fast = |look: &Look| clock.since(look.clock) > may_gain(answered_at.saturating_sub(look.sent_at));
        let is_clock_fast = looks.iter().any(is_fast);
        if is_clock_fast != self.is_clock_fast.swap(is_clock_fast, Ordering::Relaxed) {
            if is_clock_fast {
                tracing::error!(
                    engine = self.engine,
                    "The store's clock is faster than this gateway's. Nothing is granted until it is not any more"
                );
            } else {
                tracing::info!(engine = self.engine, "The store's clock is not faster than this gateway's any more");
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
    pub fn forget_clock(&self) {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.is_clock_fast.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);

    #[test]
    fn nothing_is_granted_from_the_bound_on() {
        let gate = Gate::new("etcd", "grant_until");
        assert_eq!(gate.refusal(), None, "no member has reported a size");
        for (used, is_granted) in [(799 << 20, true), (800 << 20, false), (0, true)] {
            gate.report_size(used, 800 << 20);
            assert_eq!(gate.refusal().is_none(), is_granted, "{used}");
        }
        gate.report_size(900 << 20, 800 << 20);
        let Some(Determinate::Full(why)) = gate.refusal() else { panic!("it is full") };
        assert_eq!(why, "etcd uses 900 MiB, and grants end at 800 MiB (grant_until)");
        gate.report_size(0, 800 << 20);
        gate.report_alarm(true);
        assert!(matches!(gate.refusal(), Some(Determinate::Full(why)) if why.contains("disarm the alarm")));
        gate.report_alarm(false);
        assert_eq!(gate.refusal(), None);
    }

    #[test]
    fn a_clock_that_gains_more_than_it_may_stops_grants_until_that_is_ten_minutes_ago() {
        let gate = Gate::new("etcd", "grant_until");
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
        let gate = Gate::new("etcd", "grant_until");
        for second in 0..1000 {
            gate.compare_clocks(Timestamp::from_micros(1 << 50).plus(SEC * second / 2), SEC * second, SEC * second);
        }
        assert!(!gate.is_clock_fast());
    }
}
