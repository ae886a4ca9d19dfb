//! The accept loop: bounded connections, timeouts that fire, and a stop that lets what is in flight be answered.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::BodyExt as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;

use super::connection::{LINGER, Progress, TimedIo, Timeouts};
use super::head;
use super::incoming::Incoming;
use super::plain::{self, Ended};
use super::problem::{Code, Problem};
use super::refusals::Refusals;
use super::tls::{Greeted, Tls};
use super::unread::UnreadAnswers;
use crate::domain::attempt::{Entropy, SystemEntropy};
use crate::domain::limits::Limits;
use crate::tenants::CachedCredential;

/// How many connections over the limit are told so at the same time; more are closed without a word.
const REFUSALS_MAX: usize = 64;

/// The library takes no smaller buffer.
const LIBRARY_BUFFER_BYTES_MIN: usize = 8 << 10;

/// The library's error for a request whose transfer coding does not end in `chunked`. It has no other name.
const UNKNOWN_TRANSFER_CODING: &str = "invalid transfer-encoding parsed";

/// How much the system keeps for a client that does not read. Left to itself it would keep megabytes for each.
const SEND_BUFFER_BYTES: u32 = 128 << 10;

/// Connections that the system keeps until they are accepted.
const BACKLOG: u32 = 4096;

/// What answers the requests of a listener.
pub trait Answers: Clone + Send + Sync + 'static {
    /// The answer to a request. `cached` is what the requests of its connection have proved so far.
    fn answer(
        &self,
        request: Request<Incoming>,
        cached: &Arc<CachedCredential>,
    ) -> impl Future<Output = Response> + Send;
}

impl Answers for Router {
    async fn answer(&self, request: Request<Incoming>, _cached: &Arc<CachedCredential>) -> Response {
        let Ok(answer) = self.clone().call(request.map(Body::new)).await;
        answer
    }
}

/// Listens on an address.
///
/// # Errors
/// The system's.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections until `stop`, then returns. Connections live on in `connections` until they are answered, on the
/// runtimes of `cores` in turn, of which there is one at least. With `tls` they shake hands first, each by itself, on a
/// place that counts like any other.
pub async fn accept(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    service: impl Answers,
    limits: Limits,
    cores: Vec<Handle>,
    stop: CancellationToken,
    connections: TaskTracker,
) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    let host = Arc::new(Host::new(tls, service, limits, stop));
    let mut cores = cores.iter().cycle();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = host.stop.cancelled() => return,
        };
        let stream = match accepted {
            Ok((stream, _peer)) => stream,
            Err(failure) => {
                // Out of file descriptors, most likely: others must close theirs first.
                tracing::warn!(error = %failure, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            // Over TLS there would be a handshake before the words, which is work for who has too much of it.
            if host.tls.is_none()
                && let Ok(refusal) = refusals.clone().try_acquire_owned()
            {
                connections.spawn(refuse(stream).map(|()| drop(refusal)));
            }
            continue;
        };
        let (host, Some(core)) = (host.clone(), cores.next()) else { return };
        // A socket is waited for by the runtime that it was made in; a connection that fails on the way has gone.
        let Ok(stream) = stream.into_std() else { continue };
        connections.spawn_on(
            async move {
                if let Ok(stream) = TcpStream::from_std(stream) {
                    host.receive(stream).await;
                }
                drop(place);
            },
            core,
        );
    }
}

/// What every connection of a listener is served with.
struct Host<Service> {
    tls: Option<Arc<Tls>>,
    http: http1::Builder,
    service: Service,
    timeouts: Timeouts,
    unread: Arc<UnreadAnswers>,
    limits: Limits,
    stop: CancellationToken,
}

impl<Service: Answers> Host<Service> {
    fn new(tls: Option<Arc<Tls>>, service: Service, limits: Limits, stop: CancellationToken) -> Self {
        let timeouts = Timeouts::of(&limits);
        let unread = Arc::new(UnreadAnswers::new(limits.unread_answer_bytes));
        Self { tls, http: protocol(&limits), service, timeouts, unread, limits, stop }
    }

    async fn receive(&self, stream: TcpStream) {
        // Answers are small and waited for: nothing is gained by holding them back.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return self.converse(stream).await };
        let greeted = tokio::select! {
            greeted = tls.greet(stream, self.timeouts.head) => greeted,
            // Who has not finished its handshake has asked for nothing.
            () = self.stop.cancelled() => return,
        };
        match greeted {
            Some(Greeted::Tls(stream)) => self.converse(stream).await,
            Some(Greeted::PlainHttp(stream)) => say(stream, not_tls()).await,
            None => {}
        }
    }

    /// Answers requests until either side has had enough.
    async fn converse(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let (progress, cached) = (Arc::new(Progress::default()), Arc::new(CachedCredential::default()));
        let mut io = TimedIo::new(stream, progress.clone(), self.timeouts, self.unread.clone(), cached.clone());
        let serve = |request| self.serve(request, &cached, &progress);
        let ended = match plain::converse(&mut io, self.limits.header_bytes, &self.stop, &serve).await {
            Ok(Ended::Closed) => Ok(()),
            Ok(Ended::NotPlain(unread)) => {
                io.push_back(unread.freeze());
                self.converse_by_library(io, &progress, serve).await
            }
            Err(failure) => Err(failure),
        };
        if let Err(failure) = ended {
            // A client that went away or was too slow is no news for the operator.
            tracing::debug!(error = %failure, "a connection ended early");
        }
    }

