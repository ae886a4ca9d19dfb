//! Watch for the caller of a request in service: has it disconnected? Polled only while the service uses the watch, so
//! other requests pay nothing for it.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use futures_util::task::AtomicWaker;

/// Watches the caller of one connection. Shared by its socket and its service.
#[derive(Default)]
pub struct CallerWatch {
    is_wanted: AtomicBool,
    has_gone: AtomicBool,
    waker: AtomicWaker,
}

impl CallerWatch {
    /// Resolves when the client has ended or reset its side of the connection. A client that has sent a further request is
    /// taken to be there.
    pub async fn gone(&self) {
        let _wanted = Wanted::new(self);
        poll_fn(|context| {
            self.waker.register(context.waker());
            if self.has_gone.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    pub(super) fn note_gone(&self) {
        self.has_gone.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// A service wants to know until this is dropped.
struct Wanted<'a>(&'a CallerWatch);

impl<'a> Wanted<'a> {
    fn new(watch: &'a CallerWatch) -> Self {
        watch.is_wanted.store(true, Ordering::Relaxed);
        Self(watch)
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.is_wanted.store(false, Ordering::Relaxed);
    }
}
