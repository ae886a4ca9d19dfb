//! Record of the gateway's answers, and of the contradictions among them. All connections write to it; it sends
//! nothing.

use std::{
    collections::HashMap,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Orders of each kind that are claimed again after the run.
const SAMPLE: usize = 300;
/// Broken promises that are printed; all are counted.
const EXAMPLES: usize = 10;
/// Recent orders that a run repeats.
const RECENT: usize = 4096;

/// State of an order at the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// Claimed and never settled.
    Held,
    Succeeded,
    /// Claimed, then reported as failed.
    Released,
}

/// Key that many callers claim at once.
#[derive(Debug, Clone, Copy, Default)]
struct Contest {
    asked: u64,
    won: u64,
    /// Requests without a clear answer, which may have been granted.
    unclear: u64,
}

#[derive(Debug, Default)]
struct Sample {
    seen: u64,
    orders: Vec<u64>,
}

impl Sample {
    /// Adds an order to the sample. Every order has the same probability of being in it at the end.
    fn offer(&mut self, order: u64) {
        self.seen += 1;
        if self.orders.len() < SAMPLE {
            self.orders.push(order);
        } else if let Ok(place) = usize::try_from(rand::random_range(0..self.seen))
            && let Some(kept) = self.orders.get_mut(place)
        {
            *kept = order;
        }
    }
}

#[derive(Debug, Default)]
struct Entries {
    broken: u64,
    examples: Vec<String>,
    checked: u64,
    unchecked: u64,
    held: Sample,
    succeeded: Sample,
    released: Sample,
    recent: Vec<u64>,
    contests: HashMap<u64, Contest>,
}

/// Result of all checks.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub(crate) struct Checks {
    pub(crate) on: bool,
    /// Checks that passed.
    pub(crate) held: u64,
    pub(crate) broken: u64,
    /// Orders without a clear answer at the end.
    pub(crate) unchecked: u64,
    /// First broken promises.
    pub(crate) examples: Vec<String>,
}

/// Record of all answers.
#[derive(Debug)]
pub(crate) struct Ledger {
    on: bool,
    entries: Mutex<Entries>,
}

impl Ledger {
    pub(crate) fn new(on: bool) -> Self {
        Self { on, entries: Mutex::default() }
    }

    /// Counts a check. Calls `wrong` for the message only if it failed.
    pub(crate) fn check(&self, held: bool, wrong: impl FnOnce() -> String) {
        if !self.on {
            return;
        }
        let mut entries = self.entries();
        if held {
            entries.checked += 1;
            return;
        }
        entries.broken += 1;
        if entries.examples.len() < EXAMPLES {
            entries.examples.push(wrong());
        }
    }

    pub(crate) fn know(&self, order: u64, known: Known) {
        let mut entries = self.entries();
        match known {
            Known::Held => entries.held.offer(order),
            Known::Released => return entries.released.offer(order),
            Known::Succeeded => entries.succeeded.offer(order),
        }
        if entries.recent.len() < RECENT {
            entries.recent.push(order);
        } else {
            entries.recent[rand::random_range(0..RECENT)] = order;
        }
    }

    /// Returns one of the recently claimed orders, or of the settled ones if the scenario settles them.
    pub(crate) fn some_recent(&self) -> Option<u64> {
        let entries = self.entries();
        let last = entries.recent.len().checked_sub(1)?;
        Some(entries.recent[rand::random_range(0..=last)])
    }

    /// Records an answer in the contest for `order`; `None` if it was unclear.
    pub(crate) fn contested(&self, order: u64, won: Option<bool>) {
        let won_before = {
            let mut entries = self.entries();
            let contest = entries.contests.entry(order).or_default();
            let before = contest.won;
            contest.asked += 1;
            match won {
                Some(true) => contest.won += 1,
                Some(false) => {}
                None => contest.unclear += 1,
            }
            before
        };
        if won == Some(true) {
            self.check(won_before == 0, || format!("order {order}: granted again while another caller holds it (S1)"));
        }
    }

    /// Ends all contests: every key must have exactly one winner, unless an unclear answer may hide it.
    pub(crate) fn close_contests(&self) {
        let contests = mem::take(&mut self.entries().contests);
        for (order, Contest { asked, won, unclear }) in contests {
            self.check(won > 0 || unclear > 0, || {
                format!("order {order}: asked for {asked} times and never granted (S4)")
            });
        }
    }

    /// Returns the orders to claim again.
    pub(crate) fn samples(&self) -> Vec<(u64, Known)> {
        if !self.on {
            return Vec::new();
        }
        let entries = self.entries();
        let of = |sample: &Sample, known| sample.orders.iter().map(|order| (*order, known)).collect::<Vec<_>>();
        [
            of(&entries.held, Known::Held),
            of(&entries.succeeded, Known::Succeeded),
            of(&entries.released, Known::Released),
        ]
        .concat()
    }

    pub(crate) fn could_not_check(&self) {
        self.entries().unchecked += 1;
    }

    pub(crate) fn checks(&self) -> Checks {
        let entries = self.entries();
        Checks {
            on: self.on,
            held: entries.checked,
            broken: entries.broken,
            unchecked: entries.unchecked,
            examples: entries.examples.clone(),
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_winner_is_a_broken_promise() {
        let ledger = Ledger::new(true);
        ledger.contested(1, Some(true));
        ledger.contested(1, Some(false));
        assert_eq!(ledger.checks().broken, 0);
        ledger.contested(1, Some(true));
        assert_eq!(ledger.checks().broken, 1);
    }

    #[test]
    fn no_winner_is_a_broken_promise_unless_an_answer_was_lost() {
        let ledger = Ledger::new(true);
        ledger.contested(1, Some(false));
        ledger.contested(2, Some(false));
        ledger.contested(2, None);
        ledger.close_contests();
        assert_eq!(ledger.checks().broken, 1);
    }

    #[test]
    fn the_size_of_a_sample_is_bounded() {
        let mut sample = Sample::default();
        (0..10_000).for_each(|order| sample.offer(order));
        assert_eq!(sample.orders.len(), SAMPLE);
        assert!(sample.orders.iter().any(|order| *order > 5000), "only the first ones were kept");
    }
}
