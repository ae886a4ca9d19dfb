//! Properties of all bytes that a connection can bring; see `oncegate_core::fuzzing`.

use axum::body::HttpBody as _;
use axum::http::header;
use bytes::BytesMut;

use crate::fast_path::request::{NotTaken, take};
use crate::head_guard::chunks::Chunks;
use crate::http2::has_request;

const HEAD_BYTES_MAX: usize = 16 << 10;

/// A request that is taken has its declared length. Its bytes up to any other place are no request, and the bytes after
/// it stay. Without one, nothing is taken.
pub fn request(bytes: &[u8]) {
    let mut unread = BytesMut::from(bytes);
    match take(&mut unread, HEAD_BYTES_MAX) {
        Ok(request) => {
            assert!(bytes.ends_with(&unread));
            let taken = bytes.len() - unread.len();
            for part in [1, taken / 2, taken - 1] {
                let mut part = BytesMut::from(&bytes[..part]);
                assert!(matches!(take(&mut part, HEAD_BYTES_MAX), Err(NotTaken::Incomplete(_))));
            }
            let says = request.headers().get(header::CONTENT_LENGTH);
            let says = says.map_or(Some(0), |length| length.to_str().ok()?.parse::<u64>().ok());
            assert_eq!(request.body().size_hint().exact(), says);
            assert!(!request.headers().contains_key(header::TRANSFER_ENCODING));
        }
        Err(NotTaken::Incomplete(missing)) => assert!(missing > 0 && unread == bytes),
        Err(NotTaken::Unsupported) => assert_eq!(unread, bytes),
    }
}

/// The end of a chunked body is the same, wherever its pieces end.
pub fn chunks(bytes: &[u8]) {
    let mut whole = Chunks::default();
    let found = whole.read(bytes);
    let mut in_bytes = Chunks::default();
    let mut read = 0;
    for byte in bytes.chunks(1) {
        match in_bytes.read(byte) {
            Ok((1, false)) => read += 1,
            Ok((more, true)) => return assert_eq!(found, Ok((read + more, true))),
            Ok(other) => panic!("one byte was read as {other:?}"),
            Err(invalid) => return assert_eq!(found, Err(invalid)),
        }
    }
    assert_eq!((found, whole), (Ok((read, false)), in_bytes));
}

/// A request remains one when more bytes arrive.
pub fn http2_frames(bytes: &[u8]) {
    let half = has_request(&bytes[..bytes.len() / 2]);
    assert!(!half || has_request(bytes));
}

#[cfg(test)]
mod tests {
    use oncegate_core::fuzzing::{Edit, edited};
    use proptest::prelude::{any, proptest};

    use super::*;

    const REQUEST: &[u8] = include_bytes!("../../../fuzz/seeds/request/claim");
    const CHUNKS: &[u8] = include_bytes!("../../../fuzz/seeds/chunks/trailer");
    const FRAMES: &[u8] = include_bytes!("../../../fuzz/seeds/http2_frames/settings");

    proptest! {
        #[test]
        fn all_bytes_have_the_properties(edits in any::<Vec<Edit>>()) {
            request(&edited(REQUEST, &edits));
            chunks(&edited(CHUNKS, &edits));
            http2_frames(&edited(FRAMES, &edits));
        }
    }
}
