//! One connection to a server: how it is opened, and how calls are sent in batches.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::attempt::{Entropy, SystemEntropy};
use oncegate_core::engine::{Determinate, EngineError};
use oncegate_driver::{Exchange, Fitness, Lost, Queue, Reply, Server};
use redis::Value;
use tokio::time::timeout;

use super::acknowledged::Room;
use super::callers::{Caller, answer, fitness, lose};
use super::commands::Commands;
use super::health::Health;
use super::limit::Wait;
use super::script::{SCRIPTS, Script};
use super::sentinel::Version;
use super::stream;
use super::target::Target;
use super::url::Url;
use super::wire::Wire;

/// Number of commands of a full batch: no call is added to such a batch.
pub(super) const BATCH: usize = 128;

/// Commands that are sent together, and the receivers of their replies.
pub(super) struct QueuedCall {
    pub(super) commands: Commands,
    pub(super) purpose: Purpose,
    /// Rule by which its replies wait for replicas, if they do.
    pub(super) wait: Option<Wait>,
    pub(super) reply: Reply<Vec<Value>>,
}

/// Purpose of commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// May grant a claim or a lock: refused while the server may lose its grants.
    Grant,
    /// Anything else.
    Other,
}

impl oncegate_driver::Call for QueuedCall {
    fn refuse(self, why: &Determinate) {
        self.reply.refuse(why);
    }
}

/// Opens connections.
pub(super) struct Connector {
    pub(super) url: Arc<Url>,
    pub(super) target: Target,
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
    pub(super) health: Arc<Health>,
    pub(super) server: Arc<Server>,
    /// True if its batches wait for replicas, provided that the URL requires replicas. A connection for heartbeats does
    /// not wait.
    pub(super) is_acknowledged: bool,
}

impl Connector {
    /// Opens a connection, and checks that the server is fit.
    async fn open(&self) -> Result<RedisConnection, Determinate> {
        let (address, version) = self.target.find().await?;
        let stream = stream::open(&self.url, address.as_ref());
        let stream = self.target.unless_changed(version, stream).await??;
        let acknowledgement = self.url.acknowledgement.filter(|_| self.is_acknowledged);
        // An exchange may be queued behind two others that wait for replicas.
        let waits = acknowledgement.map(|asked| asked.timeout).unwrap_or_default() * 3;
        let wire = Wire::new(stream, self.response_timeout + waits, SystemEntropy.bits());
        let health = self.health.clone();
        let mut connection = RedisConnection {
            room: acknowledgement.map(|asked| Arc::new(Room::new(wire.clone(), health.clone(), asked))),
            wire,
            health,
            target: self.target.clone(),
            version,
        };
        connection.prepare().await?;
        connection.check_health().await?;
        Ok(connection)
    }
}

impl oncegate_driver::Connector for Connector {
    type Connection = RedisConnection;

    fn server(&self) -> &Server {
        &self.server
    }

    async fn connect(&self) -> Result<RedisConnection, Determinate> {
        let limit = self.connect_timeout;
        let late = |_| Err(Determinate::Unavailable(format!("no connection to the Redis server within {limit:?}")));
        let connection = timeout(limit, self.open()).await.unwrap_or_else(late);
        let connection = connection.map_err(|why| self.url.with_tls_hint(why));
        if connection.is_err() {
            self.target.failed();
        }
        connection
    }
}

/// A connection that has passed the health check.
pub(super) struct RedisConnection {
    wire: Wire,
    health: Arc<Health>,
    /// Queue of the callers that wait for replicas, if callers do.
    room: Option<Arc<Room>>,
    target: Target,
    /// Version of the target when it was opened.
    version: Version,
}

impl oncegate_driver::Connection for RedisConnection {
    type Call = QueuedCall;
    type Done = Fitness;

    /// More would make batches smaller, and each costs an ECHO. Waiting for replicas blocks a connection, so its
    /// exchanges follow one another. One more in flight hides the network latency, and another one may repeat the wait.
    fn exchanges_max(&self) -> usize {
        self.room.as_ref().map_or(4, |room| 2 + usize::from(room.is_repeated()))
    }

