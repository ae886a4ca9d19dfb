//! The connection to one server over which it notifies: opened with the first subscription, and replaced when it is lost.
//! Subscriptions are sharded, also at a single server, so that the scripts publish in one way everywhere.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use oncegate_core::attempt::{Entropy as _, SystemEntropy};
use oncegate_core::backoff::Backoff;
use oncegate_core::engine::notification::{Hub, Upstream};
use oncegate_core::engine::{Channel, Determinate};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, PushInfo, PushKind, Value};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::connection::failure;
use super::keys::Keys;
use super::reply::refusal;
use super::target::{Target, Version};
use super::url::Url;

/// Pause before the connection is opened again. Callers poll until then.
const RECONNECT: Backoff = Backoff { first: Duration::from_millis(50), max: Duration::from_secs(2) };

/// Interval of heartbeats, which find a broken connection, and time limit of every reply.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// What the hub wants of the listener. As long as the subscriptions of this gateway, which are bounded.
type Changes = UnboundedReceiver<Upstream>;

/// Listens at one server.
pub(super) struct Listener {
    pub(super) hub: Arc<Hub>,
    pub(super) url: Arc<Url>,
    pub(super) target: Target,
    pub(super) connect_timeout: Duration,
}

/// Returns the subscriptions at a server, and what its listener has to do for them.
pub(super) fn hub() -> (Arc<Hub>, Changes) {
    let (sender, changes) = mpsc::unbounded_channel();
    // Without a listener, the engine is closed.
    let hub = Hub::new(move |change| drop(sender.send(change)));
    (hub, changes)
}

/// An open connection, and what the server pushes.
struct Open {
    client: MultiplexedConnection,
    pushes: UnboundedReceiver<PushInfo>,
    version: Version,
}

impl Listener {
    /// Listens for as long as there is a hub.
    pub(super) async fn run(self, mut changes: Changes) {
        let mut failures = 0;
        while let Some(first) = changes.recv().await {
            if matches!(first, Upstream::Unsubscribe(_)) {
                continue;
            }
            let opened = timeout(self.connect_timeout, self.open()).await;
            let why = match opened.unwrap_or_else(|_| Err(Determinate::Unavailable("it took too long".into()))) {
                Ok(open) => {
                    failures = 0;
                    self.serve(open, first, &mut changes).await
                }
                Err(why) => why.to_string(),
            };
            failures += 1;
            tracing::debug!(server = %self.url, reason = why, "No notifications from the store; waiting callers poll");
            // A subscription that is queued after this is for the next connection.
            while changes.try_recv().is_ok() {}
            self.hub.end_all();
            sleep(RECONNECT.delay(failures, SystemEntropy.bits())).await;
        }
    }

    async fn open(&self) -> Result<Open, Determinate> {
        let (address, version) = self.target.find().await?;
        let url = self.url.clone();
        let client = spawn_blocking(move || url.listening_client(address.as_ref())).await;
        let client = client.map_err(|_| Determinate::Unavailable("the certificates could not be read".into()))?;
        let client = client.map_err(|why| Determinate::Unavailable(why.to_string()))?;
        let (sender, pushes) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let config = config.set_push_sender(sender);
        let client = client.get_multiplexed_async_connection_with_config(&config).await;
        Ok(Open { client: client.map_err(|error| Determinate::Unavailable(failure(&error)))?, pushes, version })
    }

    /// Serves subscriptions until the connection is to be replaced; returns why.
    async fn serve(&self, open: Open, first: Upstream, changes: &mut Changes) -> String {
        let Open { client, mut pushes, version } = open;
        let keys = Keys::new(&self.url);
        let mut replies = FuturesUnordered::new();
        let send = |channel: Option<Channel>, command: Cmd| {
            let mut client = client.clone();
            async move { (channel, timeout(HEARTBEAT, client.send_packed_command(&command)).await) }
        };
        let change = |change| match change {
            Upstream::Subscribe(channel) => {
                let command = redis::cmd("SSUBSCRIBE").arg(keys.channel(&channel)).to_owned();
                send(Some(channel), command)
            }
            Upstream::Unsubscribe(channel) => {
                send(None, redis::cmd("SUNSUBSCRIBE").arg(keys.channel(&channel)).to_owned())
            }
        };
        replies.push(change(first));
        let mut heartbeats = interval(HEARTBEAT);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                push = pushes.recv() => match push.map(|push| self.pushed(&keys, &push)) {
                    Some(Ok(())) => {}
                    Some(Err(why)) => return why.into(),
                    None => return "the connection was closed".into(),
                },
                Some((channel, reply)) = replies.next() => match (channel, reply) {
                    (_, Err(_elapsed)) => return "the server did not answer in time".into(),
                    (_, Ok(Err(error))) => return failure(&error),
                    (Some(channel), Ok(Ok(Value::ServerError(error)))) => {
                        // Moved, or not permitted.
                        tracing::debug!(server = %self.url, reason = %refusal(&error), "No notifications of a claim");
                        self.hub.end(channel.as_str());
                        self.target.failed();
                    }
                    _ => {}
                },
                next = changes.recv() => match next {
                    Some(next) => replies.push(change(next)),
                    None => return "the engine is closed".into(),
                },
                _ = heartbeats.tick() => {
                    if !self.target.is_at(version) {
                        return "the Sentinels name another primary".into();
                    }
                    replies.push(send(None, redis::cmd("PING")));
                }
            }
        }
    }

    /// Handles what the server pushes. An error if the connection is to be replaced.
    fn pushed(&self, keys: &Keys, push: &PushInfo) -> Result<(), &'static str> {
        let channel = match push.data.first() {
            Some(Value::BulkString(name)) => std::str::from_utf8(name).ok().and_then(|name| keys.channel_of(name)),
            _ => None,
        };
        let channel = channel.unwrap_or_default();
        match push.kind {
            PushKind::SMessage => self.hub.notify(channel),
            PushKind::SSubscribe => self.hub.confirm(channel),
            // Unasked: its slot moves. The client takes it for the reply to another command, so the connection is replaced.
            PushKind::SUnsubscribe if self.hub.is_live(channel) => return Err("a slot with subscriptions has moved"),
            PushKind::Disconnection => return Err("the connection was lost"),
            _ => {}
        }
        Ok(())
    }
}
