//! The HTTP library as the gateway uses it, and the socket that hides its own refusals: every error response is the
//! service's.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::server::conn::http1;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::head_guard::HeadGuard;
use super::limits::Limits;
use super::service::{HttpService, Rejection};
use super::socket::TimedSocket;

/// Smallest buffer that the library accepts.
const BUFFER_BYTES_MIN: usize = 8 << 10;

/// The library's error for a request whose transfer coding does not end in `chunked`. The library has no other name for it.
const UNKNOWN_TRANSFER_CODING: &str = "invalid transfer-encoding parsed";

/// Returns the settings of the library.
pub(super) fn protocol(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    // Allows more fields than the limit, so that the service rejects a usual excess and keeps the connection. The socket has
    // the timeouts: the library would create a timer for every request.
    http.max_headers(limits.header_fields * 4).max_header_size(limits.head_bytes);
    http.max_buf_size(limits.head_bytes.max(BUFFER_BYTES_MIN));
    // A client that has sent everything may still read, as on the fast path.
    http.half_close(true);
    http
}

/// Returns the rejection for a head that the library could not read.
pub(super) fn rejection(failure: &hyper::Error) -> Rejection {
    if failure.to_string() == UNKNOWN_TRANSFER_CODING {
        Rejection::UnknownTransferCoding
    } else if failure.is_parse_too_large() {
        Rejection::HeadTooLarge
    } else {
        Rejection::MalformedHead
    }
}

/// The socket of a connection that the library serves. If the library cannot read a request, it discards the library's
/// refusal, so that the service's response can be written instead.
///
/// It knows where each response ends, because the length of its body is announced. So it inspects only the first bytes of a
/// message, and a body may contain anything.
pub(super) struct LibrarySocket<Io, Service> {
    io: HeadGuard<Io, Service>,
    message: Message,
}

/// The message that is being written.
enum Message {
    /// The next byte begins one.
    None,
    /// A response of the service. Holds the number of bytes left.
    Response(u64),
    /// An interim response of the library, `100 Continue`. Holds the number of bytes left.
    Interim(u64),
    /// The library's refusal, which ends the connection. Nothing more is written.
    Refusal,
}

impl<Io, Service: HttpService> LibrarySocket<Io, Service> {
    pub(super) fn new(mut io: HeadGuard<Io, Service>) -> Self {
        io.socket().progress().count_written();
        Self { io, message: Message::None }
    }

    /// Returns the socket if the library has refused a request. All responses before the refusal are written, and nothing of
    /// the refusal itself.
    pub(super) fn rejected(self) -> Option<TimedSocket<Io>> {
        matches!(self.message, Message::Refusal).then(|| self.io.into_socket())
    }

    /// Classifies the message that begins here. The library writes a head in one piece, so the buffer contains all of it.
    fn begin(&mut self, buffer: &[u8]) -> io::Result<()> {
        let head = buffer.windows(4).position(|window| window == b"\r\n\r\n");
        let head = head.map(|end| end as u64 + 4).ok_or(io::ErrorKind::InvalidData);
        self.message = if buffer.starts_with(b"HTTP/1.1 1") {
            Message::Interim(head?)
        } else if let Some(body) = self.io.socket().progress().next_response() {
            Message::Response(head? + body)
        } else {
            Message::Refusal
        };
        Ok(())
    }
}

impl<Io: AsyncRead + Unpin, Service: HttpService> AsyncRead for LibrarySocket<Io, Service> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<Io: AsyncRead + AsyncWrite + Unpin, Service: HttpService> AsyncWrite for LibrarySocket<Io, Service> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if matches!(this.message, Message::None) && !buffer.is_empty() {
            this.begin(buffer)?;
        }
        let left = match this.message {
            Message::Response(left) | Message::Interim(left) => left,
            Message::None | Message::Refusal => return Poll::Ready(Ok(buffer.len())),
        };
        let part = buffer.get(..usize::try_from(left).unwrap_or(usize::MAX)).unwrap_or(buffer);
        let written = ready!(Pin::new(&mut this.io).poll_write(cx, part))?;
        let left = left.saturating_sub(written as u64);
        this.message = match this.message {
            Message::Response(_) if left == 0 => {
                this.io.socket().progress().note_written();
                Message::None
            }
            Message::Response(_) => Message::Response(left),
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
