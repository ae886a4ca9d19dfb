//! The fingerprint of a request: the parts that must be the same on a repeat with the same key.

pub(super) mod multipart;

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::http::{HeaderMap, HeaderName, Method, header};
use oncegate_core::canonical::{Canonical, canonicalize_any};
use oncegate_core::hex;
use sha2::{Digest as _, Sha256};

use super::fields;
use super::options::{FingerprintPart, JsonPointer, RouteOptions};
use super::target::Target;

/// The body of a request in its fingerprint.
#[derive(Clone, Copy)]
pub(super) enum Content<'a> {
    Bytes(&'a [u8]),
    /// SHA-256 of a body that is not read yet. The same as that of its bytes.
    Digest([u8; 32]),
}

/// Returns the fingerprint of a request. It covers the parts that the route names, the field that the dialect adds, and the host. The
/// host is not part of the identity: the hosts of a route are names of one service.
pub(super) fn of(
    options: &RouteOptions,
    target: &Target,
    method: &Method,
    headers: &HeaderMap,
    content: Content<'_>,
) -> Option<Canonical> {
    let mut members = BTreeMap::new();
    let multipart = match content {
        Content::Bytes(body) => multipart::digest(headers, body),
        Content::Digest(_) => None,
    };
    for part in &options.fingerprint {
        let (name, value) = match part {
            FingerprintPart::Method => ("method", Some(Cow::from(method.as_str()))),
            FingerprintPart::Path => ("path", Some(target.path.as_str().into())),
            FingerprintPart::Query => ("query", target.query.as_deref().map(Cow::from)),
            // The boundary of a form may differ from try to try.
            FingerprintPart::ContentType if multipart.is_some() => ("content-type", Some("multipart/form-data".into())),
            FingerprintPart::ContentType => ("content-type", media_type(headers).map(Cow::from)),
            FingerprintPart::IfMatch => ("if-match", field(headers, &header::IF_MATCH).map(Cow::from)),
            FingerprintPart::Body | FingerprintPart::BodyJson if let Some(digest) = multipart => {
                ("body", Some(text(digest).into()))
            }
            FingerprintPart::Body | FingerprintPart::BodyJson => {
                ("body", Some(content.digest(*part, &options.fingerprint_without).into()))
            }
        };
        members.insert(name, value);
    }
    if options.hosts.is_empty() {
        members.insert("host", Some(target.host.as_str().into()));
    }
    if options.fingerprint.contains(&FingerprintPart::Method) {
        for name in headers.keys().filter(|name| fields::is_method_override(name)) {
            members.insert(name.as_str(), field(headers, name).map(Cow::from));
        }
    }
    if let Some(name) = options.dialect.fingerprint_field() {
        members.insert(name.as_str(), field(headers, name).map(Cow::from));
    }
    // Its names are sorted, and strings have required escapes only.
    serde_json::to_string(&members).ok().map(|text| Canonical::trusted(&text))
}

impl Content<'_> {
    fn digest(self, part: FingerprintPart, without: &[JsonPointer]) -> String {
        match self {
            Self::Digest(sha256) => text(sha256),
            Self::Bytes(body) if part == FingerprintPart::BodyJson || !without.is_empty() => {
                digest_of_json(body, without)
            }
            Self::Bytes(body) => digest(body),
        }
    }
}

/// Returns the digest of the media type with small letters. Parameters too: names and most values compare without case, and the bytes
/// of the body are compared in any case.
fn media_type(headers: &HeaderMap) -> Option<String> {
    digest_of_values(headers.get_all(header::CONTENT_TYPE).iter().map(|value| value.as_bytes().to_ascii_lowercase()))
}

/// Returns the digest of a field's values.
fn field(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    digest_of_values(headers.get_all(name).iter())
}

/// Returns the digest of values, in order: they may be longer than a fingerprint. `None` if there are none.
fn digest_of_values(values: impl Iterator<Item: AsRef<[u8]>>) -> Option<String> {
    let mut values = values.peekable();
    values.peek()?;
    let mut digest = Sha256::new();
    for value in values {
        let value = value.as_ref();
        digest.update((value.len() as u64).to_be_bytes());
        digest.update(value);
    }
    Some(text(digest.finalize().into()))
}

fn digest(body: &[u8]) -> String {
    text(Sha256::digest(body).into())
}

