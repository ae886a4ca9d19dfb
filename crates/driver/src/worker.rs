//! A worker: a queue of calls, and the task that owns one connection and sends them. Calls that arrive while replies are
//! awaited go out together; no call waits in order to form a batch.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::attempt::{Entropy, SystemEntropy};
use oncegate_core::backoff::Backoff;
use oncegate_core::engine::{Determinate, EngineError};
use tokio::runtime::Id;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::events::{Event, Events};
use super::exchanges::Exchanges;
use super::queue::CALLS_MAX;
use super::{Call, Connection, Connector, Fitness, Lost, Queue, Readiness, Reply};

/// Delay before a connection is opened again. Short, so that a recovered store is found well within a second.
pub(super) const RECONNECT: Backoff = Backoff { first: Duration::from_millis(20), max: Duration::from_millis(160) };

/// Intervals at which a worker checks its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Intervals {
    /// Between two heartbeats.
    pub heartbeat: Duration,
    /// Time between two checks of the server's fitness, if such a check is more than a heartbeat.
    pub check: Option<Duration>,
}

/// The callers' end of a worker.
pub struct Worker<C> {
    calls: mpsc::Sender<C>,
    readiness: Arc<Readiness>,
    core: Id,
}

impl<C: Call> Worker<C> {
    /// Queues a call and waits for its answer. Calls are sent in the order in which this was called. May be dropped at any
    /// time: the call is then not sent, or its answer is thrown away.
    ///
    /// # Errors
    /// The errors of the call. There may also be no connection, or it was lost before the answer arrived.
    pub async fn call<Answer>(&self, call: impl FnOnce(Reply<Answer>) -> C) -> Result<Answer, EngineError> {
        let (reply, answer) = Reply::new();
        // There is mostly room. To wait for it takes more, even where nothing is waited for.
        match self.calls.try_send(call(reply)) {
            Ok(()) => {}
            Err(TrySendError::Closed(_)) => return Err(closed().into()),
            Err(TrySendError::Full(call)) => self.calls.send(call).await.map_err(|_| closed())?,
        }
        // A worker answers every call that it did not send.
        answer.await.unwrap_or_else(|_| {
            Err(EngineError::indeterminate("the connection to the store was lost before the answer arrived"))
        })
    }

    /// Returns the runtime that the worker lives on.
    pub fn core(&self) -> Id {
        self.core
    }

    /// Returns whether the worker can answer at once.
    pub fn readiness(&self) -> &Arc<Readiness> {
        &self.readiness
    }
}

fn closed() -> Determinate {
    Determinate::Unavailable("the engine is closed".into())
}

/// Creates a worker and the task that does its work.
pub(super) fn new<K: Connector>(
    connector: K,
    intervals: Intervals,
    readiness: Arc<Readiness>,
    closing: CancellationToken,
    core: Id,
) -> (Worker<CallOf<K>>, impl Future<Output = ()> + Send + 'static) {
    let (calls, incoming) = mpsc::channel(CALLS_MAX);
    let task = Task {
        connector: Arc::new(connector),
        intervals,
        readiness: readiness.clone(),
        closing,
        queue: Queue::new(incoming),
        failures: 0,
    };
    (Worker { calls, readiness, core }, task.run())
}

type CallOf<K> = <<K as Connector>::Connection as Connection>::Call;

struct Task<K: Connector> {
    connector: Arc<K>,
    intervals: Intervals,
    readiness: Arc<Readiness>,
    closing: CancellationToken,
    queue: Queue<CallOf<K>>,
    /// Failures since the last connection that lasted.
    failures: u32,
}

impl<K: Connector> Task<K> {
    async fn run(mut self) {
        while let Some(connection) = self.connect().await {
            self.connector.server().connected();
            self.readiness.set(true);
            // A server may accept connections only to close them.
            self.failures = self.failures.saturating_add(1);
            let Lost { why, reconnect_after } = self.serve(connection).await;
            self.readiness.set(false);
            if self.closing.is_cancelled() {
                self.connector.server().closed();
            } else {
                self.connector.server().lost(&why);
            }
            if let Some(event) = reconnect_after {
                let why = Determinate::Unavailable(why);
                self.queue.refuse_waiting(&why);
                self.wait_for(event, Some(&why)).await;
            }
        }
        self.queue.close();
        self.queue.refuse_all(&closed()).await;
    }

