//! The bodies that handlers and callers get from the middleware. Their types do not depend on those of the service.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::error::BoxError;

type Boxed = UnsyncBoxBody<Bytes, BoxError>;
type Polled = Poll<Option<Result<Frame<Bytes>, BoxError>>>;

/// Frames that are known already.
#[derive(Default)]
struct Known {
    frames: VecDeque<Frame<Bytes>>,
    /// Bytes of data in them.
    bytes: u64,
    has_trailers: bool,
}

impl Known {
    fn new(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        let (bytes, has_trailers) = (data.len() as u64, trailers.is_some());
        let data = Some(data).filter(|data| !data.is_empty()).map(Frame::data);
        Self { frames: data.into_iter().chain(trailers.map(Frame::trailers)).collect(), bytes, has_trailers }
    }

    fn next(&mut self) -> Option<Frame<Bytes>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.data_ref().map_or(0, |data| data.len() as u64);
        Some(frame)
    }

    /// Returns the size: a body of known length has no trailers.
    fn size_hint(&self) -> SizeHint {
        if self.has_trailers { SizeHint::default() } else { SizeHint::with_exact(self.bytes) }
    }
}

/// The body of a request as a handler gets it: read already where the request has a key.
#[derive(Debug)]
pub struct RequestBody(Known, Option<Boxed>);

impl RequestBody {
    /// Returns a body that was read whole.
    pub(crate) fn whole(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self(Known::new(data, trailers), None)
    }

    /// Returns a body that is not read, or only to these bytes.
    pub(crate) fn passed<B>(begin: Bytes, rest: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Known::new(begin, None), Some(rest.map_err(Into::into).boxed_unsync()))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        if let Some(frame) = self.0.next() {
            return Poll::Ready(Some(Ok(frame)));
        }
        match &mut self.1 {
            Some(rest) => Pin::new(rest).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.frames.is_empty() && self.1.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.1 {
            None => self.0.size_hint(),
            Some(rest) if self.0.frames.is_empty() => rest.size_hint(),
            Some(_) => SizeHint::default(),
        }
    }
}

/// The body of a response as a caller gets it.
pub struct ResponseBody(Kind);

enum Kind {
    /// Of the service, without protection.
    Passed(Boxed),
    Known(Known),
    /// Of a handler that runs in a task.
    Live(Live),
}

/// The pieces of a response while its handler runs.
pub(super) enum Piece {
    Frame(Frame<Bytes>),
    End,
    Broken(BoxError),
}

/// A piece, and its share of the memory for pieces that the caller has not taken.
pub(super) type Sent = (Piece, Option<OwnedSemaphorePermit>);

struct Live {
    pieces: mpsc::UnboundedReceiver<Sent>,
    /// Bytes that are left, if the handler has declared them.
    left: Option<u64>,
    is_over: bool,
}

impl ResponseBody {
    /// Returns the body of a service without protection.
    pub(crate) fn passed<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Kind::Passed(body.map_err(Into::into).boxed_unsync()))
    }

    pub(super) fn whole(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self(Kind::Known(Known::new(data, trailers)))
    }

    #[cfg(feature = "actix-web")]
    pub(crate) fn empty() -> Self {
        Self::whole(Bytes::new(), None)
    }

    pub(super) fn live(pieces: mpsc::UnboundedReceiver<Sent>, length: Option<u64>) -> Self {
        Self(Kind::Live(Live { pieces, left: length, is_over: false }))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        match &mut self.0 {
            Kind::Passed(body) => Pin::new(body).poll_frame(cx),
            Kind::Known(known) => Poll::Ready(known.next().map(Ok)),
            Kind::Live(live) => live.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Passed(body) => body.is_end_stream(),
            Kind::Known(known) => known.frames.is_empty(),
            Kind::Live(live) => live.is_over,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Passed(body) => body.size_hint(),
            Kind::Known(known) => known.size_hint(),
            Kind::Live(live) => live.left.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

impl Live {
    fn poll(&mut self, cx: &mut Context<'_>) -> Polled {
        if self.is_over {
            return Poll::Ready(None);
        }
        let (piece, _) = ready!(self.pieces.poll_recv(cx)).unwrap_or_else(|| {
            // The handler panicked, or its runtime stops.
            (Piece::Broken("the handler of the response has stopped".into()), None)
        });
        Poll::Ready(match piece {
            Piece::Frame(frame) => {
                if let (Some(left), Some(data)) = (&mut self.left, frame.data_ref()) {
                    *left = left.saturating_sub(data.len() as u64);
                }
                Some(Ok(frame))
            }
            Piece::End => {
                self.is_over = true;
                None
            }
            Piece::Broken(error) => {
                self.is_over = true;
                Some(Err(error))
            }
        })
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Passed(_) => "ResponseBody::Passed",
            Kind::Known(_) => "ResponseBody::Known",
            Kind::Live(_) => "ResponseBody::Live",
        })
    }
}
