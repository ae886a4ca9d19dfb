//! A connection's socket, watched: a request's head must arrive in time, nobody keeps a connection without using it, and
//! what the HTTP library refuses by itself, before any handler sees it, is answered with a problem like everything else.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How often it is looked whether a connection is idle, in the time that it may be. It is kept for that long at least, and at
/// most for one look longer.
const IDLE_LOOKS: u32 = 4;

/// How long a client that still sends is listened to when its connection ends. Closing on unread bytes would reset the
/// connection, and the answer with it.
pub const LINGER: Duration = Duration::from_secs(1);

/// How far the requests of one connection have come. Shared by its socket and its service.
#[derive(Default)]
pub struct Conversation {
    begun: AtomicU32,
    answered: AtomicU32,
    unread: AtomicBool,
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

    /// It ends with the next answer, although more is on its way.
    pub fn leave_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
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
    /// Looks whether the connection is idle, several times in the time that it may be: requests come far more often than that,
    /// and cost it nothing.
    idle_timer: Option<Pin<Box<Sleep>>>,
    /// How often it has looked since the connection was used.
    idle_looks: u32,
    /// Requests whose heads this socket has seen to the end.
    begun_seen: u32,
    /// Answers whose heads this socket has written.
    answers_written: u32,
    refusal: fn() -> Bytes,
    /// What is still to be written instead of the library's own refusal.
    replacement: Option<Bytes>,
    /// What was read and given back.
    unread: Bytes,
    /// Runs while what still comes is read before the connection is closed.
    linger: Option<Pin<Box<Sleep>>>,
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
            idle_timer: None,
            idle_looks: 0,
            begun_seen: 0,
            answers_written: 0,
            refusal,
            replacement: None,
            unread: Bytes::new(),
            linger: None,
        }
    }

    /// Gives back what was read, to be read again by whoever takes over.
    pub fn unread(&mut self, bytes: Bytes) {
        self.unread = bytes;
    }

    /// Ready when the client has been waited for long enough. Called while it is.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.in_head {
            let timer = self.head_timer.get_or_insert_with(|| Box::pin(sleep(self.patience.head)));
            return timer.as_mut().poll(cx);
        }
        let pause = self.patience.idle / IDLE_LOOKS;
        if self.idle_timer.as_ref().is_some_and(|timer| !timer.is_elapsed()) {
            return Poll::Pending;
        }
        let timer = self.idle_timer.get_or_insert_with(|| Box::pin(sleep(pause)));
        while timer.as_mut().poll(cx).is_ready() {
            if self.idle_looks == IDLE_LOOKS {
                return Poll::Ready(());
            }
            self.idle_looks += 1;
            timer.set(sleep(pause));
        }
        Poll::Pending
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
        let read = if this.unread.is_empty() {
            Pin::new(&mut this.io).poll_read(cx, buffer)?
        } else {
            let again = this.unread.split_to(this.unread.len().min(buffer.remaining()));
            buffer.put_slice(&again);
            Poll::Ready(())
        };
        let in_service = begun != this.conversation.answered.load(Ordering::Relaxed);
        this.in_head |= !in_service && buffer.filled().len() > before;
        let is_over = read.is_pending() && !in_service && this.poll_patience(cx).is_ready();
        if in_service || read.is_ready() {
            this.idle_looks = 0;
        }
        if is_over {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read.map(Ok)
    }
}

impl<Io: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guarded<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        ready!(this.poll_replacement(cx))?;
        if this.is_own_refusal(buffer) {
            this.replacement = Some((this.refusal)());
            this.conversation.leave_unread();
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
        let this = &mut *self;
        ready!(this.poll_replacement(cx))?;
        ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
        if !this.conversation.unread.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        this.poll_linger(cx).map(Ok)
    }
}

impl<Io: AsyncRead + Unpin> Guarded<Io> {
    /// Ready when the client has closed too, or was listened to for long enough.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        if timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut unheeded = [0; 1024];
        loop {
            let mut unheeded = ReadBuf::new(&mut unheeded);
            let read = ready!(Pin::new(&mut self.io).poll_read(cx, &mut unheeded));
            if read.is_err() || unheeded.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}
