//! Calls to locks and their answers, as the listeners see them.

use std::time::Duration;

use oncegate_core::attempt::{Attempt, Nonce};
use oncegate_core::caller::Caller;
use oncegate_core::clock::Timestamp;
use oncegate_core::lock::{LockBound, LockMode, LockName, LockRecord, Permits};

/// A request for a hold.
#[derive(Debug)]
pub struct AcquireCall {
    /// The lock.
    pub name: LockName,
    /// Mode of the hold.
    pub mode: LockMode,
    /// Largest number of holds at once, for a shared one.
    pub limit: Option<Permits>,
    /// The owner, if it is not the hold itself.
    pub owner: Option<Nonce>,
    /// The name that the caller gives itself.
    pub caller: Option<Caller>,
    /// The caller's nonce.
    pub nonce: Option<Nonce>,
    /// The lease, if not the app's.
    pub lease: Option<Duration>,
    /// Longest time that the call waits for the lock.
    pub wait: Duration,
    /// True if it queues.
    pub fair: bool,
}

/// The answer to a request for a hold.
#[derive(Debug)]
pub enum AcquireAnswer {
    /// Granted.
    Granted(GrantedLock),
    /// Others hold the lock, or wait for it.
    Held(HeldLock),
    /// The owner shares the lock with others.
    UpgradeRefused,
    /// The holders share the lock with another limit.
    LimitDiffers(Permits),
    /// The nonce was withdrawn.
    Withdrawn,
    /// The nonce is that of a hold with another mode, owner or limit.
    NonceReused,
    /// The lock has as many holds, or requests in its queue, as it may have.
    Full(LockBound),
}

/// A hold, for its holder.
#[derive(Debug)]
pub struct GrantedLock {
    /// The lock.
    pub name: LockName,
    /// Mode of the hold.
    pub mode: LockMode,
    /// The attempt that holds it.
    pub attempt: Attempt,
    /// A number that rises strictly each time the lock becomes held or its mode changes.
    pub fence: u64,
    /// Number of holds of the owner.
    pub holds: usize,
    /// Rest of the lease, in whole milliseconds.
    pub lease_ms: u64,
    /// End of the lease, by the store's clock; for display.
    pub lease_expires_at: Timestamp,
    /// An earlier request with the same nonce got the hold.
    pub repeated: bool,
    /// Time that the call has waited.
    pub waited: Duration,
}

/// A lock that is held, as its other callers see it.
#[derive(Debug)]
pub struct HeldLock {
    /// Mode in which it is held; `None` if it is free, and others queue for it.
    pub mode: Option<LockMode>,
    /// Number of holds.
    pub holders: usize,
    /// Number of requests in its queue that still wait.
    pub waiting: usize,
    /// Position in the queue, from 1, of a fair request.
    pub position: Option<usize>,
    /// Time after which it makes sense to ask again.
    pub retry_after: Duration,
    /// Time that the call has waited.
    pub waited: Duration,
}

/// The answer to a release or a withdrawal.
#[derive(Debug)]
pub enum UnlockAnswer {
    /// Done.
    Done {
        /// Number of holds that the owner still has.
        holds: usize,
        /// The fence of these holds.
        fence: Option<u64>,
        /// False; or unknown, because the reply to an earlier try was lost.
        late: Option<bool>,
    },
    /// The attempt holds nothing.
    NotHeld,
    /// Too many nonces are withdrawn.
    Full,
}

/// A lock, as its app and operators see it.
#[derive(Debug)]
pub struct LockView {
    /// The lock.
    pub name: LockName,
    /// Record in the store, without holds and requests that have ended.
    pub record: LockRecord,
    /// The store's instant.
    pub now: Timestamp,
}

impl LockView {
    /// Returns the number of requests in its queue that still wait.
    pub fn waiting(&self) -> usize {
        self.record.waiting(self.now)
    }

    pub(super) fn is_used(&self) -> bool {
        !self.record.holds.is_empty() || self.waiting() > 0
    }
}
