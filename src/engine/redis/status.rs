//! Tells the log when the store goes and comes, once each, however many connections notice.

use std::sync::{Mutex, PoisonError};

use crate::engine::Determinate;

/// How many connections stand, and what the log was told last.
pub(super) struct Status {
    server: String,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    up: usize,
    last: Option<String>,
}

impl Status {
    pub(super) fn new(server: String) -> Self {
        Self { server, told: Mutex::default() }
    }

    /// A connection has been made and found fit.
    pub(super) fn connected(&self) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.up += 1;
        if told.up == 1 {
            told.last = None;
            tracing::info!(redis.server = self.server, "connected to the store");
        }
    }

    /// A connection has been given up.
    pub(super) fn lost(&self, why: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.up = told.up.saturating_sub(1);
        if told.up == 0 {
            tracing::warn!(redis.server = self.server, reason = why, "lost the connection to the store");
        } else {
            tracing::debug!(redis.server = self.server, reason = why, "replaced a connection to the store");
        }
    }

    /// A connection has been closed on purpose: neither news nor a fault.
    pub(super) fn closed(&self) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.up = told.up.saturating_sub(1);
        tracing::debug!(redis.server = self.server, "closed a connection to the store");
    }

    /// A connection could not be made.
    pub(super) fn unavailable(&self, why: &Determinate) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let why = why.to_string();
        if told.up == 0 && told.last.as_ref() != Some(&why) {
            tracing::warn!(redis.server = self.server, reason = why, "no connection to the store; trying on");
            told.last = Some(why);
        }
    }
}
