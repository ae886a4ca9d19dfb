//! The parts of an engine that depend on its URL and on the messages of its servers: each engine writes them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use oncegate_core::engine::{Determinate, EngineError, RecordName};
use oncegate_core::operator::{ListRequest, ListedClaim, LockListRequest, LockPage};
use oncegate_core::record::Key;
use oncegate_driver::listener::Listener;
use oncegate_driver::scheme::Inspection;
use tokio_util::sync::CancellationToken;

use super::State;
use super::options::Options;
use super::queue::Operations;
use super::routes::Routes;
use super::time::Time;
use super::url::{InvalidUrl, Url};
use super::value::{Found, Mark};

/// The parts of an engine that depend on its URL and on the messages of its servers.
pub trait Backend: Sized + Send + Sync + 'static {
    /// An open session at a member. Clones share it.
    type Session: Clone + Send + Sync + 'static;

    /// The parts of its URLs before the colon.
    const NAMES: &'static [&'static str];

    /// The forms of its URLs, for messages.
    const FORMS: &'static [&'static str];

    /// The protocol that its TLS connections ask for.
    const ALPN: Option<&'static [u8]>;

    /// Longest result of a claim.
    const RESULT_BYTES_MAX: usize;

    /// Most bytes in a batch, by a rough count.
    const BATCH_BYTES_MAX: usize;

    /// Checks a URL. Returns the parts that such engines have in common.
    ///
    /// # Errors
    /// What is wrong with it, without repeating it.
    fn parse(url: &str) -> Result<Url, InvalidUrl>;

    /// Creates the engine of a URL, without a connection.
    ///
    /// # Errors
    /// What is wrong with the URL, without repeating it.
    fn of_url(url: &str, options: Options) -> Result<Self, InvalidUrl>;

    /// Checks every member that the URL names. Writes nothing.
    fn inspect(url: String) -> BoxFuture<'static, Inspection>;

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

    /// Returns the key that says how far the sweep has come.
    fn sweep_key(&self) -> String;

    /// Returns the listener for notifications.
    fn listener(self: Arc<Self>) -> impl Listener;

    /// Looks at the members until `closing` is cancelled.
    fn look_at_members(self: Arc<Self>, closing: CancellationToken) -> impl Future<Output = ()> + Send + 'static;

    /// Advances the clock until `closing` is cancelled.
    fn advance_clock(
        self: Arc<Self>,
        routes: Weak<Routes<Self::Session>>,
        closing: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static;

    /// Reads a key of the cluster, of this store or of another one, and the time.
    fn read(
        session: Self::Session,
        key: String,
    ) -> impl Future<Output = Result<(Time, Option<Found>), EngineError>> + Send;

    /// Writes the cursor of the sweep, if it still has this mark. Returns false if another gateway has written it.
    fn move_cursor(
        session: &Self::Session,
        read: Option<Mark>,
        cursor: Bytes,
    ) -> impl Future<Output = Result<bool, EngineError>> + Send;

    /// Deletes ended records in the page of so many records from this place on; the first place is empty. Returns where the next page
    /// begins, `None` after the last one, and how many records were deleted.
    fn sweep_page(
        session: &Self::Session,
        from: Bytes,
        page: usize,
    ) -> impl Future<Output = Result<(Option<Bytes>, usize), EngineError>> + Send;

    /// Looks after the history of changes that the store keeps, if it keeps one.
    fn look_after_history(&self, session: &Self::Session) -> impl Future<Output = Result<(), EngineError>> + Send;

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