    /// Does the same for whatever HTTP/1 there is.
    async fn converse_by_library<Answered: Future<Output = Response>>(
        &self,
        io: TimedIo<impl AsyncRead + AsyncWrite + Unpin + Send + 'static>,
        progress: &Arc<Progress>,
        serve: impl Fn(Request<Incoming>) -> Answered,
    ) -> io::Result<()> {
        let service = service_fn(|request: Request<hyper::body::Incoming>| {
            let (may_have_body, progress) = (request.method() != Method::HEAD, progress.clone());
            let answer = serve(Incoming::streamed(request));
            async move {
                progress.all_written().await;
                announced(answer.await, may_have_body, progress).await
            }
        });
        let mut connection = self.http.serve_connection(TokioIo::new(Refusals::new(io)), service);
        let ended = tokio::select! {
            biased;
            ended = &mut connection => ended,
            () = stopped(&self.stop) => {
                std::pin::Pin::new(&mut connection).graceful_shutdown();
                (&mut connection).await
            }
        };
        let Err(failure) = ended else { return Ok(()) };
        if let Some(mut io) = connection.into_parts().io.into_inner().refused() {
            io.progress().linger();
            io.write_all(&refusal(&failure, &self.limits)).await?;
            io.flush().await?;
            io.shutdown().await?;
        }
        Err(io::Error::other(failure))
    }

    /// Answers one request, of which nothing is left on the connection then, or the connection ends with it.
    fn serve(
        &self,
        request: Request<Incoming>,
        cached: &Arc<CachedCredential>,
        progress: &Progress,
    ) -> impl Future<Output = Response> {
        progress.begin();
        let rest = request.body().rest();
        async move {
            let mut answer = self.service.answer(request, cached).await;
            if let Some(rest) = rest
                && !rest.skip(&self.limits).await
            {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            progress.answer();
            answer
        }
    }
}

fn protocol(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    // There may be somewhat more fields here than there may be, so that the usual excess is refused by the edge, which keeps
    // the connection. Timeouts are the socket's: the library would make a timer for every request.
    http.max_headers(limits.headers * 4).max_header_size(limits.header_bytes);
    http.max_buf_size(limits.header_bytes.max(LIBRARY_BUFFER_BYTES_MIN));
    // A client that has said all may still listen, as on the fast path.
    http.half_close(true);
    http
}

/// Tells the socket how long the answer's body is, and whether the connection lingers behind it.
async fn announced(answer: Response, may_have_body: bool, progress: Arc<Progress>) -> Result<Response, axum::Error> {
    let (head, body) = answer.into_parts();
    // It is in memory already, in one piece.
    let body = body.collect().await?.to_bytes();
    let has_body = may_have_body && ![StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&head.status);
    progress.announce(if has_body { body.len() as u64 } else { 0 });
    if head.headers.get(header::CONNECTION).is_some_and(|value| value == "close") {
        progress.linger();
    }
    Ok(Response::from_parts(head, Body::from(body)))
}

/// Resolves when a listener stops. Its task is woken by that once it has waited, so it does not wait anew each time that its
/// connection wakes it.
pub(super) async fn stopped(stop: &CancellationToken) {
    let mut cancelled = std::pin::pin!(stop.cancelled());
    let mut waits = false;
    std::future::poll_fn(|context| {
        if waits && !stop.is_cancelled() {
            return Poll::Pending;
        }
        waits = true;
        cancelled.as_mut().poll(context)
    })
    .await;
}

/// Tells one connection over the limit that there is no place for it.
async fn refuse(stream: TcpStream) {
    let problem = Problem::new(
        Code::Overloaded,
        "The gateway has as many connections as it may have; reuse yours, and try again after Retry-After.",
    );
    let answer =
        whole_answer("503 Service Unavailable", "retry-after: 1\r\n", &problem.retry_after(Duration::from_secs(1)));
    say(stream, answer).await;
}

/// Says one thing to a client that gets no further, and closes.
async fn say(mut stream: TcpStream, answer: Bytes) {
    let say = async {
        stream.write_all(&answer).await?;
        stream.shutdown().await?;
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    // Whether the client listens is its own affair.
    let _ = timeout(LINGER, say).await;
}

/// The answer to HTTP where TLS is spoken.
fn not_tls() -> Bytes {
    let problem = Problem::invalid("This port speaks HTTPS only. Use https:// instead of http://.");
    whole_answer("400 Bad Request", "", &problem)
}

/// The answer to a request whose head the library could not read.
fn refusal(failure: &hyper::Error, limits: &Limits) -> Bytes {
    if failure.to_string() == UNKNOWN_TRANSFER_CODING {
        return whole_answer("501 Not Implemented", "", &head::unknown_transfer_coding());
    }
    let problem = if failure.is_parse_too_large() {
        head::too_large(limits)
    } else {
        Problem::invalid(
            "The request line or a header field could not be read as HTTP/1.1. Send a request as RFC 9112 has it.",
        )
    };
    whole_answer("400 Bad Request", "", &problem)
}

/// An answer in full, for clients that get no further than their connection.
fn whole_answer(status: &str, headers: &str, problem: &Problem) -> Bytes {
    let request_id = format!("{:016x}", SystemEntropy.bits());
    let body = serde_json::to_string(&problem.document(&request_id)).unwrap_or_default();
    let bytes = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\ncontent-length: {bytes}\r\nx-request-id: \
         {request_id}\r\n{headers}connection: close\r\n\r\n{body}"
    )
    .into()
}

#[cfg(test)]
mod tests;
