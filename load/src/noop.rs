//! Reference server: a usual axum handler that parses a claim like the gateway and responds at once, without deciding
//! or storing anything. It shows the cost of HTTP with a library alone.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::Context as _;
use axum::{
    Json, Router,
    extract::Path,
    http::{HeaderName, StatusCode, header::LOCATION},
    routing::{get, post},
    serve::ListenerExt as _,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::TcpListener;

use crate::report;

/// Serves until the process ends.
pub(crate) async fn serve(address: SocketAddr) -> anyhow::Result<()> {
    serve_router(address, router()).await
}

/// Serves these routes until the process ends.
pub(crate) async fn serve_router(address: SocketAddr, router: Router) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    report::say(&format!("a reference server listens on http://{}", listener.local_addr()?));
    let listener = listener.tap_io(|stream| {
        // Cannot fail on a connected socket; if it did, the server would only be slower.
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, router).await.context("stopped serving")
}

pub(crate) fn router() -> Router {
    Router::new()
        .route("/v1/claims", post(claim))
        .route("/v1/claims/batch", post(batch))
        .route("/v1/claims/{global_id}/outcome", post(outcome))
        .route("/v1/claims/{global_id}", get(look_up))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "parsed because a gateway must, and then ignored")]
pub(crate) struct Claim {
    pub(crate) contents: Value,
    pub(crate) operation: Option<String>,
    fingerprint: Option<Value>,
    attempt_nonce: Option<String>,
    pub(crate) lease: Option<String>,
    pub(crate) retention: Option<String>,
    take_over: Option<bool>,
    on_lease_end: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "parsed because a gateway must, and then ignored")]
struct Settlement {
    attempt: String,
    outcome: String,
    result: Option<Value>,
}

#[derive(Deserialize)]
struct Batch {
    items: Vec<Claim>,
}

#[derive(Serialize)]
pub(crate) struct Granted {
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    global_id: String,
    attempt: String,
    timestamp: u64,
    fence: Option<u64>,
    state: &'static str,
    repeated: bool,
    claimed_at: &'static str,
    lease_ms: u64,
    lease_expires_at: &'static str,
    degraded: Option<&'static str>,
}

#[derive(Serialize)]
struct GrantedBatch {
    items: Vec<Granted>,
}

#[derive(Serialize)]
struct Settled {
    global_id: String,
    state: &'static str,
    expires_at: &'static str,
    late: bool,
    degraded: Option<&'static str>,
}

async fn claim(Json(_claim): Json<Claim>) -> (StatusCode, [(HeaderName, String); 1], Json<Granted>) {
    let granted = granted(None);
    (StatusCode::CREATED, [(LOCATION, format!("/v1/claims/{}", granted.global_id))], Json(granted))
}

async fn batch(Json(batch): Json<Batch>) -> Json<GrantedBatch> {
    Json(GrantedBatch { items: batch.items.iter().map(|_| granted(Some(201))).collect() })
}

async fn outcome(Path(global_id): Path<String>, Json(_settlement): Json<Settlement>) -> Json<Settled> {
    Json(settled(global_id))
}

async fn look_up(Path(global_id): Path<String>) -> Json<Settled> {
    Json(settled(global_id))
}

/// Returns the response to a claim that was granted.
pub(crate) fn granted_to(global_id: String, attempt: String) -> Granted {
    Granted { global_id, attempt, ..granted(None) }
}

fn granted(status: Option<u16>) -> Granted {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let timestamp = 1_767_225_600_000_000 + number;
    Granted {
        status,
        global_id: format!("{number:032x}"),
        attempt: format!("{timestamp}-{number:016x}"),
        timestamp,
        fence: None,
        state: "in_progress",
        repeated: false,
        claimed_at: "2026-01-01T00:00:00.000000Z",
        lease_ms: 30_000,
        lease_expires_at: "2026-01-01T00:00:30.000000Z",
        degraded: None,
    }
}

fn settled(global_id: String) -> Settled {
    Settled { global_id, state: "succeeded", expires_at: "2026-01-02T00:00:00.000000Z", late: false, degraded: None }
}
