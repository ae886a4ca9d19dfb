//! What happened in a world: a hash over all of it, by which two runs of a seed are compared, and the newest of it for the
//! report of a failure.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use oncegate::domain::attempt::Attempt;

use crate::rng::scramble;

/// How many events are kept for a report. Those of one key are among them for a while.
const KEPT: usize = 100_000;

/// How many events of a key are reported.
const REPORTED: usize = 200;

/// Where something happened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// At a caller.
    Caller(u16),
    /// Between a gateway and the store.
    Link(u16),
    /// At a store.
    Store(u16),
}

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) place: Place,
    /// The number of the key it is about; [`NO_KEY`] if it is about none.
    pub(crate) key: u32,
    pub(crate) what: &'static str,
    /// Whose it is.
    pub(crate) whose: Name,
    pub(crate) answer: &'static str,
    /// Whom the answer speaks of.
    pub(crate) other: Name,
    /// What it is in numbers: a lease in milliseconds, a fault's length.
    pub(crate) number: u64,
}

/// No key: it concerns all.
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

    /// A nonce whose attempt nobody has seen yet.
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

/// All that happened.
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
            Place::Link(number) => 1 << 16 | u64::from(number),
            Place::Store(number) => 2 << 16 | u64::from(number),
        };
        let Event { key, whose, other, number, .. } = event;
        for number in [
            u64::try_from(at.as_nanos()).unwrap_or(u64::MAX),
            place << 32 | u64::from(key),
            word(event.what),
            word(event.answer),
            whose.timestamp,
            whose.nonce,
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

    /// Differs for runs that differ in anything that was added.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// The newest events of a key, oldest first, one to a line, and what concerned all keys meanwhile.
    pub(crate) fn report(&self, key: u32) -> String {
        let own = self.newest.iter().enumerate().rev().filter(|(_, (_, event))| event.key == key);
        let own: Vec<_> = own.take(REPORTED).map(|(place, _)| place).collect();
        let (Some(until), Some(since)) = (own.first(), own.last()) else { return String::new() };
        let about = |(_, event): &&(Duration, Event)| event.key == key || event.key == NO_KEY;
        let line = |(at, event): &(Duration, Event)| {
            let Event { place, what, whose, answer, other, number, .. } = event;
            format!("{:>14.6} {place:<12?} {what:<20} {whose:?} -> {answer} {other:?} {number}\n", at.as_secs_f64())
        };
        self.newest.range(*since..=*until).filter(about).map(line).collect()
    }
}

/// A text of the program as a number.
fn word(text: &str) -> u64 {
    text.bytes().fold(text.len() as u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte))
}
