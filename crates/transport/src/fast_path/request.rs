//! Takes the next request out of the bytes of a connection, if it has one unambiguous reading.

use std::mem::MaybeUninit;
use std::ops::Range;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use bytes::{Bytes, BytesMut};

use super::BYTES_MAX;
use crate::incoming::Incoming;
use crate::length::length;

/// Most header fields of a request on the fast path. The library and the limits decide about requests with more.
const FIELDS_MAX: usize = 32;

/// Reason why no request could be taken.
pub(crate) enum NotTaken {
    /// The request is not complete. At least this many bytes are still to come.
    Incomplete(usize),
    /// The request is ambiguous or wrong, or it needs more than a response. It is for the library.
    Unsupported,
}

/// Takes out the request that `unread` starts with. Head and body may have [`BYTES_MAX`] bytes together, and the head
/// `head_bytes_max`.
///
/// # Errors
/// The reason, if no request could be taken. Then `unread` is unchanged.
pub(crate) fn take(unread: &mut BytesMut, head_bytes_max: usize) -> Result<Request<Incoming>, NotTaken> {
    let mut fields = <[Field; FIELDS_MAX]>::default();
    let head = match Head::read(unread, &mut fields)? {
        Some(head) if head.bytes <= head_bytes_max => head,
        None if unread.len() < head_bytes_max.min(BYTES_MAX) => return Err(NotTaken::Incomplete(1)),
        Some(_) | None => return Err(NotTaken::Unsupported),
    };
    let bytes =
        head.bytes.checked_add(head.body_bytes).filter(|bytes| *bytes <= BYTES_MAX).ok_or(NotTaken::Unsupported)?;
    if bytes > unread.len() {
        return Err(NotTaken::Incomplete(bytes - unread.len()));
    }
    // Nothing is copied: target, values and body share the bytes that were read.
    let taken = unread.split_to(bytes).freeze();
    let request = head.request(&taken, fields.get(..head.fields).unwrap_or_default());
    if request.is_none() {
        *unread = [&taken[..], &unread[..]].concat().as_slice().into();
    }
    request.ok_or(NotTaken::Unsupported)
}

/// Position of a header field in a head.
#[derive(Default)]
struct Field {
    name: Range<usize>,
    value: Range<usize>,
}

/// The parts of a head, as far as they decide where the request ends.
struct Head {
    method: Method,
    target: Range<usize>,
    fields: usize,
    /// Length of the head.
    bytes: usize,
    /// Length of the body after it.
    body_bytes: usize,
}

impl Head {
    /// Returns the head that `read` starts with, if it is complete.
    fn read(read: &[u8], fields: &mut [Field; FIELDS_MAX]) -> Result<Option<Self>, NotTaken> {
        let mut found = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        let mut head = httparse::Request::new(&mut []);
        let Ok(parsed) = head.parse_with_uninit_headers(read, &mut found) else { return Err(NotTaken::Unsupported) };
        let httparse::Status::Complete(bytes) = parsed else { return Ok(None) };
        let method = match head.method {
            Some("POST") => Method::POST,
            Some("GET") => Method::GET,
            _ => return Err(NotTaken::Unsupported),
        };
        let target = head.path.filter(|target| target.starts_with('/')).ok_or(NotTaken::Unsupported)?;
        if head.version != Some(1) {
            return Err(NotTaken::Unsupported);
        }
        let range = |part: &[u8]| {
            let start = part.as_ptr() as usize - read.as_ptr() as usize;
            start..start + part.len()
        };
        let mut body_bytes = None;
        for (field, header) in fields.iter_mut().zip(&*head.headers) {
            match header.name.len() {
                14 if header.name.eq_ignore_ascii_case("content-length") => {
                    let length = length(header.value).and_then(|length| usize::try_from(length).ok());
                    let first = body_bytes.replace(length.ok_or(NotTaken::Unsupported)?);
                    if first.is_some() {
                        return Err(NotTaken::Unsupported);
                    }
                }
                10 if header.name.eq_ignore_ascii_case("connection")
                    && !header.value.eq_ignore_ascii_case(b"keep-alive") =>
                {
                    return Err(NotTaken::Unsupported);
                }
                17 if header.name.eq_ignore_ascii_case("transfer-encoding") => return Err(NotTaken::Unsupported),
                7 if header.name.eq_ignore_ascii_case("upgrade") => return Err(NotTaken::Unsupported),
                6 if header.name.eq_ignore_ascii_case("expect") => return Err(NotTaken::Unsupported),
                _ => {}
            }
            *field = Field { name: range(header.name.as_bytes()), value: range(header.value) };
        }
        let (target, fields) = (range(target.as_bytes()), head.headers.len());
        Ok(Some(Self { method, target, fields, bytes, body_bytes: body_bytes.unwrap_or(0) }))
    }

