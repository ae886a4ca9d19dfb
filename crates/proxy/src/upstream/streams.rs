//! Streams of HTTP/2 connections, and the bodies of requests and responses that take them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::HttpBody;
use hyper::body::{Frame, Incoming, SizeHint};

/// A stream of a connection, in use until all of these are dropped.
#[derive(Clone, Debug)]
pub(super) struct StreamPermit {
    _taken: Arc<Taken>,
}

#[derive(Debug)]
struct Taken(Arc<AtomicUsize>);

impl StreamPermit {
    /// Takes one of so many streams. `None` if all are in use.
    pub(super) fn take(streams: &Arc<AtomicUsize>, streams_max: usize) -> Option<Self> {
        let one_more = |taken: usize| (taken < streams_max).then_some(taken + 1);
        streams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self { _taken: Arc::new(Taken(streams.clone())) })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body of a request or a response that takes a stream. Without one, it came over HTTP/1.1.
#[derive(Debug)]
pub(crate) struct Streamed<B> {
    body: B,
    _stream: Option<StreamPermit>,
}

/// The body of a response as an upstream sends it.
pub(crate) type Received = Streamed<Incoming>;

impl<B> Streamed<B> {
    pub(super) fn new(body: B, stream: Option<StreamPermit>) -> Self {
        Self { body, _stream: stream }
    }
}

impl<B: HttpBody + Unpin> HttpBody for Streamed<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
