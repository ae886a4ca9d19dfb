//! What waits in a gateway for stores that were out, as operators are shown it.

use serde::Serialize;

use super::clock::Timestamp;

/// How full the journal is of what no store has been told of yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct SpoolStatus {
    /// How many grants and outcomes.
    pub entries: usize,
    /// How many bytes they take.
    pub bytes: u64,
    /// How many they may take; one app may have less.
    pub bytes_max: u64,
    /// When the oldest of them was answered for.
    pub oldest_at: Option<Timestamp>,
    /// Whether the journal took what it was last handed. One that does not fails closed.
    pub takes: bool,
}

/// What keeps it.
pub trait Spool: Send + Sync + 'static {
    /// How full it is now.
    fn status(&self) -> SpoolStatus;
}
