//! `WebSockets` (RFC 6455) on their way through the proxy: the handshake is a request like any other, then bytes pass both ways.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Extensions, HeaderMap, HeaderValue, Method, Request, Response, Version, header};
use hyper::upgrade::{self, OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tokio_util::io::InspectReader;

use super::body::response_within;
use super::cors::FromUpstream;
use super::fields;
use super::upstream::Received;
use crate::transport::SwitchedProtocol;

const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
const UPGRADE: HeaderValue = HeaderValue::from_static("upgrade");

/// Reports whether a request asks for a `WebSocket`. Other protocols are not switched to: what passes then could be requests that no
/// route has seen.
pub(super) fn is_asked_for<B>(request: &Request<B>) -> bool {
    *request.method() == Method::GET && is_named(request.headers())
}

fn is_named(headers: &HeaderMap) -> bool {
    fields::only(headers, &header::UPGRADE)
        .is_some_and(|name| name.as_bytes().eq_ignore_ascii_case(WEBSOCKET.as_bytes()))
}

/// Gives a handshake, or its response, the fields of its connection back.
pub(super) fn ask(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, UPGRADE);
    headers.insert(header::UPGRADE, WEBSOCKET);
}

/// Turns an upstream's response that switches protocols into that for the caller, and connects them. `None` if it is no `WebSocket`.
pub(super) fn switch(
    mut response: Response<Received>,
    caller: OnUpgrade,
    idle: Duration,
    via: &HeaderValue,
) -> Option<Response<Body>> {
    if !is_named(response.headers()) {
        return None;
    }
    let upstream = upgrade::on(&mut response);
    let (mut head, _empty) = response.into_parts();
    (head.version, head.extensions) = (Version::HTTP_11, Extensions::new());
    fields::to_caller(&mut head.headers, via);
    ask(&mut head.headers);
    head.extensions.insert(FromUpstream);
    head.extensions.insert(SwitchedProtocol::new(connect(caller, upstream, idle)));
    Some(Response::from_parts(head, Body::empty()))
}

/// Passes bytes both ways until both sides have closed, or none has sent anything for this time.
async fn connect(caller: OnUpgrade, upstream: OnUpgrade, idle: Duration) {
    let (Ok(caller), Ok(upstream)) = (caller.await, upstream.await) else { return };
    let pieces = Arc::new(AtomicU64::new(0));
    let count = |_: &[u8]| {
        pieces.fetch_add(1, Ordering::Relaxed);
    };
    let (mut caller, mut upstream) =
        (InspectReader::new(TokioIo::new(caller), count), InspectReader::new(TokioIo::new(upstream), count));
    // A side that goes away or is silent is no news for operators.
    let _ = response_within(idle, pin!(copy_bidirectional(&mut caller, &mut upstream)), &pieces).await;
}
