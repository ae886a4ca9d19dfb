//! The PostgreSQL engine: claims in a table, shared by any number of gateways, as durable as the server makes its commits.
//!
//! Reading order: `routes` (the connection of a call), `connection`, `batch` and `rounds` (the statements that calls
//! share), `call` and `requests` (the needs of each call), `arguments` and `row` (arguments and results), and the SQL
//! files. Reasons: `docs/adr/0010-postgres-batches-and-fences.md`.

mod arguments;
mod batch;
mod call;
mod connection;
mod failure;
mod listening;
mod locks;
mod options;
mod record;
mod requests;
mod rounds;
mod routes;
mod row;
mod session;
mod statements;
mod sweeper;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use oncegate_core::claim::{
    ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::engine::notification::Hub;
use oncegate_core::engine::{
    Backup, BatchClaim, Capabilities, ChangeResponse, Channel, ClaimSink, Claims, EngineError, Node, OneShard,
    RecordChange, RecordName, RecordView, Records, StoreIdentity, Subscription, claim_each, without_index_of_unknowns,
};
use oncegate_core::operator::{
    ListRequest, ListedClaim, LockListRequest, LockPage, ReleaseRequest, ReleaseResponse, UnknownsPage, UnknownsRequest,
};
use oncegate_core::record::{ClaimState, Key, LiveClaim};
use oncegate_database::{Address, InvalidUrl};
use oncegate_driver::scheme::{OpenError, Promise, Scheme, no_files};
use oncegate_driver::{Intervals, Pool, Reply, Server, Worker, listener};
use tokio::sync::Semaphore;

use self::call::{Pending, QueuedCall, Request, Single, Statement};
use self::connection::{Connector, LEFT_RUNNING_MAX};
use self::listening::Listening;
use self::locks::{LockCall, LockKey, LockWork};
pub use self::options::Options;
use self::record::{ChangeMetadata, GetMetadata};
use self::requests::Outcomes;
use self::routes::Routes;
use self::session::Store;
use self::statements::{Mark, Probe};

/// Maximum number of tries to mark a claim whose record changes before the mark.
const MARKS_MAX: usize = 3;

/// The scheme of the PostgreSQL engine.
pub static SCHEME: Scheme = Scheme {
    names: &["postgres", "postgresql"],
    forms: &["postgres://USER:PASSWORD@HOST:PORT/DATABASE"],
    parse: |url| Address::parse(url).map(drop).map_err(OpenError::new),
    check_files: no_files,
    addresses: |url| Address::parse(url).map_or_else(|_| Vec::new(), |address| address.servers()),
    capabilities: Capabilities { strict_fence: true, durable: true, shared: true, forever: true, lists: true },
    promise: |_| {
        Promise::new(
            "Survives kill -9 and power loss with synchronous_commit on, and a failover to a synchronous standby; an \
             asynchronous standby may lack the newest claims.",
        )
    },
    restore: None,
    inspect: None,
    open: |url, host| {
        let options = Options { cores: host.cores, ..Options::default() };
        Ok(Arc::new(Postgres::open(url, options).map_err(OpenError::new)?))
    },
};

/// Claims stored in a PostgreSQL database.
pub struct Postgres {
    store: Arc<Store>,
    routes: Arc<Routes>,
    connections: Pool<QueuedCall>,
    /// `None` behind a pooler: it has no session that could listen.
    hub: Option<Arc<Hub>>,
}

impl Postgres {
    /// Opens an engine on the database of this URL: `postgres://[user[:password]@]host[:port][,…]/database`, with
    /// `?connections=`, `migrate=`, `pooler=` and the usual keys for TLS.
    ///
    /// The server need not be up: the engine keeps connecting, and calls fail as unavailable until it succeeds.
    ///
    /// # Errors
    /// The error in the URL, without repeating the URL.
    ///
    /// # Panics
    /// Outside a tokio runtime: the connections live in their own tasks.
    pub fn open(url: &str, options: Options) -> Result<Self, InvalidUrl> {
        let address = Address::parse(url)?;
        let server = Arc::new(Server::new("postgres", address.name(), options.on_data_loss.clone()));
        let store = Arc::new(Store { address, options, server });
        let left_running = Arc::new(Semaphore::new(LEFT_RUNNING_MAX));
        let intervals = Intervals { heartbeat: store.options.heartbeat_interval, check: None };
        let connector = |readiness| Connector { store: store.clone(), readiness, left_running: left_running.clone() };
        let connections = Pool::start(store.address.connections, &store.options.cores, intervals, connector);
        let routes = Routes::new(connections.workers().iter().map(|worker| worker.readiness().clone()));
        connections.spawn(|closing| sweeper::run(store.clone(), closing));
        let hub = (!store.address.is_pooled()).then(|| connections.listen(Listening(store.clone())));
        Ok(Self { store, routes, connections, hub })
    }

    /// Sends a request on a key.
    async fn call<R: Request>(&self, request: R) -> Result<R::Response, EngineError> {
        let route = self.routes.take(request.key());
        let worker = &self.connections.workers()[route.worker];
        worker.call(|reply| QueuedCall::Keyed(Box::new(Pending::new(request, reply, route)))).await
    }

