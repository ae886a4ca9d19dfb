//! The [`Engine`] trait: the contract of every store of claims. Its documentation is the specification; the conformance suite
//! checks every engine, and every wrapper around one, against it.

pub mod breaker;
pub mod capability;
#[cfg(any(test, feature = "test-util"))]
pub mod conformance;
pub mod error;
#[cfg(any(test, feature = "test-util"))]
pub mod faulty;
pub mod memory;
pub mod node;
pub mod notification;
#[cfg(any(test, feature = "test-util"))]
pub mod sharded;
pub mod shared_record;
pub mod value;

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use serde::Serialize;

use self::breaker::BreakerStatus;
pub use self::error::{Determinate, EngineError, Indeterminate};
pub use self::node::{Node, NodeRole};
pub use self::notification::{Channel, Subscription};
pub use self::shared_record::{
    ChangePurpose, ChangeResponse, Metadata, RecordChange, RecordName, RecordView, SharedRecord,
};
use crate::claim::{ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse};
use crate::operator::{
    ListRequest, ListedClaim, LockListRequest, LockPage, ReleaseRequest, ReleaseResponse, UnknownsPage, UnknownsRequest,
};
use crate::record::{Key, LiveClaim};

/// Number of shards that have different numbers. In a store with more, several have the same number.
pub const SHARDS_MAX: u16 = 1024;

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
/// claim is only notified after a claim call with [`ClaimRequest::waits`] has found or made the claim. Such a call
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
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Claims a key for an attempt.
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError>;

    /// Claims several different keys, independently of each other: `sink` receives its position and its answer as soon as the
    /// answer is known, and no answer waits for another. If this is dropped, claims without an answer may still happen.
    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        let claims = claims.iter().enumerate();
        join_all(claims.map(|(position, claim)| async move {
            sink(position, self.claim(claim.request, claim.deadline).await);
        }))
        .await;
    }

    /// Settles a claim by its attempt. Accepted also while the store has no room for new claims.
    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError>;

    /// Extends a lease by its attempt. Never shortens it.
    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError>;

    /// Returns the live claim of a key, if there is one.
    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError>;

    /// Ends a claim for an operator, in any state, if the given attempt holds it. Later fences of the key are still higher.
    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError>;

    /// Lists live claims if [`Capabilities::lists`] is set; otherwise fails as unavailable, with the reason. Each claim
    /// is read separately: a claim that changes during the call may or may not be in the list. The list is shorter than
    /// `limit` only if there are no more claims. Does not hold up other calls.
    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError>;

    /// Returns unknown claims from the index of an engine that cannot list. The index is a hint: it may lack claims whose entry was
    /// lost, and each claim is read before it is returned. Fails as unavailable if the engine has no index.
    async fn unknowns(&self, _request: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        Err(EngineError::unavailable("the engine has no index of unknown claims"))
    }

    /// Returns the record of this name, if there is a live one, and the present time of the store.
    async fn get_record(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError>;

    /// Replaces a record by compare-and-set, in one atomic step. The new record is stored if the stored version is the
    /// expected one (`None`: no record), and if the present time of the store is within the bounds of the change.
    /// Versions are compared, never values. If the new version is stored already, the answer is the same as for a
    /// store, so that a call can be repeated after a lost reply. The store's now never goes back while a record lasts,
    /// as far as its clock does not. As durable as a claim.
    async fn change_record(&self, change: &RecordChange, deadline: Duration) -> Result<ChangeResponse, EngineError>;

    /// Lists the records of an app's locks that have not ended, if [`Capabilities::lists`] is set; otherwise fails as unavailable,
    /// with the reason. The page is shorter than `limit` only if there are no more records.
    async fn list_records(&self, _request: &LockListRequest) -> Result<LockPage, EngineError> {
        Err(EngineError::unavailable("the engine cannot list locks"))
    }

    /// Begins a backup of the store's present content: everything that an answer before the call depends on, and no later
    /// change. Holds up other calls no longer than a read does. `None` if the engine makes no backups. Fails while another backup
    /// is in progress; if this is dropped, the backup ends.
    async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        Ok(None)
    }

    /// Subscribes to the notifications of a record. Returns soon, also if the store is unavailable; the default is a
    /// subscription without notifications.
    async fn subscribe(&self, _channel: &Channel) -> Subscription {
        Subscription::none()
    }

    /// Checks that the store would answer now. With several shards, one answering shard is enough. Changes nothing.
    async fn probe(&self) -> Result<(), EngineError>;

    /// Checks that a shard would answer now. A removed shard counts as answering.
    async fn probe_shard(&self, _shard: u16) -> Result<(), EngineError> {
        self.probe().await
    }

    /// Returns the shard that keeps a key, as far as the engine knows.
    fn shard_of(&self, _key: &Key) -> u16 {
        0
    }

    /// Returns the shard that keeps a shared record, as far as the engine knows.
    fn shard_of_record(&self, _name: &RecordName) -> u16 {
        0
    }

    /// Returns the shards that there are now; none while the engine does not know them.
    fn shards(&self) -> Vec<u16> {
        vec![0]
    }

    /// Returns the present promises of the engine.
    fn capabilities(&self) -> Capabilities;

    /// Returns the state of the breaker in front of the engine, if there is one.
    fn breaker(&self) -> Option<BreakerStatus> {
        None
    }

    /// Returns how often the store came back without its data since this engine was opened.
    fn data_lost(&self) -> u64 {
        0
    }

    /// Returns the number of losses since this engine was opened: a shard came back without its data, or a replica took
    /// over that may have lacked the newest claims.
    fn losses(&self, _shard: u16) -> u64 {
        self.data_lost()
    }

    /// Returns the name under which a record about a shard is stored in that shard. It changes if the shard loses the
    /// slot.
    fn metadata_name(&self, _shard: u16, name: &str) -> String {
        name.to_owned()
    }

    /// Returns whether an answer may wait for replicas for most of its deadline. Then a late answer shows nothing about
    /// the store.
    fn waits_for_replicas(&self) -> bool {
        false
    }

    /// Returns the servers of the store, where it has several.
    fn nodes(&self) -> Vec<Node> {
        Vec::new()
    }

    /// Makes all data durable, and releases the store. Later calls fail as unavailable.
    async fn close(&self) {}
}

/// Bytes of a backup, in pieces. An error is the last piece: the backup is incomplete then.
pub type Backup = BoxStream<'static, Result<Vec<u8>, EngineError>>;

/// Prefix of the names of metadata records that show that a store has its data. A store that was restored from a backup
/// lacks data, so it has none of them.
pub const KEPT_PREFIX: &str = "kept.";

/// One claim of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchClaim<'a> {
    /// The claim.
    pub request: &'a ClaimRequest,
    /// The deadline of its call.
    pub deadline: Duration,
}

/// Receives the answers to the claims of a batch: the position in the batch, and the answer.
pub type ClaimSink<'a> = &'a (dyn Fn(usize, Result<ClaimResponse, EngineError>) + Sync);

/// Promises of an engine; the table is in `docs/engines/README.md`.
#[expect(clippy::struct_excessive_bools, reason = "a table of independent yes and no")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Capabilities {
    /// Fences of a key rise strictly.
    pub strict_fence: bool,
    /// Acknowledged answers survive a crash of the store, as far as this process knows.
    pub durable: bool,
    /// Several gateways can share the store.
    pub shared: bool,
    /// A retention `forever` outlives the process.
    pub forever: bool,
    /// [`Engine::list`] is supported.
    pub lists: bool,
}

/// Returns a duration in whole milliseconds, at least one: the resolution that all stores share.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}
