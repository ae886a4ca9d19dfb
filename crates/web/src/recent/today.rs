//! How many operations met a repeat today after they were done or unknown, and how many ran a second time in observe mode: distinct ones,
//! from sketches of fixed size.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use oncegate_core::clock::Timestamp;
use oncegate_core::global_id::GlobalId;
use oncegate_core::tenant::AppKey;
use serde::Serialize;

use super::keys::KeyedRequest;
use super::{Event, Kind};

/// Registers of the sketch. Its standard error is 1.04 / √4096, so 1.6 %.
const REGISTERS: usize = 4096;

/// Bits of a hash that choose the register.
const INDEX_BITS: u32 = REGISTERS.trailing_zeros();

const MICROS_OF_DAY: u64 = 86_400_000_000;

/// Repeats of a day in UTC.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Repeats {
    /// Since when they are counted: midnight, or the start of this process.
    pub since: Timestamp,
    /// Operations that met a repeat after they had succeeded or become unknown. An estimate, within 5 %.
    pub repeated_operations: u64,
    /// Answers to such repeats. 409, or of the proxy the stored response.
    pub repeat_answers: u64,
    /// Answers 422 to repeats that differ.
    pub mismatch_answers: u64,
    /// Calls that observe mode has let through, and enforcing would have stopped.
    pub observed_answers: u64,
    /// Operations that ran a second time, because observe mode let them pass. An estimate, within 5 %.
    pub ran_twice_operations: u64,
    /// Events were lost, so there were more.
    pub at_least: bool,
}

/// The count of the current day.
pub(super) struct Today {
    day: u64,
    since: Timestamp,
    sketch: Sketch,
    answers: u64,
    mismatches: u64,
    observed: u64,
    second_runs: Sketch,
    /// Successes of attempts that observe mode has let through.
    second_successes: u64,
    /// Events that had been lost when the day began.
    lost_before: u64,
}

impl Today {
    /// Returns the count that begins now.
    pub(super) fn begin(now: Timestamp) -> Self {
        Self {
            day: day(now),
            since: now,
            sketch: Sketch([0; REGISTERS]),
            answers: 0,
            mismatches: 0,
            observed: 0,
            second_runs: Sketch([0; REGISTERS]),
            second_successes: 0,
            lost_before: 0,
        }
    }

    /// Counts an event, if it is a repeat.
    pub(super) fn add(&mut self, event: &Event, lost: u64) {
        self.turn(event.at, lost);
        if day(event.at) < self.day {
            return;
        }
        match (event.kind, event.detail, event.global_id) {
            (Kind::Duplicate, "succeeded" | "unknown", Some(id)) => {
                self.add_repeat(hash_of(&event.app, id));
            }
            (Kind::RanTwice, _, Some(id)) => {
                self.second_runs.add(hash_of(&event.app, id));
                self.second_successes += 1;
            }
            (Kind::Observed, ..) => self.observed += 1,
            (Kind::Mismatch, ..) => self.mismatches += 1,
            _ => {}
        }
    }

    /// Counts a request of the proxy, if it is a repeat.
    pub(super) fn add_request(&mut self, request: &KeyedRequest, lost: u64) {
        self.turn(request.at, lost);
        if day(request.at) < self.day {
            return;
        }
        match request.answer {
            "replayed" | "unknown" | "not_stored" => self.add_repeat(hash_of(&request.app, request.global_id)),
            "mismatch" => self.mismatches += 1,
            _ => {}
        }
    }

    fn add_repeat(&mut self, hash: u64) {
        self.sketch.add(hash);
        self.answers += 1;
    }

    /// Returns the count at this time.
    pub(super) fn repeats(&mut self, now: Timestamp, lost: u64) -> Repeats {
        self.turn(now, lost);
        Repeats {
            since: self.since,
            // An estimate may be too high; there are never more operations than answers.
            repeated_operations: self.sketch.count().min(self.answers),
            repeat_answers: self.answers,
            mismatch_answers: self.mismatches,
            observed_answers: self.observed,
            ran_twice_operations: self.second_runs.count().min(self.second_successes),
            at_least: lost > self.lost_before,
        }
    }

    /// Resets the count if this instant is of a later day.
    fn turn(&mut self, now: Timestamp, lost: u64) {
        if day(now) > self.day {
            let midnight = Timestamp::from_micros(day(now) * MICROS_OF_DAY);
            *self = Self { since: midnight, lost_before: lost, ..Self::begin(now) };
        }
    }
}

fn hash_of(app: &AppKey, id: GlobalId) -> u64 {
    let mut hasher = DefaultHasher::new();
    (app, id).hash(&mut hasher);
    hasher.finish()
}

fn day(at: Timestamp) -> u64 {
    at.as_micros() / MICROS_OF_DAY
}

/// Counts distinct hashes (HyperLogLog): each register has the longest run of zeros that it has seen.
struct Sketch([u8; REGISTERS]);

