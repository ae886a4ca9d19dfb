//! Bodies on their way through the proxy: put together again, watched while they are sent, and bounded in time while they are
//! received.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use tokio::time::error::Elapsed;
use tokio::time::{Sleep, sleep, timeout};

use super::peer_fields::PeerFields;
use crate::transport::Incoming;

type Polled = Poll<Option<Result<Frame<Bytes>, axum::Error>>>;

/// A body whose beginning has been read.
pub(super) struct Resumed {
    pub(super) read: VecDeque<Bytes>,
    pub(super) rest: Incoming,
}

impl HttpBody for Resumed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        match self.read.pop_front() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Pin::new(&mut self.rest).poll_frame(cx).map_err(axum::Error::new),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let read: u64 = self.read.iter().map(|bytes| bytes.len() as u64).sum();
        self.rest.size_hint() + SizeHint::with_exact(read)
    }
}

/// Counts the pieces of a body that were taken, so that a long upload is not mistaken for a slow upstream. Removes the trailers that
/// the upstream must not get.
pub(super) fn counted(body: Body, pieces: Arc<AtomicU64>, peer_fields: Arc<PeerFields>) -> Body {
    Body::new(body.map_frame(move |mut frame| {
        pieces.fetch_add(1, Ordering::Relaxed);
        if let Some(trailers) = frame.trailers_mut() {
            peer_fields.remove_from_trailers(trailers);
        }
        frame
    }))
}

/// Waits for the response to a request: for this time, and longer as long as pieces of its body are taken.
pub(super) async fn response_within<Sending: Future>(
    limit: Duration,
    mut sending: Pin<&mut Sending>,
    pieces: &AtomicU64,
) -> Result<Sending::Output, Elapsed> {
    loop {
        let before = pieces.load(Ordering::Relaxed);
        match timeout(limit, &mut sending).await {
            // The request is still being sent.
            Err(_late) if pieces.load(Ordering::Relaxed) != before => {}
            sent => return sent,
        }
    }
}

/// A body that breaks off when its next piece takes too long.
pub(super) struct Timed {
    body: hyper::body::Incoming,
    timeout: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Timed {
    pub(super) fn new(body: hyper::body::Incoming, timeout: Duration) -> Self {
        Self { body, timeout, timer: None }
    }
}

impl HttpBody for Timed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.timer = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(axum::Error::new)));
        }
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep(this.timeout)));
        let late = || axum::Error::new(std::io::Error::from(std::io::ErrorKind::TimedOut));
        timer.as_mut().poll(cx).map(|()| Some(Err(late())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
