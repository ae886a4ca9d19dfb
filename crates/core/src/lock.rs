//! Locks: named leases within an app, held by one owner or shared by several. `record` is the stored form, `fit` says what goes
//! together, and `transitions` is the one table of changes by requests.

mod fit;
mod name;
mod permits;
mod record;
#[cfg(test)]
mod tests;
mod transitions;

use std::time::Duration;

pub use self::name::{InvalidLockName, LockName};
pub use self::permits::{InvalidPermits, Permits};
pub use self::record::{
    CALLERS_MAX, HOLDS_MAX, Hold, LockMode, LockRecord, ShortHash, TICKETS_MAX, Ticket, WITHDRAWN_MAX, Withdrawn,
};
pub use self::transitions::{LockChange, LockState};
use crate::attempt::Attempt;
use crate::caller::Caller;
use crate::clock::Timestamp;

/// Time for which a ticket lives after the last call of its request, and for which a withdrawn nonce is refused.
pub const TICKET_LEASE: Duration = Duration::from_secs(10);

/// Time for which heads of the queue keep their places although they could be granted and their requests are not
/// repeated; for all such heads together.
pub const HEAD_GRACE: Duration = Duration::from_secs(1);

/// Time for which a record outlives its last hold, so that fences keep rising.
pub const RECORD_GRACE: Duration = Duration::from_mins(10);

/// A request for a hold.
#[derive(Clone, Debug)]
pub struct AcquireRequest {
    /// The attempt of the hold. A repeat has the same nonce, and gets the attempt of the first request.
    pub attempt: Attempt,
    /// The owner.
    pub owner: ShortHash,
    /// The mode.
    pub mode: LockMode,
    /// Largest number of holds at once, with [`LockMode::Shared`] only; nothing if they are not counted.
    pub limit: Option<Permits>,
    /// The name of the caller, which is kept with the hold and decides nothing.
    pub caller: Option<Caller>,
    /// The lease.
    pub lease: Duration,
    /// True if it queues when it is not granted.
    pub fair: bool,
}

/// The answer to a request for a hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AcquireResponse {
    /// Granted.
    Granted(LockGrant),
    /// Others hold the lock, or wait for it.
    Held {
        /// Position in the queue, from 1, of a fair request.
        position: Option<usize>,
    },
    /// The owner shares the lock with others, so it cannot get it exclusively.
    UpgradeRefused,
    /// The holders share the lock with another limit.
    LimitDiffers(Permits),
    /// The nonce was withdrawn.
    Withdrawn,
    /// The nonce is that of a hold or a ticket with another mode, owner or limit.
    NonceReused,
    /// The lock has as many holds, tickets or withdrawn nonces as it may have.
    Full(LockBound),
}

/// A granted hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockGrant {
    /// Timestamp of its attempt.
    pub attempted_at: Timestamp,
    /// The fence.
    pub fence: u64,
    /// Number of holds of this owner.
    pub holds: usize,
    /// End of the lease, by the store's clock.
    pub ends_at: Timestamp,
    /// An earlier request with the same nonce got the hold.
    pub repeated: bool,
}

/// A bound of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockBound {
    /// [`HOLDS_MAX`].
    Holds,
    /// [`TICKETS_MAX`].
    Tickets,
    /// [`WITHDRAWN_MAX`].
    Withdrawn,
}

/// The answer to a release or a withdrawal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnlockResponse {
    /// Done.
    Done {
        /// Number of holds that the owner still has.
        holds: usize,
        /// The fence of these holds.
        fence: u64,
        /// Duration of the hold, if one has ended.
        held_for: Option<Duration>,
    },
    /// Nothing was held or asked for. A withdrawn nonce is refused from now on all the same.
    NotHeld,
    /// Too many nonces are withdrawn; nothing was changed.
    Full,
}

/// The answer to a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenewLockResponse {
    /// The lease ends at this instant of the store.
    Renewed(Timestamp),
    /// The attempt holds nothing.
    NotHeld,
}
