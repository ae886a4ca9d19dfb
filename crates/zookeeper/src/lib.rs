//! The ZooKeeper engine: claims as nodes of a ZooKeeper, shared by any number of gateways, acknowledged by a quorum.
//!
//! What calls need, and the store's clock, are in `oncegate_coordination`. Reading order: `batch` and `exchange` (the
//! requests that calls share), `step` (a write and its guards as changes), `session` (the member in use), and `client`,
//! `proto` and `jute` (the protocol). Reasons: `docs/adr/0186-versions-of-nodes-and-tombstones.md`,
//! `docs/adr/0187-a-zookeeper-client-of-our-own.md`.

mod batch;
mod client;
mod exchange;
mod failure;
mod jute;
mod keys;
mod lists;
mod members;
mod proto;
mod session;
mod step;
mod store;
mod sweeper;
mod ticker;
mod url;
mod watching;
mod words;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
pub use oncegate_coordination::options::Options;
use oncegate_coordination::queue::Operations;
use oncegate_coordination::service::{self, Backend, Service};
use oncegate_core::engine::{Determinate, Engine, EngineError, RecordName};
use oncegate_core::record::Key;
use oncegate_driver::Server;
use oncegate_driver::scheme::{OpenError, Promise, Scheme};

use self::failure::Failure;
use self::session::Session;
use self::store::Store;
pub use self::url::InvalidUrl;
use self::url::Url;
use self::watching::Watching;

/// Longest result: together with the rest of a claim and its request, less than the 1 MiB that ZooKeeper accepts.
const RESULT_BYTES_MAX: usize = 512 << 10;

/// The scheme of the ZooKeeper engine.
pub static SCHEME: Scheme = Scheme {
    names: &["zookeeper", "zookeepers"],
    forms: &[url::FORM],
    parse: |url| Url::parse(url).map(drop).map_err(OpenError::new),
    check_files: |url| match Url::parse(url).map_err(OpenError::new)?.common.tls {
        Some(certificates) => certificates.connector(None).map(drop).map_err(OpenError::new),
        None => Ok(()),
    },
    capabilities: service::CAPABILITIES,
    promise: |_| Promise { result_bytes_max: Some(RESULT_BYTES_MAX), ..Promise::new(service::PROMISE) },
    restore: None,
    open: |url, host| {
        let options = Options { cores: host.cores, clock: host.clock, ..Options::default() };
        Ok(Arc::new(open(url, options).map_err(OpenError::new)?))
    },
};

/// Opens an engine on the servers of this URL: `zookeeper://[user:password@]host[:port][,…][/chroot]`, or `zookeepers://` for TLS, with
/// `?prefix=`, `tick=`, `session=`, `heap=`, `members=fixed`, and `ca=`, `client_certificate=`, `client_key=` and `server_name=` for
/// TLS.
///
/// The servers need not be up: the engine keeps connecting, and calls fail as unavailable until it succeeds.
///
/// # Errors
/// The error in the URL, without repeating the URL.
///
/// # Panics
/// Outside a tokio runtime: the connections live in their own tasks.
pub fn open(url: &str, options: Options) -> Result<impl Engine + fmt::Debug + use<>, InvalidUrl> {
    let store = Arc::new(Store::new(Url::parse(url)?, options));
    Ok(Service::start(
        store.clone(),
        Watching(store.clone()),
        |closing| sweeper::run(store.clone(), closing),
        |routes, closing| ticker::run(store.clone(), routes, closing),
    ))
}

impl Backend for Store {
    type Session = Session;

    const BATCH_BYTES_MAX: usize = batch::BYTES_MAX;

    fn options(&self) -> &Options {
        &self.options
    }

    fn server(&self) -> &Server {
        &self.server
    }

    fn claim_key(&self, key: &Key) -> Bytes {
        self.keys.claim(key)
    }

    fn record_key(&self, name: &RecordName) -> Bytes {
        self.keys.record(name)
    }

    async fn open(self: Arc<Self>, from: usize) -> Result<Session, Determinate> {
        Session::open(&self, from).await.map(|(session, _)| session)
    }

    async fn answer(session: &Session, operations: Operations) -> Result<(), String> {
        batch::answer(session, operations).await
    }

    async fn check(session: &Session) -> Result<(), EngineError> {
        session.check().await.map_err(|Failure { answer, .. }| answer)
    }

    async fn look_after(session: &Session) -> Result<(), EngineError> {
        Self::check(session).await?;
        session.measure().await;
        Ok(())
    }
}
