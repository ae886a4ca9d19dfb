//! A worker: a queue of calls, and the task that owns one connection and sends them. Calls that arrive while replies are
//! awaited go out together; no call waits in order to form a batch.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use oncegate_core::attempt::{Entropy, SystemEntropy};
use oncegate_core::backoff::Backoff;
use oncegate_core::engine::{Determinate, EngineError};
use tokio::runtime::Id;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::queue::CALLS_MAX;
use super::{Call, Connection, Connector, Exchange, Fitness, Lost, Queue, Readiness, Reply};

/// Delay before a connection is opened again. Short, so that a recovered store is found well within a second.
pub(super) const RECONNECT: Backoff = Backoff { first: Duration::from_millis(20), max: Duration::from_millis(160) };

/// A connection that lasted this long was a good one: the next one is opened at once.
const STEADY: Duration = Duration::from_secs(1);

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
        if self.calls.send(call(reply)).await.is_err() {
            return Err(closed().into());
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
        let mut exchanges: FuturesUnordered<Exchange<<K::Connection as Connection>::Done>> = FuturesUnordered::new();
        let mut retired = None;
        let mut steady = pin!(sleep(STEADY));
        let mut heartbeats = ticks(self.intervals.heartbeat);
        let mut checks = self.intervals.check.map(ticks);
        // The first tick is at once, and the connection has just been checked.
        heartbeats.tick().await;
        tick(checks.as_mut()).await;
        loop {
            if let (Some(why), true) = (retired, exchanges.is_empty()) {
                return String::from(why).into();
            }
            let open = retired.is_none();
            let room = open && exchanges.len() < connection.exchanges_max();
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
                () = self.closing.cancelled(), if open => retired = Some("the engine is closing"),
                () = tick(checks.as_mut()), if room && checks.is_some() => exchanges.push(connection.check()),
                _ = heartbeats.tick(), if room => match connection.fitness() {
                    Fitness::Good => exchanges.push(connection.heartbeat()),
                    Fitness::Retire(why) => retired = Some(why),
                },
                () = &mut steady, if self.failures > 0 => self.failures = 0,
                has_call = self.queue.has_call(), if room => {
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

fn ticks(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn tick(ticks: Option<&mut Interval>) {
    if let Some(ticks) = ticks {
        ticks.tick().await;
    }
}
