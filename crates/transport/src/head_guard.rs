//! Checks the head of each request before the HTTP library sees it. The service answers a head that cannot be read, or
//! that frames its body in two ways. The library would answer it without a body, or would choose one of the framings.

pub(super) mod chunks;

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use axum::http::{Method, Uri};
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::chunks::Chunks;
use super::fast_path::last_response;
use super::http2;
use super::length::length;
use super::limits::Limits;
use super::service::{HttpService, Rejection};
use super::socket::TimedSocket;

/// Fields of a head that are parsed. The service rejects a usual excess itself and keeps the connection.
const FIELDS_MAX: usize = 256;

/// Bytes to read at once while a head is incomplete.
const READ_BYTES: usize = 4 << 10;

/// Socket whose requests are checked.
pub(super) struct HeadGuard<Io, Service> {
    io: TimedSocket<Io>,
    service: Service,
    head_bytes_max: usize,
    next: Next,
    /// Bytes that were read and not passed on.
    held: BytesMut,
    /// Number of the held bytes that may be passed on.
    checked: usize,
    rejection: Option<Bytes>,
    /// Set when the library has got to the rejected head: no response before has closed the connection.
    is_rejected: bool,
    /// Set when all responses before the rejection are written.
    is_closing: bool,
    is_tunnel: Arc<AtomicBool>,
}

/// Part of a request that the next byte belongs to.
enum Next {
    Head,
    /// A body with this number of bytes left.
    Body(u64),
    Chunks(Chunks),
    /// A chunked body that readers could end in different places. Nothing after it is passed on.
    Broken,
    /// No request: the connection speaks another protocol.
    Unchecked,
}

impl<Io, Service: HttpService> HeadGuard<Io, Service> {
    pub(super) fn new(io: TimedSocket<Io>, service: Service, limits: &Limits) -> Self {
        Self {
            io,
            service,
            head_bytes_max: limits.head_bytes,
            next: Next::Head,
            held: BytesMut::new(),
            checked: 0,
            rejection: None,
            is_rejected: false,
            is_closing: false,
            is_tunnel: Arc::default(),
        }
    }

    /// Returns the switch that ends the checks, because the connection speaks another protocol from now on.
    pub(super) fn tunnel(&self) -> Arc<AtomicBool> {
        self.is_tunnel.clone()
    }

    pub(super) fn socket(&mut self) -> &mut TimedSocket<Io> {
        &mut self.io
    }

    pub(super) fn into_socket(self) -> TimedSocket<Io> {
        self.io
    }

    /// Checks bytes that follow those checked before. Returns the number of bytes that may be passed on.
    fn check(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() && self.rejection.is_none() {
            let (taken, next) = match &mut self.next {
                Next::Head => match read_head(rest) {
                    Ok(Some(taken)) => taken,
                    Ok(None) if rest.len() < self.head_bytes_max => break,
                    Ok(None) => {
                        self.reject(Rejection::HeadTooLarge);
                        break;
                    }
                    Err(rejection) => {
                        self.reject(rejection);
                        break;
                    }
                },
                Next::Body(left) => {
                    let taken = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= taken as u64;
                    (taken, if *left == 0 { Next::Head } else { Next::Body(*left) })
                }
                Next::Chunks(chunks) => match chunks.read(rest) {
                    Ok((taken, true)) => (taken, Next::Head),
                    Ok((taken, false)) => (taken, Next::Chunks(std::mem::take(chunks))),
                    Err(chunks::Invalid) => (0, Next::Broken),
                },
                Next::Broken => break,
                Next::Unchecked => (rest.len(), Next::Unchecked),
            };
            rest = rest.get(taken..).unwrap_or_default();
            self.next = next;
        }
        bytes.len() - rest.len()
    }

