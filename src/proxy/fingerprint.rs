//! The fingerprint of a request: the parts that must be the same on a repeat with the same key.

mod multipart;

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::http::{HeaderMap, HeaderName, Method, Uri, header};
use sha2::{Digest as _, Sha256};

use super::options::FingerprintPart;
use crate::domain::canonical::{Canonical, canonicalize_any};
use crate::domain::hex;

/// The body of a request in its fingerprint.
#[derive(Clone, Copy)]
pub(super) enum Content<'a> {
    Bytes(&'a [u8]),
    /// SHA-256 of a body that is not read yet. The same as that of its bytes.
    Digest([u8; 32]),
}

/// Returns the fingerprint of a request: its parts, and a field that the dialect adds.
pub(super) fn of(
    parts: &[FingerprintPart],
    also: Option<&HeaderName>,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    content: Content<'_>,
) -> Option<Canonical> {
    let mut members = BTreeMap::new();
    let multipart = match content {
        Content::Bytes(body) => multipart::digest(headers, body),
        Content::Digest(_) => None,
    };
    for part in parts {
        let (name, value) = match part {
            FingerprintPart::Method => ("method", Some(Cow::from(method.as_str()))),
            FingerprintPart::Path => ("path", Some(uri.path().into())),
            FingerprintPart::Query => ("query", uri.query().map(Cow::from)),
            // The boundary of a form may differ from try to try.
            FingerprintPart::ContentType if multipart.is_some() => ("content-type", Some("multipart/form-data".into())),
            FingerprintPart::ContentType => ("content-type", field(headers, &header::CONTENT_TYPE).map(Cow::from)),
            FingerprintPart::IfMatch => ("if-match", field(headers, &header::IF_MATCH).map(Cow::from)),
            FingerprintPart::Body | FingerprintPart::BodyJson if let Some(digest) = multipart => {
                ("body", Some(text(digest).into()))
            }
            FingerprintPart::Body | FingerprintPart::BodyJson => ("body", Some(content.digest(*part).into())),
        };
        members.insert(name, value);
    }
    if let Some(name) = also {
        members.insert(name.as_str(), field(headers, name).map(Cow::from));
    }
    // Its names are sorted, and strings have no escapes but those that they need.
    serde_json::to_string(&members).ok().map(|text| Canonical::trusted(&text))
}

impl Content<'_> {
    fn digest(self, part: FingerprintPart) -> String {
        match self {
            Self::Digest(sha256) => text(sha256),
            Self::Bytes(body) if part == FingerprintPart::BodyJson => digest_of_json(body),
            Self::Bytes(body) => digest(body),
        }
    }
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
    Some(text(digest.finalize().into()))
}

fn digest(body: &[u8]) -> String {
    text(Sha256::digest(body).into())
}

/// Returns the digest of the JSON value of a body; that of its bytes if it is not JSON, or JSON that readers understand
/// differently.
fn digest_of_json(body: &[u8]) -> String {
    canonicalize_any(body, "body").map_or_else(|_| digest(body), |canonical| digest(canonical.as_str().as_bytes()))
}

fn text(digest: [u8; 32]) -> String {
    let mut text = [0; 64];
    hex::write(&digest, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::FingerprintPart::{Body, BodyJson, ContentType, IfMatch, Method as MethodPart, Path, Query};
    use super::*;
    use axum::http::HeaderValue;

    fn fingerprint(parts: &[FingerprintPart], uri: &'static str, content_type: &'static str, body: &str) -> Canonical {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        of(parts, None, &Method::POST, &Uri::from_static(uri), &headers, Content::Bytes(body.as_bytes())).unwrap()
    }

    #[test]
    fn each_part_makes_a_difference_if_it_is_chosen() {
        let all = [MethodPart, Path, Query, ContentType, IfMatch, Body];
        let one = fingerprint(&all, "/a?x", "text/plain", "1");
        assert_eq!(fingerprint(&all, "/a?x", "text/plain", "1"), one);
        for other in [
            fingerprint(&all, "/b?x", "text/plain", "1"),
            fingerprint(&all, "/a?y", "text/plain", "1"),
            fingerprint(&all, "/a", "text/plain", "1"),
            fingerprint(&all, "/a?x", "text/html", "1"),
            fingerprint(&all, "/a?x", "text/plain", "2"),
        ] {
            assert_ne!(other, one);
        }
        assert_eq!(fingerprint(&[Path], "/a?x", "text/plain", "1"), fingerprint(&[Path], "/a?y", "text/html", "2"));
    }

    #[test]
    fn a_body_and_its_digest_are_the_same() {
        let of = |content| of(&[Body], None, &Method::POST, &Uri::from_static("/"), &HeaderMap::new(), content);
        assert_eq!(of(Content::Bytes(b"1")), of(Content::Digest(Sha256::digest(b"1").into())));
    }

    #[test]
    fn a_fingerprint_is_canonical() {
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_MATCH, HeaderValue::from_static("\"1\""));
        let (uri, also) = (Uri::from_static("/a%22b?x=\\{}"), HeaderName::from_static("repeatability-first-sent"));
        let (parts, content) = ([Query, Path, IfMatch, MethodPart, Body], Content::Bytes(b""));
        let fingerprint = of(&parts, Some(&also), &Method::POST, &uri, &headers, content).unwrap();
        assert_eq!(canonicalize_any(fingerprint.as_str().as_bytes(), "fingerprint").unwrap(), fingerprint);
    }

    #[test]
    fn json_is_compared_by_value_if_that_is_chosen() {
        let of = |parts: &[_], body| fingerprint(parts, "/", "application/json", body);
        assert_eq!(of(&[BodyJson], r#"{"a": 1, "b": 2}"#), of(&[BodyJson], r#"{"b":2,"a":1}"#));
        assert_ne!(of(&[Body], r#"{"a": 1, "b": 2}"#), of(&[Body], r#"{"b":2,"a":1}"#));
        assert_ne!(of(&[BodyJson], "not json"), of(&[BodyJson], "not  json"));
    }
}
