//! Which request comes next on a connection, if it is a plain one: nothing about it may be read in two ways.

use std::mem::MaybeUninit;
use std::ops::Range;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use bytes::{Bytes, BytesMut};

use super::BYTES_MAX;
use crate::http::incoming::Incoming;

/// How many header fields a plain request has at most. What has more is the library's, and the limits' to judge.
const FIELDS_MAX: usize = 32;

/// Why no request can be taken out of what has come in.
pub(super) enum Not {
    /// It is a part of one. That many bytes are still to come, at least.
    Whole(usize),
    /// It could be read in two ways, is wrong, or asks for more than an answer.
    Plain,
}

/// Takes out the request that `unread` starts with. Head and body together are plain up to [`BYTES_MAX`], and the head up to
/// `head_bytes_max`.
///
/// # Errors
/// What it is not, and is left where it is.
pub(super) fn take(unread: &mut BytesMut, head_bytes_max: usize) -> Result<Request<Incoming>, Not> {
    let mut fields = <[Field; FIELDS_MAX]>::default();
    let head = match Head::read(unread, &mut fields)? {
        Some(head) if head.bytes <= head_bytes_max => head,
        None if unread.len() < head_bytes_max.min(BYTES_MAX) => return Err(Not::Whole(1)),
        Some(_) | None => return Err(Not::Plain),
    };
    let bytes = head.bytes.checked_add(head.body_bytes).filter(|bytes| *bytes <= BYTES_MAX).ok_or(Not::Plain)?;
    if bytes > unread.len() {
        return Err(Not::Whole(bytes - unread.len()));
    }
    // Nothing is copied: target, values and body share what has been read.
    let taken = unread.split_to(bytes).freeze();
    let request = head.request(&taken, fields.get(..head.fields).unwrap_or_default());
    if request.is_none() {
        *unread = [&taken[..], &unread[..]].concat().as_slice().into();
    }
    request.ok_or(Not::Plain)
}

/// Where a header field of a head stands.
#[derive(Default)]
struct Field {
    name: Range<usize>,
    value: Range<usize>,
}

/// What a head says, as far as that decides where the request ends.
struct Head {
    method: Method,
    target: Range<usize>,
    fields: usize,
    /// How long it is, and the body behind it.
    bytes: usize,
    body_bytes: usize,
}

impl Head {
    /// The head that `read` starts with, if all of it is there.
    fn read(read: &[u8], fields: &mut [Field; FIELDS_MAX]) -> Result<Option<Self>, Not> {
        let mut found = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        let mut head = httparse::Request::new(&mut []);
        let Ok(parsed) = head.parse_with_uninit_headers(read, &mut found) else { return Err(Not::Plain) };
        let httparse::Status::Complete(bytes) = parsed else { return Ok(None) };
        let method = match head.method {
            Some("POST") => Method::POST,
            Some("GET") => Method::GET,
            _ => return Err(Not::Plain),
        };
        let target = head.path.filter(|target| target.starts_with('/')).ok_or(Not::Plain)?;
        if head.version != Some(1) {
            return Err(Not::Plain);
        }
        let place = |part: &[u8]| {
            let start = part.as_ptr() as usize - read.as_ptr() as usize;
            start..start + part.len()
        };
        let mut body_bytes = None;
        for (field, header) in fields.iter_mut().zip(&*head.headers) {
            match header.name.len() {
                14 if header.name.eq_ignore_ascii_case("content-length") => {
                    let first = body_bytes.replace(length(header.value)?);
                    if first.is_some() {
                        return Err(Not::Plain);
                    }
                }
                10 if header.name.eq_ignore_ascii_case("connection")
                    && !header.value.eq_ignore_ascii_case(b"keep-alive") =>
                {
                    return Err(Not::Plain);
                }
                17 if header.name.eq_ignore_ascii_case("transfer-encoding") => return Err(Not::Plain),
                7 if header.name.eq_ignore_ascii_case("upgrade") => return Err(Not::Plain),
                6 if header.name.eq_ignore_ascii_case("expect") => return Err(Not::Plain),
                _ => {}
            }
            *field = Field { name: place(header.name.as_bytes()), value: place(header.value) };
        }
        let (target, fields) = (place(target.as_bytes()), head.headers.len());
        Ok(Some(Self { method, target, fields, bytes, body_bytes: body_bytes.unwrap_or(0) }))
    }

    /// The request whose bytes these are, unless the types of requests know better than the one who found its parts.
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

/// A length in nothing but digits.
fn length(text: &[u8]) -> Result<usize, Not> {
    let text = str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    text.and_then(|text| text.parse().ok()).ok_or(Not::Plain)
}