    fn reject(&mut self, rejection: Rejection) {
        let is_http2 = matches!(rejection, Rejection::Http2);
        let response = self.service.reject(rejection);
        // The response is in memory.
        self.rejection = Some(if is_http2 {
            http2::last_response(response).now_or_never().unwrap_or_default().into()
        } else {
            last_response(response).now_or_never().and_then(Result::ok).unwrap_or_default().into()
        });
    }
}

/// Returns the length of the head at the beginning of `read`, and the bytes after it. `None` if it is incomplete.
fn read_head(read: &[u8]) -> Result<Option<(usize, Next)>, Rejection> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut head = httparse::Request::new(&mut []);
    let bytes = match head.parse_with_uninit_headers(read, &mut fields) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(Rejection::HeadTooLarge),
        // A response is for a stream that the client has opened, so it waits for one.
        Err(_) if http2::PREFACE.starts_with(read) => return Ok(None),
        Err(_) if read.starts_with(http2::PREFACE) => {
            return if http2::has_request(read) { Err(Rejection::Http2) } else { Ok(None) };
        }
        Err(_) => return Err(Rejection::MalformedHead),
    };
    let method = head.method.and_then(|method| Method::from_bytes(method.as_bytes()).ok());
    let target = head.path.and_then(|target| target.parse::<Uri>().ok());
    if method.zip(target).is_none() {
        return Err(Rejection::MalformedHead);
    }
    let values = |name: &'static str| {
        let of_name = head.headers.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
        of_name.map(|field| field.value)
    };
    let coding = values("transfer-encoding").next_back();
    let mut lengths = values("content-length").map(|value| length(value.trim_ascii()));
    let Some(coding) = coding else {
        let Some(first) = lengths.next() else { return Ok(Some((bytes, Next::Head))) };
        let first = first.filter(|first| lengths.all(|other| other == Some(*first)));
        return match first.ok_or(Rejection::MalformedHead)? {
            0 => Ok(Some((bytes, Next::Head))),
            body => Ok(Some((bytes, Next::Body(body)))),
        };
    };
    let is_chunked = coding
        .rsplit(|byte| *byte == b',')
        .next()
        .is_some_and(|last| last.trim_ascii().eq_ignore_ascii_case(b"chunked"));
    if lengths.next().is_some() {
        Err(Rejection::TwoFramings)
    } else if head.version != Some(1) {
        Err(Rejection::MalformedHead)
    } else if !is_chunked {
        Err(Rejection::UnknownTransferCoding)
    } else {
        Ok(Some((bytes, Next::Chunks(Chunks::default()))))
    }
}

impl<Io: AsyncRead + Unpin, Service: HttpService> AsyncRead for HeadGuard<Io, Service> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.is_tunnel.load(Ordering::Relaxed) {
            (this.next, this.checked) = (Next::Unchecked, this.held.len());
        }
        loop {
            if this.checked > 0 {
                let passed = this.held.split_to(this.checked.min(buffer.remaining()));
                this.checked -= passed.len();
                buffer.put_slice(&passed);
                return Poll::Ready(Ok(()));
            }
            if this.rejection.is_some() {
                // The library answers what it has read, and ends the connection.
                this.is_rejected = true;
                // The client may still be sending.
                this.io.progress().linger();
                return Poll::Ready(Ok(()));
            }
            if matches!(this.next, Next::Broken) {
                // The library fails the body with this, and closes after the response. The client may still be sending.
                this.io.progress().linger();
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the body is not chunked correctly",
                )));
            }
            if this.held.is_empty() {
                let before = buffer.filled().len();
                ready!(Pin::new(&mut this.io).poll_read(cx, buffer))?;
                let read = buffer.filled().get(before..).unwrap_or_default();
                if read.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                let passed = this.check(read);
                this.held.extend_from_slice(read.get(passed..).unwrap_or_default());
                buffer.set_filled(before + passed);
                if passed > 0 {
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            let mut more = [0; READ_BYTES];
            let mut more = ReadBuf::new(&mut more);
            ready!(Pin::new(&mut this.io).poll_read(cx, &mut more))?;
            if more.filled().is_empty() {
                // Half a head is no request.
                return Poll::Ready(Ok(()));
            }
            this.held.extend_from_slice(more.filled());
            let held = std::mem::take(&mut this.held);
            this.checked = this.check(&held);
            this.held = held;
        }
    }
}

