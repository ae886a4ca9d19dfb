//! Known state of a server, shared by all connections to it: its reachability (a change is logged once for all
//! connections), the presence of its data, and the durability of its answers.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oncegate_core::engine::{Determinate, Servers, StoreIdentity};

/// Called when a server came back without its data.
pub type OnDataLoss = Arc<dyn Fn() + Send + Sync>;

/// A server, or several with one in use.
pub struct Server {
    engine: &'static str,
    address: String,
    on_data_loss: Option<OnDataLoss>,
    durable: AtomicBool,
    data_losses: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    connections: usize,
    /// The last logged reason for the missing connection.
    refusal: Option<String>,
    /// The marker, when it was last read.
    marker: Option<Vec<u8>>,
    /// The name that the server has given itself, where no other server has the same.
    name: Option<String>,
}

impl Server {
    /// Creates the record of a server that was not reached yet. The address is for messages: it must hold no password.
    pub fn new(engine: &'static str, address: String, on_data_loss: Option<OnDataLoss>) -> Self {
        Self {
            engine,
            address,
            on_data_loss,
            durable: AtomicBool::new(false),
            data_losses: AtomicU64::new(0),
            seen: Mutex::default(),
        }
    }

    /// Returns the kind of the server.
    pub fn engine(&self) -> &'static str {
        self.engine
    }

    /// Returns its address, for messages.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Records a marker that was read from the server; `None`: the server has none. The marker is written once, into an
    /// empty server, so a different marker, or none, means that the data was lost.
    pub fn set_marker(&self, marker: Option<&[u8]>) {
        if self.replace_marker(marker) {
            self.report_loss();
        }
    }

    /// Records the marker of the store. Returns whether the store had another one before, so that its data are lost.
    pub fn replace_marker(&self, marker: Option<&[u8]>) -> bool {
        let mut seen = self.seen();
        let lost = seen.marker.is_some() && seen.marker.as_deref() != marker;
        if seen.marker.as_deref() != marker {
            seen.marker = marker.map(<[u8]>::to_vec);
        }
        lost
    }

    /// Returns the marker, as it was last read.
    pub fn marker(&self) -> Option<Vec<u8>> {
        self.seen().marker.clone()
    }

    /// Records the name that the server has given itself. Another server has another one, and so may this one after a restart.
    pub fn set_name(&self, name: &str) {
        let mut seen = self.seen();
        if seen.name.as_deref() != Some(name) {
            seen.name = Some(name.to_owned());
        }
    }

    /// Returns what tells the store from others, once the name of its server and its marker are known.
    pub fn identity(&self) -> Option<StoreIdentity> {
        let seen = self.seen();
        let (name, marker) = seen.name.clone().zip(seen.marker.clone())?;
        Some(StoreIdentity { kind: self.engine, marker, servers: Servers::Named(name) })
    }

    /// Records that the server came back without its data.
    pub fn report_loss(&self) {
        self.data_losses.fetch_add(1, Ordering::Relaxed);
        let (engine, server) = (self.engine, &self.address);
        tracing::error!(
            engine,
            server,
            "The store has lost its data: claims that were granted before can be granted again"
        );
        if let Some(hook) = &self.on_data_loss {
            hook();
        }
    }

    /// Returns how often the server came back without its data.
    pub fn data_losses(&self) -> u64 {
        self.data_losses.load(Ordering::Relaxed)
    }

    /// Records whether the server's settings make its answers durable.
    pub fn set_durable(&self, durable: bool) {
        self.durable.store(durable, Ordering::Relaxed);
    }

    /// Returns whether the server's settings make its answers durable.
    pub fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Relaxed)
    }

    /// Records a new connection.
    pub(super) fn connected(&self) {
        let mut seen = self.seen();
        seen.connections += 1;
        if seen.connections == 1 {
            seen.refusal = None;
            tracing::info!(engine = self.engine, server = self.address, "Connected to the store");
        }
    }

    /// Records that a connection was lost.
    pub(super) fn lost(&self, reason: &str) {
        let mut seen = self.seen();
        seen.connections = seen.connections.saturating_sub(1);
        let (engine, server) = (self.engine, &self.address);
        if seen.connections == 0 {
            tracing::warn!(engine, server, reason, "Lost the connection to the store; reconnecting");
        } else {
            tracing::debug!(engine, server, reason, "Replacing a connection to the store");
        }
    }

    /// Records that a connection was closed on purpose.
    pub(super) fn closed(&self) {
        let mut seen = self.seen();
        seen.connections = seen.connections.saturating_sub(1);
        tracing::debug!(engine = self.engine, server = self.address, "Closed a connection to the store");
    }

    /// Records that a connection could not be opened.
    pub(super) fn refused(&self, why: &Determinate) {
        let mut seen = self.seen();
        let reason = why.reason().to_owned();
        if seen.connections == 0 && seen.refusal.as_ref() != Some(&reason) {
            tracing::warn!(
                engine = self.engine,
                server = self.address,
                reason,
                "No connection to the store; trying again"
            );
            seen.refusal = Some(reason);
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .field("durable", &self.is_durable())
            .field("data_losses", &self.data_losses())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_remembered_until_a_connection_and_only_while_there_is_none() {
        let server = Server::new("redis", "cache:6379".into(), None);
        let facts = || {
            let seen = server.seen();
            (seen.connections, seen.refusal.clone())
        };
        let why = |text: &str| Determinate::Unavailable(text.into());
        server.refused(&why("down"));
        assert_eq!(facts(), (0, Some("down".to_owned())));
        server.refused(&why("loading"));
        assert_eq!(facts(), (0, Some("loading".to_owned())));
        server.connected();
        server.connected();
        assert_eq!(facts(), (2, None));
        server.refused(&why("down"));
        assert_eq!(facts(), (2, None), "there are others");
        server.lost("it hung up");
        server.closed();
        server.closed();
        assert_eq!(facts(), (0, None));
    }

    #[test]
    fn a_server_has_its_address_and_what_it_said_last_about_durability() {
        let server = Server::new("redis", "cache:6379".into(), None);
        assert_eq!((server.address(), server.is_durable()), ("cache:6379", false));
        server.set_durable(true);
        assert!(server.is_durable());
        server.set_durable(false);
        assert!(!server.is_durable());
    }
}
