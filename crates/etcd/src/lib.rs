//! The etcd engine: claims as keys of an etcd cluster, shared by any number of gateways, acknowledged by a quorum.
//!
//! What calls need, and the store's clock, are in `oncegate_coordination`. Reading order: `batch` (the transactions
//! that calls share), `step` (a write and its guards as messages), and `session` (the member in use). Reasons:
//! `docs/adr/0152-one-transaction-for-many-claims.md`.

mod authentication;
mod batch;
mod client;
mod cluster;
mod compaction;
mod failure;
mod history;
mod inspection;
mod keys;
mod lists;
mod proto;
mod session;
mod step;
mod store;
mod sweeper;
mod ticker;
mod url;
mod version;
mod watching;

use std::fmt;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use oncegate_coordination::State;
use oncegate_coordination::backend::Backend;
pub use oncegate_coordination::options::Options;
use oncegate_coordination::queue::Operations;
use oncegate_coordination::routes::Routes;
use oncegate_coordination::scheme::scheme;
use oncegate_coordination::service::Service;
use oncegate_coordination::time::Time;
use oncegate_coordination::url::Url as CommonUrl;
use oncegate_coordination::value::{Found, Mark};
use oncegate_core::engine::{Determinate, Engine, EngineError, RecordName};
use oncegate_core::operator::{ListRequest, ListedClaim, LockListRequest, LockPage};
use oncegate_core::record::Key;
use oncegate_driver::listener::Listener;
use oncegate_driver::scheme::{Inspection, Scheme};
use tokio_util::sync::CancellationToken;

use self::session::Session;
use self::store::Store;
pub use self::url::InvalidUrl;
use self::url::Url;
use self::watching::Watching;

/// The scheme of the etcd engine.
pub static SCHEME: Scheme = scheme::<Store>();

/// Opens an engine on the cluster of this URL: `etcd://[user:password@]host[:port][,…][/prefix]`, or `etcds://` for TLS, with
/// `?prefix=`, `tick=`, `members=fixed`, `grant_until=`, `compact=`, and `ca=`, `client_certificate=`, `client_key=` and `server_name=` for TLS.
///
/// The cluster need not be up: the engine keeps connecting, and calls fail as unavailable until it succeeds.
///
/// # Errors
/// The error in the URL, without repeating the URL.
///
/// # Panics
/// Outside a tokio runtime: the connections live in their own tasks.
pub fn open(url: &str, options: Options) -> Result<impl Engine + fmt::Debug + use<>, InvalidUrl> {
    Service::<Store>::open(url, options)
}

impl Backend for Store {
    type Session = Session;

    const NAMES: &'static [&'static str] = &["etcd", "etcds"];

    const FORMS: &'static [&'static str] = &[url::FORM];

    const ALPN: Option<&'static [u8]> = Some(client::ALPN);

    /// Together with the rest of a claim and its request, less than the 1.5 MiB that etcd accepts.
    const RESULT_BYTES_MAX: usize = 512 << 10;

    const BATCH_BYTES_MAX: usize = batch::BYTES_MAX;

    fn parse(url: &str) -> Result<CommonUrl, InvalidUrl> {
        Url::parse(url).map(|url| url.common)
    }

    fn of_url(url: &str, options: Options) -> Result<Self, InvalidUrl> {
        Url::parse(url).map(|url| Self::new(url, options))
    }

    fn inspect(url: String) -> BoxFuture<'static, Inspection> {
        Box::pin(async move { inspection::inspect(&url).await })
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn forget(&self) {
        // All of it is in the state.
    }

    fn claim_key(&self, key: &Key) -> Bytes {
        self.keys.claim(key)
    }

    fn record_key(&self, name: &RecordName) -> Bytes {
        self.keys.record(name)
    }

    fn marker_key(&self) -> String {
        String::from_utf8_lossy(&self.keys.marker).into_owned()
    }

    fn sweep_key(&self) -> String {
        String::from_utf8_lossy(&self.keys.sweep).into_owned()
    }

    fn listener(self: Arc<Self>) -> impl Listener {
        Watching(self)
    }

    async fn look_at_members(self: Arc<Self>, closing: CancellationToken) {
        cluster::run(self, closing).await;
    }

    async fn advance_clock(self: Arc<Self>, routes: Weak<Routes<Session>>, closing: CancellationToken) {
        ticker::run(self, routes, closing).await;
    }

    async fn read(session: Session, key: String) -> Result<(Time, Option<Found>), EngineError> {
        Ok(session.read(&key.into()).await?)
    }

    async fn move_cursor(session: &Session, read: Option<Mark>, cursor: Bytes) -> Result<bool, EngineError> {
        Ok(session.move_cursor(&session.store().keys.sweep, read, cursor).await?)
    }

    async fn sweep_page(session: &Session, from: Bytes, page: usize) -> Result<(Option<Bytes>, usize), EngineError> {
        Ok(sweeper::sweep_page(session, &from, page).await?)
    }

    async fn look_after_history(&self, session: &Session) -> Result<(), EngineError> {
        Ok(compaction::advance(self, session).await?)
    }

    async fn list(session: Session, request: ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        Ok(lists::claims(&session, request).await?)
    }

    async fn list_locks(session: Session, request: LockListRequest) -> Result<LockPage, EngineError> {
        Ok(lists::locks(&session, request).await?)
    }

    async fn open(self: Arc<Self>, from: usize) -> Result<Session, Determinate> {
        Session::open(&self, from).await
    }

    async fn answer(session: &Session, operations: Operations) -> Result<(), String> {
        batch::answer(session, operations).await
    }

    async fn check(session: Session) -> Result<(), EngineError> {
        Ok(session.check().await?)
    }

    async fn look_after(session: Session) -> Result<(), EngineError> {
        Self::check(session.clone()).await?;
        Ok(session.measure().await?)
    }
}
