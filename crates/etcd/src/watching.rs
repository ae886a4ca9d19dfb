//! The stream for notifications of etcd: a watch for each key that callers wait for.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream;
use hashbrown::HashMap;
use oncegate_coordination::value::Head;
use oncegate_core::engine::Channel;
use oncegate_core::engine::notification::{Hub, Upstream};
use oncegate_driver::listener::{Changes, Listener};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::proto::{
    Event, EventType, WatchCancelRequest, WatchCommand, WatchCreateRequest, WatchRequest, WatchResponse,
};
use super::session::Session;
use super::store::Store;

/// Watches keys at a member.
pub(super) struct Watching(pub(super) Arc<Store>);

/// The watches of a stream.
struct Watches<'a> {
    store: &'a Store,
    hub: &'a Hub,
    requests: UnboundedSender<WatchRequest>,
    channels: HashMap<i64, Channel>,
    ids: HashMap<Channel, i64>,
    last_id: i64,
}

impl Listener for Watching {
    type Session = Session;

    fn server(&self) -> String {
        self.0.state.server.address().to_owned()
    }

    async fn open(&self) -> Result<Session, String> {
        Session::open(&self.0, 0).await.map_err(|why| why.to_string())
    }

    async fn serve(&self, session: Session, first: Channel, hub: &Hub, changes: &mut Changes) -> String {
        // As long as the subscriptions of this gateway, which are bounded.
        let (requests, outgoing) = mpsc::unbounded_channel();
        let mut watches =
            Watches { store: &self.0, hub, requests, channels: HashMap::new(), ids: HashMap::new(), last_id: 0 };
        watches.apply(Upstream::Subscribe(first));
        let outgoing =
            stream::unfold(
                outgoing,
                |mut outgoing| async move { outgoing.recv().await.map(|request| (request, outgoing)) },
            );
        let opened = timeout(self.0.state.options.connect_timeout, session.client().watch(outgoing)).await;
        let mut replies = match opened {
            Ok(Ok(replies)) => replies,
            Ok(Err(failure)) => return failure.answer.reason().to_owned(),
            Err(_elapsed) => return "the member does not answer in time".into(),
        };
        let mut heartbeats = interval(Self::HEARTBEAT);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                change = changes.recv() => match change {
                    Some(change) => watches.apply(change),
                    None => return "the engine is closed".into(),
                },
                reply = replies.next() => match reply {
                    Some(Ok(reply)) => watches.receive(&reply),
                    Some(Err(status)) => return status.message().to_owned(),
                    None => return "the member has ended the stream".into(),
                },
                _ = heartbeats.tick() => if let Err(failure) = session.check().await {
                    return failure.answer.reason().to_owned();
                },
            }
        }
    }
}

impl Watches<'_> {
    fn apply(&mut self, change: Upstream) {
        match change {
            Upstream::Subscribe(channel) => {
                let Some(key) = self.store.keys.of_channel(&channel) else { return self.hub.end(channel.as_str()) };
                self.last_id += 1;
                self.channels.insert(self.last_id, channel.clone());
                self.ids.insert(channel, self.last_id);
                self.request(WatchCommand::Create(WatchCreateRequest { key, watch_id: self.last_id }));
            }
            Upstream::Unsubscribe(channel) => {
                if let Some(watch_id) = self.ids.remove(&channel) {
                    self.channels.remove(&watch_id);
                    self.request(WatchCommand::Cancel(WatchCancelRequest { watch_id }));
                }
            }
        }
    }

    fn request(&self, command: WatchCommand) {
        // If this fails, the stream has ended, and the next reply reports that.
        let _ = self.requests.send(WatchRequest { command: Some(command) });
    }

    fn receive(&mut self, reply: &WatchResponse) {
        let Some(channel) = self.channels.get(&reply.watch_id).cloned() else { return };
        if reply.canceled {
            self.channels.remove(&reply.watch_id);
            self.ids.remove(&channel);
            return self.hub.end(channel.as_str());
        }
        if reply.created {
            self.hub.confirm(channel.as_str());
        }
        if reply.events.iter().any(notifies) {
            self.hub.notify(channel.as_str());
        }
    }
}

/// Returns whether subscriptions are notified of an event: of all deletions, and of writes with that flag.
fn notifies(event: &Event) -> bool {
    let is_silent = |event: &Event| {
        let head = event.kv.as_ref().map(|pair| Head::decode(&pair.value));
        head.and_then(Result::ok).is_some_and(|(head, _)| !head.notifies)
    };
    event.r#type == i32::from(EventType::Delete) || !is_silent(event)
}
