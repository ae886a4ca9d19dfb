//! Results of the rounds of a fault, as a row of a table.

use std::ops::Range;
use std::time::Duration;

use super::super::load::{Call, End, Ledger, Lost};
use super::{Row, STRUCK};

/// Longest time until the shard is back, once it can be.
const BACK: Duration = Duration::from_secs(1);
/// The same of one round, on a machine that may be busy.
const BACK_ONCE: Duration = Duration::from_secs(10);

/// Head of the table.
pub(super) const HEAD: &str = "| Row | Rounds | Granted | Claims lost | Outcomes lost | Granted twice | Refused, unknown | \
    Without an answer: median, most | Back after it could be: median, most | Other shards: errors | p99 before, during |\n\
    | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |";

#[derive(Default)]
pub(super) struct Counts {
    granted: usize,
    lost: Lost,
    /// Rounds in which something was lost or granted twice.
    rounds_with_loss: usize,
    doubled: usize,
    refused: usize,
    unknown: usize,
    /// Longest time of each round in which no call of the shard was answered.
    without: Vec<Duration>,
    /// Time of each round until the shard was back.
    back: Vec<Duration>,
    errors_of_others: usize,
    others_before: Vec<Duration>,
    others_during: Vec<Duration>,
    /// Writes to a former primary that had come back.
    pub(super) stale_writes: u64,
}

impl Counts {
    /// Adds a round.
    pub(super) fn add(&mut self, ledger: &Ledger, fault: Range<Duration>, ready: Duration) {
        let count = |end| ledger.calls.iter().filter(|call| call.end == end).count();
        self.granted += ledger.granted.len();
        self.doubled += ledger.doubled;
        self.refused += count(End::Refused);
        self.unknown += count(End::Unknown);

        let of_struck = ledger.calls.iter().filter(|call| call.shard == STRUCK && call.end == End::Answered);
        let mut answers: Vec<_> = of_struck.map(|call| call.ended).filter(|at| fault.start <= *at).collect();
        answers.sort_unstable();
        answers.insert(0, fault.start);
        let gaps = answers.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        self.without.push(gaps.max().unwrap_or_default());
        let first = answers.iter().find(|at| **at >= ready).expect("it came back");
        self.back.push(first.saturating_sub(ready));

        let others = || ledger.calls.iter().filter(|call| call.shard != STRUCK);
        self.errors_of_others += others().filter(|call| call.end != End::Answered).count();
        self.others_before.extend(others().filter(|call| call.started < fault.start).map(Call::took));
        self.others_during.extend(others().filter(|call| fault.contains(&call.started)).map(Call::took));
    }

    /// Adds the losses of a round.
    pub(super) fn lost(&mut self, lost: Lost) {
        self.lost.claims += lost.claims;
        self.lost.outcomes += lost.outcomes;
        self.rounds_with_loss += usize::from(lost != Lost::default());
    }

    /// Returns the row of the table.
    pub(super) fn row(&self, row: &Row) -> String {
        let spread = |times: &[Duration]| format!("{:.1?}, {:.1?}", at(times, 50), at(times, 100));
        // Behind Sentinels there are no other shards.
        let others = if row.sentinels {
            "– | –".to_owned()
        } else {
            format!(
                "{} | {:.1?}, {:.1?}",
                self.errors_of_others,
                at(&self.others_before, 99),
                at(&self.others_during, 99)
            )
        };
        format!(
            "| {} | {} | {} | {} | {} | {} | {}, {} | {} | {} | {others} |",
            row.name,
            self.back.len(),
            self.granted,
            self.lost.claims,
            self.lost.outcomes,
            self.doubled,
            self.refused,
            self.unknown,
            spread(&self.without),
            spread(&self.back),
        ) + &if self.stale_writes > 0 {
            format!(" {} writes to the former primary", self.stale_writes)
        } else {
            String::new()
        }
    }

    /// Returns the promises that were broken.
    pub(super) fn broken(&self, row: &Row) -> Vec<String> {
        let mut broken = Vec::new();
        let mut check = |holds: bool, what: &str| {
            if !holds {
                broken.push(format!("{}: {what}", row.name));
            }
        };
        check(!row.safe || (self.lost, self.doubled) == (Lost::default(), 0), "something acknowledged was lost");
        let back = if self.back.len() == 1 { BACK_ONCE } else { BACK };
        check(at(&self.back, 50) <= back, "the shard was not back in time");
        check(row.sentinels || self.errors_of_others == 0, "calls of other shards failed");
        check(self.stale_writes == 0, "the former primary was written to");
        check(row.fault != super::Fault::Reshard || self.refused + self.unknown == 0, "callers saw the slots move");
        broken
    }

    /// Panics if a promise was broken.
    pub(super) fn check(&self, row: &Row) {
        assert_eq!(self.broken(row), Vec::<String>::new(), "{}", self.row(row));
    }
}

/// A percentile.
fn at(times: &[Duration], percent: usize) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get((times.len() * percent / 100).min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}
