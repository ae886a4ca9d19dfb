//! The topology: which servers there are, and which of them answers for a key. The claim protocol knows keys and commands
//! only, so another topology changes this file and adds one of its own.

use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::runtime::Id;

use super::connection::{BATCH, Purpose};
use super::keys::KeyName;
use super::options::Options;
use super::primary::Primary;
use super::url::Url;
use crate::engine::EngineError;

/// One server that answers for all keys.
pub(super) struct Topology {
    server: Primary,
}

/// Where commands for a key are sent: a server, and a connection to it.
#[derive(Clone, Copy)]
pub(super) struct Route<'a> {
    primary: &'a Primary,
    worker: usize,
}

impl Topology {
    /// Starts connecting.
    pub(super) fn open(url: Url, options: Options) -> Self {
        Self { server: Primary::open(url, options) }
    }

    /// Returns the servers that answer for keys.
    pub(super) fn primaries(&self) -> impl Iterator<Item = &Primary> {
        std::iter::once(&self.server)
    }

    /// Sends a command for a key, and returns its reply.
    pub(super) async fn send(&self, key: &KeyName, command: Cmd, purpose: Purpose) -> Result<Value, EngineError> {
        let replies = self.route(key, Handle::current().id()).send(vec![command], purpose).await?;
        replies.into_iter().next().ok_or_else(|| EngineError::indeterminate("the Redis server sent no reply"))
    }

    /// Splits items into groups whose commands go out together, each along its route.
    pub(super) fn split<T>(&self, items: Vec<T>, key: impl Fn(&T) -> &KeyName) -> Vec<(Route<'_>, Vec<T>)> {
        let core = Handle::current().id();
        let mut groups: Vec<(Route<'_>, Vec<T>)> = Vec::new();
        for item in items {
            let route = self.route(key(&item), core);
            // The last group of a route is the one that has room.
            match groups.iter_mut().rev().find(|(other, _)| other.is(route)).filter(|(_, group)| group.len() < BATCH) {
                Some((_, group)) => group.push(item),
                None => groups.push((route, vec![item])),
            }
        }
        groups
    }

    fn route(&self, key: &KeyName, core: Id) -> Route<'_> {
        Route { primary: &self.server, worker: self.server.worker_for(key.spread, core) }
    }
}

impl Route<'_> {
    /// Sends commands together, and returns a reply to each.
    pub(super) async fn send(&self, commands: Vec<Cmd>, purpose: Purpose) -> Result<Vec<Value>, EngineError> {
        self.primary.send(self.worker, commands, purpose).await
    }

    fn is(&self, other: Route<'_>) -> bool {
        std::ptr::eq(self.primary, other.primary) && self.worker == other.worker
    }
}
