//! Takes the next request out of the bytes of a connection, if it has one unambiguous reading.

use std::mem::MaybeUninit;
use std::ops::Range;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use bytes::{Bytes, BytesMut};

use super::BYTES_MAX;
use crate::incoming::Incoming;

/// Most header fields of a request on the fast path. The library and the limits decide about requests with more.
const FIELDS_MAX: usize = 32;

/// Reason for which no request could be taken.
pub(super) enum NotTaken {
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
pub(super) fn take(unread: &mut BytesMut, head_bytes_max: usize) -> Result<Request<Incoming>, NotTaken> {
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
                    let first = body_bytes.replace(length(header.value)?);
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

/// Reads a length that consists of digits only.
fn length(text: &[u8]) -> Result<usize, NotTaken> {
    let text = str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    text.and_then(|text| text.parse().ok()).ok_or(NotTaken::Unsupported)
}
