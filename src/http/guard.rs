//! A connection's socket, watched: a request's head must arrive in time, nobody keeps a connection without using it, and
//! what the HTTP library refuses by itself, before any handler sees it, is answered with a problem like everything else.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// How far the requests of one connection have come. Shared by its socket and its service.
#[derive(Default)]
pub struct Conversation {
    begun: AtomicU32,
    answered: AtomicU32,
}

impl Conversation {
    /// A request's head has been read.
    pub fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// A request's answer is about to be written.
    pub fn answer(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// How long a connection is waited for.
#[derive(Clone, Copy)]
pub struct Patience {
    /// For the rest of a head.
    pub head: Duration,
    /// For the next request.
    pub idle: Duration,
}

/// The socket.
pub struct Guarded<Io> {
    io: Io,
    conversation: Arc<Conversation>,
    patience: Patience,
    /// Whether a head is awaited: from its first byte, or from the connection's start, until it is complete.
    in_head: bool,
    /// Runs while one is, if it does not come in one go.
    head_timer: Option<Pin<Box<Sleep>>>,
    /// When the connection has been idle for too long, if it is.
    idle_ends: Option<Instant>,
    /// One for the connection's whole life, and set anew only when it has run: requests come far more often than that.
    idle_timer: Option<Pin<Box<Sleep>>>,
    /// Requests whose heads this socket has seen to the end.
    begun_seen: u32,
    /// Answers whose heads this socket has written.
    answers_written: u32,
    refusal: fn() -> Bytes,
    /// What is still to be written instead of the library's own refusal.
    replacement: Option<Bytes>,
}

impl<Io> Guarded<Io> {
    /// Watches a socket whose client has just connected. `refusal` is the whole answer to what is not HTTP.
    pub fn new(io: Io, conversation: Arc<Conversation>, patience: Patience, refusal: fn() -> Bytes) -> Self {
        Self {
            io,
            conversation,
            patience,
            in_head: true,
            head_timer: None,
            idle_ends: None,
            idle_timer: None,
            begun_seen: 0,
            answers_written: 0,
            refusal,
            replacement: None,
        }
    }

    /// Ready when the client has been waited for long enough. Called while it is.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.in_head {
            let timer = self.head_timer.get_or_insert_with(|| Box::pin(sleep(self.patience.head)));
            return timer.as_mut().poll(cx);
        }
        // A timer that nobody waits for costs little, and tells when it would end.
        let ends = *self.idle_ends.get_or_insert_with(|| sleep(self.patience.idle).deadline());
        if let Some(timer) = &self.idle_timer
            && !timer.is_elapsed()
        {
            return Poll::Pending;
        }
        let timer = self.idle_timer.get_or_insert_with(|| Box::pin(sleep_until(ends)));
        timer.as_mut().reset(ends);
        timer.as_mut().poll(cx)
    }

    /// Whether this is the library's own answer: no handler's answer is waiting to be written.
    fn is_own_refusal(&mut self, buffer: &[u8]) -> bool {
        if !buffer.starts_with(b"HTTP/1.1 ") && !buffer.starts_with(b"HTTP/1.0 ") {
            return false;
        }
        if self.conversation.answered.load(Ordering::Relaxed) != self.answers_written {
            self.answers_written = self.answers_written.wrapping_add(1);
            return false;
        }
        // `100 Continue` is the library's own too, and right.
        buffer.get(9) == Some(&b'4')
    }
}

impl<Io: AsyncWrite + Unpin> Guarded<Io> {
    fn poll_replacement(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = &mut self.replacement {
            if rest.is_empty() {
                self.replacement = None;
                break;
            }
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, rest))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            rest.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Guarded<Io> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let begun = this.conversation.begun.load(Ordering::Relaxed);
        if begun != this.begun_seen {
            this.begun_seen = begun;
            this.in_head = false;
            this.head_timer = None;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buffer)?;
        let in_service = begun != this.conversation.answered.load(Ordering::Relaxed);
        this.in_head |= !in_service && buffer.filled().len() > before;
        let is_over = read.is_pending() && !in_service && this.poll_patience(cx).is_ready();
        if in_service || read.is_ready() {
            this.idle_ends = None;
        }
        if is_over {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read.map(Ok)
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Guarded<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        ready!(this.poll_replacement(cx))?;
        if this.is_own_refusal(buffer) {
            this.replacement = Some((this.refusal)());
            // Nothing of the library's answer is sent; the replacement goes out with the flush that follows.
            return Poll::Ready(Ok(buffer.len()));
        }
        Pin::new(&mut this.io).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_replacement(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_replacement(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
