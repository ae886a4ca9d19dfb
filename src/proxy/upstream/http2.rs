//! Connections that speak HTTP/2: one to each server, which its requests share.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, Uri, header};
use h2::Reason;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tower::Service as _;

use super::connector::Connector;
use super::{Failed, cause};
use crate::domain::clock::Clock;
use crate::proxy::options::UpstreamOptions;
use crate::web::fields::millis;

/// Time between pings while requests are running.
const PING: Duration = Duration::from_secs(10);

/// Connections opened for one request: a server may close the first before the request has started on it.
const CONNECTIONS_MAX: usize = 2;

/// The connection to one server.
pub(super) struct Http2 {
    connector: Connector,
    clock: Arc<dyn Clock>,
    /// Time limit of opening it, also for those who wait for others to do so.
    connect_timeout: Duration,
    /// A connection that no request has used for this time may be closing.
    idle: Duration,
    /// A connection on which a response takes longer may be dead: it gets no further requests. Also the time limit of pings.
    timeout: Duration,
    shared: Mutex<Option<Shared>>,
}

#[derive(Clone)]
struct Shared {
    sender: SendRequest<Body>,
    /// Monotonic time of its last use, in milliseconds.
    used_ms: Arc<AtomicU64>,
    may_be_dead: Arc<AtomicBool>,
}

impl Http2 {
    pub(super) fn new(options: &UpstreamOptions, connector: Connector, clock: Arc<dyn Clock>) -> Self {
        let [connect_timeout, idle, timeout] = [options.connect_timeout, options.idle, options.timeout].map(|it| it.0);
        Self { connector, clock, connect_timeout, idle, timeout, shared: Mutex::new(None) }
    }

    /// Sends a request whose URI names this server. Asks before each connection whether it may still be sent; `None` if not.
    pub(super) async fn send(
        &self,
        mut request: Request<Body>,
        may_be_sent: impl Fn() -> bool,
    ) -> Option<Result<Response<Incoming>, Failed>> {
        let server = request.uri().clone();
        prepare(&mut request);
        let mut why = String::new();
        for _ in 0..CONNECTIONS_MAX {
            if !may_be_sent() {
                return None;
            }
            let mut shared = match timeout(self.connect_timeout, self.connection(&server)).await {
                Ok(Ok(shared)) => shared,
                Ok(Err(why)) => return Some(Err(Failed::NotConnected(why))),
                Err(_late) => return Some(Err(Failed::NotConnected("it did not connect in time".to_owned()))),
            };
            let mut sending = pin!(shared.sender.try_send_request(request));
            let sent = match timeout(self.timeout, &mut sending).await {
                Ok(sent) => sent,
                Err(_late) => {
                    shared.may_be_dead.store(true, Ordering::Relaxed);
                    sending.await
                }
            };
            shared.used_ms.store(self.now_ms(), Ordering::Relaxed);
            match sent {
                Ok(response) => return Some(Ok(response)),
                Err(mut failure) => {
                    // The message comes back only if nothing of it was sent.
                    let unsent = failure.take_message();
                    let failure = failure.into_error();
                    why = cause(&failure);
                    match unsent {
                        Some(unsent) => request = unsent,
                        None if is_refused(&failure) => return Some(Err(Failed::Refused(why))),
                        None => return Some(Err(Failed::Broken(why))),
                    }
                }
            }
        }
        Some(Err(Failed::NotConnected(why)))
    }

    /// Lets the next request open a new connection. Requests on the present one continue.
    pub(super) async fn reconnect(&self) {
        drop(self.shared.lock().await.take());
    }

    /// Returns the connection. One that was idle for long is left to its requests, and replaced.
    async fn connection(&self, server: &Uri) -> Result<Shared, String> {
        let mut shared = self.shared.lock().await;
        let now_ms = self.now_ms();
        let is_fresh =
            |used: &AtomicU64| Duration::from_millis(now_ms.saturating_sub(used.load(Ordering::Relaxed))) < self.idle;
        let is_usable =
            |it: &Shared| !it.sender.is_closed() && !it.may_be_dead.load(Ordering::Relaxed) && is_fresh(&it.used_ms);
        let usable = shared.take().filter(is_usable);
        let usable = match usable {
            Some(usable) => usable,
            None => self.connect(server.clone()).await?,
        };
        usable.used_ms.store(now_ms, Ordering::Relaxed);
        *shared = Some(usable.clone());
        Ok(usable)
    }

    async fn connect(&self, server: Uri) -> Result<Shared, String> {
        let stream = self.connector.clone().call(server).await.map_err(|error| cause(&*error))?;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(self.timeout);
        let (sender, connection) = builder.handshake(stream).await.map_err(|error| cause(&error))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "A connection to an upstream has ended");
            }
        });
        Ok(Shared { sender, used_ms: Arc::default(), may_be_dead: Arc::default() })
    }

    fn now_ms(&self) -> u64 {
        millis(self.clock.monotonic())
    }
}

/// Gives a request the form of HTTP/2: the host it asks for is its authority, and it has no fields of a connection (RFC 9113, 8.2.2
/// and 8.3.1).
fn prepare(request: &mut Request<Body>) {
    let host = request.headers_mut().remove(header::HOST);
    request.headers_mut().remove(header::CONNECTION);
    let Some(host) = host.and_then(|host| host.to_str().ok()?.parse().ok()) else { return };
    let mut parts = request.uri().clone().into_parts();
    parts.authority = Some(host);
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

/// Reports whether the server says that it has done nothing: it refused the stream, or its GOAWAY names an earlier one as its last
/// (RFC 9113, 8.7 and 6.8). The library fails no other streams for a GOAWAY of the server.
fn is_refused(error: &hyper::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let is_refused_stream = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
            return error.is_remote() && (is_refused_stream || error.is_go_away());
        }
        source = error.source();
    }
    false
}
