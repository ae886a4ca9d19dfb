//! Serves one connection: the TLS handshake, then requests on the fast path or by the HTTP library, then its end.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, StatusCode, header};
use axum::response::Response;
use http_body_util::BodyExt as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::fast_path::{self, Ended};
use super::head_guard::HeadGuard;
use super::incoming::Incoming;
use super::library::{self, LibrarySocket};
use super::limits::Limits;
use super::reset::{Reset, ResetSocket};
use super::service::{HttpService, Peer, Rejection};
use super::socket::{LINGER, Progress, TimedSocket};
use super::stop::stopped;
use super::tls::{self, Handshake, Tls};
use super::unread::UnreadResponses;

/// State that all connections of a listener share.
pub(super) struct ConnectionServer<Service> {
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) http: http1::Builder,
    pub(super) service: Service,
    unread: Arc<UnreadResponses>,
    limits: Limits,
    pub(super) stop: CancellationToken,
}

impl<Service: HttpService> ConnectionServer<Service> {
    pub(super) fn new(tls: Option<Arc<Tls>>, service: Service, limits: Limits, stop: CancellationToken) -> Self {
        let unread = Arc::new(UnreadResponses::new(limits.unread_bytes));
        Self { tls, http: library::protocol(&limits), service, unread, limits, stop }
    }

    /// Serves a connection to its end.
    pub(super) async fn serve(&self, stream: TcpStream) {
        // Responses are small, and clients wait for them: a delay would gain nothing.
        let _ = stream.set_nodelay(true);
        let Ok(address) = stream.peer_addr() else { return };
        let peer = Peer { address, certificate: None };
        let Some(tls) = &self.tls else { return self.serve_http(stream, peer).await };
        let handshake = tokio::select! {
            handshake = tls.handshake(stream, self.limits.head_timeout) => handshake,
            // A client in its handshake has sent no request.
            () = self.stop.cancelled() => return,
        };
        match handshake {
            Some(Handshake::Tls(stream)) => {
                let certificate = tls::certificate_of(&stream);
                self.serve_http(stream, Peer { certificate, ..peer }).await;
            }
            Some(Handshake::PlainHttp(stream)) => self.reject(stream, Rejection::TlsRequired).await,
            None => {}
        }
    }

    /// Responds to a client that gets no further, and closes its connection.
    pub(super) async fn reject(&self, mut stream: TcpStream, rejection: Rejection) {
        let response = self.service.reject(rejection);
        let write = async {
            let text = fast_path::last_response(response).await.map_err(io::Error::other)?;
            stream.write_all(&text).await?;
            stream.shutdown().await?;
            let mut ignored = [0; 1024];
            while stream.read(&mut ignored).await? > 0 {}
            Ok::<_, io::Error>(())
        };
        // The client may have left; that affects no other.
        let _ = timeout(LINGER, write).await;
    }

    /// Answers requests until either side ends the connection.
    async fn serve_http(&self, stream: impl AsyncRead + AsyncWrite + Reset + Unpin + Send + 'static, peer: Peer) {
        let (progress, state) = (Arc::new(Progress::default()), Arc::new(Service::Connection::default()));
        if Service::STREAMS {
            let stream = ResetSocket::new(stream, progress.clone());
            let socket = TimedSocket::new(stream, progress.clone(), self.limits, self.unread.clone(), state.clone());
            return self.serve_streaming(socket, &progress, &state, peer).await;
        }
        let mut socket = TimedSocket::new(stream, progress.clone(), self.limits, self.unread.clone(), state.clone());
        let call = |request| self.call(request, &state, &progress);
        let ended = match fast_path::serve(&mut socket, self.limits.head_bytes, &self.stop, &call).await {
            Ok(Ended::Closed) => Ok(()),
            Ok(Ended::Unsupported(read)) => {
                socket.push_back(read.freeze());
                self.serve_by_library(socket, &progress, call).await
            }
            Err(failure) => Err(failure),
        };
        if let Err(failure) = ended {
            // Operators need not know of a client that left or was too slow.
            tracing::debug!(error = %failure, "A connection ended early");
        }
    }

    /// Does the same with the HTTP library, which supports all of HTTP/1.
    async fn serve_by_library<Responding: Future<Output = Response>>(
        &self,
        socket: TimedSocket<impl AsyncRead + AsyncWrite + Unpin + Send + 'static>,
        progress: &Arc<Progress>,
        call: impl Fn(Request<Incoming>) -> Responding,
    ) -> io::Result<()> {
        let service = service_fn(|request: Request<hyper::body::Incoming>| {
            let (may_have_body, progress) = (request.method() != Method::HEAD, progress.clone());
            let response = call(Incoming::streamed(request));
            async move {
                progress.all_written().await;
                announced(response.await, may_have_body, progress).await
            }
        });
        let mut connection = self.http.serve_connection(TokioIo::new(LibrarySocket::new(self.guard(socket))), service);
        let ended = tokio::select! {
            biased;
            ended = &mut connection => ended,
            () = stopped(&self.stop) => {
                std::pin::Pin::new(&mut connection).graceful_shutdown();
                (&mut connection).await
            }
        };
        let Err(failure) = ended else { return Ok(()) };
        if let Some(mut socket) = connection.into_parts().io.into_inner().rejected() {
            socket.progress().linger();
            let response = self.service.reject(library::rejection(&failure));
            socket.write_all(&fast_path::last_response(response).await.map_err(io::Error::other)?).await?;
            socket.flush().await?;
            socket.shutdown().await?;
        }
        Err(io::Error::other(failure))
    }

    /// Lets the heads of a connection's requests be checked before the library reads them.
    pub(super) fn guard<Io>(&self, socket: TimedSocket<Io>) -> HeadGuard<Io, Service> {
        HeadGuard::new(socket, self.service.clone(), &self.limits)
    }

    /// Answers one request. Afterwards nothing of it is left on the connection, or the response closes the connection.
    fn call(
        &self,
        request: Request<Incoming>,
        state: &Arc<Service::Connection>,
        progress: &Progress,
    ) -> impl Future<Output = Response> {
        progress.begin();
        let rest = request.body().rest();
        async move {
            let mut response = self.service.call(request, state).await;
            if let Some(rest) = rest
                && !rest.skip(&self.limits).await
            {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            progress.answer();
            response
        }
    }
}

/// Announces the length of the body to the socket, and whether the connection lingers after it.
async fn announced(response: Response, may_have_body: bool, progress: Arc<Progress>) -> Result<Response, axum::Error> {
    let (head, body) = response.into_parts();
    // It is in memory already, in one piece.
    let body = body.collect().await?.to_bytes();
    let has_body = may_have_body && ![StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&head.status);
    progress.announce(if has_body { body.len() as u64 } else { 0 });
    if head.headers.get(header::CONNECTION).is_some_and(|value| value == "close") {
        progress.linger();
    }
    Ok(Response::from_parts(head, Body::from(body)))
}

#[cfg(test)]
mod tests;
