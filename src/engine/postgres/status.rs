//! What is known of the server, shared by all connections: whether it answers durably, whether it still has its data, and
//! what the log was told of its going and coming, once each, however many connections notice.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::Determinate;

/// The server, as its connections have found it.
pub(super) struct Status {
    servers: String,
    on_data_loss: Option<Arc<dyn Fn() + Send + Sync>>,
    durable: AtomicBool,
    data_lost: AtomicU64,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    up: usize,
    last: Option<String>,
    /// What the marker was when it was last seen.
    marker: Option<String>,
}

impl Status {
    pub(super) fn new(servers: String, on_data_loss: Option<Arc<dyn Fn() + Send + Sync>>) -> Self {
        Self {
            servers,
            on_data_loss,
            durable: AtomicBool::new(false),
            data_lost: AtomicU64::new(0),
            told: Mutex::default(),
        }
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection has been made and found fit.
    pub(super) fn connected(&self) {
        let mut told = self.told();
        told.up += 1;
        if told.up == 1 {
            told.last = None;
            tracing::info!(postgres.servers = self.servers, "connected to the store");
        }
    }

    /// A connection has been given up.
    pub(super) fn lost(&self, why: &str) {
        let mut told = self.told();
        told.up = told.up.saturating_sub(1);
        if told.up == 0 {
            tracing::warn!(postgres.servers = self.servers, reason = why, "lost the connection to the store");
        } else {
            tracing::debug!(postgres.servers = self.servers, reason = why, "replaced a connection to the store");
        }
    }

    /// A connection has been closed on purpose: neither news nor a fault.
    pub(super) fn closed(&self) {
        let mut told = self.told();
        told.up = told.up.saturating_sub(1);
        tracing::debug!(postgres.servers = self.servers, "closed a connection to the store");
    }

    /// A connection could not be made.
    pub(super) fn unavailable(&self, why: &Determinate) {
        let mut told = self.told();
        let why = why.to_string();
        if told.up == 0 && told.last.as_ref() != Some(&why) {
            tracing::warn!(postgres.servers = self.servers, reason = why, "no connection to the store; trying on");
            told.last = Some(why);
        }
    }

    /// The database has told its marker: another one than last time means that the data is gone.
    pub(super) fn seen(&self, marker: &str) {
        let known = self.told().marker.replace(marker.to_owned());
        if known.is_none_or(|known| known == marker) {
            return;
        }
        self.data_lost.fetch_add(1, Ordering::Relaxed);
        let servers = &self.servers;
        tracing::error!(
            postgres.servers = servers,
            "the store has lost its data: what was done before can be claimed again"
        );
        if let Some(hook) = &self.on_data_loss {
            hook();
        }
    }

    /// How often the store came back without its data.
    pub(super) fn data_lost(&self) -> u64 {
        self.data_lost.load(Ordering::Relaxed)
    }

    pub(super) fn set_durable(&self, durable: bool) {
        self.durable.store(durable, Ordering::Relaxed);
    }

    /// Whether the server fsyncs before it answers, as it says itself.
    pub(super) fn durable(&self) -> bool {
        self.durable.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_marker_means_lost_data() {
        let status = Status::new(String::new(), None);
        for (marker, lost) in [("a", 0), ("a", 0), ("b", 1), ("b", 1), ("a", 2)] {
            status.seen(marker);
            assert_eq!(status.data_lost(), lost);
        }
    }
}
