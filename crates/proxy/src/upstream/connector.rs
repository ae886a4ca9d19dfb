//! Connections to upstreams: over TCP, or TLS on top of it.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Uri;
use axum::http::uri::Scheme;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::Service;

type Failure = Box<dyn Error + Send + Sync>;

/// Opens connections. TLS verifies the host of the URL.
#[derive(Clone)]
pub(crate) struct Connector<Tcp = HttpConnector> {
    tcp: Tcp,
    tls: TlsConnector,
    /// Time limit of a whole connect: the lookup of the name, TCP and the TLS handshake.
    timeout: Duration,
    is_http2: bool,
}

/// HTTP/2 in a TLS handshake (RFC 9113, 3.2).
const HTTP2: &[u8] = b"h2";

/// A connection.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connector {
    /// Returns a connector that trusts these authorities, for HTTP/2 or HTTP/1.1. `None` if the library has no protocol version in
    /// common with itself.
    pub(crate) fn new(authorities: RootCertStore, timeout: Duration, is_http2: bool) -> Option<Self> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(timeout));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().ok()?;
        let mut config = config.with_root_certificates(authorities).with_no_client_auth();
        if is_http2 {
            config.alpn_protocols = vec![HTTP2.to_vec()];
        }
        Some(Self { is_http2, tcp, tls: Arc::new(config).into(), timeout })
    }
}

impl<Tcp> Service<Uri> for Connector<Tcp>
where
    Tcp: Service<Uri, Response = TokioIo<TcpStream>, Error: Into<Failure>, Future: Send + 'static>,
{
    type Response = TokioIo<Stream>;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Stream>, Failure>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let is_tls = uri.scheme() == Some(&Scheme::HTTPS);
        let host = uri.host().map(|host| host.trim_matches(['[', ']']).to_owned());
        let (connecting, tls, limit, is_http2) = (self.tcp.call(uri), self.tls.clone(), self.timeout, self.is_http2);
        let connect = async move {
            let stream = connecting.await.map_err(Into::into)?.into_inner();
            if !is_tls {
                return Ok(TokioIo::new(Stream::Tcp(stream)));
            }
            let name = ServerName::try_from(host.unwrap_or_default())?;
            let stream = tls.connect(name, stream).await?;
            if is_http2 && stream.get_ref().1.alpn_protocol() != Some(HTTP2) {
                return Err("the server does not offer HTTP/2 in its TLS handshake; remove `http2 = true`".into());
            }
            Ok(TokioIo::new(Stream::Tls(Box::new(stream))))
        };
        let late = || Err(io::Error::from(io::ErrorKind::TimedOut).into());
        Box::pin(async move { timeout(limit, connect).await.unwrap_or_else(|_| late()) })
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buffer),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Pending, pending};

    use super::*;

    /// Opens no connection. The lookup of a name is a part of what it does.
    #[derive(Clone)]
    struct Hanging;

    impl Service<Uri> for Hanging {
        type Response = TokioIo<TcpStream>;
        type Error = io::Error;
        type Future = Pending<io::Result<TokioIo<TcpStream>>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Uri) -> Self::Future {
            pending()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_is_not_resolved_in_time_is_a_failed_connect() {
        let limit = Duration::from_secs(1);
        let Connector { tls, timeout, is_http2, .. } = Connector::new(RootCertStore::empty(), limit, false).unwrap();
        let mut connector = Connector { tcp: Hanging, tls, timeout, is_http2 };
        for url in ["http://orders:1", "https://orders:1"] {
            let connecting = connector.call(Uri::from_static(url));
            let connected = tokio::time::timeout(2 * limit, connecting).await.expect("it is given up");
            let failure = connected.err().unwrap();
            assert_eq!(failure.downcast::<io::Error>().unwrap().kind(), io::ErrorKind::TimedOut, "{url}");
        }
    }
}
