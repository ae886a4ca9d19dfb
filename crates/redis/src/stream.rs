//! The stream of bytes to a server: TCP or TLS, and the login. The login is the library's.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::future::select_ok;
use oncegate_core::engine::Determinate;
use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, RedisConnectionInfo, RedisError, RedisResult};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};

use super::address::Address;
use super::library::{failure, with_files, without_timeouts};
use super::url::Url;

/// Bytes of a connection, in both directions.
pub(super) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// A stream to a server that has let us in.
pub(super) type Stream = Box<dyn Bytes>;

/// Opens a stream to a server, or to the first one of the URL, and logs in.
pub(super) async fn open(url: &Arc<Url>, server: Option<&Address>) -> Result<Stream, Determinate> {
    let info = url.connection_info(server);
    let stream: Stream = match info.addr() {
        ConnectionAddr::TcpTls { host, port, .. } => {
            let connector = with_files(url, Url::tls_connector).await?;
            let name = ServerName::try_from(host.clone()).map_err(|error| unavailable(io::Error::other(error)))?;
            let stream = connect(host, *port).await.map_err(unavailable)?;
            Box::new(connector.connect(name, stream).await.map_err(unavailable)?)
        }
        ConnectionAddr::Tcp(host, port) => Box::new(connect(host, *port).await.map_err(unavailable)?),
        _ => return Err(unavailable(io::Error::from(io::ErrorKind::Unsupported))),
    };
    log_in(stream, info.redis_settings()).await.map_err(unavailable)
}

fn unavailable(error: impl Into<RedisError>) -> Determinate {
    Determinate::Unavailable(failure(&error.into()))
}

/// Connects to one of the addresses of a host: to the first that answers.
async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let connects: Vec<_> =
        lookup_host((host, port)).await?.map(|address| Box::pin(TcpStream::connect(address))).collect();
    if connects.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    }
    let (stream, _) = select_ok(connects).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Logs in and chooses the database, by the library.
pub(super) async fn log_in(stream: Stream, settings: &RedisConnectionInfo) -> RedisResult<Stream> {
    let lent = Lent(Arc::new(Mutex::new(stream)));
    let owner = lent.0.clone();
    // The client is dropped with its driver, before either has sent anything else.
    MultiplexedConnection::new_with_config(settings, lent, without_timeouts()).await.map(drop)?;
    let stream = Arc::into_inner(owner).and_then(|stream| stream.into_inner().ok());
    stream.ok_or_else(|| io::Error::other("the stream is still in use").into())
}

/// A stream that is lent to the library for the login.
struct Lent(Arc<Mutex<Stream>>);

impl Lent {
    fn with<T>(&self, poll: impl FnOnce(Pin<&mut Stream>) -> T) -> T {
        poll(Pin::new(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl AsyncRead for Lent {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Lent {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.with(|stream| stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_shutdown(cx))
    }
}
