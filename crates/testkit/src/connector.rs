//! Connections of a client: over TCP, or TLS on top of it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower::Service;

/// Opens connections.
#[derive(Clone, Default)]
pub struct Connector(pub Option<Arc<ClientConfig>>);

/// A TCP or TLS connection.
pub struct Stream(Box<dyn Both>);

trait Both: AsyncRead + AsyncWrite + Send + Unpin {}

impl<Io: AsyncRead + AsyncWrite + Send + Unpin> Both for Io {}

impl Connector {
    /// Connects to `host:port`. With TLS, verifies the name of the host.
    pub async fn connect(&self, authority: &str) -> io::Result<Stream> {
        let stream = TcpStream::connect(authority).await?;
        stream.set_nodelay(true)?;
        let Some(config) = &self.0 else { return Ok(Stream(Box::new(stream))) };
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let name = ServerName::try_from(host.to_owned()).expect("a name");
        let stream = TlsConnector::from(config.clone()).connect(name, stream).await?;
        Ok(Stream(Box::new(stream)))
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let authority = uri.authority().expect("a URL with a host").as_str().to_owned();
            connector.connect(&authority).await.map(TokioIo::new)
        })
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
