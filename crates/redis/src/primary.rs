//! A server that accepts writes: its connections and its known state.

use std::fmt;
use std::sync::Arc;

use futures_util::future::{join, try_join_all};
use oncegate_core::engine::EngineError;
use oncegate_core::engine::notification::Hub;
use oncegate_driver::{Intervals, Pool, Server, Worker};
use redis::Value;
use tokio::runtime::Id;

use super::commands::Commands;
use super::connection::{Connector, Purpose, QueuedCall};
use super::health::Health;
use super::keys::Spread;
use super::limit::Wait;
use super::listening::Listening;
use super::marker::{Marker, Markers};
use super::options::Options;
use super::reply::checked;
use super::target::Target;
use super::transaction;
use super::url::{CONNECTIONS, Url};

/// A server and the connections to it.
pub(super) struct Primary {
    server: Arc<Server>,
    health: Arc<Health>,
    connections: Pool<QueuedCall>,
    /// A connection for heartbeats and health checks, where the others wait for replicas.
    control: Option<Pool<QueuedCall>>,
    hub: Arc<Hub>,
}

impl Primary {
    /// Starts connecting.
    pub(super) fn open(
        url: &Arc<Url>,
        options: &Options,
        target: &Target,
        marker: Option<Marker>,
        markers: &Arc<Markers>,
    ) -> Self {
        let name = match target {
            Target::Node { address, .. } => address.to_string(),
            Target::Url | Target::Sentinel(_) => url.to_string(),
        };
        let server = Arc::new(Server::new("redis", name, options.on_data_loss.clone()));
        let health = Arc::new(Health::new(url.clone(), server.clone(), marker, markers.clone()));
        let size = url.connections.unwrap_or(options.cores.len().clamp(*CONNECTIONS.start(), *CONNECTIONS.end()));
        let intervals = Intervals { heartbeat: options.heartbeat_interval, check: Some(options.health_check_interval) };
        let connector = |is_acknowledged| Connector {
            url: url.clone(),
            target: target.clone(),
            connect_timeout: options.connect_timeout,
            response_timeout: url.response_timeout.unwrap_or(options.response_timeout),
            health: health.clone(),
            server: server.clone(),
            is_acknowledged,
        };
        let connections = Pool::start(size, &options.cores, intervals, |_| connector(true));
        let control = url.acknowledgement.map(|_| Pool::start(1, &options.cores, intervals, |_| connector(false)));
        let (url, target, connect_timeout) = (url.clone(), target.clone(), options.connect_timeout);
        let hub = connections.listen(Listening { url, target, connect_timeout });
        Self { server, health, connections, control, hub }
    }

    /// Returns the worker that sends the commands of a key. It is on the caller's own core, so it is woken without
    /// waking a thread. Where the core has several workers or none, the key decides.
    pub(super) fn worker_for(&self, spread: Spread, core: Id) -> usize {
        let workers = self.connections.workers();
        let Spread::Hash(hash) = spread else { return 0 };
        let hash = usize::from(hash);
        let own = || (0..workers.len()).filter(|number| workers[*number].core() == core);
        let count = own().count();
        let chosen = if count == 0 { None } else { own().nth(hash % count) };
        chosen.unwrap_or(hash % workers.len())
    }

    /// Sends commands together over the connection of a worker, and returns a reply to each.
    pub(super) async fn send(
        &self,
        worker: usize,
        commands: Commands,
        purpose: Purpose,
        wait: Option<Wait>,
    ) -> Result<Vec<Value>, EngineError> {
        self.connections.workers()[worker].call(|reply| QueuedCall { commands, purpose, wait, reply }).await
    }

    /// Sends a command or a transaction, and returns its reply.
    pub(super) async fn send_one(
        &self,
        worker: usize,
        commands: Commands,
        purpose: Purpose,
        wait: Option<Wait>,
    ) -> Result<Value, EngineError> {
        let replies = self.send(worker, commands, purpose, wait).await?;
        transaction::reply(replies).ok_or_else(|| EngineError::indeterminate("the Redis server sent no reply"))
    }

    /// Checks that every connection answers, and that the server may keep claims. Connections that wait for replicas
    /// are not checked: they show nothing about the server.
    pub(super) async fn probe(&self) -> Result<(), EngineError> {
        let ping = |worker| async move {
            let commands = redis::cmd("PING").into();
            let call = |reply| QueuedCall { commands, purpose: Purpose::Other, wait: None, reply };
            let replies = Worker::call(worker, call).await.map_err(EngineError::of_read)?;
            replies.into_iter().try_for_each(|reply| checked(reply).map(drop)).map_err(EngineError::from)
        };
        try_join_all(self.control.as_ref().unwrap_or(&self.connections).workers().iter().map(ping)).await?;
        self.health.refusal_of_grants().map_or(Ok(()), |why| Err(why.into()))
    }

    /// Returns the subscriptions at this server.
    pub(super) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Returns the known state of the server.
    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the results of its health checks.
    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    /// Returns whether a connection can answer at once.
    pub(super) fn is_connected(&self) -> bool {
        self.connections.workers().iter().any(|worker| worker.readiness().is_ready())
    }

    /// Closes the connections.
    pub(super) async fn close(&self) {
        let control = async {
            if let Some(control) = &self.control {
                control.close().await;
            }
        };
        join(self.connections.close(), control).await;
    }
}

impl fmt::Debug for Primary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Primary").field("server", &self.server).field("health", &self.health).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokio::runtime::{Builder, Handle};

    use super::*;

    fn primary(url: &str, cores: Vec<Handle>) -> Primary {
        let url = Arc::new(Url::parse(url).unwrap());
        Primary::open(&url, &Options { cores, ..Options::default() }, &Target::Url, None, &Arc::default())
    }

    #[tokio::test]
    async fn commands_of_a_key_take_a_connection_of_their_core_if_it_has_one() {
        let other = Builder::new_current_thread().build().unwrap();
        let (here, there) = (Handle::current(), other.handle().clone());
        let primary = primary("redis://127.0.0.1:1?connections=4", vec![here.clone(), there.clone()]);
        let workers = primary.connections.workers();
        let chosen = |core| (0..=u8::MAX).map(|hash| primary.worker_for(Spread::Hash(hash), core)).collect::<Vec<_>>();
        for core in [here.id(), there.id()] {
            let used: BTreeSet<_> = chosen(core).into_iter().collect();
            assert!(used.len() == 2 && used.iter().all(|worker| workers[*worker].core() == core));
        }
        let third = Builder::new_current_thread().build().unwrap();
        let core = third.handle().id();
        assert_eq!(chosen(core).into_iter().collect::<BTreeSet<_>>().len(), 4, "all of them");
        assert_eq!(primary.worker_for(Spread::None, here.id()), 0);
        assert!(!primary.is_connected());
        workers[3].readiness().set(true);
        assert!(primary.is_connected());
        tokio::task::spawn_blocking(move || drop((other, third))).await.unwrap();
    }
}
