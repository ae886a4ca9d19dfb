//! `WebSockets` (RFC 6455) on their way through the proxy: the handshake is a request like any other, then bytes pass both ways.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Extensions, HeaderMap, HeaderValue, Request, Response, Version, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::upgrade::{self, OnUpgrade};
use hyper_util::rt::TokioIo;
use oncegate_transport::SwitchedProtocol;
use oncegate_web::problem::Problem;
use tokio::io::copy_bidirectional;
use tokio_util::io::InspectReader;

use super::body::response_within;
use super::cors::FromUpstream;
use super::fields;
use super::shares::Share;
use super::upstream::Received;

/// Bytes of the nonce that is the key of a handshake.
const NONCE_BYTES: usize = 16;
/// The only version.
const VERSION: &str = "13";
/// Follows the key in the hashed text of the answer (RFC 6455, 1.3).
const ACCEPT_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
const UPGRADE: HeaderValue = HeaderValue::from_static("upgrade");

/// Returns the `Sec-WebSocket-Accept` that answers a handshake.
///
/// # Errors
/// It is no handshake of RFC 6455, 4.2.1.
pub(super) fn accept_of(headers: &HeaderMap) -> Result<HeaderValue, Problem> {
    let key = fields::only(headers, &header::SEC_WEBSOCKET_KEY).map(|key| key.as_bytes().trim_ascii());
    let key = key.filter(|key| STANDARD.decode(key).is_ok_and(|nonce| nonce.len() == NONCE_BYTES));
    let version = fields::only(headers, &header::SEC_WEBSOCKET_VERSION);
    let key = key.filter(|_| version.is_some_and(|version| version.as_bytes().trim_ascii() == VERSION.as_bytes()));
    let accept = key.map(|key| {
        let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &[key, ACCEPT_SUFFIX].concat());
        HeaderValue::try_from(STANDARD.encode(digest))
    });
    accept.and_then(Result::ok).ok_or_else(|| {
        Problem::invalid(
            "A WebSocket handshake needs `Sec-WebSocket-Version: 13` and one `Sec-WebSocket-Key` of 16 bytes in Base64 (RFC 6455).",
        )
    })
}

/// Reports whether a request offers to switch to `websocket`, and to nothing else. Any other offer is ignored, and one of
/// HTTP/1.0 or without `Connection: upgrade` is none (RFC 9110, 7.8).
pub(super) fn is_offered<Body>(request: &Request<Body>) -> bool {
    let mut options = fields::items(request.headers(), &header::CONNECTION);
    request.version() == Version::HTTP_11
        && options.any(|option| option.eq_ignore_ascii_case(UPGRADE.as_bytes()))
        && is_named(request.headers())
}

/// Reports whether a message names only `websocket` as the protocol to switch to.
fn is_named(headers: &HeaderMap) -> bool {
    fields::only(headers, &header::UPGRADE)
        .is_some_and(|name| name.as_bytes().eq_ignore_ascii_case(WEBSOCKET.as_bytes()))
}

/// Gives a handshake, or its response, the fields of its connection back.
pub(super) fn ask(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, UPGRADE);
    headers.insert(header::UPGRADE, WEBSOCKET);
}

/// Turns an upstream's response that switches protocols into that for the caller, and connects them. `share` counts the
/// `WebSocket` among those of its app. `None` if the upstream does not answer the handshake.
pub(super) fn switch(
    mut response: Response<Received>,
    caller: OnUpgrade,
    accept: &HeaderValue,
    idle: Duration,
    via: &HeaderValue,
    share: Share,
) -> Option<Response<Body>> {
    let is_accepted = fields::only(response.headers(), &header::SEC_WEBSOCKET_ACCEPT) == Some(accept);
    if !is_accepted || !is_named(response.headers()) {
        return None;
    }
    let upstream = upgrade::on(&mut response);
    let (mut head, _empty) = response.into_parts();
    (head.version, head.extensions) = (Version::HTTP_11, Extensions::new());
    fields::to_caller(&mut head.headers, via);
    ask(&mut head.headers);
    head.extensions.insert(FromUpstream);
    head.extensions.insert(SwitchedProtocol::new(connect(caller, upstream, idle, share)));
    Some(Response::from_parts(head, Body::empty()))
}

/// Passes bytes both ways until both sides have closed, or none has sent anything for this time. Keeps the share until then.
async fn connect(caller: OnUpgrade, upstream: OnUpgrade, idle: Duration, _share: Share) {
    let (Ok(caller), Ok(upstream)) = (caller.await, upstream.await) else { return };
    let pieces = Arc::new(AtomicU64::new(0));
    let count = |_: &[u8]| {
        pieces.fetch_add(1, Ordering::Relaxed);
    };
    let (mut caller, mut upstream) =
        (InspectReader::new(TokioIo::new(caller), count), InspectReader::new(TokioIo::new(upstream), count));
    // Operators need not know about a side that leaves or stays idle.
    let _ = response_within(idle, pin!(copy_bidirectional(&mut caller, &mut upstream)), &pieces).await;
}
