//! The parts of an engine that depend on the messages of its servers: each engine writes them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oncegate_core::engine::{Determinate, EngineError, RecordName};
use oncegate_core::operator::{ListRequest, ListedClaim, LockListRequest, LockPage};
use oncegate_core::record::Key;

use super::State;
use super::queue::Operations;

/// The parts of an engine that depend on the messages of its servers.
pub trait Backend: Send + Sync + 'static {
    /// An open session at a member. Clones share it.
    type Session: Clone + Send + Sync + 'static;

    /// Most bytes in a batch, by a rough count.
    const BATCH_BYTES_MAX: usize;

    /// Returns what the engine knows of its store.
    fn state(&self) -> &State;

    /// Forgets what the engine itself knows of lost data.
    fn forget(&self);

    /// Records the marker of the store, in a read that was sent at this monotonic time.
    ///
    /// # Errors
    /// Other members show another marker. This one must not be used.
    fn set_marker(&self, marker: Option<&[u8]>, sent_at: Duration) -> Result<(), Determinate> {
        if self.state().set_marker(marker, sent_at)? {
            self.state().forget();
            self.forget();
        }
        Ok(())
    }

    /// Records that the store came back without its data.
    fn lost_data(&self) {
        self.state().forget();
        self.forget();
        self.state().report_loss_once();
    }

    /// Returns the key of a claim.
    fn claim_key(&self, key: &Key) -> Bytes;

    /// Returns the key of a shared record.
    fn record_key(&self, name: &RecordName) -> Bytes;

    /// Returns the key of the store's marker. It is the same at all clusters.
    fn marker_key(&self) -> String;

    /// Reads a key of the cluster, of this store or of another one.
    fn look_up(session: Self::Session, key: String) -> impl Future<Output = Result<Option<Bytes>, EngineError>> + Send;

    /// Lists claims.
    fn list(
        session: Self::Session,
        request: ListRequest,
    ) -> impl Future<Output = Result<Vec<ListedClaim>, EngineError>> + Send;

    /// Lists locks.
    fn list_locks(
        session: Self::Session,
        request: LockListRequest,
    ) -> impl Future<Output = Result<LockPage, EngineError>> + Send;

    /// Opens a session at the first member that is fit, beginning with this one.
    fn open(self: Arc<Self>, from: usize) -> impl Future<Output = Result<Self::Session, Determinate>> + Send;

    /// Answers operations. An error is the reason to leave the member.
    fn answer(session: &Self::Session, operations: Operations) -> impl Future<Output = Result<(), String>> + Send;

    /// Checks that the store answers, and has its data.
    fn check(session: Self::Session) -> impl Future<Output = Result<(), EngineError>> + Send;

    /// Does the same from time to time, and asks for the room that is left.
    fn look_after(session: Self::Session) -> impl Future<Output = Result<(), EngineError>> + Send;
}
