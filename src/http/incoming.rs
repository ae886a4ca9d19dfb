//! The body of a request, however it comes in.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::HttpBody;
use axum::http::{Request, header};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Frame, SizeHint};
use tokio::time::timeout;

use crate::domain::limits::Limits;

/// The body of a request.
pub enum Incoming {
    /// It came with its head, all of it. Empty once it is taken.
    Whole(Bytes),
    /// It comes piece by piece.
    Streamed(Streamed),
}

impl Incoming {
    /// A request as the library hands it over.
    pub fn streamed(request: Request<hyper::body::Incoming>) -> Request<Self> {
        // Who waits to be told to go on sends nothing before, and need not.
        let may_be_skipped = !request.headers().contains_key(header::EXPECT);
        request.map(|body| Self::Streamed(Streamed { body: Some(body), may_be_skipped, rest: Rest::default() }))
    }

    /// Where the rest of this body is found once it is dropped, if it may have one.
    pub fn rest(&self) -> Option<Rest> {
        match self {
            Self::Whole(_) => None,
            Self::Streamed(body) => Some(body.rest.clone()),
        }
    }
}

/// A body that comes piece by piece. The rest of it outlives it.
pub struct Streamed {
    /// Nothing once its end was seen.
    body: Option<hyper::body::Incoming>,
    /// Until somebody has begun with it: what is left then was too long, or too slow.
    may_be_skipped: bool,
    rest: Rest,
}

impl Drop for Streamed {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            let unread = Unread { body, may_be_skipped: self.may_be_skipped };
            *self.rest.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(unread);
        }
    }
}

/// What nobody read of a body, because its request was refused before. The connection's next request stands behind it.
#[derive(Clone, Default)]
pub struct Rest(Arc<Mutex<Option<Unread>>>);

struct Unread {
    body: hyper::body::Incoming,
    may_be_skipped: bool,
}

impl Rest {
    /// Reads it, if there is any, though nobody looks at it. Tells whether none of it is left: bodies may be only so long, and
    /// take only so much time.
    pub async fn skip(&self, limits: &Limits) -> bool {
        let Some(Unread { body, may_be_skipped }) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return true;
        };
        // What says that it is too long is not waited for.
        if !may_be_skipped || body.size_hint().lower() > limits.body_bytes as u64 {
            return false;
        }
        let mut body = Limited::new(body, limits.body_bytes);
        let skip = async {
            while let Some(frame) = body.frame().await {
                if frame.is_err() {
                    return false;
                }
            }
            true
        };
        timeout(limits.body_read_timeout.0, skip).await.unwrap_or(false)
    }
}

impl HttpBody for Incoming {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match &mut *self {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Streamed(streamed) => {
                let Some(body) = &mut streamed.body else { return Poll::Ready(None) };
                streamed.may_be_skipped = false;
                let frame = ready!(Pin::new(body).poll_frame(cx));
                if !matches!(frame, Some(Ok(_))) {
                    streamed.body = None;
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Streamed(streamed) => streamed.body.as_ref().is_none_or(HttpBody::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Streamed(streamed) => {
                streamed.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
            }
        }
    }
}
