//! Bodies between actix-web and the middleware.

use std::error::Error as StdError;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::actix_web::body::{BodySize, BoxBody, MessageBody};
use ::actix_web::http::StatusCode;
use ::actix_web::{HttpResponse, HttpResponseBuilder};
use bytes::Bytes;
use http::{Response, header};
use hyper::body::{Body, Frame, SizeHint};

use crate::error::BoxError;
use crate::middleware;

/// The body of a response of actix-web, as the middleware reads it.
pub(super) struct FromActix(BoxBody);

impl FromActix {
    pub(super) fn new(body: impl MessageBody + 'static) -> Self {
        Self(BoxBody::new(body))
    }
}

impl Body for FromActix {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let next = ready!(Pin::new(&mut self.0).poll_next(cx));
        // Errors of actix-web cannot cross threads.
        Poll::Ready(next.map(|piece| piece.map(Frame::data).map_err(|error| error.to_string().into())))
    }

    fn is_end_stream(&self) -> bool {
        self.0.size().is_eof()
    }

    fn size_hint(&self) -> SizeHint {
        match self.0.size() {
            BodySize::None => SizeHint::with_exact(0),
            BodySize::Sized(length) => SizeHint::with_exact(length),
            BodySize::Stream => SizeHint::default(),
        }
    }
}

/// The body of a response as actix-web sends it.
#[derive(Debug)]
pub struct ResponseBody {
    body: middleware::ResponseBody,
    size: BodySize,
}

impl MessageBody for ResponseBody {
    type Error = Box<dyn StdError>;

    fn size(&self) -> BodySize {
        self.size
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        loop {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error as Self::Error))),
                Some(Ok(frame)) => {
                    // actix-web sends no trailers.
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
            }
        }
    }
}

/// Returns a response of the middleware as one of actix-web.
pub(super) fn to_actix(response: Response<middleware::ResponseBody>) -> HttpResponse<ResponseBody> {
    let (head, body) = response.into_parts();
    let declared = head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let size = match declared.or_else(|| body.size_hint().exact()) {
        _ if matches!(head.status.as_u16(), 204 | 304) => BodySize::None,
        Some(length) => BodySize::Sized(length),
        None => BodySize::Stream,
    };
    let status = StatusCode::from_u16(head.status.as_u16()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut builder = HttpResponseBuilder::new(status);
    for (name, value) in head.headers.iter().filter(|(name, _)| *name != header::CONTENT_LENGTH) {
        builder.append_header((name.as_str(), value.as_bytes()));
    }
    builder.message_body(ResponseBody { body, size }).unwrap_or_else(|error| {
        // Names and values are valid: they come from a response.
        HttpResponse::new(StatusCode::INTERNAL_SERVER_ERROR).map_body(|_, _| {
            tracing::error!(%error, "a response could not be converted");
            ResponseBody { body: middleware::ResponseBody::empty(), size: BodySize::Sized(0) }
        })
    })
}
