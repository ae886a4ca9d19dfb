//! The PostgreSQL engine: claims in a table, shared by any number of gateways, as durable as the server makes its commits.
//!
//! Read on in `routes` (which lane a call takes), `lane` (the queue and its connection), `work` (the statements of a
//! gathering), `call` (what is asked), `row` and the SQL beside it. Why it is so:
//! `docs/adr/0010-postgres-batches-and-fences.md`.

mod call;
mod failure;
mod lane;
mod options;
mod queue;
mod routes;
mod row;
mod session;
mod status;
mod sweeper;
mod work;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use self::call::{Ask, Told};
use self::lane::{LEFT_ALONE_MAX, Lane};
pub use self::options::Options;
use self::routes::Routes;
use self::session::Shared;
use self::status::Status;
use super::{Capabilities, Engine, EngineError, Metadata, runtimes};
use crate::database::{Address, InvalidUrl};
use crate::domain::claim::{
    ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::domain::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::domain::record::{Key, LiveClaim};

/// Claims kept in a PostgreSQL database.
pub struct Postgres {
    shared: Arc<Shared>,
    lanes: Vec<Lane>,
    routes: Arc<Routes>,
    tasks: TaskTracker,
    closing: CancellationToken,
    /// Ends the lanes when the engine is dropped.
    _guard: DropGuard,
}

impl Postgres {
    /// Whether [`Postgres::open`] would take this URL. Asks no server.
    ///
    /// # Errors
    /// What is wrong with the URL, without repeating it.
    pub fn check(url: &str) -> Result<(), InvalidUrl> {
        Address::parse(url).map(drop)
    }

    /// An engine on the database of this URL: `postgres://[user[:password]@]host[:port][,…]/database`, with `?connections=`,
    /// `migrate=`, `pooler=` and the usual keys for TLS.
    ///
    /// The server need not be there yet: the engine goes on trying, and calls fail as unavailable until it is.
    ///
    /// # Errors
    /// What is wrong with the URL, without repeating it.
    ///
    /// # Panics
    /// Outside a tokio runtime: the connections live in tasks of their own.
    pub fn open(url: &str, options: Options) -> Result<Self, InvalidUrl> {
        let address = Address::parse(url)?;
        let status = Status::new(address.name(), options.on_data_loss.clone());
        let connections = address.connections;
        let cores = runtimes(&options.cores).take(connections);
        let shared = Arc::new(Shared { address, options, status });
        let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
        let left_alone = Arc::new(Semaphore::new(LEFT_ALONE_MAX));
        let routes = Routes::new(connections);
        let lane = |(number, core)| {
            let readiness = routes.readiness(number);
            Lane::start(shared.clone(), readiness, left_alone.clone(), closing.clone(), &tasks, &core)
        };
        let lanes = cores.enumerate().map(lane).collect();
        tasks.spawn(sweeper::run(shared.clone(), closing.clone()));
        Ok(Self { shared, lanes, routes, tasks, _guard: closing.clone().drop_guard(), closing })
    }

    /// For what is of no key.
    fn last_lane(&self) -> Result<&Lane, EngineError> {
        self.lanes.last().ok_or_else(|| EngineError::unavailable("the engine is closed"))
    }

    async fn call<Answer>(
        &self,
        key: &Key,
        ask: Ask,
        read: impl FnOnce(Told) -> Option<Answer>,
    ) -> Result<Answer, EngineError> {
        let place = self.routes.take(key);
        let told = self.lanes[place.lane].call(ask, place).await?;
        // An answer is of the kind of its question.
        read(told).ok_or_else(|| EngineError::indeterminate("an answer of another kind than the question"))
    }
}

/// Takes an answer of one kind.
macro_rules! told {
    ($kind:ident) => {
        |told| match told {
            Told::$kind(answer) => Some(answer),
            _ => None,
        }
    };
}

#[async_trait]
impl Engine for Postgres {
    async fn claim(&self, ask: &ClaimRequest) -> Result<ClaimResponse, EngineError> {
        self.call(&ask.key, Ask::Claim(Box::new(ask.clone())), told!(Claimed)).await
    }

    async fn settle(&self, ask: &OutcomeRequest) -> Result<OutcomeResponse, EngineError> {
        self.call(&ask.key, Ask::Settle(Box::new(ask.clone())), told!(Settled)).await
    }

    async fn renew(&self, ask: &RenewalRequest) -> Result<RenewalResponse, EngineError> {
        self.call(&ask.key, Ask::Renew(ask.clone()), told!(Renewed)).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.call(key, Ask::Read(key.clone()), told!(Read)).await
    }

    async fn probe(&self) -> Result<(), EngineError> {
        try_join_all(self.lanes.iter().map(Lane::probe)).await.map(drop)
    }

    async fn release(&self, ask: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.call(&ask.key, Ask::Release(ask.clone()), told!(Released)).await
    }

    async fn list(&self, ask: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.last_lane()?.list(ask.clone()).await
    }

    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        self.last_lane()?.get_metadata(name).await
    }

    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        self.last_lane()?.compare_and_set_metadata(name, expected, new).await
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            strict_fence: true,
            durable: self.shared.status.durable(),
            shared: true,
            forever: true,
            lists: true,
        }
    }

    fn data_lost(&self) -> u64 {
        self.shared.status.data_lost()
    }

    async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("address", &self.shared.address)
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}
