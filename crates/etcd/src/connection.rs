//! A connection as the driver uses it: several exchanges at once, each a batch or a single call, at one member.

use std::sync::Arc;

use oncegate_coordination::operation::Call;
use oncegate_coordination::queue::{self, Work};
use oncegate_coordination::slow;
use oncegate_core::engine::Determinate;
use oncegate_driver::{Exchange, Fitness, Lost, Queue, Readiness, Server};

use super::batch;
use super::failure::Failure;
use super::session::{Session, Store};

/// Transactions under way at once. etcd makes those that arrive together durable with one write of its log.
const EXCHANGES_MAX: usize = 4;

/// Opens the connections of one worker.
pub(super) struct Connector {
    pub(super) store: Arc<Store>,
    pub(super) readiness: Arc<Readiness>,
    /// The member that is tried first, so that workers are spread over the members.
    pub(super) first_member: usize,
}

impl oncegate_driver::Connector for Connector {
    type Connection = Connection;

    fn server(&self) -> &Server {
        &self.store.server
    }

    async fn connect(&self) -> Result<Connection, Determinate> {
        let session = Session::open(&self.store, self.first_member).await?;
        Ok(Connection { session, readiness: self.readiness.clone() })
    }
}

/// An open connection.
pub(super) struct Connection {
    session: Session,
    readiness: Arc<Readiness>,
}

impl oncegate_driver::Connection for Connection {
    type Call = Call<Session>;
    type Done = ();

    fn exchanges_max(&self) -> usize {
        EXCHANGES_MAX
    }

    fn send(&mut self, queue: &mut Queue<Call<Session>>) -> Option<Exchange<()>> {
        let session = self.session.clone();
        Some(match queue::next_work(queue.arrived(), batch::BYTES_MAX)? {
            Work::Batch(operations) => {
                slow::watch(self.readiness.clone(), async move { batch::answer(&session, operations).await })
            }
            // A long list is not a slow member: each of its requests has its limit.
            Work::Single(call) => Box::pin(async move { call.run(session).await.map_err(Lost::from) }),
        })
    }

    fn heartbeat(&mut self) -> Exchange<()> {
        let session = self.session.clone();
        let beat = async move {
            session.check().await?;
            session.measure().await
        };
        slow::watch(self.readiness.clone(), async move {
            beat.await.map_err(|failure: Failure| failure.answer.reason().to_owned())
        })
    }

    fn finish(&mut self, (): (), _: &mut Queue<Call<Session>>) -> Fitness {
        Fitness::Good
    }
}
