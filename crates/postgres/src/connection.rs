//! A connection as the driver uses it: one batch or statement at a time. One that takes too long is left running.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use oncegate_core::engine::Determinate;
use oncegate_driver::{Exchange, Fitness, Lost, Queue, Readiness, Server};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

use super::batch::{self, Work};
use super::call::QueuedCall;
use super::rounds::{self, Found};
use super::session::{Session, Store};

/// Time of a statement after which calls on other keys use another connection.
const SLOW: Duration = Duration::from_millis(25);
/// Time after which the connection of a statement that is left running is closed.
const LEFT_RUNNING: Duration = Duration::from_mins(1);
/// Most statements of an engine that are left running, each with its connection. Otherwise a server that waits for its
/// standby, and so answers no calls, would be filled with waiting connections.
pub(super) const LEFT_RUNNING_MAX: usize = 6;

/// Opens the connections of one worker.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) store: Arc<Store>,
    pub(super) readiness: Arc<Readiness>,
    /// Permits for statements that are left running, shared by all workers of an engine.
    pub(super) left_running: Arc<Semaphore>,
}

impl oncegate_driver::Connector for Connector {
    type Connection = PostgresConnection;

    fn server(&self) -> &Server {
        &self.store.server
    }

    async fn connect(&self) -> Result<PostgresConnection, Determinate> {
        let session = Session::open(&self.store).await?;
        Ok(PostgresConnection { session: Arc::new(Mutex::new(session)), connector: self.clone() })
    }
}

/// An open connection.
pub(super) struct PostgresConnection {
    /// Locked by the one exchange under way.
    session: Arc<Mutex<Session>>,
    connector: Connector,
}

impl oncegate_driver::Connection for PostgresConnection {
    type Call = QueuedCall;
    type Done = Found;

    fn send(&mut self, queue: &mut Queue<QueuedCall>) -> Option<Exchange<Found>> {
        Some(match batch::next_work(queue.arrived())? {
            Work::Claims(calls) => self.exchange(move |session| Box::pin(rounds::answer(session, calls))),
            Work::Locks(calls) => self.exchange(move |session| Box::pin(rounds::answer(session, calls))),
            Work::Single(call) => {
                self.exchange(move |session| Box::pin(async move { call.run(session).await.map(|()| Found::new()) }))
            }
        })
    }

    fn heartbeat(&mut self) -> Exchange<Found> {
        let store = self.connector.store.clone();
        self.exchange(move |session| {
            Box::pin(async move {
                session.check(&store).await.map(|()| Found::new()).map_err(|why| why.reason().to_owned())
            })
        })
    }

    fn finish(&mut self, found: Found, queue: &mut Queue<QueuedCall>) -> Fitness {
        batch::answer_waiting(queue.left(), &found);
        Fitness::Good
    }
}

impl PostgresConnection {
    fn exchange<Work>(&self, work: Work) -> Exchange<Found>
    where
        Work: for<'a> FnOnce(&'a mut Session) -> BoxFuture<'a, Result<Found, String>> + Send + 'static,
    {
        let session = self.session.clone();
        let work = Box::pin(async move { work(&mut *session.lock().await).await });
        Box::pin(watch(work, self.connector.clone()))
    }
}

/// Waits for an exchange. An exchange that takes too long is not cancelled, since the server would continue it anyway.
/// It keeps its connection, and the worker opens another one.
async fn watch(mut exchange: BoxFuture<'static, Result<Found, String>>, connector: Connector) -> Result<Found, Lost> {
    let Connector { store, readiness, left_running } = connector;
    let limit = store.options.response_timeout;
    let slow = SLOW.min(limit);
    if let Ok(done) = timeout(slow, &mut exchange).await {
        return done.map_err(Lost::from);
    }
    readiness.set(false);
    if let Ok(done) = timeout(limit.saturating_sub(slow), &mut exchange).await {
        readiness.set(true);
        return done.map_err(Lost::from);
    }
    let why = format!("the PostgreSQL server did not answer within {limit:?}");
    let rest = async { drop(timeout(LEFT_RUNNING, exchange).await) };
    match left_running.try_acquire_owned() {
        Ok(permit) => {
            tokio::spawn(async {
                rest.await;
                drop(permit);
            });
            Err(why.into())
        }
        // Too many are left running: no other connection is opened before this one has answered.
        Err(_) => Err(Lost { why, reconnect_after: Some(Box::pin(rest)) }),
    }
}
