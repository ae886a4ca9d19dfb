//! Measurements: latencies per step, and counts of each answer.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use hdrhistogram::Histogram;

use crate::client::CallError;

/// A minute, in microseconds: longer than any call.
const LONGEST_US: u64 = 60_000_000;

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Label {
    /// A response of the contract.
    Status(u16),
    /// A refusal, with its code.
    Refused(u16, &'static str),
    Unanswered(CallError),
    /// Not sent: the run had ended.
    Unsent,
}

impl Label {
    pub(crate) fn is_answer(self) -> bool {
        matches!(self, Self::Status(_))
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{status}"),
            Self::Refused(status, code) => write!(f, "{status} {code}"),
            Self::Unanswered(why) => why.fmt(f),
            Self::Unsent => f.write_str("not sent in time"),
        }
    }
}

/// Running totals, including the warm-up; the difference of two describes the time between.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) operations: u64,
    pub(crate) requests: u64,
    pub(crate) claims: u64,
    pub(crate) refused: u64,
}

/// Latencies and answers of everything that was due in the measured time.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) totals: Totals,
    pub(crate) latencies: BTreeMap<&'static str, Histogram<u64>>,
    pub(crate) answers: BTreeMap<(&'static str, Label), u64>,
}

/// Shared by all connections, which run on one thread, so the lock is never contended.
#[derive(Debug)]
pub(crate) struct Recorder {
    measured_from: Instant,
    recorded: Mutex<Recorded>,
}

impl Recorder {
    pub(crate) fn new(measured_from: Instant) -> Self {
        let recorded = Recorded { totals: Totals::default(), latencies: BTreeMap::new(), answers: BTreeMap::new() };
        Self { measured_from, recorded: Mutex::new(recorded) }
    }

    /// Records a request for `claims` claims (0 for other requests) that was due at `due` and has ended now.
    pub(crate) fn ended(&self, step: &'static str, label: Label, due: Instant, claims: u64) {
        let mut recorded = self.recorded();
        match label {
            Label::Status(_) => {
                recorded.totals.requests += 1;
                recorded.totals.claims += claims;
            }
            Label::Refused(..) | Label::Unanswered(_) | Label::Unsent => recorded.totals.refused += 1,
        }
        if due < self.measured_from {
            return;
        }
        *recorded.answers.entry((step, label)).or_default() += 1;
        // A refusal is quick and would improve the latencies; a timeout counts, since its caller has waited.
        if !matches!(label, Label::Refused(..)) {
            let waited_us = u64::try_from(due.elapsed().as_micros()).unwrap_or(LONGEST_US);
            recorded.latencies.entry(step).or_insert_with(empty).saturating_record(waited_us);
        }
    }

    pub(crate) fn operation_done(&self) {
        self.recorded().totals.operations += 1;
    }

    pub(crate) fn totals(&self) -> Totals {
        self.recorded().totals
    }

    /// Returns the 99th percentile over all steps so far, in microseconds.
    pub(crate) fn slowest_p99_us(&self) -> u64 {
        self.recorded().latencies.values().map(|it| it.value_at_quantile(0.99)).max().unwrap_or_default()
    }

    pub(crate) fn read<T>(&self, reader: impl FnOnce(&Recorded) -> T) -> T {
        reader(&self.recorded())
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_US, 3).expect("the bounds are constants that fit")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_warm_up_counts_in_the_totals_but_not_in_the_latencies() {
        let now = Instant::now();
        let recorder = Recorder::new(now);
        recorder.ended("claim", Label::Status(201), now.checked_sub(Duration::from_secs(1)).expect("too early"), 1);
        recorder.ended("claim", Label::Status(201), now, 1);
        assert_eq!(recorder.totals().requests, 2);
        assert_eq!(recorder.read(|it| it.latencies["claim"].len()), 1);
    }

    #[test]
    fn refusals_are_not_in_the_latencies_and_timeouts_are() {
        let now = Instant::now();
        let recorder = Recorder::new(now);
        recorder.ended("claim", Label::Refused(503, "overloaded"), now, 1);
        assert!(recorder.read(|it| it.latencies.is_empty()));
        recorder.ended("claim", Label::Unanswered(CallError::TimedOut), now, 1);
        assert_eq!(recorder.read(|it| it.latencies["claim"].len()), 1);
        assert_eq!(recorder.totals().refused, 2);
    }
}
