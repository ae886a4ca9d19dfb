//! The etcd engine: claims as keys of an etcd cluster, shared by any number of gateways, acknowledged by a quorum.
//!
//! What calls need, and the store's clock, are in `oncegate_coordination`. Read on in `connection`, `batch` (the transactions that calls
//! share), `step` (a write and its guards as messages), and `session` (which member is used). Reasons:
//! `docs/adr/0152-one-transaction-for-many-claims.md`.

mod batch;
mod client;
mod connection;
mod failure;
mod keys;
mod lists;
mod proto;
mod session;
mod step;
mod sweeper;
mod ticker;
mod url;
mod version;
mod watching;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use oncegate_coordination::claims::{ClaimCall, Request};
use oncegate_coordination::operation::{Call, SingleRequest};
pub use oncegate_coordination::options::Options;
use oncegate_coordination::records::{ChangeCall, RecordLookup};
use oncegate_coordination::routes::Routes;
use oncegate_core::claim::{
    ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::engine::notification::Hub;
use oncegate_core::engine::{
    Capabilities, ChangeResponse, Channel, Engine, EngineError, RecordChange, RecordName, RecordView, Subscription,
};
use oncegate_core::operator::{ListRequest, ListedClaim, LockListRequest, LockPage, ReleaseRequest, ReleaseResponse};
use oncegate_core::record::{Key, LiveClaim};
use oncegate_driver::scheme::{OpenError, Promise, Scheme};
use oncegate_driver::{Intervals, Pool, listener};

use self::connection::Connector;
use self::session::{Session, Store};
pub use self::url::InvalidUrl;
use self::url::Url;
use self::watching::Watching;

/// Connections, if the process says nothing of its cores.
const CONNECTIONS: usize = 2;

/// Longest result: with what else a claim and its request have, less than the 1.5 MiB that etcd takes.
const RESULT_BYTES_MAX: usize = 512 << 10;

const PROMISE: &str = "Survives kill -9, power loss and the loss of any minority of the cluster's members. Leases end up to a second \
                       late, and later while no gateway runs; never early.";

/// The scheme of the etcd engine.
pub static SCHEME: Scheme = Scheme {
    names: &["etcd", "etcds"],
    forms: &[url::FORM],
    parse: |url| Url::parse(url).map(drop).map_err(OpenError::new),
    check_files: |url| match Url::parse(url).map_err(OpenError::new)?.common.tls {
        Some(certificates) => certificates.connector(Some(client::ALPN)).map(drop).map_err(OpenError::new),
        None => Ok(()),
    },
    capabilities: Capabilities { strict_fence: true, durable: true, shared: true, forever: true, lists: true },
    promise: |_| Promise { result_bytes_max: Some(RESULT_BYTES_MAX), ..Promise::new(PROMISE) },
    restore: None,
    open: |url, host| {
        let options = Options { cores: host.cores, clock: host.clock, ..Options::default() };
        Ok(Arc::new(Etcd::open(url, options).map_err(OpenError::new)?))
    },
};

/// Claims stored in an etcd cluster.
pub struct Etcd {
    store: Arc<Store>,
    routes: Arc<Routes<Session>>,
    hub: Arc<Hub>,
}

impl Etcd {
    /// Opens an engine on the cluster of this URL: `etcd://[user:password@]host[:port][,…][/prefix]`, or `etcds://` for TLS, with
    /// `?prefix=`, `tick=`, `members=fixed`, `grant_until=`, and `ca=`, `client_certificate=`, `client_key=` and `server_name=` for TLS.
    ///
    /// The cluster need not be up: the engine keeps connecting, and calls fail as unavailable until it succeeds.
    ///
    /// # Errors
    /// What is wrong with the URL, without repeating it.
    ///
    /// # Panics
    /// Outside a tokio runtime: the connections live in their own tasks.
    pub fn open(url: &str, options: Options) -> Result<Self, InvalidUrl> {
        let store = Arc::new(Store::new(Url::parse(url)?, options));
        let intervals = Intervals { heartbeat: store.options.heartbeat_interval, check: None };
        let workers = AtomicUsize::new(0);
        let connector = |readiness| Connector {
            store: store.clone(),
            readiness,
            first_member: workers.fetch_add(1, Ordering::Relaxed),
        };
        let size = store.options.cores.len().max(CONNECTIONS);
        let pool: Pool<Call<Session>> = Pool::start(size, &store.options.cores, intervals, connector);
        let hub = pool.listen(Watching(store.clone()));
        pool.spawn(|closing| sweeper::run(store.clone(), closing));
        let routes = Routes::new(pool);
        routes.pool().spawn(|closing| ticker::run(store.clone(), Arc::downgrade(&routes), closing));
        Ok(Self { store, routes, hub })
    }

    async fn call<R: Request>(&self, request: R) -> Result<R::Answer, EngineError> {
        let key = self.store.keys.claim(request.key());
        self.routes.call(|reply| Box::new(ClaimCall::new(request, key, reply))).await
    }
}

/// Checks that the store answers and has its data.
struct Probe;

impl SingleRequest<Session> for Probe {
    type Answer = ();

    async fn run(self, session: &Session) -> Result<(), EngineError> {
        session.check().await.map_err(|failure| failure.answer)
    }
}

#[async_trait]
impl Engine for Etcd {
    async fn claim(&self, request: &ClaimRequest, _: Duration) -> Result<ClaimResponse, EngineError> {
        self.call(request.clone()).await
    }

    async fn settle(&self, request: &OutcomeRequest, _: Duration) -> Result<OutcomeResponse, EngineError> {
        self.call(request.clone()).await
    }

    async fn renew(&self, request: &RenewalRequest, _: Duration) -> Result<RenewalResponse, EngineError> {
        self.call(request.clone()).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.call(key.clone()).await.map_err(EngineError::of_read)
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.call(request.clone()).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.routes.run(request.clone()).await.map_err(EngineError::of_read)
    }

    async fn list_records(&self, request: &LockListRequest) -> Result<LockPage, EngineError> {
        self.routes.run(request.clone()).await.map_err(EngineError::of_read)
    }

    async fn get_record(&self, name: &RecordName, _: Duration) -> Result<RecordView, EngineError> {
        let key = self.store.keys.record(name);
        self.routes.call(|reply| Box::new(RecordLookup::new(key, reply))).await.map_err(EngineError::of_read)
    }

    async fn change_record(&self, change: &RecordChange, _: Duration) -> Result<ChangeResponse, EngineError> {
        let key = self.store.keys.record(&change.name);
        self.routes.call(|reply| Box::new(ChangeCall::new(key, change.clone(), reply))).await
    }

    async fn subscribe(&self, channel: &Channel) -> Subscription {
        listener::subscribe(&self.hub, channel).await
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.routes.run(Probe).await.map_err(EngineError::of_read)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: self.store.server.is_durable(), ..SCHEME.capabilities }
    }

    fn data_lost(&self) -> u64 {
        self.store.server.data_losses()
    }

    async fn close(&self) {
        self.routes.pool().close().await;
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("url", &self.store.url).finish_non_exhaustive()
    }
}
