//! Results of the measurements as they come: targets, figures without a target, and what failed. Also the statistics of times.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::{goals::Goal, report, trial::Bench};

/// Longer times count as this one: a minute.
const LONGEST_NS: u64 = 60_000_000_000;

/// Results so far.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(super) targets: Vec<Goal>,
    pub(super) notes: Vec<String>,
}

impl Taken {
    pub(super) fn new(targets: Vec<Goal>, note: String) -> Self {
        Self { targets, notes: vec![note] }
    }

    /// Adds the results of a measurement, or leaves it out.
    pub(super) fn add(&mut self, bench: &mut Bench, what: &str, taken: anyhow::Result<Self>) {
        match taken {
            Ok(taken) => {
                taken.notes.iter().for_each(|note| report::say(note));
                self.targets.extend(taken.targets);
                self.notes.extend(taken.notes);
            }
            Err(error) => {
                bench.sound = false;
                bench.leave_out(format!("{what}: {error:#}"));
            }
        }
    }
}

/// Times of one kind of call.
#[derive(Debug)]
pub(super) struct Times(Histogram<u64>);

impl Times {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self(Histogram::new_with_max(LONGEST_NS, 3)?))
    }

    pub(super) fn add(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the time, in milliseconds, that this share of the calls took at most.
    pub(super) fn ms(&self, share: f64) -> f64 {
        report::ratio(self.0.value_at_quantile(share), 1_000_000)
    }
}