impl Sketch {
    fn add(&mut self, hash: u64) {
        let index = usize::try_from(hash >> (u64::BITS - INDEX_BITS)).unwrap_or_default();
        // A guard bit ends the run.
        let run = ((hash << INDEX_BITS) | (1 << (INDEX_BITS - 1))).leading_zeros() + 1;
        if let Some(register) = self.0.get_mut(index) {
            *register = (*register).max(u8::try_from(run).unwrap_or(u8::MAX));
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::naive_bytecount,
        reason = "an estimate, not negative, of 4096 bytes and once for each look"
    )]
    fn count(&self) -> u64 {
        let registers = REGISTERS as f64;
        let sum: f64 = self.0.iter().map(|run| (-f64::from(*run)).exp2()).sum();
        let estimate = 0.7213 / (1.0 + 1.079 / registers) * registers * registers / sum;
        let empty = self.0.iter().filter(|run| **run == 0).count();
        // With few hashes, the empty registers say more.
        let is_small = estimate <= 2.5 * registers && empty > 0;
        (if is_small { registers * (registers / empty as f64).ln() } else { estimate }).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOON: Timestamp = Timestamp::from_micros(20_000 * MICROS_OF_DAY + MICROS_OF_DAY / 2);

    fn event(at: Timestamp, kind: Kind, detail: &'static str, number: u64) -> Event {
        let mut id = [7; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        Event {
            id: 0,
            at,
            kind,
            detail,
            app: "shop".parse().unwrap(),
            operation: None,
            global_id: Some(GlobalId::from_bytes(id)),
            attempt_hash: None,
            request_id: String::new(),
        }
    }

    #[test]
    fn distinct_operations_are_counted_within_five_percent() {
        for operations in [0_u64, 1, 2, 50, 1000, 10_000, 100_000] {
            let mut today = Today::begin(NOON);
            for repeat in 0..operations * 2 {
                today.add(&event(NOON, Kind::Duplicate, "succeeded", repeat % operations), 0);
            }
            let found = today.repeats(NOON, 0);
            let off = found.repeated_operations.abs_diff(operations);
            assert!(off * 20 <= operations, "{operations}: {found:?}");
            assert_eq!((found.repeat_answers, found.at_least), (operations * 2, false));
        }
    }

    #[test]
    fn operations_that_ran_twice_in_observe_mode_are_counted_once_and_apart() {
        let mut today = Today::begin(NOON);
        for (kind, detail, number) in [
            (Kind::Observed, "duplicate", 1),
            (Kind::Observed, "duplicate", 1),
            (Kind::Observed, "duplicate", 2),
            (Kind::Observed, "duplicate", 3),
            (Kind::RanTwice, "succeeded", 1),
            (Kind::RanTwice, "succeeded", 1),
            (Kind::RanTwice, "in_progress", 2),
        ] {
            today.add(&event(NOON, kind, detail, number), 0);
        }
        let found = today.repeats(NOON, 0);
        assert_eq!((found.observed_answers, found.ran_twice_operations), (4, 2));
        assert_eq!((found.repeat_answers, found.repeated_operations), (0, 0), "nothing was stopped");
        let tomorrow = NOON.plus(Duration::from_hours(24));
        let next = today.repeats(tomorrow, 0);
        assert_eq!((next.observed_answers, next.ran_twice_operations), (0, 0));
    }

    #[test]
    fn repeats_at_the_proxy_count_too() {
        let mut today = Today::begin(NOON);
        let answers =
            ["forwarded", "replayed", "replayed", "in_progress", "unknown", "not_stored", "mismatch", "refused"];
        for (answer, id) in answers.into_iter().zip([1, 1, 1, 2, 3, 4, 5, 6]) {
            let id = GlobalId::from_bytes([id; 16]);
            let (operation, app) = ("proxy:orders".parse().unwrap(), "shop".parse().unwrap());
            let request = KeyedRequest::new(operation, app, "key", id, None);
            today.add_request(&KeyedRequest { answer, at: NOON, ..request }, 0);
        }
        let found = today.repeats(NOON, 0);
        assert_eq!((found.repeated_operations, found.repeat_answers, found.mismatch_answers), (3, 4, 1));
        let yesterday = KeyedRequest::new(
            "proxy:a".parse().unwrap(),
            "shop".parse().unwrap(),
            "k",
            GlobalId::from_bytes([9; 16]),
            None,
        );
        today.add_request(&KeyedRequest { answer: "replayed", ..yesterday }, 0);
        assert_eq!(today.repeats(NOON, 0).repeat_answers, 4, "of another day");
    }

    #[test]
    fn only_repeats_after_the_end_count_and_each_day_begins_anew() {
        let mut today = Today::begin(NOON);
        for (kind, detail) in [
            (Kind::Duplicate, "in_progress"),
            (Kind::Duplicate, "unknown"),
            (Kind::Late, "succeeded"),
            (Kind::Mismatch, "fingerprint_mismatch"),
        ] {
            today.add(&event(NOON, kind, detail, 1), 0);
        }
        let repeats = |since, repeated_operations, repeat_answers, mismatch_answers, at_least| Repeats {
            since,
            repeated_operations,
            repeat_answers,
            mismatch_answers,
            observed_answers: 0,
            ran_twice_operations: 0,
            at_least,
        };
        assert_eq!(today.repeats(NOON, 3), repeats(NOON, 1, 1, 1, true));
        let midnight = Timestamp::from_micros(20_001 * MICROS_OF_DAY);
        let next = midnight.plus(Duration::from_secs(1));
        assert_eq!(today.repeats(next, 3), repeats(midnight, 0, 0, 0, false));
        today.add(&event(NOON, Kind::Duplicate, "succeeded", 1), 3);
        assert_eq!(today.repeats(next, 3).repeat_answers, 0, "an event of yesterday that was kept late");
        today.add(&event(next, Kind::Duplicate, "succeeded", 1), 3);
        assert_eq!(today.repeats(next, 3).repeated_operations, 1);
    }
}
