//! One step on one key: a read, or a write under guards. Where they do not hold, the key is read, and its call decides again.

use bytes::Bytes;
use oncegate_core::clock::Timestamp;

use super::value::{Found, Mark};

/// Condition of the step for its write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guard {
    /// The key is not there.
    Absent,
    /// The key was not written since it had this mark.
    Unchanged(Mark),
    /// The clock is before this instant.
    Before(Timestamp),
    /// The clock is at this instant or after it.
    From(Timestamp),
}

/// A write, if all guards hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// Conditions.
    pub guards: Vec<Guard>,
    /// The new value; `None`: nothing is left of the record.
    pub put: Option<Bytes>,
    /// This gateway is likely to change the key again.
    pub is_remembered: bool,
}

/// Result of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stepped {
    /// The write is done: in this revision of the store, which left this mark.
    Written(i64, Mark),
    /// Nothing was written; the key is this.
    Found(Option<Found>),
}
