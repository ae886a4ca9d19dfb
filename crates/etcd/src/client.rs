//! A connection to one member: calls of etcd's API over gRPC. `session` and `batch` choose the member, and handle
//! failures.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::http::uri::PathAndQuery;
use hyper::http::{self, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use oncegate_coordination::url::{Address, Credentials, Url};
use oncegate_core::engine::Determinate;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;
use tower::Service;

use super::authentication::{Authentication, Token};
use super::failure::{Failure, Remedy};
use super::proto::{AuthenticateRequest, AuthenticateResponse, TxnRequest, TxnResponse, WatchRequest, WatchResponse};

/// Largest reply: a batch of reads of the largest values.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// Longest token: each request carries it.
const TOKEN_BYTES_MAX: usize = 8 << 10;

/// The application protocol of a connection over TLS.
pub(super) const ALPN: &[u8] = b"h2";

const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
const TXN: &str = "/etcdserverpb.KV/Txn";
const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// An open connection. Clones share it.
#[derive(Clone)]
pub(super) struct Client {
    grpc: Grpc<Http2>,
    authentication: Option<Arc<Authentication>>,
}

impl Client {
    /// Connects to a member, and gets a token if the URL has a user and none is known.
    pub(super) async fn connect(
        url: &Url,
        authentication: Option<Arc<Authentication>>,
        member: &Address,
    ) -> Result<Self, Determinate> {
        let down = |error: std::io::Error| Determinate::Unavailable(format!("no connection to {member}: {error}"));
        let stream = TcpStream::connect((member.host.as_str(), member.port)).await.map_err(down)?;
        stream.set_nodelay(true).map_err(down)?;
        let sender = match &url.tls {
            None => handshake(stream, member).await?,
            Some(certificates) => handshake(certificates.connect(member, stream, Some(ALPN)).await?, member).await?,
        };
        let scheme = if url.tls.is_some() { "https" } else { "http" };
        let origin = Uri::try_from(format!("{scheme}://{member}"));
        let origin = origin.map_err(|_| Determinate::Incompatible(format!("{member} is no address")))?;
        let grpc = Grpc::with_origin(Http2(sender), origin).max_decoding_message_size(REPLY_BYTES_MAX);
        let client = Self { grpc, authentication };
        if client.token().is_none() {
            client.authenticate(None).await.map_err(|failure| failure.answer.without_effect())?;
        }
        Ok(client)
    }

    /// Sends a transaction. If the token is not known any more, authenticates and sends it once again.
    pub(super) async fn txn(&self, build: impl Fn() -> TxnRequest) -> Result<TxnResponse, Failure> {
        self.call(TXN, build).await
    }

    /// Sends a request that may be repeated, as [`Client::txn`] does.
    pub(super) async fn call<Q, R>(&self, path: &'static str, build: impl Fn() -> Q) -> Result<R, Failure>
    where
        Q: Message + Send + 'static,
        R: Message + Default + Send + 'static,
    {
        let used = self.token();
        match self.send(path, build(), used.clone()).await {
            Err(Failure { remedy: Remedy::Authenticate, .. }) if self.authentication.is_some() => {
                // Boxed: every call would take memory for this.
                Box::pin(self.authenticate(used)).await?;
                self.send(path, build(), self.token()).await
            }
            answer => answer,
        }
    }

    /// Opens a stream of watches.
    pub(super) async fn watch(
        &self,
        requests: impl Stream<Item = WatchRequest> + Send + 'static,
    ) -> Result<Streaming<WatchResponse>, Failure> {
        let mut request = self.request(requests, self.token());
        // A member that has lost its leader ends the stream.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let mut grpc = self.grpc.clone();
        grpc.ready().await.map_err(|error| Failure::lost(error.to_string()))?;
        let path = PathAndQuery::from_static(WATCH);
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        grpc.streaming(request, path, codec).await.map(tonic::Response::into_inner).map_err(Failure::from)
    }

    async fn send<Q, R>(&self, path: &'static str, message: Q, token: Option<Token>) -> Result<R, Failure>
    where
        Q: Message + Send + 'static,
        R: Message + Default + Send + 'static,
    {
        let mut grpc = self.grpc.clone();
        grpc.ready().await.map_err(|error| Failure::lost(error.to_string()))?;
        let request = self.request(message, token);
        let reply = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, R>::default()).await;
        reply.map(tonic::Response::into_inner).map_err(Failure::from)
    }

    #[expect(clippy::unused_self, reason = "a request belongs to its connection")]
    fn request<T>(&self, message: T, token: Option<Token>) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = token {
            request.metadata_mut().insert("token", token);
        }
        request
    }

    /// Gets a token other than `used`, unless there is one already, or the URL has no user.
    async fn authenticate(&self, used: Option<Token>) -> Result<(), Failure> {
        let Some(authentication) = &self.authentication else { return Ok(()) };
        let Credentials { user, password } = authentication.credentials.clone();
        let client = self.clone();
        let request = async move {
            let asking = client.send(AUTHENTICATE, AuthenticateRequest { name: user, password }, None);
            let reply: AuthenticateResponse = asking.await.map_err(|failure| {
                // A refusal of the password is no refusal of a call among others.
                Failure { remedy: Remedy::Leave, ..failure }
            })?;
            if reply.token.len() > TOKEN_BYTES_MAX {
                return Err(Failure::unfit("etcd gave a token that is too long"));
            }
            Token::try_from(reply.token).map_err(|_| Failure::unfit("etcd gave a token that is no text"))
        };
        authentication.renew(used, request).await
    }

    fn token(&self) -> Option<Token> {
        self.authentication.as_ref().and_then(|authentication| authentication.token())
    }
}

async fn handshake<S>(stream: S, member: &Address) -> Result<SendRequest<Body>, Determinate>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    let opened = builder.handshake(TokioIo::new(stream)).await;
    let (sender, connection) =
        opened.map_err(|error| Determinate::Unavailable(format!("{member} speaks no HTTP/2: {error}")))?;
    // Ends with the last clone of the sender, or when the connection is lost, which every call on it then notices.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

/// An HTTP/2 connection as a service.
#[derive(Clone)]
struct Http2(SendRequest<Body>);

impl Service<http::Request<Body>> for Http2 {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