impl<Io: AsyncRead + AsyncWrite + Unpin, Service: HttpService> AsyncWrite for HeadGuard<Io, Service> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The library flushes before each call of `poll_shutdown`, which would restart the time that the client has to read the
        // rejection.
        if self.is_closing {
            return Poll::Ready(Ok(()));
        }
        // It also flushes whenever it waits for a response, and reads nothing then.
        self.io.watch_caller(cx);
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Writes the rejection after all responses.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.is_closing = true;
        while let Some(text) = this.rejection.as_mut().filter(|text| this.is_rejected && !text.is_empty()) {
            let written = ready!(Pin::new(&mut this.io).poll_write(cx, text))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            text.advance(written);
        }
        if this.is_rejected {
            ready!(Pin::new(&mut this.io).poll_flush(cx))?;
            this.is_rejected = false;
        }
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(head: &str) -> Result<&'static str, Rejection> {
        Ok(match read_head(format!("{head}\r\n\r\n").as_bytes())?.expect("it is complete").1 {
            Next::Head => "nothing",
            Next::Body(3) => "three bytes",
            Next::Body(_) => "other bytes",
            Next::Chunks(_) => "chunks",
            Next::Broken => "no body",
            Next::Unchecked => "anything",
        })
    }

    #[test]
    fn a_head_says_in_one_way_where_its_body_ends() {
        let with = |fields: &str| after(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}"));
        assert_eq!(after("GET /a?b=c HTTP/1.1"), Ok("nothing"));
        assert_eq!(after("\r\n\r\nGET * HTTP/1.0"), Ok("nothing"));
        for (fields, follows) in [
            ("Content-Length: 0", "nothing"),
            ("content-length: 3", "three bytes"),
            ("Content-Length: 3\r\nContent-Length: 3", "three bytes"),
            ("Transfer-Encoding: Chunked", "chunks"),
            ("Transfer-Encoding: gzip, chunked", "chunks"),
        ] {
            assert_eq!(with(fields), Ok(follows), "{fields}");
        }
        for fields in ["Content-Length: 3\r\nTransfer-Encoding: chunked", "Transfer-Encoding: x\r\nContent-Length: +3"]
        {
            assert_eq!(with(fields), Err(Rejection::TwoFramings), "{fields}");
        }
        for fields in ["Content-Length: 3\r\nContent-Length: 4", "Content-Length: +3", "Content-Length: 3, 3", "a b: c"]
        {
            assert_eq!(with(fields), Err(Rejection::MalformedHead), "{fields}");
        }
        assert_eq!(with("Transfer-Encoding: chunked, gzip"), Err(Rejection::UnknownTransferCoding));
        assert_eq!(after("POST / HTTP/1.0\r\nTransfer-Encoding: chunked"), Err(Rejection::MalformedHead));
        assert_eq!(after("PRI * HTTP/2.0\r\nHost: a"), Err(Rejection::MalformedHead));
        let head_of_request = [0, 0, 1, 1, 4, 0, 0, 0, 1, 0x82];
        let http2 = [http2::PREFACE, &head_of_request].concat();
        assert!(read_head(&http2).is_err_and(|rejection| rejection == Rejection::Http2));
        for length in [20, http2::PREFACE.len(), http2.len() - 2] {
            assert!(read_head(&http2[..length]).is_ok_and(|head| head.is_none()), "{length}");
        }
        assert_eq!(after("GET / HTTP/3.0"), Err(Rejection::MalformedHead));
        assert_eq!(after(&format!("GET / HTTP/1.1{}", "\r\na: b".repeat(257))), Err(Rejection::HeadTooLarge));
        assert!(matches!(read_head(b"GET / HTT"), Ok(None)));
    }
}
