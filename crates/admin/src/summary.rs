//! `GET /admin/v1/summary`: the state of this gateway in one answer, from its present knowledge. Calls no store.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use oncegate_core::clock::{Clock, Timestamp, millis};
use oncegate_core::spool::SpoolStatus;
use oncegate_gateway::KnownEngine;
use oncegate_gateway::chains::KnownChain;
use oncegate_telemetry::history::History;
use oncegate_web::recent::Repeats;
use oncegate_web::response::json;
use serde::Serialize;

use super::Admin;
use super::attention::{self, Attention};
use super::health::Stage;

/// The state of this gateway.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) stage: Stage,
    pub(super) version: &'static str,
    pub(super) started_at: Timestamp,
    pub(super) uptime_ms: u64,
    /// Callers need no credential.
    pub(super) open: bool,
    pub(super) engines: Vec<KnownEngine>,
    pub(super) chains: Vec<KnownChain>,
    pub(super) spool: SpoolStatus,
    pub(super) attention: Vec<Attention>,
    pub(super) rates: Rates,
    pub(super) latencies: Latencies,
    pub(super) today: Repeats,
}

/// Claim calls per second, by their answer. `None` where nothing was measured in the last minute.
#[derive(Debug, Serialize)]
pub(super) struct Rates {
    granted: Option<f32>,
    duplicate: Option<f32>,
    mismatch: Option<f32>,
    observed: Option<f32>,
    refused: Option<f32>,
    degraded: Option<f32>,
}

/// Times of claim calls, in milliseconds. `None` where there were none in the last minute.
#[derive(Debug, Serialize)]
pub(super) struct Latencies {
    p50_ms: Option<f32>,
    p99_ms: Option<f32>,
}

impl Rates {
    fn newest(history: &History, now: u64) -> Self {
        let rate = |name| history.newest(name, now);
        Self {
            granted: rate("granted"),
            duplicate: rate("duplicate"),
            mismatch: rate("mismatch"),
            observed: rate("observed"),
            refused: rate("refused"),
            degraded: rate("degraded"),
        }
    }
}

impl Latencies {
    fn newest(history: &History, now: u64) -> Self {
        let latency = |name| history.newest(name, now).map(|seconds| seconds * 1000.0);
        Self { p50_ms: latency("p50"), p99_ms: latency("p99") }
    }
}

/// The start of the process.
pub struct Started {
    at: Timestamp,
    monotonic: Duration,
}

impl Started {
    /// Returns this instant as the start.
    pub fn now(clock: &dyn Clock) -> Self {
        Self { at: clock.wall(), monotonic: clock.monotonic() }
    }

    /// Returns the time by the wall clock.
    pub(super) fn at(&self) -> Timestamp {
        self.at
    }
}

/// Returns the state of this gateway.
pub(super) fn summary(admin: &Admin) -> Summary {
    let uptime = admin.clock.monotonic().saturating_sub(admin.started.monotonic);
    let (engines, chains, spool) =
        (admin.gateway.known_engines(), admin.gateway.known_chains(), admin.journal.status());
    let now = admin.clock.wall().as_micros() / 1_000_000;
    Summary {
        stage: admin.lifecycle.stage(),
        version: env!("CARGO_PKG_VERSION"),
        started_at: admin.started.at,
        uptime_ms: millis(uptime),
        open: admin.registry.is_open(),
        attention: attention::attention(admin, &engines, &chains, &spool),
        engines,
        chains,
        spool,
        rates: Rates::newest(&admin.history, now),
        latencies: Latencies::newest(&admin.history, now),
        today: admin.recent.today(),
    }
}

/// Answers with the state of this gateway.
pub(super) async fn show(State(admin): State<Arc<Admin>>) -> Response {
    json(&summary(&admin))
}
