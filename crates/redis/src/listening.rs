//! The connection to one server over which it notifies. Subscriptions are sharded, also at a single server, so that the scripts
//! publish in one way everywhere.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use oncegate_core::engine::notification::{Hub, Upstream};
use oncegate_core::engine::{Channel, Determinate};
use oncegate_driver::listener::{Changes, Listener};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, PushInfo, PushKind, Value};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::keys::Keys;
use super::library::{failure, with_files, without_timeouts};
use super::reply::refusal;
use super::sentinel::Version;
use super::target::Target;
use super::url::Url;

/// Listens at one server.
pub(super) struct Listening {
    pub(super) url: Arc<Url>,
    pub(super) target: Target,
    pub(super) connect_timeout: Duration,
}

/// An open connection, and the messages that the server pushes.
pub(super) struct Open {
    client: MultiplexedConnection,
    pushes: UnboundedReceiver<PushInfo>,
    version: Version,
}

impl Listener for Listening {
    type Session = Open;

    fn server(&self) -> String {
        self.url.to_string()
    }

    async fn open(&self) -> Result<Open, String> {
        let connected = timeout(self.connect_timeout, self.connect()).await;
        connected.map_or_else(|_| Err("it took too long".into()), |open| open.map_err(|why| why.reason().to_owned()))
    }

    async fn serve(&self, open: Open, first: Channel, hub: &Hub, changes: &mut Changes) -> String {
        let Open { client, mut pushes, version } = open;
        let keys = Keys::new(&self.url);
        let mut replies = FuturesUnordered::new();
        let send = |channel: Option<Channel>, command: Cmd| {
            let mut client = client.clone();
            async move { (channel, timeout(Self::HEARTBEAT, client.send_packed_command(&command)).await) }
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
        replies.push(change(Upstream::Subscribe(first)));
        let mut heartbeats = interval(Self::HEARTBEAT);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                push = pushes.recv() => match push.map(|push| pushed(hub, &keys, &push)) {
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
                        hub.end(channel.as_str());
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
}

impl Listening {
    async fn connect(&self) -> Result<Open, Determinate> {
        let (address, version) = self.target.find().await?;
        let client = with_files(&self.url, move |url| url.listening_client(address.as_ref())).await?;
        let (sender, pushes) = mpsc::unbounded_channel();
        let config = without_timeouts().set_push_sender(sender);
        let client = client.get_multiplexed_async_connection_with_config(&config).await;
        Ok(Open { client: client.map_err(|error| Determinate::Unavailable(failure(&error)))?, pushes, version })
    }
}

/// Handles the messages that the server pushes. An error if the connection must be replaced.
fn pushed(hub: &Hub, keys: &Keys, push: &PushInfo) -> Result<(), &'static str> {
    let channel = match push.data.first() {
        Some(Value::BulkString(name)) => std::str::from_utf8(name).ok().and_then(|name| keys.channel_of(name)),
        _ => None,
    };
    let channel = &*channel.unwrap_or_default();
    match push.kind {
        PushKind::SMessage => hub.notify(channel),
        PushKind::SSubscribe => hub.confirm(channel),
        // Unrequested: its slot moves. The client reads it as the reply to another command, so the connection is
        // replaced.
        PushKind::SUnsubscribe if hub.is_live(channel) => return Err("a slot with subscriptions has moved"),
        PushKind::Disconnection => return Err("the connection was lost"),
        _ => {}
    }
    Ok(())
}