    /// Returns the request of these bytes. `None` if the types of the request reject one of its parts.
    fn request(&self, bytes: &Bytes, fields: &[Field]) -> Option<Request<Incoming>> {
        let mut headers = HeaderMap::with_capacity(fields.len());
        for Field { name, value } in fields {
            let name = HeaderName::from_bytes(bytes.get(name.clone())?).ok()?;
            headers.append(name, HeaderValue::from_maybe_shared(bytes.slice(value.clone())).ok()?);
        }
        let mut request = Request::new(Incoming::Whole(bytes.slice(self.bytes..)));
        *request.uri_mut() = Uri::from_maybe_shared(bytes.slice(self.target.clone())).ok()?;
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = headers;
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD_MAX: usize = 1000;

    fn taken(text: &str) -> Result<Request<Incoming>, NotTaken> {
        take(&mut BytesMut::from(text), HEAD_MAX)
    }

    #[test]
    fn a_request_is_taken_and_what_follows_it_stays() {
        for (method, follows) in [("POST", ""), ("POST", "GET"), ("GET", "\r\n")] {
            let head = format!("{method} /v1/claims HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}");
            let mut unread = BytesMut::from(format!("{head}{follows}").as_str());
            let Ok(request) = take(&mut unread, HEAD_MAX) else { panic!("{head} is not taken") };
            assert_eq!((request.method().as_str(), request.uri().path()), (method, "/v1/claims"));
            assert_eq!((request.headers()["host"].as_bytes(), &unread[..]), (&b"a"[..], follows.as_bytes()));
        }
    }

    #[test]
    fn an_incomplete_request_says_how_much_is_missing() {
        let missing = |text: &str| match taken(text) {
            Err(NotTaken::Incomplete(bytes)) => bytes,
            _ => panic!("{text} is not incomplete"),
        };
        assert_eq!(missing("POST / HTTP/1.1\r\nHost"), 1);
        assert_eq!(missing("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n{}"), 3);
    }

    #[test]
    fn a_head_that_is_as_long_as_allowed_and_not_complete_is_left_to_the_library() {
        let text = "GET /a HTTP/1.1\r\nHost";
        let take = |head_bytes_max| take(&mut BytesMut::from(text), head_bytes_max);
        assert!(matches!(take(text.len() + 1), Err(NotTaken::Incomplete(1))));
        assert!(matches!(take(text.len()), Err(NotTaken::Unsupported)));
    }

    #[test]
    fn fields_that_change_how_a_request_is_read_are_left_to_the_library_and_others_are_not() {
        let with = |field: &str| taken(&format!("GET / HTTP/1.1\r\n{field}\r\n\r\n"));
        for field in [
            "Connection: close",
            "Connection: upgrade",
            "Transfer-Encoding: chunked",
            "Upgrade: websocket",
            "Expect: 100-continue",
            "Content-Length: +1",
            "Content-Length: 0\r\nContent-Length: 0",
        ] {
            assert!(matches!(with(field), Err(NotTaken::Unsupported)), "{field}");
        }
        // Each of these names has the length of one above.
        for field in [
            "Connection: Keep-Alive",
            "User-Agent: a",
            "Sec-Fetch-Dest-Ab: a",
            "Referer: a",
            "Accept: a",
            "Accept-Charset: a",
        ] {
            assert!(with(field).is_ok(), "{field}");
        }
    }
}
