//! The fingerprint of a request: the parts that must be the same on a repeat with the same key. It equals that of the gateway's proxy.

use std::collections::BTreeMap;

use http::header::{CONTENT_TYPE, HeaderName, IF_MATCH};
use http::{HeaderMap, Method};
use sha2::{Digest as _, Sha256};

use super::multipart;
use crate::contents::Contents;
use crate::identity::{hex, spell};

/// Fields that change the method of a request for frameworks that read them.
const METHOD_OVERRIDES: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];

/// A part of a request that must be the same on a repeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FingerprintPart {
    /// Method, and the fields that override it.
    Method,
    /// Path of the request, with one spelling of its escapes.
    Path,
    /// Query of the request, with one spelling of its escapes.
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

/// Parts of a fingerprint.
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
            FingerprintPart::Path => ("path", Some(normal(request.path))),
            FingerprintPart::Query => ("query", request.query.map(normal)),
            FingerprintPart::ContentType if multipart.is_some() => {
                ("content-type", Some("multipart/form-data".to_owned()))
            }
            FingerprintPart::ContentType => ("content-type", media_type(request.headers)),
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
            if is_method_override(name) {
                members.insert(name.as_str().to_owned(), field(request.headers, name));
            }
        }
    }
    Contents::map(members)
}

/// Returns true if a framework may handle the request with another method.
pub(super) fn overrides_method(headers: &HeaderMap) -> bool {
    headers.keys().any(is_method_override)
}

fn is_method_override(name: &HeaderName) -> bool {
    METHOD_OVERRIDES.contains(&&*name.as_str().replace('_', "-"))
}

/// Returns a path or query with one spelling of its escapes (RFC 3986, 6.2.2): those of unreserved characters are decoded, the others
/// have capitals.
fn normal(text: &str) -> String {
    let mut normal = String::with_capacity(text.len());
    let mut pieces = text.split('%');
    normal.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let byte = piece
            .get(..2)
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .map(char::from);
        match byte {
            Some(byte) if byte.is_ascii_alphanumeric() || "-._~".contains(byte) => normal.push(byte),
            Some(_) => normal.extend(['%'].into_iter().chain(piece[..2].to_ascii_uppercase().chars())),
            None => {
                normal.push('%');
                normal.push_str(piece);
                continue;
            }
        }
        normal.push_str(&piece[2..]);
    }
    normal
}

/// Returns the digest of a text, as principals have it.
pub(super) fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Returns the digest of the media type in small letters: names and most values of it are compared without case.
fn media_type(headers: &HeaderMap) -> Option<String> {
    digest_of_values(headers.get_all(CONTENT_TYPE).iter().map(|value| value.as_bytes().to_ascii_lowercase()))
}

fn field(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    digest_of_values(headers.get_all(name).iter())
}

/// Returns the digest of a field's values, in order: they may be longer than a fingerprint.
fn digest_of_values(values: impl Iterator<Item: AsRef<[u8]>>) -> Option<String> {
    let mut values = values.peekable();
    values.peek()?;
    let mut digest = Sha256::new();
    for value in values {
        let value = value.as_ref();
        digest.update((value.len() as u64).to_be_bytes());
        digest.update(value);
    }
    Some(hex(&digest.finalize()))
}

/// Returns the digest of the JSON value of a body. Returns that of its bytes if the body is not JSON, or if readers
/// could understand it differently.
fn digest_of_json(body: &[u8]) -> String {
    let text = std::str::from_utf8(body).ok();
    let canonical = text.and_then(|text| spell(&Contents::json(text)).ok());
    canonical.map_or_else(|| digest(body), |(text, _)| digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::identity::canonical;

    #[derive(Deserialize)]
    struct Vector {
        name: String,
        method: String,
        url: String,
        headers: Vec<(String, String)>,
        body: String,
        parts: Vec<String>,
        fingerprint: String,
    }

    #[test]
    fn fingerprints_are_those_of_the_proxy() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/fingerprint.json");
        let text = std::fs::read_to_string(path).expect("the vectors of the repository");
        let vectors: Vec<Vector> = serde_json::from_str(&text).expect("vectors");
        assert!(!vectors.is_empty());
        for vector in vectors {
            let part = |name: &String| match name.as_str() {
                "method" => FingerprintPart::Method,
                "path" => FingerprintPart::Path,
                "query" => FingerprintPart::Query,
                "content-type" => FingerprintPart::ContentType,
                "if-match" => FingerprintPart::IfMatch,
                "body" => FingerprintPart::Body,
                "body:json" => FingerprintPart::BodyJson,
                other => panic!("{other}"),
            };
            let parts: Vec<_> = vector.parts.iter().map(part).collect();
            let mut headers = HeaderMap::new();
            for (name, value) in &vector.headers {
                headers.append(name.parse::<HeaderName>().expect("a name"), value.parse().expect("a value"));
            }
            let method = vector.method.parse().expect("a method");
            let (path, query) =
                vector.url.split_once('?').map_or((&*vector.url, None), |(path, query)| (path, Some(query)));
            let request = Parts { method: &method, path, query, headers: &headers, body: vector.body.as_bytes() };
            let fingerprint = canonical(&of(&parts, &request)).expect("a fingerprint");
            assert_eq!(fingerprint, vector.fingerprint, "{}", vector.name);
        }
    }
}
