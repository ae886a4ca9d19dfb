//! The session for notifications of ZooKeeper: a persistent watch for each node that callers wait for.

use std::sync::Arc;

use hashbrown::HashMap;
use oncegate_coordination::value::Head;
use oncegate_core::engine::Channel;
use oncegate_core::engine::notification::{Hub, Upstream};
use oncegate_driver::listener::{Changes, Listener};
use tokio::time::{MissedTickBehavior, interval};

use super::client::Events;
use super::failure::Failure;
use super::proto::{Body, Reply, Request};
use super::session::Session;
use super::store::Store;

/// Watches nodes at a member.
pub(super) struct Watching(pub(super) Arc<Store>);

/// The watches of a session.
struct Watches<'a> {
    session: &'a Session,
    hub: &'a Hub,
    /// By path: the channel, and the version that was last read; `None`: the node was not there.
    watched: HashMap<String, (Channel, Option<i32>)>,
}

impl Listener for Watching {
    type Session = (Session, Events);

    fn server(&self) -> String {
        self.0.state.server.address().to_owned()
    }

    async fn open(&self) -> Result<(Session, Events), String> {
        Session::open(&self.0, 0).await.map_err(|why| why.to_string())
    }

    async fn serve(
        &self,
        (session, mut events): (Session, Events),
        first: Channel,
        hub: &Hub,
        changes: &mut Changes,
    ) -> String {
        let mut watches = Watches { session: &session, hub, watched: HashMap::new() };
        let mut heartbeats = interval(Self::HEARTBEAT);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut served = watches.apply(Upstream::Subscribe(first)).await;
        loop {
            if let Err(failure) = served {
                return failure.answer.reason().to_owned();
            }
            served = tokio::select! {
                biased;
                change = changes.recv() => match change {
                    Some(change) => watches.apply(change).await,
                    None => return "the engine is closed".into(),
                },
                event = events.recv() => match event {
                    Some(path) => watches.changed(&path).await,
                    None => return "the member has ended the session".into(),
                },
                _ = heartbeats.tick() => session.check().await,
            };
        }
    }
}

impl Watches<'_> {
    async fn apply(&mut self, change: Upstream) -> Result<(), Failure> {
        match change {
            Upstream::Subscribe(channel) => {
                let Some(path) = self.session.store().keys.of_channel(&channel) else {
                    self.hub.end(channel.as_str());
                    return Ok(());
                };
                let requests = vec![Request::Watch(path.clone()), Request::Get(path.clone())];
                let mut replies = self.session.send(requests).await?.into_iter();
                match replies.next().map(|reply| reply.body) {
                    Some(Ok(_)) => {}
                    Some(Err(code)) => return Err(Failure::of_code(code, &path)),
                    None => return Err(Failure::unfit()),
                }
                let version = replies.next().and_then(|reply| version_and_silence(&reply)).map(|(version, _)| version);
                self.watched.insert(path, (channel.clone(), version));
                self.hub.confirm(channel.as_str());
            }
            Upstream::Unsubscribe(channel) => {
                let path = self.session.store().keys.of_channel(&channel);
                if let Some(path) = path.filter(|path| self.watched.remove(path).is_some()) {
                    // If the member knows of no such watch, all is well.
                    self.session.send(vec![Request::Unwatch(path)]).await?;
                }
            }
        }
        Ok(())
    }

    /// Notifies of a node's change, unless its writer marked it as one without notification.
    async fn changed(&mut self, path: &str) -> Result<(), Failure> {
        if !self.watched.contains_key(path) {
            return Ok(());
        }
        let replies = self.session.send(vec![Request::Get(path.to_owned())]).await?;
        let found = replies.first().and_then(version_and_silence);
        let Some((channel, last)) = self.watched.get_mut(path) else { return Ok(()) };
        let before = std::mem::replace(last, found.map(|(version, _)| version));
        let is_same = *last == before;
        // What came between two reads may have been worth a notification.
        let is_next = *last == Some(before.map_or(0, |before| before.wrapping_add(1)));
        let is_silent = is_next && found.is_some_and(|(_, is_silent)| is_silent);
        if !is_same && !is_silent {
            self.hub.notify(channel.as_str());
        }
        Ok(())
    }
}

/// Returns the version of a node that was read, and whether its last write is not notified.
fn version_and_silence(reply: &Reply) -> Option<(i32, bool)> {
    let Ok(Body::Data(value, stat)) = &reply.body else { return None };
    let is_silent = Head::decode(value).is_ok_and(|(head, _)| !head.notifies);
    Some((stat.version, is_silent))
}
