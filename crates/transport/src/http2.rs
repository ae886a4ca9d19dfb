//! The only response of a listener to a client that begins with HTTP/2: a refusal in HTTP/2, so that the client can
//! show it.

use axum::response::Response;
use http_body_util::BodyExt as _;
use hyper::header;

/// Beginning of a connection (RFC 9113, 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const FRAME_HEAD: usize = 9;

/// Types and flags of frames (RFC 9113, 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// The stream of a client's first request.
const FIRST: u32 = 1;

/// Longest body, and longest value of a field, that are written without a continuation: those of a refusal are shorter.
const BODY_MAX: usize = 16_384;
const VALUE_MAX: usize = 126;

/// Reports whether a client's first frames have the head of its first request.
pub(super) fn has_request(read: &[u8]) -> bool {
    let mut rest = read.get(PREFACE.len()..).unwrap_or_default();
    while let Some(&[a, b, c, kind, _, s1, s2, s3, s4]) = rest.first_chunk::<FRAME_HEAD>() {
        if kind == HEADERS && u32::from_be_bytes([s1, s2, s3, s4]) == FIRST {
            return true;
        }
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        rest = rest.get(FRAME_HEAD + length..).unwrap_or_default();
    }
    false
}

/// Returns a response to the first request, as the only frames of a connection. Only its status 400, its media type and its body
/// are written.
pub(super) async fn last_response(response: Response) -> Vec<u8> {
    let (head, body) = response.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let body = body.get(..body.len().min(BODY_MAX)).unwrap_or_default();
    // Indexes of the static table of HPACK (RFC 7541, appendix A): `:status: 400` is 12, whole; then names of fields.
    let mut fields = vec![0x8c];
    for (index, name) in [(31_u8, header::CONTENT_TYPE), (28, header::CONTENT_LENGTH)] {
        let length = body.len().to_string();
        let value = match head.headers.get(&name) {
            _ if name == header::CONTENT_LENGTH => length.as_bytes(),
            Some(value) => value.as_bytes(),
            None => continue,
        };
        // A literal that is not indexed. The index does not fit into the four bits of the prefix, so the rest follows.
        fields.extend([0x0f, index - 15]);
        let value = value.get(..value.len().min(VALUE_MAX)).unwrap_or_default();
        fields.push(u8::try_from(value.len()).unwrap_or_default());
        fields.extend(value);
    }
    let mut frames = Vec::new();
    frame(&mut frames, SETTINGS, 0, 0, &[]);
    frame(&mut frames, SETTINGS, ACK, 0, &[]);
    frame(&mut frames, HEADERS, END_HEADERS, FIRST, &fields);
    frame(&mut frames, DATA, END_STREAM, FIRST, body);
    // The last stream that was answered, and no error.
    frame(&mut frames, GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
    frames
}

fn frame(frames: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or_default();
    frames.extend(&length.to_be_bytes()[1..]);
    frames.extend([kind, flags]);
    frames.extend(stream.to_be_bytes());
    frames.extend(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_there_once_its_head_begins() {
        let mut read = PREFACE.to_vec();
        assert!(!has_request(&read));
        frame(&mut read, SETTINGS, 0, 0, &[0; 12]);
        frame(&mut read, 8, 0, 0, &[0; 4]);
        assert!(!has_request(&read));
        frame(&mut read, HEADERS, END_HEADERS, 3, &[0x82]);
        assert!(!has_request(&read), "another stream");
        frame(&mut read, HEADERS, END_HEADERS, FIRST, &[0x82]);
        assert!(has_request(&read));
        for length in 0..PREFACE.len() + FRAME_HEAD {
            assert!(!has_request(&read[..length]), "{length}");
        }
    }
}
