//! The accept loop: bounded connections, timeouts that fire, and a stop that lets what is in flight be answered.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::FutureExt;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;

use super::guard::{Conversation, Guarded, LINGER, Patience};
use super::incoming::Incoming;
use super::plain::{self, Ended};
use super::problem::{Code, Problem};
use super::tls::{Greeted, Tls};
use crate::domain::attempt::{Entropy, SystemEntropy};
use crate::domain::limits::Limits;
use crate::tenants::Proof;

/// How many connections over the limit are told so at the same time; more are closed without a word.
const REFUSALS_MAX: usize = 64;

/// What answers the requests of a listener.
pub trait Answers: Clone + Send + Sync + 'static {
    /// The answer to a request. `proof` is what the requests of its connection have proved so far.
    fn answer(&self, request: Request<Incoming>, proof: &Arc<Proof>) -> impl Future<Output = Response> + Send;
}

impl Answers for Router {
    async fn answer(&self, request: Request<Incoming>, _proof: &Arc<Proof>) -> Response {
        let Ok(answer) = self.clone().call(request.map(Body::new)).await;
        answer
    }
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
    let patience = Patience { head: limits.header_read_timeout.0, idle: limits.idle_timeout.0 };
    let host = Arc::new(Host { tls, http: protocol(&limits), service, patience, limits, stop });
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

fn protocol(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    // Heads may be somewhat larger here than they may be, so that the usual excess is refused in words, by the edge. Times are
    // kept by the guard: the library would make a timer for every request.
    http.max_headers(limits.headers * 4).max_buf_size((limits.header_bytes * 4).max(64 << 10));
    http
}

/// What every connection of a listener is served with.
struct Host<Service> {
    tls: Option<Arc<Tls>>,
    http: http1::Builder,
    service: Service,
    patience: Patience,
    limits: Limits,
    stop: CancellationToken,
}

impl<Service: Answers> Host<Service> {
    async fn receive(&self, stream: TcpStream) {
        // Answers are small and waited for: nothing is gained by holding them back.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return self.converse(stream).await };
        let greeted = tokio::select! {
            greeted = tls.greet(stream, self.patience.head) => greeted,
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
        let (conversation, proof) = (Arc::new(Conversation::default()), Arc::new(Proof::default()));
        let mut io = Guarded::new(stream, conversation.clone(), self.patience, not_http);
        let serve = |request| self.serve(request, &proof, &conversation);
        let ended = match plain::converse(&mut io, &self.stop, &serve).await {
            Ok(Ended::Closed) => Ok(()),
            Ok(Ended::NotPlain(unread)) => {
                io.unread(unread.freeze());
                self.converse_by_library(io, serve).await.map_err(io::Error::other)
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
        io: Guarded<impl AsyncRead + AsyncWrite + Unpin + Send + 'static>,
        serve: impl Fn(Request<Incoming>) -> Answered,
    ) -> hyper::Result<()> {
        let service = service_fn(|request| serve(Incoming::streamed(request)).map(Ok::<_, Infallible>));
        let mut connection = std::pin::pin!(self.http.serve_connection(TokioIo::new(io), service));
        tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = stopped(&self.stop) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    }

    /// Answers one request, of which nothing is left on the connection then, or the connection ends with it.
    fn serve(
        &self,
        request: Request<Incoming>,
        proof: &Arc<Proof>,
        conversation: &Conversation,
    ) -> impl Future<Output = Response> {
        conversation.begin();
        let rest = request.body().rest();
        async move {
            let mut answer = self.service.answer(request, proof).await;
            if let Some(rest) = rest
                && !rest.skip(&self.limits).await
            {
                conversation.leave_unread();
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            conversation.answer();
            answer
        }
    }
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

/// The answer to what is not HTTP/1.1, or has a head beyond all bounds.
fn not_http() -> Bytes {
    let problem = Problem::invalid(
        "The request line or a header could not be read as HTTP/1.1, or the head is too long. Send fewer and shorter headers.",
    );
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