    /// Tries until there is a connection; `None` if the worker is to end. Calls wait for the first try, which mostly succeeds
    /// at once; after it has failed they are refused.
    async fn connect(&mut self) -> Option<K::Connection> {
        let mut refusal = None;
        loop {
            if self.failures > 0 {
                let delay = RECONNECT.delay(self.failures, SystemEntropy.bits());
                self.wait_for(sleep(delay), refusal.as_ref()).await?;
            }
            let connector = self.connector.clone();
            match self.wait_for(async move { connector.connect().await }, refusal.as_ref()).await? {
                Ok(connection) => return Some(connection),
                Err(why) => {
                    self.connector.server().refused(&why);
                    self.failures = self.failures.saturating_add(1);
                    self.queue.refuse_waiting(&why);
                    refusal = Some(why);
                }
            }
        }
    }

    /// Waits for `event`, and refuses calls until then if there is a reason to. `None` if the worker is to end.
    async fn wait_for<T>(&mut self, event: impl Future<Output = T>, refusal: Option<&Determinate>) -> Option<T> {
        let mut event = pin!(event);
        tokio::select! {
            () = self.closing.cancelled() => None,
            output = &mut event => Some(output),
            // Ends only when no caller is left.
            Some(()) = refuse(&mut self.queue, refusal) => None,
        }
    }

    /// Sends calls over a connection until it is lost or retired.
    ///
    /// Dropping the exchanges under way drops their calls, so their outcome is uncertain.
    async fn serve(&mut self, mut connection: K::Connection) -> Lost {
        let mut exchanges = Exchanges::new();
        let mut retired = None;
        let mut events = Events::start(self.intervals, self.closing.clone()).await;
        let (mut heartbeat_is_due, mut check_is_due) = (false, false);
        loop {
            if let (Some(why), true) = (retired, exchanges.is_empty()) {
                return String::from(why).into();
            }
            let has_room = retired.is_none() && exchanges.len() < connection.exchanges_max();
            if has_room && check_is_due {
                check_is_due = false;
                exchanges.push(connection.check());
                continue;
            }
            if has_room && heartbeat_is_due {
                heartbeat_is_due = false;
                match connection.fitness() {
                    Fitness::Good => exchanges.push(connection.heartbeat()),
                    Fitness::Retire(why) => retired = Some(why),
                }
                continue;
            }
            tokio::select! {
                // In this order: replies first, and no exchange is started before the last one has been polled.
                biased;
                Some(finished) = exchanges.next() => match finished {
                    Ok(done) => {
                        if let Fitness::Retire(why) = connection.finish(done, &mut self.queue) {
                            retired = Some(why);
                        }
                    }
                    Err(lost) => return lost,
                },
                event = events.next() => match event {
                    Event::Closing => retired = Some(retired.unwrap_or("the engine is closing")),
                    Event::Heartbeat => heartbeat_is_due = true,
                    Event::Check => check_is_due = true,
                    Event::Steady => self.failures = 0,
                },
                has_call = self.queue.has_call(), if has_room => {
                    if !has_call {
                        retired = Some("the engine was closed");
                    } else if let Fitness::Retire(why) = connection.fitness() {
                        retired = Some(why);
                    } else if let Some(exchange) = connection.send(&mut self.queue) {
                        exchanges.push(exchange);
                    }
                }
            }
        }
    }
}

async fn refuse<C: Call>(queue: &mut Queue<C>, why: Option<&Determinate>) -> Option<()> {
    match why {
        Some(why) => {
            queue.refuse_all(why).await;
            Some(())
        }
        None => std::future::pending().await,
    }
}
