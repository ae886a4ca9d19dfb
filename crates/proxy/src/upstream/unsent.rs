//! Streamed bodies that return from a server without a connection, so that the next server gets them.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// A body that comes back when it is dropped before any of it was taken.
pub(super) struct Unsent {
    body: Option<Body>,
    back: Arc<Mutex<Option<Body>>>,
    is_begun: bool,
}

/// Place to which an unsent body returns.
#[derive(Default)]
pub(super) struct Returned(Arc<Mutex<Option<Body>>>);

impl Returned {
    /// Returns the body; `None` if some of it may have been sent, or it is not dropped yet.
    pub(super) fn take(self) -> Option<Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Unsent {
    pub(super) fn new(body: Body) -> (Self, Returned) {
        let returned = Returned::default();
        (Self { body: Some(body), back: returned.0.clone(), is_begun: false }, returned)
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if !self.is_begun {
            *self.back.lock().unwrap_or_else(PoisonError::into_inner) = self.body.take();
        }
    }
}

impl HttpBody for Unsent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.is_begun = true;
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn a_body_comes_back_only_if_none_of_it_was_taken() {
        let (body, returned) = Unsent::new(Body::from("all"));
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(3), false));
        drop(body);
        assert_eq!(returned.take().unwrap().collect().await.unwrap().to_bytes(), "all");
        let (mut body, returned) = Unsent::new(Body::from("all"));
        assert!(body.frame().await.is_some());
        drop(body);
        assert!(returned.take().is_none());
    }
}
