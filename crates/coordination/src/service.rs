//! The engine on a coordination service: the parts that do not depend on its messages.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::claim::{
    ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::engine::notification::Hub;
use oncegate_core::engine::{
    Backup, BatchClaim, Capabilities, ChangeResponse, Channel, ClaimSink, Claims, EngineError, LookUp as LookUpFn,
    Node, OneShard, RecordChange, RecordName, RecordView, Records, Servers, StoreIdentity, Subscription, claim_each,
    without_index_of_unknowns,
};
use oncegate_core::operator::{
    ListRequest, ListedClaim, LockListRequest, LockPage, ReleaseRequest, ReleaseResponse, UnknownsPage, UnknownsRequest,
};
use oncegate_core::record::{Key, LiveClaim};
use oncegate_driver::listener;
use oncegate_driver::{Intervals, Pool};

use super::backend::Backend;
use super::claims::{ClaimCall, Request};
use super::connection::Connector;
use super::options::Options;
use super::records::{ChangeCall, RecordLookup};
use super::routes::Routes;
use super::sweep;
use super::url::InvalidUrl;

/// Number of connections, if the process does not name its cores.
const CONNECTIONS: usize = 2;

/// Best promises of all engines of this kind. The server decides whether answers are durable.
pub const CAPABILITIES: Capabilities =
    Capabilities { strict_fence: true, durable: true, shared: true, forever: true, lists: true };

/// Faults that such an engine survives, for operators.
pub const PROMISE: &str = "Survives kill -9, power loss and the loss of any minority of the cluster's members. Leases end up to a second \
                           late, and later while no gateway runs; never early.";

/// An engine on a coordination service.
pub struct Service<B: Backend> {
    backend: Arc<B>,
    routes: Arc<Routes<B::Session>>,
    hub: Arc<Hub>,
}

impl<B: Backend> Service<B> {
    /// Opens the engine of a URL: starts its connections, and its four tasks: a listener, a sweeper, one that looks at the members,
    /// and one that advances the clock.
    ///
    /// # Errors
    /// The error in the URL, without repeating the URL.
    ///
    /// # Panics
    /// Outside a tokio runtime: the connections live in their own tasks.
    pub fn open(url: &str, options: Options) -> Result<Self, InvalidUrl> {
        let backend = Arc::new(B::of_url(url, options)?);
        let options = &backend.state().options;
        let intervals = Intervals { heartbeat: options.heartbeat_interval, check: None };
        let workers = AtomicUsize::new(0);
        let connector = |readiness| Connector {
            backend: backend.clone(),
            readiness,
            first_member: workers.fetch_add(1, Ordering::Relaxed),
        };
        let pool = Pool::start(options.cores.len().max(CONNECTIONS), &options.cores, intervals, connector);
        let hub = pool.listen(backend.clone().listener());
        pool.spawn(|closing| sweep::run(backend.clone(), closing));
        pool.spawn(|closing| backend.clone().look_at_members(closing));
        let routes = Routes::new(pool);
        routes.pool().spawn(|closing| backend.clone().advance_clock(Arc::downgrade(&routes), closing));
        Ok(Self { backend, routes, hub })
    }

    async fn call<R: Request>(&self, request: R) -> Result<R::Answer, EngineError> {
        let key = self.backend.claim_key(request.key());
        self.routes.call(|reply| Box::new(ClaimCall::new(request, key, reply))).await
    }
}

#[async_trait]
impl<B: Backend> Claims for Service<B> {
    async fn claim(&self, request: &ClaimRequest, _: Duration) -> Result<ClaimResponse, EngineError> {
        self.call(request.clone()).await
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        claim_each(self, claims, sink).await;
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
        let request = request.clone();
        self.routes.run(|session| B::list(session, request)).await.map_err(EngineError::of_read)
    }

    async fn unknowns(&self, _: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        Err(without_index_of_unknowns())
    }
}

#[async_trait]
impl<B: Backend> Records for Service<B> {
    async fn get_record(&self, name: &RecordName, _: Duration) -> Result<RecordView, EngineError> {
        let key = self.backend.record_key(name);
        self.routes.call(|reply| Box::new(RecordLookup::new(key, reply))).await.map_err(EngineError::of_read)
    }

    async fn change_record(&self, change: &RecordChange, _: Duration) -> Result<ChangeResponse, EngineError> {
        let key = self.backend.record_key(&change.name);
        self.routes.call(|reply| Box::new(ChangeCall::new(key, change.clone(), reply))).await
    }

    async fn list_records(&self, request: &LockListRequest) -> Result<LockPage, EngineError> {
        let request = request.clone();
        self.routes.run(|session| B::list_locks(session, request)).await.map_err(EngineError::of_read)
    }

    async fn subscribe(&self, channel: &Channel) -> Subscription {
        listener::subscribe(&self.hub, channel).await
    }
}

#[async_trait]
impl<B: Backend> OneShard for Service<B> {
    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: self.backend.state().server.is_durable(), ..CAPABILITIES }
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.routes.run(B::check).await.map_err(EngineError::of_read)
    }

    fn data_lost(&self) -> u64 {
        self.backend.state().server.data_losses()
    }

    fn nodes(&self) -> Vec<Node> {
        self.backend.state().members.nodes()
    }

    fn identity(&self) -> Option<StoreIdentity> {
        let (server, routes) = (&self.backend.state().server, self.routes.clone());
        let look_up: LookUpFn = Arc::new(move |key| {
            let routes = routes.clone();
            Box::pin(async move {
                let read = routes.run(|session| B::read(session, key)).await;
                read.map(|(_, found)| Some(found?.value.into())).map_err(EngineError::of_read)
            })
        });
        let servers = Servers::ByMarker { place: self.backend.marker_key(), look_up };
        Some(StoreIdentity { kind: server.engine(), marker: server.marker()?, servers })
    }

    async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        Ok(None)
    }

    async fn close(&self) {
        self.routes.pool().close().await;
    }
}

impl<B: Backend> fmt::Debug for Service<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("server", &self.backend.state().server).finish_non_exhaustive()
    }
}