    fn fitness(&self) -> Fitness {
        if self.target.is_at(self.version) {
            Fitness::Good
        } else {
            Fitness::Retire("the Sentinels name another primary")
        }
    }

    fn send(&mut self, queue: &mut Queue<QueuedCall>) -> Option<Exchange<Fitness>> {
        let refusal = self.health.refusal_of_grants();
        let short = self.room.as_ref().and_then(|room| room.short());
        let is_late = |call: &QueuedCall| call.wait.is_some_and(|wait| wait.limit.is_over());
        let calls_max = queue.len().min(BATCH);
        let (mut commands, mut callers) = (Commands::default(), Vec::with_capacity(calls_max));
        while commands.len() < BATCH {
            let Some(call) = queue.pop() else { break };
            match &refusal {
                Some(why) if call.purpose == Purpose::Grant => call.reply.refuse(why),
                _ if call.reply.is_abandoned() => {}
                _ if short.is_some() && is_late(&call) => {
                    call.reply.send(Err(EngineError::shortfall(short.clone().unwrap_or_default())));
                }
                _ => {
                    let (count, wait, reply) = (call.commands.len(), call.wait, Some(call.reply));
                    callers.push(Caller { count, wait, reply });
                    commands.append(call.commands);
                }
            }
        }
        if commands.is_empty() {
            return None;
        }
        if let Some(room) = &self.room {
            return Some(Box::pin(room.clone().exchange(commands, callers)));
        }
        let exchange = self.wire.exchange(commands);
        Some(Box::pin(async move {
            match exchange.await {
                Ok(values) => {
                    let fitness = fitness(&values);
                    answer(callers, values);
                    Ok(fitness)
                }
                Err(why) => Err(lose(callers, why)),
            }
        }))
    }

    fn heartbeat(&mut self) -> Exchange<Fitness> {
        // Where batches wait for replicas, another connection has the heartbeats: here one would only wait as well.
        if self.room.is_some() && self.wire.is_busy() {
            return Box::pin(ready(Ok(Fitness::Good)));
        }
        let marker = self.health.marker();
        let replies = self.wire.exchange(self.health.marker_commands().into_iter().collect());
        let health = self.health.clone();
        Box::pin(async move {
            let checked = health.check_marker(replies.await?, marker.as_deref());
            checked.map_err(|why| Lost::from(why.reason().to_owned()))?;
            Ok(Fitness::Good)
        })
    }

    fn check(&mut self) -> Exchange<Fitness> {
        if self.room.is_some() && self.wire.is_busy() {
            return Box::pin(ready(Ok(Fitness::Good)));
        }
        let check = self.check_health();
        Box::pin(async move { check.await.map(|()| Fitness::Good).map_err(|why| why.reason().to_owned().into()) })
    }

    fn finish(&mut self, fitness: Fitness, _: &mut Queue<QueuedCall>) -> Fitness {
        fitness
    }
}

impl RedisConnection {
    /// Names the connection in `CLIENT LIST`, and loads the scripts. A refusal of either is harmless: a call whose script is
    /// missing sends it again.
    async fn prepare(&mut self) -> Result<(), Determinate> {
        let mut set_name = redis::cmd("CLIENT");
        set_name.arg("SETNAME").arg("oncegate");
        let commands = SCRIPTS.all().map(Script::load).into_iter().chain([set_name]).collect();
        self.wire.exchange(commands).await.map(drop).map_err(Determinate::Unavailable)
    }

    fn check_health(&mut self) -> impl Future<Output = Result<(), Determinate>> + Send + 'static + use<> {
        let marker = self.health.marker();
        let replies = self.wire.exchange(self.health.commands().into_iter().collect());
        let health = self.health.clone();
        async move { health.check_replies(replies.await.map_err(Determinate::Unavailable)?, marker.as_deref()) }
    }
}
