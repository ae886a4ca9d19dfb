//! Bodies on their way through the proxy: put together again, watched while they are sent, and bounded in time while they are
//! received.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::HttpBody;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use oncegate_core::clock::Clock;
use oncegate_telemetry::metrics::proxy::BoundMetrics;
use oncegate_transport::Incoming;
use oncegate_web::problem::{Code, Problem};
use tokio::time::error::Elapsed;
use tokio::time::{Sleep, sleep, timeout};

use super::fields;
use super::pace::Pace;
use super::peer_fields::PeerFields;
use super::shares::{Account, Share};
use super::torn::{Reason, Torn};
use super::upstream::Received;

type Polled = Poll<Option<Result<Frame<Bytes>, axum::Error>>>;

/// Bytes that a body on its way takes in buffers.
pub(super) const STREAM_BYTES: usize = 64 << 10;

/// A request body that is sent on while it arrives. Some of it may have been read before.
pub(super) struct Arriving {
    read: VecDeque<Bytes>,
    rest: Incoming,
    /// Memory of the bytes that were read.
    of_read: Option<Share>,
    /// Memory of the buffers between its sender and the upstream.
    of_buffers: Option<Share>,
    pace: Option<Pace>,
}

impl From<Incoming> for Arriving {
    fn from(rest: Incoming) -> Self {
        Self { read: VecDeque::new(), rest, of_read: None, of_buffers: None, pace: None }
    }
}

impl Arriving {
    /// Returns a body with a beginning that has been read, and with the memory of that beginning.
    pub(super) fn resumed(read: VecDeque<Bytes>, rest: Incoming, of_read: Share) -> Self {
        Self { read, of_read: Some(of_read), ..Self::from(rest) }
    }

    /// Takes memory for its buffers, and breaks it off if it arrives too slowly. Returns the record of whether it has ended early,
    /// too.
    ///
    /// # Errors
    /// There is no memory left.
    pub(super) fn bounded(
        mut self,
        bytes: &Arc<Account>,
        clock: &Arc<dyn Clock>,
        metrics: &BoundMetrics,
    ) -> Result<(Self, Torn), Problem> {
        let rest = self.rest.size_hint().upper().map_or(usize::MAX, |rest| usize::try_from(rest).unwrap_or(usize::MAX));
        if !self.rest.is_end_stream() {
            self.of_buffers = Some(bytes.take(rest.min(STREAM_BYTES)).ok_or_else(no_memory)?);
        }
        let pace = Pace::new(clock.clone(), metrics.clone());
        let torn = pace.torn.clone();
        self.pace = Some(pace);
        Ok((self, torn))
    }

    /// Drops the bytes that were read, and all memory. Returns the bytes that were read, piece by piece.
    pub(super) fn give_up_read(&mut self) -> impl Iterator<Item = Bytes> + use<> {
        (self.of_read, self.of_buffers) = (None, None);
        std::mem::take(&mut self.read).into_iter()
    }
}

/// Returns the problem of a body without memory for it.
pub(super) fn no_memory() -> Problem {
    let detail = "The bodies of other requests take all the memory for them (proxy.request_bytes_total). Nothing was done: \
                  send the request again.";
    Problem::new(Code::Overloaded, detail).retry_soon()
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let this = &mut *self;
        if let Some(bytes) = this.read.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        this.of_read = None;
        match (Pin::new(&mut this.rest).poll_frame(cx), &mut this.pace) {
            (Poll::Ready(frame), pace) => {
                match (pace, &frame) {
                    (Some(pace), Some(Ok(frame))) => pace.received(frame.data_ref().map_or(0, Bytes::len)),
                    (Some(pace), Some(Err(_))) => drop(pace.torn.record(Reason::BrokenOff)),
                    _ => {}
                }
                Poll::Ready(frame.map(|frame| frame.map_err(axum::Error::new)))
            }
            (Poll::Pending, Some(pace)) => pace.poll_too_slow(cx).map(|error| Some(Err(error))),
            (Poll::Pending, None) => Poll::Pending,
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

/// A body whose accepted pieces are counted, so that a long upload does not count as a slow upstream. Leaves out the trailers
/// that the upstream must not get. Keeps the length: some servers read no body without one.
pub(super) struct Counted {
    body: Arriving,
    pieces: Arc<AtomicU64>,
    peer_fields: Arc<PeerFields>,
}

impl Counted {
    pub(super) fn new(body: Arriving, pieces: Arc<AtomicU64>, peer_fields: Arc<PeerFields>) -> Self {
        Self { body, pieces, peer_fields }
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let this = &mut *self;
        let mut polled = Pin::new(&mut this.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled {
            this.pieces.fetch_add(1, Ordering::Relaxed);
            if let Some(trailers) = frame.trailers_mut() {
                this.peer_fields.remove_from_trailers(trailers);
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
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

/// The body of a response that breaks off when its next piece takes too long. Leaves out the trailers that the caller must not get.
pub(super) struct Timed {
    body: Received,
    timeout: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    _exchange: Share,
}

impl Timed {
    /// Returns a body that is the rest of this exchange.
    pub(super) fn new(body: Received, timeout: Duration, exchange: Share) -> Self {
        Self { body, timeout, timer: None, _exchange: exchange }
    }
}

impl HttpBody for Timed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let this = &mut *self;
        if let Poll::Ready(mut frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.timer = None;
            if let Some(trailers) = frame.as_mut().and_then(|frame| frame.as_mut().ok()?.trailers_mut()) {
                fields::trailers_to_caller(trailers);
            }
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

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use oncegate_telemetry::metrics::proxy::Bound;

    use super::super::shares::divide;
    use super::*;

    #[tokio::test]
    async fn the_beginning_of_a_body_counts_until_it_was_sent_on_or_given_up() {
        let account = divide(100, [None].into(), BoundMetrics::new(Bound::RequestBytes))[&None].clone();
        let begun = || {
            let read = ["a", "b"].map(Bytes::from).into();
            Arriving::resumed(read, Incoming::Whole(Bytes::new()), account.take(60).expect("free again"))
        };
        let mut body = begun();
        for _ in 0..2 {
            assert!(account.take(60).is_none());
            assert!(body.frame().await.expect("a piece").is_ok());
        }
        assert!(body.frame().await.is_none());
        let mut body = begun();
        assert!(account.take(60).is_none());
        assert_eq!(body.give_up_read().count(), 2);
        drop(begun());
    }
}
