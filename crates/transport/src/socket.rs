//! A connection's socket with its timeouts: for the rest of a request's head, for the next request, and for the client to
//! read a response. Requests that arrive in one piece and responses that are read at once set no timer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::limits::Limits;
use super::service::ConnectionState;
use super::unread::{UnreadResponse, UnreadResponses};

/// Checks for idleness within the idle timeout. A connection is closed after that time, and at most one check later.
const IDLE_CHECKS: u32 = 4;

/// Time for reading further bytes of a client at the end of its connection. Closing with unread bytes would reset the
/// connection, and the client would lose the response.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// Progress of the requests of one connection. Shared by its socket and its service.
#[derive(Default)]
pub(super) struct Progress {
    started: AtomicU32,
    answered: AtomicU32,
    written: AtomicU32,
    /// Length of the body of the next response.
    body_bytes: AtomicU64,
    /// Bytes of the response that wait behind the socket.
    buffered: AtomicUsize,
    lingers: AtomicBool,
    is_broken: AtomicBool,
    writer: AtomicWaker,
}

impl Progress {
    /// Notes that a request's head has been read.
    pub(super) fn begin(&self) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a request's response is about to be written.
    pub(super) fn answer(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Reports whether a request has been read and its response is not known yet.
    fn is_in_service(&self) -> bool {
        self.started.load(Ordering::Relaxed) != self.answered.load(Ordering::Relaxed)
    }

    /// Keeps the connection open for a while after the next response, because the client may still be sending.
    pub(super) fn linger(&self) {
        self.lingers.store(true, Ordering::Relaxed);
    }

    /// Notes that a response broke off whose end the connection's end is: the client must not take it for whole.
    pub(super) fn break_off(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }

    /// Reports whether such a response broke off.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// Announces the length of the next response's body to the socket.
    pub(super) fn announce(&self, body_bytes: u64) {
        self.body_bytes.store(body_bytes, Ordering::Relaxed);
    }

    /// Notes how many bytes of a response may wait behind the socket.
    pub(super) fn buffer(&self, bytes: usize) {
        self.buffered.store(bytes, Ordering::Relaxed);
    }

    /// Returns the length of the next response's body, if there is a response to write.
    pub(super) fn next_response(&self) -> Option<u64> {
        (!self.is_all_written()).then(|| self.body_bytes.load(Ordering::Relaxed))
    }

    /// Notes that a response has been written to its end.
    pub(super) fn note_written(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
        self.writer.wake();
    }

    /// Counts the written responses from now on.
    pub(super) fn count_written(&self) {
        self.written.store(self.answered.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Waits until all responses are written: no second response is created before the client has read the first.
    pub(super) async fn all_written(&self) {
        std::future::poll_fn(|cx| {
            self.writer.register(cx.waker());
            if self.is_all_written() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn is_all_written(&self) -> bool {
        self.answered.load(Ordering::Relaxed) == self.written.load(Ordering::Relaxed)
    }
}

/// A socket with timeouts.
pub(super) struct TimedSocket<Io> {
    io: Io,
    progress: Arc<Progress>,
    limits: Limits,
    /// True while a head is awaited: from its first byte, or from the connection's start, until it is complete.
    in_head: bool,
    /// Runs while the listener waits for a head that arrives in several pieces.
    head_timer: Option<Pin<Box<Sleep>>>,
    /// Fires several times within the idle timeout. So the far more frequent requests need not reset it.
    idle_timer: Option<Pin<Box<Sleep>>>,
    /// Idle checks since the connection was used.
    idle_checks: u32,
    /// Requests whose heads this socket has seen to the end.
    begun_seen: u32,
    /// Bytes that were read and given back.
    pushed_back: Bytes,
    unread: Unread,
    /// Runs while input is drained before the connection is closed.
    linger: Option<Pin<Box<Sleep>>>,
}

/// The part of the current response that the client has not read.
struct Unread {
    all: Arc<UnreadResponses>,
    /// Names the account that it is charged to.
    state: Arc<dyn ConnectionState>,
    /// Bytes written since the last complete flush.
    unflushed: usize,
    /// Set while a write waits for the client.
    stalled: Option<(Pin<Box<Sleep>>, UnreadResponse)>,
}

impl<Io> TimedSocket<Io> {
    /// Wraps the socket of a new connection.
    pub(super) fn new(
        io: Io,
        progress: Arc<Progress>,
        limits: Limits,
        unread: Arc<UnreadResponses>,
        state: Arc<dyn ConnectionState>,
    ) -> Self {
        Self {
            io,
            progress,
            limits,
            in_head: true,
            head_timer: None,
            idle_timer: None,
            idle_checks: 0,
            begun_seen: 0,
            pushed_back: Bytes::new(),
            unread: Unread { all: unread, state, unflushed: 0, stalled: None },
            linger: None,
        }
    }

    /// Puts bytes back that were read, to be read again.
    pub(super) fn push_back(&mut self, bytes: Bytes) {
        self.pushed_back = bytes;
    }

    /// Returns the progress of this connection.
    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Returns ready when the client has taken too long to read, or too much is unread. Called while a write waits that has
    /// `rest` bytes left.
    fn poll_stalled(&mut self, rest: usize, cx: &mut Context<'_>) -> Poll<io::Error> {
        let rest = rest + self.progress.buffered.load(Ordering::Relaxed);
        self.unread.poll_stalled(self.limits.write_timeout, rest, cx)
    }

    /// Returns ready when the client has taken too long to send. Called while it sends nothing.
    fn poll_read_timeout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.in_head {
            let timer = self.head_timer.get_or_insert_with(|| Box::pin(sleep(self.limits.head_timeout)));
            return timer.as_mut().poll(cx);
        }
        let pause = self.limits.idle_timeout / IDLE_CHECKS;
        if self.idle_timer.as_ref().is_some_and(|timer| !timer.is_elapsed()) {
            return Poll::Pending;
        }
        let timer = self.idle_timer.get_or_insert_with(|| Box::pin(sleep(pause)));
        while timer.as_mut().poll(cx).is_ready() {
            if self.idle_checks == IDLE_CHECKS {
                return Poll::Ready(());
            }
            self.idle_checks += 1;
            timer.set(sleep(pause));
        }
        Poll::Pending
    }
}

impl<Io: AsyncRead + Unpin> TimedSocket<Io> {
    /// Reads ahead while a service wants to know whether its caller is there. Called while a response is awaited.
    pub(super) fn watch_caller(&mut self, cx: &mut Context<'_>) {
        let Some(watch) = self.unread.state.caller().filter(|watch| watch.is_wanted()) else { return };
        if !self.pushed_back.is_empty() {
            return;
        }
        let mut ahead = [0; 1024];
        let mut ahead = ReadBuf::new(&mut ahead);
        match Pin::new(&mut self.io).poll_read(cx, &mut ahead) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) if !ahead.filled().is_empty() => {
                self.pushed_back = Bytes::copy_from_slice(ahead.filled());
            }
            Poll::Ready(_) => watch.note_gone(),
        }
    }
}

impl Unread {
    /// Does the same; `rest` includes what waits behind the socket.
    fn poll_stalled(&mut self, timeout: Duration, rest: usize, cx: &mut Context<'_>) -> Poll<io::Error> {
        let (timer, response) = self.stalled.get_or_insert_with(|| {
            let response = self.all.add(self.state.account(), self.unflushed + rest, cx.waker());
            (Box::pin(sleep(timeout)), response)
        });
        if timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client did not read its response in time",
            ));
        }
        if !response.is_kept(cx.waker()) {
            return Poll::Ready(io::Error::other("the unread responses of all clients exceed their limit"));
        }
        Poll::Pending
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for TimedSocket<Io> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let started = this.progress.started.load(Ordering::Relaxed);
        if started != this.begun_seen {
            this.begun_seen = started;
            this.in_head = false;
            this.head_timer = None;
        }
        let before = buffer.filled().len();
        let read = if this.pushed_back.is_empty() {
            Pin::new(&mut this.io).poll_read(cx, buffer)?
        } else {
            let again = this.pushed_back.split_to(this.pushed_back.len().min(buffer.remaining()));
            buffer.put_slice(&again);
            Poll::Ready(())
        };
        let in_service = this.progress.is_in_service();
        this.in_head |= !in_service && buffer.filled().len() > before;
        let is_over = read.is_pending() && !in_service && this.poll_read_timeout(cx).is_ready();
        if in_service || read.is_ready() {
            this.idle_checks = 0;
        }
        if is_over {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read.map(Ok)
    }
}

impl<Io: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TimedSocket<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        match Pin::new(&mut this.io).poll_write(cx, buffer) {
            Poll::Ready(written) => {
                this.unread.unflushed += written.as_ref().map_or(0, |bytes| *bytes);
                Poll::Ready(written)
            }
            Poll::Pending => this.poll_stalled(buffer.len(), cx).map(Err),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        match Pin::new(&mut this.io).poll_flush(cx) {
            Poll::Ready(flushed) => {
                this.unread.unflushed = 0;
                this.unread.stalled = None;
                Poll::Ready(flushed)
            }
            Poll::Pending => this.poll_stalled(0, cx).map(Err),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        match Pin::new(&mut this.io).poll_shutdown(cx) {
            Poll::Ready(closed) => closed?,
            // TLS writes a closing message.
            Poll::Pending => return this.poll_stalled(0, cx).map(Err),
        }
        if !this.progress.lingers.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        this.poll_linger(cx).map(Ok)
    }
}

impl<Io: AsyncRead + Unpin> TimedSocket<Io> {
    /// Returns ready when the client has closed too, or after [`LINGER`].
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        if timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut ignored = [0; 1024];
        loop {
            let mut ignored = ReadBuf::new(&mut ignored);
            let read = ready!(Pin::new(&mut self.io).poll_read(cx, &mut ignored));
            if read.is_err() || ignored.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}
