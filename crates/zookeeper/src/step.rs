//! One step on one node, as a change with comparisons.

use bytes::Bytes;
use oncegate_coordination::step::{Guard, Write};
use oncegate_coordination::value::Head;
use oncegate_core::clock::Timestamp;

use super::keys::Keys;
use super::proto::Change;
use super::session::Session;
use super::store::ClockSeen;

/// Requests of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    /// Reads the node.
    Read(String),
    /// Changes it, as far as this compares as well.
    Write(String, Change, Comparison),
}

/// Conditions of a change, in addition to the node that it changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Comparison {
    Nothing,
    /// The clock is in the same five seconds as when it was read. Changes share this.
    Clock5(i32),
    /// The clock is unchanged since it was read. Nothing else is changed with it, since a tick refuses it.
    Clock(i32),
}

impl Comparison {
    /// Returns it as a change without an effect.
    pub(super) fn change(self, keys: &Keys) -> Option<Change> {
        match self {
            Self::Nothing => None,
            Self::Clock5(version) => Some(Change::Check(keys.clock5.clone(), version)),
            Self::Clock(version) => Some(Change::Check(keys.clock.clone(), version)),
        }
    }
}

impl Plan {
    /// Returns the node.
    pub(super) fn path(&self) -> &str {
        match self {
            Self::Read(path) | Self::Write(path, ..) => path,
        }
    }

    /// Returns whether it is a write that only the clock itself can guard.
    pub(super) fn is_near(&self) -> bool {
        matches!(self, Self::Write(_, _, Comparison::Clock(_)))
    }

    /// Returns whether it creates its node.
    pub(super) fn creates(&self) -> bool {
        matches!(self, Self::Write(_, Change::Create(..), _))
    }
}

/// Returns the requests of a step. A write that depends on a state seen too long ago reads first.
pub(super) fn plan(session: &Session, clock: Option<ClockSeen>, key: &Bytes, write: Option<&Write>) -> Plan {
    let path = String::from_utf8_lossy(key).into_owned();
    let written = write.and_then(|write| change(session, &path, write).zip(comparison(clock, &write.guards)));
    match written {
        Some((change, comparison)) => Plan::Write(path, change, comparison),
        None => Plan::Read(path),
    }
}

/// Returns the change of a write; `None` if its mark is too old.
fn change(session: &Session, path: &str, write: &Write) -> Option<Change> {
    // A node that is created again counts its versions from 0, so this one stays for a while.
    let tombstone = || Head::tombstone(session.store().state.time.now().latest).encode(b"");
    let value = write.put.clone().unwrap_or_else(tombstone);
    for guard in &write.guards {
        match guard {
            Guard::Unchanged(mark) => return Some(Change::Set(path.to_owned(), value, session.version_of(*mark)?)),
            Guard::Absent => return Some(Change::Create(path.to_owned(), value)),
            Guard::Before(_) | Guard::From(_) => {}
        }
    }
    None
}

/// Returns what guards the bounds of time; `None` if the clock is not known well enough.
fn comparison(clock: Option<ClockSeen>, guards: &[Guard]) -> Option<Comparison> {
    let before = guards.iter().filter_map(|guard| match guard {
        Guard::Before(instant) => Some(*instant),
        // The call was decided at an instant that was not before this one, and the clock only rises.
        Guard::Absent | Guard::Unchanged(_) | Guard::From(_) => None,
    });
    let Some(before) = before.min() else { return Some(Comparison::Nothing) };
    within(before, clock?)
}

/// Returns the condition which shows that the clock is before an instant; `None` if it is not.
fn within(before: Timestamp, seen: ClockSeen) -> Option<Comparison> {
    if before >= seen.five_end {
        return Some(Comparison::Clock5(seen.five_version));
    }
    (before > seen.clock).then_some(Comparison::Clock(seen.version))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bound_beyond_the_next_change_of_clock5_needs_no_more() {
        let at = |seconds: u64| Timestamp::from_micros(seconds * 1_000_000);
        let seen = ClockSeen { clock: at(6), version: 77, five_version: 3, five_end: at(10), seen_at: Duration::ZERO };
        for (before, expected) in [
            (at(10), Some(Comparison::Clock5(3))),
            (at(11), Some(Comparison::Clock5(3))),
            (Timestamp::from_micros(9_999_999), Some(Comparison::Clock(77))),
            (Timestamp::from_micros(6_000_001), Some(Comparison::Clock(77))),
            (at(6), None),
        ] {
            assert_eq!(within(before, seen), expected, "{before}");
        }
    }
}