    /// Claims, or marks the other claim if it has not changed since it was found.
    async fn claim_waiting(&self, request: &ClaimRequest) -> Result<ClaimResponse, EngineError> {
        for _ in 0..MARKS_MAX {
            let answer = self.call(request.clone()).await?;
            let (fence, is_duplicate) = match &answer {
                ClaimResponse::Duplicate(live) if live.record.state == ClaimState::InProgress => (live.fence, true),
                ClaimResponse::Granted(grant) if grant.taken_over => (grant.fence, false),
                _ => return Ok(answer),
            };
            let mark = Mark { key: request.key.clone(), fence: fence.unwrap_or_default() };
            match self.run(mark).await {
                // It has changed since it was found.
                Ok(false) if is_duplicate => {}
                // Without its mark, the claim's end is found by polling.
                Ok(_) | Err(_) => return Ok(answer),
            }
        }
        self.call(request.clone()).await
    }

    /// Sends a request that concerns no key.
    async fn run<S: Statement>(&self, statement: S) -> Result<S::Response, EngineError> {
        // Calls on keys use the last connection least.
        match self.connections.workers().last() {
            Some(worker) => run_on(worker, statement).await,
            None => Err(EngineError::unavailable("the engine is closed")),
        }
    }

    /// Sends a call on a row of the table of locks.
    async fn call_lock<Response>(
        &self,
        key: LockKey,
        work: impl FnOnce(Reply<Response>) -> LockWork,
    ) -> Result<Response, EngineError> {
        let route = self.routes.take(&key);
        let worker = &self.connections.workers()[route.worker];
        worker.call(|reply| QueuedCall::Lock(Box::new(LockCall { key, work: work(reply), _route: route }))).await
    }
}

async fn run_on<S: Statement>(worker: &Worker<QueuedCall>, statement: S) -> Result<S::Response, EngineError> {
    worker.call(|reply| QueuedCall::Single(Box::new(Single { statement, reply }))).await
}

#[async_trait]
impl Claims for Postgres {
    async fn claim(&self, request: &ClaimRequest, _: Duration) -> Result<ClaimResponse, EngineError> {
        if request.waits && self.hub.is_some() {
            return self.claim_waiting(request).await;
        }
        self.call(request.clone()).await
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        claim_each(self, claims, sink).await;
    }

    async fn settle(&self, request: &OutcomeRequest, _: Duration) -> Result<OutcomeResponse, EngineError> {
        self.call(Outcomes::from(request.clone())).await
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
        self.run(request.clone()).await.map_err(EngineError::of_read)
    }

    async fn unknowns(&self, _: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        Err(without_index_of_unknowns())
    }
}

#[async_trait]
impl Records for Postgres {
    async fn get_record(&self, name: &RecordName, _: Duration) -> Result<RecordView, EngineError> {
        let key = match name {
            RecordName::Metadata(name) => {
                return self.run(GetMetadata(name.clone())).await.map_err(EngineError::of_read);
            }
            RecordName::Lock(app, name) => LockKey::of_lock(app, name),
            RecordName::Grants(key) => LockKey::of_grants(key),
        };
        self.call_lock(key, LockWork::Read).await.map_err(EngineError::of_read)
    }

    async fn change_record(&self, change: &RecordChange, _: Duration) -> Result<ChangeResponse, EngineError> {
        let key = match &change.name {
            RecordName::Metadata(name) => return self.run(ChangeMetadata(name.clone(), change.clone())).await,
            RecordName::Lock(app, name) => LockKey::of_lock(app, name),
            RecordName::Grants(key) => LockKey::of_grants(key),
        };
        self.call_lock(key, |reply| LockWork::Change(Box::new(change.clone()), reply)).await
    }

    async fn list_records(&self, request: &LockListRequest) -> Result<LockPage, EngineError> {
        self.run(request.clone()).await.map_err(EngineError::of_read)
    }

    async fn subscribe(&self, channel: &Channel) -> Subscription {
        match &self.hub {
            Some(hub) => listener::subscribe(hub, channel).await,
            None => Subscription::none(),
        }
    }
}

#[async_trait]
impl OneShard for Postgres {
    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: self.store.server.is_durable(), ..SCHEME.capabilities }
    }

    async fn probe(&self) -> Result<(), EngineError> {
        let probes = self.connections.workers().iter().map(|worker| run_on(worker, Probe(self.store.clone())));
        try_join_all(probes).await.map(drop).map_err(EngineError::of_read)
    }

    fn data_lost(&self) -> u64 {
        self.store.server.data_losses()
    }

    fn nodes(&self) -> Vec<Node> {
        Vec::new()
    }

    fn identity(&self) -> Option<StoreIdentity> {
        self.store.server.identity()
    }

    async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        Ok(None)
    }

    async fn close(&self) {
        self.connections.close().await;
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("address", &self.store.address).finish_non_exhaustive()
    }
}
