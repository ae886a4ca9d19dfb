//! A socket for responses that end with its close (HTTP/1.0). After a broken response it is reset instead of closed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::socket::Progress;

/// A connection that can be reset.
pub(super) trait Reset {
    /// Lets the connection be reset when it is dropped.
    fn reset_on_drop(&self);
}

impl Reset for TcpStream {
    fn reset_on_drop(&self) {
        // Fails only if the client has closed it.
        let _ = self.set_zero_linger();
    }
}

impl Reset for TlsStream<TcpStream> {
    fn reset_on_drop(&self) {
        self.get_ref().0.reset_on_drop();
    }
}

impl<Io: Reset> Reset for Box<Io> {
    fn reset_on_drop(&self) {
        (**self).reset_on_drop();
    }
}

#[cfg(test)]
impl Reset for tokio::io::DuplexStream {
    fn reset_on_drop(&self) {}
}

/// A socket of a connection whose responses are streamed.
pub(super) struct ResetSocket<Io: Reset> {
    io: Io,
    progress: Arc<Progress>,
}

impl<Io: Reset> ResetSocket<Io> {
    pub(super) fn new(io: Io, progress: Arc<Progress>) -> Self {
        Self { io, progress }
    }
}

impl<Io: Reset> Drop for ResetSocket<Io> {
    fn drop(&mut self) {
        if self.progress.is_broken() {
            self.io.reset_on_drop();
        }
    }
}

impl<Io: Reset + AsyncRead + Unpin> AsyncRead for ResetSocket<Io> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<Io: Reset + AsyncWrite + Unpin> AsyncWrite for ResetSocket<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
