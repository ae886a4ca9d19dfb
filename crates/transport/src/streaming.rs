//! Serves a connection whose responses are streamed: by the HTTP library alone, with the timeouts of the socket. After a response
//! that switches protocols, the connection is the service's.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::{HeaderValue, Request, Version, header};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::ConnectionServer;
use super::incoming::Incoming;
use super::service::{HttpService, Peer};
use super::socket::{Progress, TimedSocket};
use super::stop::stopped;

impl<Service: HttpService> ConnectionServer<Service> {
    /// Answers requests until either side ends the connection.
    pub(super) async fn serve_streaming(
        &self,
        socket: TimedSocket<impl AsyncRead + AsyncWrite + Unpin + Send + 'static>,
        progress: &Arc<Progress>,
        state: &Arc<Service::Connection>,
        peer: Peer,
    ) {
        let socket = self.guard(socket);
        let tunnel = socket.tunnel();
        let switched = Mutex::new(None);
        let service = service_fn(|request: Request<hyper::body::Incoming>| {
            progress.begin();
            let is_old = request.version() == Version::HTTP_10;
            let mut request = Incoming::streamed(request);
            request.extensions_mut().insert(peer);
            let (served, rest) = (Served(progress.clone()), request.body().rest());
            let (switched, tunnel) = (&switched, &tunnel);
            async move {
                let mut response: Response = self.service.call(request, state).await;
                // The service may still read the request: the library closes the connection if some of it is left unread.
                if rest.is_some_and(|rest| rest.discard()) {
                    // The client must not send its next request here (RFC 9112, 9.6).
                    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                    progress.linger();
                }
                let buffered = response.extensions_mut().remove::<Buffered>();
                progress.buffer(buffered.map_or(0, |Buffered(bytes)| bytes));
                let served = match response.extensions_mut().remove::<SwitchedProtocol>() {
                    Some(protocol) => {
                        tunnel.store(true, Ordering::Relaxed);
                        *switched.lock().unwrap_or_else(PoisonError::into_inner) = Some((protocol, served));
                        None
                    }
                    None => Some(served),
                };
                Ok::<_, std::convert::Infallible>(response.map(|body| {
                    let ends_with_connection = is_old && body.size_hint().exact().is_none();
                    Tracked { ending: ends_with_connection.then(|| progress.clone()), body, _served: served }
                }))
            }
        });
        let mut connection = self.http.serve_connection(TokioIo::new(socket), service).with_upgrades();
        let ended = tokio::select! {
            biased;
            ended = &mut connection => ended,
            () = stopped(&self.stop) => {
                Pin::new(&mut connection).graceful_shutdown();
                connection.await
            }
        };
        if let Err(failure) = ended {
            tracing::debug!(error = %failure, "A connection ended early");
        }
        let switched = switched.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((protocol, _served)) = switched {
            // Its end is not known: a listener that stops does not wait for it.
            self.stop.run_until_cancelled(protocol.run()).await;
        }
    }
}

/// Use of a connection after a response with status 101: an extension of that response. It keeps the connection's permit until it
/// returns, and is dropped when the listener stops.
#[derive(Clone)]
pub struct SwitchedProtocol(Arc<Mutex<Option<Protocol>>>);

type Protocol = Pin<Box<dyn Future<Output = ()> + Send>>;

impl SwitchedProtocol {
    /// Lets this future use the connection, which it gets from the request by [`hyper::upgrade::on`].
    pub fn new(protocol: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::pin(protocol)))))
    }

    async fn run(self) {
        let protocol = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(protocol) = protocol {
            protocol.await;
        }
    }
}

/// Bytes of a response that its service may keep in memory until they are written: an extension of that response. They
/// count as unread while the client does not read, in addition to the bytes of the current write.
#[derive(Clone, Copy)]
pub struct Buffered(pub usize);

/// A request in service, until its response is written or abandoned.
struct Served(Arc<Progress>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.answer();
    }
}

/// A body whose request is in service until its end.
struct Tracked {
    body: Body,
    /// Set if only the end of the connection is the end of this body.
    ending: Option<Arc<Progress>>,
    _served: Option<Served>,
}

impl HttpBody for Tracked {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let (Poll::Ready(Some(Err(_))), Some(progress)) = (&polled, &self.ending) {
            progress.break_off();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
