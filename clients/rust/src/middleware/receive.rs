//! Reads the body of a request before its claim: whole, or not at all.

use std::error::Error as StdError;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body_util::{BodyExt as _, LengthLimitError};
use hyper::body::Body;

use super::refusal::Refusal;
use crate::error::BoxError;

/// Limits for reading a body that is too long. Reading it lets its sender get the answer instead of a reset.
const DRAIN_BYTES_MAX: usize = 1 << 20;
const DRAIN_WITHIN: Duration = Duration::from_secs(5);

/// A body that was read.
pub(crate) struct Received {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

/// An unusable body, with the part that was read.
pub(crate) struct Unread<B> {
    pub(crate) refusal: Refusal,
    pub(crate) begin: Bytes,
    pub(crate) rest: B,
}

/// Reads the body.
///
/// # Errors
///
/// It is longer than the limit, or ended early: then the request is none.
pub(crate) async fn receive<B>(headers: &HeaderMap, mut body: B, limit: usize) -> Result<Received, Box<Unread<B>>>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let unread = |refusal, begin: BytesMut, rest| Err(Box::new(Unread { refusal, begin: begin.freeze(), rest }));
    if declared.is_some_and(|length| length > limit as u64) {
        return unread(Refusal::too_large(limit), BytesMut::new(), body);
    }
    let (mut data, mut trailers) = (BytesMut::new(), None);
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::of) {
            Ok(Frame::Data(piece)) => data.extend_from_slice(&piece),
            Ok(Frame::Trailers(fields)) => trailers = Some(fields),
            Err(error) => {
                let refusal = if is_limit(&*error.into()) { Refusal::too_large(limit) } else { Refusal::cut_off() };
                return unread(refusal, data, body);
            }
        }
        if data.len() > limit {
            return unread(Refusal::too_large(limit), data, body);
        }
    }
    if declared.is_some_and(|length| length != data.len() as u64) {
        return unread(Refusal::cut_off(), data, body);
    }
    Ok(Received { data: data.freeze(), trailers })
}

/// Reads a little of a body that is too long and throws it away.
pub(crate) async fn drain<B: Body<Data = Bytes> + Unpin>(headers: &HeaderMap, mut body: B) {
    // A sender that waits for permission sends nothing unless the body is read.
    if headers.contains_key(header::EXPECT) {
        return;
    }
    let draining = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = body.frame().await {
            bytes += frame.data_ref().map_or(0, Bytes::len);
            if bytes > DRAIN_BYTES_MAX {
                break;
            }
        }
    };
    drop(tokio::time::timeout(DRAIN_WITHIN, draining).await);
}

enum Frame {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Frame {
    fn of(frame: hyper::body::Frame<Bytes>) -> Self {
        match frame.into_data() {
            Ok(data) => Self::Data(data),
            Err(frame) => Self::Trailers(frame.into_trailers().unwrap_or_default()),
        }
    }
}

/// Reports whether a layer outside has limited the body.
fn is_limit(error: &(dyn StdError + 'static)) -> bool {
    let mut error = Some(error);
    while let Some(each) = error {
        if each.is::<LengthLimitError>() {
            return true;
        }
        error = each.source();
    }
    false
}
