//! A connection as the driver uses it: several exchanges at once, each a batch or a single call, at one member.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::engine::{Determinate, EngineError};
use oncegate_driver::{Exchange, Fitness, Lost, Queue, Readiness, Server};
use tokio::time::timeout;

use super::backend::Backend;
use super::operation::Call;
use super::queue::{self, Work};

/// Exchanges under way at once. Servers make changes that arrive together durable with one write of their log.
const EXCHANGES_MAX: usize = 4;

/// Time of an exchange after which calls use another connection.
const SLOW: Duration = Duration::from_millis(100);

/// Opens the connections of one worker.
pub(super) struct Connector<B> {
    pub(super) backend: Arc<B>,
    pub(super) readiness: Arc<Readiness>,
    /// The member that is tried first. It spreads workers over the members.
    pub(super) first_member: usize,
}

impl<B: Backend> oncegate_driver::Connector for Connector<B> {
    type Connection = Connection<B>;

    fn server(&self) -> &Server {
        &self.backend.state().server
    }

    async fn connect(&self) -> Result<Connection<B>, Determinate> {
        let session = self.backend.clone().open(self.first_member).await?;
        Ok(Connection { session, readiness: self.readiness.clone() })
    }
}

/// An open connection.
pub(super) struct Connection<B: Backend> {
    session: B::Session,
    readiness: Arc<Readiness>,
}

impl<B: Backend> oncegate_driver::Connection for Connection<B> {
    type Call = Call<B::Session>;
    type Done = ();

    fn exchanges_max(&self) -> usize {
        EXCHANGES_MAX
    }

    fn send(&mut self, queue: &mut Queue<Call<B::Session>>) -> Option<Exchange<()>> {
        let session = self.session.clone();
        Some(match queue::next_work(queue.arrived(), B::BATCH_BYTES_MAX)? {
            Work::Batch(operations) => self.watch(async move { B::answer(&session, operations).await }),
            // A long list is not a slow member: each of its requests has its limit.
            Work::Single(call) => Box::pin(async move { call.run(session).await.map_err(Lost::from) }),
        })
    }

    fn heartbeat(&mut self) -> Exchange<()> {
        let session = self.session.clone();
        let reason = |failure: EngineError| failure.reason().to_owned();
        self.watch(async move { B::look_after(session).await.map_err(reason) })
    }

    fn finish(&mut self, (): (), _: &mut Queue<Call<B::Session>>) -> Fitness {
        Fitness::Good
    }
}

impl<B: Backend> Connection<B> {
    /// Waits for an exchange. While it is slow, calls take other connections.
    fn watch(&self, exchange: impl Future<Output = Result<(), String>> + Send + 'static) -> Exchange<()> {
        let readiness = self.readiness.clone();
        Box::pin(async move {
            let mut exchange = Box::pin(exchange);
            if let Ok(done) = timeout(SLOW, &mut exchange).await {
                return done.map_err(Lost::from);
            }
            readiness.set(false);
            exchange.await?;
            readiness.set(true);
            Ok(())
        })
    }
}
