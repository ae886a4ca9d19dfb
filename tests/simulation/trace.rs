//! Trace of a world: a hash over all events, for comparing two runs of a seed, and the newest events for the report of
//! a failure.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use oncegate_core::attempt::Attempt;

use crate::rng::scramble;

/// Number of events that are kept for a report.
const KEPT: usize = 100_000;

/// Number of events of a key in a report.
const REPORTED: usize = 200;

/// Location of an event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// A caller.
    Caller(u16),
    /// The network between a gateway and the store.
    Network(u16),
    /// A store.
    Store(u16),
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) place: Place,
    /// Number of its key; [`NO_KEY`] if it has none.
    pub(crate) key: u32,
    pub(crate) what: &'static str,
    /// Attempt of the call.
    pub(crate) attempt_name: Name,
    pub(crate) answer: &'static str,
    /// Attempt in the answer.
    pub(crate) other: Name,
    /// Figure of the event: a lease in milliseconds, or a fault's length.
    pub(crate) number: u64,
}

/// Number for events of all keys.
pub(crate) const NO_KEY: u32 = u32::MAX;

/// An attempt, short enough to be kept often. Nonces of a world are numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Name {
    pub(crate) timestamp: u64,
    pub(crate) nonce: u64,
}

impl Name {
    pub(crate) fn of(attempt: &Attempt) -> Self {
        let nonce = u64::from_str_radix(attempt.nonce().as_str(), 16).unwrap_or(u64::MAX);
        Self { timestamp: attempt.timestamp().as_micros(), nonce }
    }

    /// Returns the name of an attempt whose timestamp is unknown.
    pub(crate) fn nonce(nonce: u64) -> Self {
        Self { timestamp: 0, nonce }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { timestamp: 0, nonce: 0 } => f.write_str("-"),
            Self { timestamp: 0, nonce } => write!(f, "#{nonce:x}"),
            Self { timestamp, nonce } => write!(f, "#{nonce:x}@{timestamp}"),
        }
    }
}

/// All events.
pub(crate) struct Trace {
    hash: u64,
    newest: VecDeque<(Duration, Event)>,
}

impl Trace {
    pub(crate) fn new(seed: u64) -> Self {
        Self { hash: seed, newest: VecDeque::with_capacity(KEPT) }
    }

    pub(crate) fn add(&mut self, at: Duration, event: Event) {
        let place = match event.place {
            Place::Caller(number) => u64::from(number),
            Place::Network(number) => 1 << 16 | u64::from(number),
            Place::Store(number) => 2 << 16 | u64::from(number),
        };
        let Event { key, attempt_name, other, number, .. } = event;
        for number in [
            u64::try_from(at.as_nanos()).unwrap_or(u64::MAX),
            place << 32 | u64::from(key),
            word(event.what),
            word(event.answer),
            attempt_name.timestamp,
            attempt_name.nonce,
            other.timestamp,
            other.nonce,
            number,
        ] {
            self.hash = scramble(self.hash.rotate_left(5) ^ number);
        }
        if self.newest.len() == KEPT {
            self.newest.pop_front();
        }
        self.newest.push_back((at, event));
    }

    /// Returns a hash that differs for runs with different events.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the newest events of a key and of all keys, oldest first, one per line.
    pub(crate) fn report(&self, key: u32) -> String {
        let own = self.newest.iter().enumerate().rev().filter(|(_, (_, event))| event.key == key);
        let own: Vec<_> = own.take(REPORTED).map(|(place, _)| place).collect();
        let (Some(until), Some(since)) = (own.first(), own.last()) else { return String::new() };
        let about = |(_, event): &&(Duration, Event)| event.key == key || event.key == NO_KEY;
        let line = |(at, event): &(Duration, Event)| {
            let Event { place, what, attempt_name, answer, other, number, .. } = event;
            format!(
                "{:>14.6} {place:<12?} {what:<20} {attempt_name:?} -> {answer} {other:?} {number}\n",
                at.as_secs_f64()
            )
        };
        self.newest.range(*since..=*until).filter(about).map(line).collect()
    }
}

/// Returns a text as a number.
fn word(text: &str) -> u64 {
    text.bytes().fold(text.len() as u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte))
}