/// Returns the digest of the JSON value of a body without these members. Returns that of its bytes if the body is not
/// JSON, or if readers could understand it differently.
fn digest_of_json(body: &[u8], without: &[JsonPointer]) -> String {
    let rest = |canonical: Canonical| {
        if without.is_empty() {
            return Some(canonical);
        }
        let mut json = serde_json::from_str(canonical.as_str()).ok()?;
        for pointer in without {
            pointer.remove(&mut json);
        }
        // Its numbers get their canonical form again.
        canonicalize_any(json.to_string().as_bytes(), "body").ok()
    };
    let canonical = canonicalize_any(body, "body").ok().and_then(rest);
    canonical.map_or_else(|| digest(body), |canonical| digest(canonical.as_str().as_bytes()))
}

fn text(digest: [u8; 32]) -> String {
    let mut text = [0; 64];
    hex::write(&digest, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderValue, Request};

    use super::*;

    const ALL: &str = "[\"method\", \"path\", \"query\", \"content-type\", \"if-match\", \"body\"]";

    /// Returns the options of a route with these parts and more settings.
    fn options(parts: &str, more: &str) -> RouteOptions {
        let text = format!(
            "name = \"r\"\napp = \"a\"\npath = \"/\"\nmethods = [\"POST\"]\nupstream = \"u\"\nprincipal = []\nfingerprint = {parts}\n{more}"
        );
        toml::from_str(&text).unwrap()
    }

    fn of_options(
        options: &RouteOptions,
        url: &str,
        fields: &[(&'static str, &'static str)],
        content: Content<'_>,
    ) -> Canonical {
        let target = Target::take(&mut Request::builder().uri(url).body(()).unwrap()).unwrap();
        let headers =
            fields.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        of(options, &target, &Method::POST, &headers.collect(), content).unwrap()
    }

    fn fingerprint(parts: &str, url: &str, fields: &[(&'static str, &'static str)], body: &str) -> Canonical {
        of_options(&options(parts, ""), url, fields, Content::Bytes(body.as_bytes()))
    }

    #[test]
    fn each_part_makes_a_difference_if_it_is_chosen() {
        let text = [("content-type", "text/plain")];
        let one = fingerprint(ALL, "http://h/a?x", &text, "1");
        for same in ["http://H:80/a?x", "https://h./%61?x", "http://h/a?%78"] {
            assert_eq!(fingerprint(ALL, same, &text, "1"), one, "{same}");
        }
        for other in ["http://g/a?x", "http://h/b?x", "http://h/a?y", "http://h/a"] {
            assert_ne!(fingerprint(ALL, other, &text, "1"), one, "{other}");
        }
        assert_ne!(fingerprint(ALL, "http://h/a?x", &[("content-type", "text/html")], "1"), one);
        assert_ne!(fingerprint(ALL, "http://h/a?x", &text, "2"), one);
        let path = "[\"path\"]";
        assert_eq!(fingerprint(path, "http://h/a?x", &text, "1"), fingerprint(path, "http://h/a?y", &[], "2"));
    }

    /// Examples for those who compute fingerprints in another language.
    #[test]
    fn fingerprints_are_those_of_the_vectors() {
        #[derive(serde::Deserialize)]
        struct Vector {
            name: String,
            method: String,
            url: String,
            headers: Vec<(String, String)>,
            body: String,
            parts: Vec<String>,
            fingerprint: String,
        }
        let vectors: Vec<Vector> =
            serde_json::from_str(include_str!("../../../tests/vectors/fingerprint.json")).unwrap();
        for vector in vectors {
            let options = options(&format!("{:?}", vector.parts), "hosts = [\"h\"]\n");
            let target =
                Target::take(&mut Request::builder().uri(format!("http://h{}", vector.url)).body(()).unwrap()).unwrap();
            let mut headers = HeaderMap::new();
            for (name, value) in &vector.headers {
                headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap());
            }
            let method = vector.method.parse().unwrap();
            let fingerprint = of(&options, &target, &method, &headers, Content::Bytes(vector.body.as_bytes())).unwrap();
            assert_eq!(fingerprint.as_str(), vector.fingerprint, "{}", vector.name);
        }
    }

    #[test]
    fn media_types_are_compared_without_case() {
        let with = |value| fingerprint("[\"content-type\"]", "http://h/", &[("content-type", value)], "");
        let one = with("application/json; charset=utf-8");
        assert_eq!(with("Application/JSON; Charset=UTF-8"), one);
        for other in ["application/json", "application/json;charset=utf-8", "application/json; charset=utf-16"] {
            assert_ne!(with(other), one, "{other}");
        }
        // Other fields are compared as they are.
        let with = |value| fingerprint("[\"if-match\"]", "http://h/", &[("if-match", value)], "");
        assert_ne!(with("\"A\""), with("\"a\""));
    }

    #[test]
    fn the_host_is_a_part_unless_the_route_names_its_hosts() {
        let shared = options(ALL, "hosts = [\"g\", \"h\"]\n");
        let of = |url| of_options(&shared, url, &[], Content::Bytes(b""));
        assert_eq!(of("http://g/a"), of("http://h/a"));
    }

    #[test]
    fn a_method_that_a_field_overrides_is_another_one() {
        let with = |fields: &[_]| fingerprint(ALL, "http://h/a", fields, "1");
        let one = with(&[]);
        for name in ["x-http-method-override", "x-http-method", "x-method-override", "x_http_method"] {
            assert_ne!(with(&[(name, "DELETE")]), one, "{name}");
        }
        assert_ne!(with(&[("x-http-method", "DELETE")]), with(&[("x-http-method", "PUT")]));
        assert_eq!(
            fingerprint("[\"path\"]", "http://h/a", &[("x-http-method", "PUT")], ""),
            fingerprint("[\"path\"]", "http://h/a", &[], "")
        );
    }

    #[test]
    fn a_body_and_its_digest_are_the_same() {
        let of = |content| of_options(&options("[\"body\"]", ""), "http://h/", &[], content);
        assert_eq!(of(Content::Bytes(b"1")), of(Content::Digest(Sha256::digest(b"1").into())));
    }

    #[test]
    fn a_fingerprint_is_canonical() {
        let options = options(ALL, "dialect = \"oasis\"\n");
        let fields = [("if-match", "\"1\""), ("x-http-method", "PUT"), ("repeatability-first-sent", "now")];
        let fingerprint = of_options(&options, "http://h/a%22b?x=\\{}", &fields, Content::Bytes(b""));
        assert_eq!(canonicalize_any(fingerprint.as_str().as_bytes(), "fingerprint").unwrap(), fingerprint);
    }

    #[test]
    fn json_is_compared_by_value_if_that_is_chosen() {
        let of = |part: &str, body| fingerprint(&format!("[{part:?}]"), "http://h/", &[], body);
        assert_eq!(of("body:json", r#"{"a": 1, "b": 2}"#), of("body:json", r#"{"b":2,"a":1}"#));
        assert_ne!(of("body", r#"{"a": 1, "b": 2}"#), of("body", r#"{"b":2,"a":1}"#));
        assert_ne!(of("body:json", "not json"), of("body:json", "not  json"));
    }

    #[test]
    fn members_that_are_left_out_may_differ() {
        let of = |part: &str, without: &str, body: &str| {
            let options = options(&format!("[{part:?}]"), &format!("fingerprint_without = {without}\n"));
            of_options(&options, "http://h/", &[], Content::Bytes(body.as_bytes()))
        };
        for part in ["body", "body:json"] {
            let one = of(part, "[\"/id\", \"/params/at\"]", r#"{"id": 1, "params": {"n": 1e21, "at": "now"}}"#);
            let same =
                [r#"{"params":{"at":"later","n":1000000000000000000000},"id":"2"}"#, r#"{"params":{"n":1.0E+21}}"#];
            for body in same {
                assert_eq!(of(part, "[\"/id\", \"/params/at\"]", body), one, "{part} {body}");
            }
            for body in [r#"{"id":1,"params":{"n":2}}"#, r#"{"id":1,"params":{"n":1e21,"to":1}}"#, "[1]", "id", ""] {
                assert_ne!(of(part, "[\"/id\", \"/params/at\"]", body), one, "{part} {body}");
            }
            // A body without a canonical form is compared by its bytes.
            assert_ne!(
                of(part, "[\"/id\"]", r#"{"id":1,"n":9007199254740993}"#),
                of(part, "[\"/id\"]", r#"{"id":2,"n":9007199254740993}"#)
            );
        }
    }
}
