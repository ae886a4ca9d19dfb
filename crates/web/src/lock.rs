//! Locks as both APIs show them.

use oncegate_core::caller::Caller;
use oncegate_core::clock::{Timestamp, millis};
use oncegate_core::lock::{LockMode, LockName, Permits};
use oncegate_gateway::lock::LockView;
use serde::{Deserialize, Deserializer, Serialize};

use super::choice::one_of;
use super::problem::{Code, Problem};

/// A mode in a request.
#[derive(Clone, Copy)]
pub enum ModeName {
    /// By one owner.
    Exclusive,
    /// By several owners.
    Shared,
}

impl<'de> Deserialize<'de> for ModeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        one_of(deserializer, &[("exclusive", Self::Exclusive), ("shared", Self::Shared)])
    }
}

impl From<ModeName> for LockMode {
    fn from(name: ModeName) -> Self {
        match name {
            ModeName::Exclusive => Self::Exclusive,
            ModeName::Shared => Self::Shared,
        }
    }
}

/// Returns the name of a mode in documents.
pub fn shown_mode(mode: LockMode) -> &'static str {
    match mode {
        LockMode::Exclusive => "exclusive",
        LockMode::Shared => "shared",
    }
}

/// A lock in a response.
#[derive(Serialize)]
pub struct LockBody {
    name: LockName,
    /// `null`: it is free, and requests queue for it.
    mode: Option<&'static str>,
    fence: Option<u64>,
    /// Largest number of holds at once, if they have named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<usize>,
    holders: Vec<HolderBody>,
    waiting: usize,
}

/// A hold in a response.
#[derive(Serialize)]
struct HolderBody {
    /// The first 8 hex digits of the SHA-256 of its nonce.
    hash: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<Caller>,
    mode: &'static str,
    claimed_at: Timestamp,
    lease_ms: u64,
}

impl From<LockView> for LockBody {
    fn from(view: LockView) -> Self {
        let waiting = view.waiting();
        let LockView { name, record, now } = view;
        let holder = |hold: &oncegate_core::lock::Hold| HolderBody {
            hash: hold.nonce.shown(),
            caller: hold.caller.clone(),
            mode: shown_mode(hold.mode),
            claimed_at: hold.claimed_at,
            lease_ms: millis(hold.ends_at.since(now)),
        };
        Self {
            name,
            mode: record.mode.map(shown_mode),
            fence: record.mode.map(|_| record.fence),
            limit: record.limit.map(Permits::holds),
            holders: record.holds.iter().map(holder).collect(),
            waiting,
        }
    }
}

/// A lock with its queue, in a response to an operator.
#[derive(Serialize)]
pub struct QueuedLockBody {
    #[serde(flatten)]
    lock: LockBody,
    queue: Vec<TicketBody>,
}

/// A place in the queue of a lock.
#[derive(Serialize)]
struct TicketBody {
    position: usize,
    /// The first 8 hex digits of the SHA-256 of its nonce.
    hash: String,
    mode: &'static str,
    queued_at: Timestamp,
    age_ms: u64,
    /// Its request waits. Otherwise it only keeps its place for a while.
    waits: bool,
}

impl From<LockView> for QueuedLockBody {
    fn from(view: LockView) -> Self {
        let now = view.now;
        let ticket = |(at, ticket): (usize, &oncegate_core::lock::Ticket)| TicketBody {
            position: at + 1,
            hash: ticket.nonce.shown(),
            mode: shown_mode(ticket.mode),
            queued_at: ticket.queued_at,
            age_ms: millis(now.since(ticket.queued_at)),
            waits: ticket.waits(now),
        };
        let queue = view.record.tickets.iter().enumerate().map(ticket).collect();
        Self { queue, lock: LockBody::from(view) }
    }
}

/// Returns the problem of an attempt without a hold.
pub fn not_held() -> Problem {
    Problem::new(
        Code::NotHeld,
        "This attempt does not hold the lock: it was released, or its lease has ended. Stop what the lock protects, if it \
         still runs.",
    )
}

/// Returns the problem of a lock that is free.
pub fn free() -> Problem {
    Problem::new(Code::NotFound, "The lock is free, and no request waits for it.")
}
