//! The [`Engine`] contract: what every store that keeps claims must do. Its documentation is the specification; the
//! conformance suite holds every engine, and every wrapper around one, to it.

pub mod breaker;
pub mod capability;
pub mod chain;
#[cfg(any(test, feature = "test-util"))]
pub mod conformance;
#[cfg(feature = "disk")]
pub mod disk;
pub mod error;
#[cfg(any(test, feature = "test-util"))]
pub mod faulty;
pub mod memory;
pub mod metadata;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
pub mod url;
pub mod value;

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use serde::Serialize;

use self::breaker::Standing;
pub use self::error::{Determinate, EngineError, Indeterminate};
pub use self::metadata::Metadata;
use crate::domain::claim::{
    ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::domain::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::domain::record::{Key, LiveClaim};

/// A store that keeps claims.
///
/// # Answers and failures
///
/// What the business may meet is a value: a duplicate, a mismatch and a superseded outcome are all `Ok`. An `Err` means
/// that the question was not answered, and says whether the call may have happened ([`Indeterminate`]) or certainly
/// did not ([`Determinate`]). An engine in doubt says `Indeterminate`.
///
/// # Atomicity
///
/// Each call applies one transition of [`crate::domain::claim`] to one key, atomically: of any number of concurrent
/// claims of one key, at most one is granted while that claim lasts. Calls on different keys are independent. A call
/// repeated with the same arguments has the effect of one.
///
/// # Time
///
/// Whether a record has ended is judged by the store's clock and no other, in the same atomic step as the transition.
/// A record that has ended is absent everywhere, reads included, whether or not it has been swept. Answers hold
/// durations from the instant the store gave them, never instants of somebody's clock. What is left is never told as
/// more than it is; a claim lasts for at least its lease after the store took it.
///
/// # Durability
///
/// An answer is given only after what it depends on is as durable as the engine ever makes it; answers that changed
/// nothing depend on what they read.
///
/// # Cancellation
///
/// A caller may drop any call's future at any time. The call may then still happen, and must not disturb another's:
/// a reply belongs to its request, also on a shared connection.
///
/// # Wrappers
///
/// A wrapper is an engine. It passes on what it does not change, keeps the distinction between certain and uncertain
/// failures, and repeats an uncertain call with the same attempt only.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Claims a key for an attempt.
    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimResponse, EngineError>;

    /// Claims many keys, no two of them the same. Each is a claim by itself, and `tell` hears of it, by its place, as soon as it
    /// is known: none waits for another's answer. What has not been told when this is dropped may still happen.
    async fn claim_batch(&self, requests: &[&ClaimRequest], tell: ClaimSink<'_>) {
        let asked = requests.iter().copied().enumerate();
        join_all(asked.map(|(place, request)| async move { tell(place, self.claim(request).await) })).await;
    }

    /// Settles a claim, by its attempt. Works also while the store has no room for new claims.
    async fn settle(&self, request: &OutcomeRequest) -> Result<OutcomeResponse, EngineError>;

    /// Extends a lease, by its attempt; never shortens one.
    async fn renew(&self, request: &RenewalRequest) -> Result<RenewalResponse, EngineError>;

    /// The record that stands, if any.
    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError>;

    /// Ends a claim on an operator's word, whatever its state, by the attempt that holds it. Fences go on rising over it.
    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError>;

    /// Lists claims that stand, where [`Capabilities::lists`] says so; elsewhere it fails as unavailable, and says why.
    /// Each is judged by itself: what changes while a list is read may or may not be in it. Ends before `limit` only where
    /// nothing is left to list. Other calls go on meanwhile.
    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError>;

    /// Returns the metadata stored under this name, if any. Names belong to the gateways: up to 200 letters, digits, `.`,
    /// `_` and `-`.
    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError>;

    /// Stores `new` if `expected` is stored now (`None`: nothing), atomically. Returns false, and changes nothing, if
    /// another value is stored. A `new` that is stored already counts as stored, so that a call whose answer was lost can
    /// be repeated; a caller that must know that the value is its own makes it unique. As durable as a claim, never
    /// expired, and accepted also while the store has no room for new claims.
    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError>;

    /// Whether the store would answer now. Changes nothing.
    async fn probe(&self) -> Result<(), EngineError>;

    /// What the engine can promise.
    fn capabilities(&self) -> Capabilities;

    /// How the breaker before it stands, where there is one.
    fn breaker(&self) -> Option<Standing> {
        None
    }

    /// How often, since this engine was opened, its store came back without its data.
    fn data_lost(&self) -> u64 {
        0
    }

    /// Makes durable what is not yet, and lets go of the store. Calls after it fail as unavailable.
    async fn close(&self) {}
}

/// Receives the answers to the claims of a batch: the position in the batch, and the answer.
pub type ClaimSink<'a> = &'a (dyn Fn(usize, Result<ClaimResponse, EngineError>) + Sync);

/// What an engine can promise; the table is in `docs/engines/README.md`.
#[expect(clippy::struct_excessive_bools, reason = "a table of independent yes and no")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Capabilities {
    /// Whether fences rise strictly per key.
    pub strict_fence: bool,
    /// Whether acknowledged answers survive a crash of what keeps them, as far as this process can tell.
    pub durable: bool,
    /// Whether several gateways can share the store.
    pub shared: bool,
    /// Whether a retention for ever outlives the process.
    pub forever: bool,
    /// Whether [`Engine::list`] answers.
    pub lists: bool,
}

/// A lease in whole milliseconds, at least one: the grain of time that all stores share.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}
