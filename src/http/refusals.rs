//! Keeps back what the HTTP library answers on its own to a request that it cannot read, so that the listener can answer with
//! a problem document instead. Everything else passes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::TimedIo;

/// The socket of a connection that the library serves.
///
/// It knows where each answer ends: the service announces the length of its body. So only the bytes at the start of a message
/// are looked at, and a body may hold whatever it likes.
pub(super) struct Refusals<Io> {
    io: TimedIo<Io>,
    message: Message,
}

/// The message that is being written.
enum Message {
    /// The next byte begins one.
    None,
    /// An answer of the service, of which this many bytes are left.
    Answer(u64),
    /// An interim answer of the library, `100 Continue`, of which this many bytes are left.
    Interim(u64),
    /// The library's refusal, which ends the connection. Nothing more is written.
    Refusal,
}

impl<Io> Refusals<Io> {
    pub(super) fn new(io: TimedIo<Io>) -> Self {
        io.progress().count_written();
        Self { io, message: Message::None }
    }

    /// Returns the socket if the library has refused a request: all answers before are written, and nothing of the refusal.
    pub(super) fn refused(self) -> Option<TimedIo<Io>> {
        matches!(self.message, Message::Refusal).then_some(self.io)
    }

    /// Finds out which message begins here. The library writes heads in one piece, so all of it is there.
    fn begin(&mut self, buffer: &[u8]) -> io::Result<()> {
        let head = buffer.windows(4).position(|window| window == b"\r\n\r\n");
        let head = head.map(|end| end as u64 + 4).ok_or(io::ErrorKind::InvalidData);
        self.message = if buffer.starts_with(b"HTTP/1.1 1") {
            Message::Interim(head?)
        } else if let Some(body) = self.io.progress().next_answer() {
            Message::Answer(head? + body)
        } else {
            Message::Refusal
        };
        Ok(())
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Refusals<Io> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<Io: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Refusals<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if matches!(this.message, Message::None) && !buffer.is_empty() {
            this.begin(buffer)?;
        }
        let left = match this.message {
            Message::Answer(left) | Message::Interim(left) => left,
            Message::None | Message::Refusal => return Poll::Ready(Ok(buffer.len())),
        };
        let part = buffer.get(..usize::try_from(left).unwrap_or(usize::MAX)).unwrap_or(buffer);
        let written = ready!(Pin::new(&mut this.io).poll_write(cx, part))?;
        let left = left.saturating_sub(written as u64);
        this.message = match this.message {
            Message::Answer(_) if left == 0 => {
                this.io.progress().note_written();
                Message::None
            }
            Message::Answer(_) => Message::Answer(left),
            _ if left == 0 => Message::None,
            _ => Message::Interim(left),
        };
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.message, Message::Refusal) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
