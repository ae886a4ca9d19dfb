//! The fingerprint of a request: the parts that must be the same on a repeat with the same key. It equals that of the gateway's proxy.

use std::collections::BTreeMap;

use http::header::{CONTENT_TYPE, HeaderName, IF_MATCH};
use http::{HeaderMap, Method};
use sha2::{Digest as _, Sha256};

use super::multipart;
use crate::contents::{Contents, hex, spell};

/// Fields that change the method of a request for frameworks that read them.
const METHOD_OVERRIDES: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];

/// A part of a request that must be the same on a repeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FingerprintPart {
    /// Method, and the fields that override it.
    Method,
    /// Path in the form of the request.
    Path,
    /// Query in the form of the request.
    Query,
    /// Field `Content-Type`.
    ContentType,
    /// Field `If-Match`.
    IfMatch,
    /// Bytes of the body.
    Body,
    /// Value of a body that is JSON; bytes of another one.
    BodyJson,
}

impl FingerprintPart {
    /// The parts of a middleware that names none.
    pub(super) const DEFAULT: [Self; 6] =
        [Self::Method, Self::Path, Self::Query, Self::ContentType, Self::IfMatch, Self::Body];
}

/// What a fingerprint is made of.
pub(super) struct Parts<'a> {
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    pub(super) query: Option<&'a str>,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: &'a [u8],
}

pub(super) fn of(parts: &[FingerprintPart], request: &Parts<'_>) -> Contents {
    let mut members = BTreeMap::new();
    let multipart = multipart::digest(request.headers, request.body);
    for part in parts {
        let (name, value) = match part {
            FingerprintPart::Method => ("method", Some(request.method.as_str().to_owned())),
            FingerprintPart::Path => ("path", Some(request.path.to_owned())),
            FingerprintPart::Query => ("query", request.query.map(str::to_owned)),
            FingerprintPart::ContentType if multipart.is_some() => {
                ("content-type", Some("multipart/form-data".to_owned()))
            }
            FingerprintPart::ContentType => ("content-type", field(request.headers, &CONTENT_TYPE)),
            FingerprintPart::IfMatch => ("if-match", field(request.headers, &IF_MATCH)),
            FingerprintPart::Body | FingerprintPart::BodyJson => {
                let of_bytes = || match part {
                    FingerprintPart::BodyJson => digest_of_json(request.body),
                    _ => digest(request.body),
                };
                ("body", Some(multipart.map_or_else(of_bytes, |digest| hex(&digest))))
            }
        };
        members.insert(name.to_owned(), value);
    }
    if parts.contains(&FingerprintPart::Method) {
        for name in request.headers.keys() {
            if METHOD_OVERRIDES.contains(&&*name.as_str().replace('_', "-")) {
                members.insert(name.as_str().to_owned(), field(request.headers, name));
            }
        }
    }
    Contents::map(members)
}

/// Returns the digest of a text, as principals have it.
pub(super) fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Returns the digest of a field's values, in order: they may be longer than a fingerprint.
fn field(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let mut values = headers.get_all(name).iter().peekable();
    values.peek()?;
    let mut digest = Sha256::new();
    for value in values {
        digest.update((value.len() as u64).to_be_bytes());
        digest.update(value.as_bytes());
    }
    Some(hex(&digest.finalize()))
}

/// Returns the digest of the JSON value of a body; that of its bytes if it is not JSON, or JSON that readers understand differently.
fn digest_of_json(body: &[u8]) -> String {
    let text = std::str::from_utf8(body).ok();
    let canonical = text.and_then(|text| spell(&Contents::json(text)).ok());
    canonical.map_or_else(|| digest(body), |(text, _)| digest(text.as_bytes()))
}
