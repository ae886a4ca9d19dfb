//! Connections that speak HTTP/2: requests to a server share one, and open another when all of its streams are in use.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, Uri, header};
use h2::Reason;
use hyper::client::conn::http2::{self, Connection, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use oncegate_core::clock::{Clock, millis};
use tokio::time::{sleep, timeout};
use tower::Service as _;

use super::connector::{Connector, Stream};
use super::preface::PrefaceWatch;
use super::streams::{Received, StreamPermit, Streamed};
use super::{BUFFER_BYTES, Failed, Permission, cause, framed, may_be_sent};
use crate::options::UpstreamOptions;

/// Time between pings while requests are running.
const PING: Duration = Duration::from_secs(10);

/// Connections used for one request: a server may close the first before the request has started on it.
const CONNECTIONS_MAX: usize = 2;

/// Bytes of a response that the server may send before they are read.
const STREAM_WINDOW: u32 = 128 << 10;

/// The connections to one server.
pub(super) struct Http2 {
    connector: Connector,
    clock: Arc<dyn Clock>,
    /// Time limit of opening one, also for those who wait for others to do so.
    connect_timeout: Duration,
    /// A connection that no request has used for this time may be closing.
    idle: Duration,
    /// A connection on which a response takes longer may be dead: it gets no further requests. Also the time limit of pings.
    timeout: Duration,
    /// Window of a connection: enough for all responses, so that an unread response does not stop the others.
    window: u32,
    /// The oldest first, which is used first: others become idle when they are not needed any more.
    connections: Mutex<Vec<Shared>>,
    /// Held while one is opened.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Shared {
    sender: SendRequest<Body>,
    /// Streams that are in use.
    streams: Arc<AtomicUsize>,
    /// Says how many the server allows.
    protocol: Arc<Mutex<Protocol>>,
    /// Monotonic time of its last use, in milliseconds.
    used_ms: Arc<AtomicU64>,
    may_be_dead: Arc<AtomicBool>,
}

/// `None` once it has ended.
type Protocol = Option<Connection<TokioIo<PrefaceWatch<Stream>>, Body, TokioExecutor>>;

impl Http2 {
    pub(super) fn new(options: &UpstreamOptions, connector: Connector, clock: Arc<dyn Clock>) -> Self {
        let [connect_timeout, idle, timeout] = [options.connect_timeout, options.idle, options.timeout].map(|it| it.0);
        let exchanges = u32::try_from(options.exchanges).unwrap_or(u32::MAX);
        Self {
            connector,
            clock,
            connect_timeout,
            idle,
            timeout,
            // The largest that the protocol has (RFC 9113, 6.9.1).
            window: exchanges.saturating_mul(STREAM_WINDOW).min((1 << 31) - 1),
            connections: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        }
    }

    /// Sends a request whose URI names this server. Asks before each connection whether it may still be sent; `None` if not.
    pub(super) async fn send(
        &self,
        mut request: Request<Body>,
        permission: &impl Permission,
    ) -> Option<Result<Response<Received>, Failed>> {
        let server = request.uri().clone();
        prepare(&mut request);
        // A little before its caller is answered, whose next request then has another connection.
        let mut late = pin!(sleep(self.timeout.mul_f64(0.99)));
        let mut why = String::new();
        for number in 0..CONNECTIONS_MAX {
            if !may_be_sent(permission, number).await {
                return None;
            }
            let (mut shared, stream) = match timeout(self.connect_timeout, self.connection(&server)).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(why)) => return Some(Err(Failed::NotConnected(why))),
                Err(_late) => return Some(Err(Failed::NotConnected("it did not connect in time".to_owned()))),
            };
            let of_body = stream.clone();
            let this = request.map(|body| Body::new(Streamed::new(body, Some(of_body))));
            let mut sending = pin!(shared.sender.try_send_request(this));
            let sent = tokio::select! {
                biased;
                sent = &mut sending => sent,
                () = &mut late => {
                    shared.may_be_dead.store(true, Ordering::Relaxed);
                    sending.await
                }
            };
            shared.used_ms.store(self.now_ms(), Ordering::Relaxed);
            match sent {
                Ok(response) => {
                    let response = framed(response, false);
                    return Some(response.map(|response| response.map(|body| Received::new(body, Some(stream)))));
                }
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

    /// Lets the next request open a new connection. Requests on the present ones continue.
    pub(super) fn reconnect(&self) {
        self.connections().clear();
    }

    /// Returns a connection with a stream that is free. A connection that was idle for long is left to its requests, and
    /// replaced. With all streams in use the library would hold a request back, and its outcome would be unknown.
    async fn connection(&self, server: &Uri) -> Result<(Shared, StreamPermit), String> {
        if let Some(usable) = self.usable() {
            return Ok(usable);
        }
        let _opening = self.opening.lock().await;
        // Another request may have opened one.
        if let Some(usable) = self.usable() {
            return Ok(usable);
        }
        let shared = self.connect(server.clone()).await?;
        let stream = shared.take_stream().ok_or("it allows no streams")?;
        self.connections().push(shared.clone());
        Ok((shared, stream))
    }

    fn usable(&self) -> Option<(Shared, StreamPermit)> {
        let now_ms = self.now_ms();
        let is_fresh =
            |used: &AtomicU64| Duration::from_millis(now_ms.saturating_sub(used.load(Ordering::Relaxed))) < self.idle;
        let mut connections = self.connections();
        connections
            .retain(|it| !it.sender.is_closed() && !it.may_be_dead.load(Ordering::Relaxed) && is_fresh(&it.used_ms));
        connections.iter().find_map(|shared| {
            let stream = shared.take_stream()?;
            shared.used_ms.store(now_ms, Ordering::Relaxed);
            Some((shared.clone(), stream))
        })
    }

    async fn connect(&self, server: Uri) -> Result<Shared, String> {
        let stream = self.connector.clone().call(server).await.map_err(|error| cause(&*error))?;
        let (stream, preface) = PrefaceWatch::new(stream.into_inner());
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(self.timeout);
        builder.max_send_buf_size(BUFFER_BYTES);
        builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(self.window);
        let (sender, protocol) = builder.handshake(TokioIo::new(stream)).await.map_err(|error| cause(&error))?;
        // A request that is sent before may or may not have arrived if the connection ends.
        preface.await.map_err(|_| "it ended the connection, or sent something else, before its settings of HTTP/2")?;
        let protocol = Arc::new(Mutex::new(Some(protocol)));
        let running = protocol.clone();
        tokio::spawn(async move {
            let ended = poll_fn(|cx| lock(&running).as_mut().map_or(Poll::Ready(Ok(())), |it| Pin::new(it).poll(cx)));
            if let Err(error) = ended.await {
                tracing::debug!(%error, "A connection to an upstream has ended");
            }
            // Returns the part that it has not sent.
            lock(&running).take();
        });
        let used_ms = Arc::new(AtomicU64::new(self.now_ms()));
        Ok(Shared { sender, streams: Arc::default(), protocol, used_ms, may_be_dead: Arc::default() })
    }

    fn connections(&self) -> MutexGuard<'_, Vec<Shared>> {
        lock(&self.connections)
    }

    fn now_ms(&self) -> u64 {
        millis(self.clock.monotonic())
    }
}

impl Shared {
    /// Takes a stream, if the server allows one more.
    fn take_stream(&self) -> Option<StreamPermit> {
        let streams_max = lock(&self.protocol).as_ref()?.current_max_send_streams();
        StreamPermit::take(&self.streams, streams_max)
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Reports whether the server has declared that it did nothing: it refused the stream, or its GOAWAY names an earlier
/// stream as the last (RFC 9113, 8.7 and 6.8). The library fails no other streams for a GOAWAY of the server.
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
