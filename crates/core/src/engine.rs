//! The [`Engine`] trait: the contract of every store of claims. Its documentation is the specification; the conformance suite
//! checks every engine, and every wrapper around one, against it.

pub mod breaker;
pub mod capability;
pub mod claims;
#[cfg(any(test, feature = "test-util"))]
pub mod conformance;
pub mod error;
#[cfg(any(test, feature = "test-util"))]
pub mod faulty;
#[cfg(any(test, feature = "test-util"))]
mod forward;
pub mod identity;
pub mod memory;
pub mod node;
pub mod notification;
pub mod records;
#[cfg(any(test, feature = "test-util"))]
pub mod sharded;
pub mod shared_record;
pub mod topology;
pub mod value;

use std::time::Duration;

pub use self::claims::{BatchClaim, ClaimSink, Claims, claim_each, without_index_of_unknowns};
pub use self::error::{Determinate, EngineError, Indeterminate};
pub use self::identity::{Common, LookUp, Servers, StoreIdentity};
pub use self::node::{Node, NodeRole};
pub use self::notification::{Channel, Subscription};
pub use self::records::Records;
pub use self::shared_record::{
    ChangePurpose, ChangeResponse, Metadata, RecordChange, RecordName, RecordView, SharedRecord,
};
pub use self::topology::{Backup, Capabilities, OneShard, SHARDS_MAX, Topology};

/// A store of claims.
///
/// # Contract
///
/// ## Answers and failures
///
/// Business outcomes are values: a duplicate, a mismatch and a superseded outcome are `Ok`. An `Err` means that the call has no
/// answer. It is [`Determinate`] if the call certainly changed nothing, and [`Indeterminate`] if it may have. When in doubt, an
/// engine returns `Indeterminate`.
///
/// ## Atomicity
///
/// Each call applies one transition of [`crate::claim`] to one key, atomically: of any number of concurrent claims of
/// one key, at most one is granted for as long as that claim lasts. Calls on different keys are independent. A call that is
/// repeated with the same arguments has the effect of one.
///
/// ## Time
///
/// The store's clock, and no other, decides whether a record has ended, in the same atomic step as the transition. A record that
/// has ended is absent everywhere, also from reads, even if it has not been deleted. Answers contain durations that begin when
/// the store gave the answer. A remaining time is never reported as longer than it is. A claim lasts for at least its lease after
/// the store has accepted it.
///
/// Answers also contain the end as an instant of the store's clock. It is for display only: no code compares it with
/// another clock. It is the stored end, so every answer about a record names the same end until a call changes it. Only
/// a new grant may leave it out.
///
/// ## Deadlines
///
/// A `deadline` is how long the caller waits, from the start of the call. It is a hint to the store: each
/// caller has its timer, and a call whose deadline has passed may still take effect.
///
/// ## Durability
///
/// An answer is given only after the data that it depends on is as durable as the engine makes data. An answer that
/// changed nothing depends on the data that was read.
///
/// ## Cancellation
///
/// A caller may drop the future of a call at any time. The call may still happen then, and must not disturb other calls: a reply
/// belongs to its request, also on a shared connection.
///
/// ## Shards
///
/// A store may consist of shards: parts that keep different keys, and fail one by one. Their numbers are less than [`SHARDS_MAX`].
/// A shard keeps its number when a replica takes over; the number of a removed shard may be used again. Most stores have one
/// shard, number 0.
///
/// ## Notifications
///
/// A subscription is notified of a change that waiting callers may need: a claim is settled, released or taken over.
/// That a lease or a retention ends, or is extended, is not notified. Where gateways share the store, the end of a
/// claim is only notified after a claim call with [`waits`](crate::claim::ClaimRequest::waits) has found or made the claim. Such a call
/// marks the record in the step that reads it, and does not change its end. So a caller subscribes first, then calls,
/// and then waits.
///
/// Notifications are hints. One may be lost, come late, or come for nothing; callers also poll. Sending one never fails or
/// delays the call that changes the record.
///
/// # Wrappers
///
/// A wrapper is an engine around another one. It passes on everything that it does not change, keeps the distinction
/// between certain and uncertain failures, and repeats a call with an uncertain outcome only with the same attempt.
///
/// # Parts
///
/// The contract has three parts. A type with all three is an engine. No method has a default, so a wrapper that forgets one does not
/// compile.
pub trait Engine: Claims + Records + Topology {}

impl<T: Claims + Records + Topology> Engine for T {}

/// Prefix of the names of metadata records that show that a store has its data. A store that was restored from a backup
/// lacks data, so it has none of them.
pub const KEPT_PREFIX: &str = "kept.";

/// Returns a duration in whole milliseconds, at least one: the resolution that all stores share.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}
