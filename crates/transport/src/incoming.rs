//! The body of a request: complete from the fast path, or streamed by the library.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::HttpBody;
use axum::http::{Request, header};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Frame, SizeHint};
use tokio::time::timeout;

use super::limits::Limits;

/// The body of a request.
pub enum Incoming {
    /// Arrived with its head, in one piece. Empty once it is taken.
    Whole(Bytes),
    /// Arrives in pieces.
    Streamed(Streamed),
}

impl Incoming {
    /// Returns a request that the library has read.
    pub fn streamed(request: Request<hyper::body::Incoming>) -> Request<Self> {
        // A client that waits for `100 Continue` has sent no body.
        let may_be_skipped = !request.headers().contains_key(header::EXPECT);
        request.map(|body| Self::Streamed(Streamed { body: Some(body), may_be_skipped, rest: Rest::default() }))
    }

    /// Returns the handle to the rest of this body, for after it is dropped. `None` if it can have no rest.
    pub fn rest(&self) -> Option<Rest> {
        match self {
            Self::Whole(_) => None,
            Self::Streamed(body) => Some(body.rest.clone()),
        }
    }
}

/// A body that arrives in pieces. Its unread rest outlives it.
pub struct Streamed {
    /// `None` after its end was read.
    body: Option<hyper::body::Incoming>,
    /// False once reading has started: then the rest was too long or too slow to be read.
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

/// The unread rest of a body whose request was refused before. The connection's next request follows it.
#[derive(Clone, Default)]
pub struct Rest(Arc<Mutex<Option<Unread>>>);

struct Unread {
    body: hyper::body::Incoming,
    may_be_skipped: bool,
}

impl Rest {
    /// Drops the rest, which closes the connection after the response. Reports whether there was one.
    pub(super) fn discard(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().is_some()
    }

    /// Reads and discards the rest, within the limits of size and time. Reports whether none of it is left.
    pub async fn skip(&self, limits: &Limits) -> bool {
        let Some(Unread { body, may_be_skipped }) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return true;
        };
        // A body that announces too many bytes is not read.
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
        timeout(limits.body_timeout, skip).await.unwrap_or(false)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_whole_body_is_known_before_it_is_read_and_empty_afterwards() {
        let mut body = Incoming::Whole(Bytes::from_static(b"abc"));
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(3), false));
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "abc");
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), true));
        assert!(body.frame().await.is_none());
    }
}
