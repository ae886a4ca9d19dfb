//! Service behind a proxy: counts the requests of each idempotency key and answers with their bodies. It deduplicates
//! nothing.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{
        HeaderMap, StatusCode,
        header::{CONTENT_LENGTH, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};

use crate::noop;

/// Path of small requests, which a proxy protects.
pub(crate) const ORDERS: &str = "/v1/orders";
/// Path of responses of a chosen length, which a proxy protects: the length in bytes follows.
pub(crate) const EXPORTS: &str = "/v1/exports";
/// Path of uploads, which a proxy does not protect.
pub(crate) const UPLOADS: &str = "/uploads";
/// Path of the counts.
pub(crate) const COUNTS: &str = "/counts";

/// Piece of a long response.
static PIECE: [u8; 64 * 1024] = [b'x'; 64 * 1024];

/// Requests with a key so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    /// Different keys among them.
    pub(crate) keys: u64,
}

#[derive(Debug, Default)]
struct Upstream {
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    requests: u64,
    keys: HashSet<Box<[u8]>>,
}

/// Serves until the process ends.
pub(crate) async fn serve(address: SocketAddr) -> anyhow::Result<()> {
    noop::serve_router(address, router()).await
}

pub(crate) fn router() -> Router {
    Router::new()
        .route(ORDERS, post(order))
        .route(&format!("{EXPORTS}/{{bytes}}"), post(export))
        .route(UPLOADS, post(upload))
        .route(COUNTS, get(counts))
        .with_state(Arc::new(Upstream::default()))
}

/// Answers with the bytes of the request, so that the response to another request is noticed.
async fn order(State(upstream): State<Arc<Upstream>>, headers: HeaderMap, body: Bytes) -> Response {
    upstream.count(&headers);
    (StatusCode::CREATED, [(CONTENT_TYPE, "application/json")], body).into_response()
}

/// Answers with as many bytes as the path says, piece by piece.
async fn export(State(upstream): State<Arc<Upstream>>, Path(bytes): Path<u64>, headers: HeaderMap) -> Response {
    upstream.count(&headers);
    let pieces = stream::unfold(bytes, async |left| {
        let piece = usize::try_from(left).map_or(&PIECE[..], |left| &PIECE[..left.min(PIECE.len())]);
        let rest = left - u64::try_from(piece.len()).ok()?;
        (left > 0).then(|| (Ok::<_, std::convert::Infallible>(Bytes::from_static(piece)), rest))
    });
    (StatusCode::CREATED, [(CONTENT_LENGTH, bytes)], Body::from_stream(pieces)).into_response()
}

/// Reads a body of any length, and answers with the number of its bytes.
async fn upload(body: Body) -> Response {
    let mut pieces = body.into_data_stream();
    let mut bytes = 0;
    while let Some(piece) = pieces.next().await {
        match piece {
            Ok(piece) => bytes += piece.len(),
            Err(_) => return StatusCode::BAD_REQUEST.into_response(),
        }
    }
    bytes.to_string().into_response()
}

async fn counts(State(upstream): State<Arc<Upstream>>) -> Json<Counts> {
    let counted = upstream.counted();
    Json(Counts { requests: counted.requests, keys: u64::try_from(counted.keys.len()).unwrap_or(u64::MAX) })
}

impl Upstream {
    fn count(&self, headers: &HeaderMap) {
        let Some(key) = headers.get("idempotency-key") else { return };
        let key = key.as_bytes().into();
        let mut counted = self.counted();
        counted.requests += 1;
        counted.keys.insert(key);
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
