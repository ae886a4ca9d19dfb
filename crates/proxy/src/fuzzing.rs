//! Properties of all bytes that callers and upstreams of the proxy can send; see `oncegate_core::fuzzing`.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use oncegate_core::clock::SystemClock;
use oncegate_core::global_id::GlobalId;

use super::fingerprint::multipart;
use super::key::IdempotencyKey;
use super::stored_response::StoredResponse;
use super::target::{Target, refused_in, spelled};
use super::token::Issuers;
use super::token::keys::KeySet;
use super::upstream::framing::checked;
use crate::encryption::{EncryptionKeys, Owner};

static KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A key is the same in quotes, and has the characters that a key may have.
pub fn key(bytes: &[u8]) {
    let of = |bytes: &[u8]| {
        let fields = HeaderMap::from_iter([(KEY.clone(), HeaderValue::from_bytes(bytes).ok()?)]);
        IdempotencyKey::of(&fields, std::slice::from_ref(&KEY)).ok()?
    };
    let Some(key) = of(bytes) else { return };
    let text = key.as_str();
    assert!((1..=255).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()));
    let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    assert_eq!(of(quoted.as_bytes()), Some(key));
}

/// A form has the same digest with any other boundary that does not occur in it. The first line of the bytes is its media type.
pub fn form(bytes: &[u8]) {
    let (content_type, body) = in_two(bytes, b'\n');
    let Ok(content_type) = HeaderValue::from_bytes(content_type) else { return };
    let of = |content_type: HeaderValue, body: &[u8]| {
        multipart::digest(&HeaderMap::from_iter([(header::CONTENT_TYPE, content_type)]), body)
    };
    let Some(digest) = of(content_type.clone(), body) else { return };
    let boundary = content_type.to_str().ok().and_then(multipart::boundary).unwrap_or_default();
    let other = "another-boundary-0123456789";
    if find(body, other.as_bytes()).is_some() {
        return;
    }
    let body = replaced(body, format!("\r\n--{boundary}").as_bytes(), format!("\r\n--{other}").as_bytes());
    let body = [b"--", other.as_bytes(), &body[2 + boundary.len()..]].concat();
    let content_type = HeaderValue::from_static("multipart/form-data; boundary=another-boundary-0123456789");
    assert_eq!(of(content_type, &body), Some(digest));
}

/// A token of an unknown issuer names no caller, and only a signature by the issuer's key is right.
pub fn token(bytes: &[u8]) {
    let clock = Arc::new(SystemClock::new());
    let issuers = Issuers::new(&[], clock).unwrap_or_else(|why| unreachable!("{why}"));
    if let Ok(value) = HeaderValue::from_bytes(&[b"Bearer ", bytes].concat()) {
        assert!(issuers.owner(&HeaderMap::from_iter([(header::AUTHORIZATION, value)])).is_err());
    }
    let set = br#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    let keys = KeySet::parse(set).unwrap_or_else(|why| unreachable!("{why}"));
    let (algorithm, rest) = in_two(bytes, b'\n');
    let (signed, signature) = in_two(rest, b'\n');
    assert!(keys.verify(None, &String::from_utf8_lossy(algorithm), signed, signature).is_err());
    if let Ok(keys) = KeySet::parse(bytes) {
        assert!(keys.verify(None, "none", b"", b"").is_err());
    }
}

/// The common spelling of a path is its own, and a request has one host afterwards. The first line of the bytes is the target, the
/// second one `Host`. A path with a wrong escape is refused: the common spelling of `%%35a` ends in another escape.
pub fn target(bytes: &[u8]) {
    let (target, host) = in_two(bytes, b'\n');
    if let Ok(path) = str::from_utf8(target)
        && refused_in(path, &[]).is_none_or(|why| !why.starts_with("a `%`"))
    {
        assert_eq!(spelled(&spelled(path)), spelled(path));
    }
    let (Ok(uri), Ok(host)) = (Uri::try_from(target), HeaderValue::from_bytes(host)) else { return };
    let mut request = Request::new(());
    *request.uri_mut() = uri;
    request.headers_mut().insert(header::HOST, host);
    let Ok(taken) = Target::take(&mut request) else { return };
    assert!(request.uri().authority().is_none() && request.uri().scheme().is_none());
    let again = Target::take(&mut request).ok();
    let of = |target: &Target| (target.host.clone(), target.path.clone(), target.query.clone(), target.ambiguity);
    assert_eq!(again.as_ref().map(of), Some(of(&taken)));
}

/// A response that is let through has one framing. The bytes are the lines of its fields.
pub fn head(bytes: &[u8]) {
    let mut response = Response::new(());
    // The one status without a length.
    if bytes.len().is_multiple_of(8) {
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    for line in bytes.split(|byte| *byte == b'\n') {
        let (name, value) = in_two(line, b':');
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value.trim_ascii())) {
            response.headers_mut().append(name, value);
        }
    }
    let Ok(response) = checked(response, false) else { return };
    let count = |name| response.headers().get_all(name).iter().count();
    assert!(count(header::CONTENT_LENGTH) + count(header::TRANSFER_ENCODING) <= 1);
    if let Some(length) = response.headers().get(header::CONTENT_LENGTH) {
        assert!(length.to_str().is_ok_and(|length| length.parse::<u64>().is_ok_and(|of| of.to_string() == length)));
    }
}

/// A readable stored response reads the same after it was written again. With a key, only encrypted responses are read.
pub fn stored_response(bytes: &[u8]) {
    let Ok(result) = str::from_utf8(bytes) else { return };
    let Ok(attempt) = "1792488615123456-5f0c9a7be2d14836".parse() else { return };
    let owner = Owner { global_id: GlobalId::from_bytes([7; 16]), attempt: &attempt };
    let keys = EncryptionKeys::default();
    let Some(stored) = StoredResponse::read(result, &keys, owner) else { return };
    assert_eq!(StoredResponse::read(&stored.write(&keys, owner), &keys, owner), Some(stored));
}

fn in_two(bytes: &[u8], at: u8) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == at) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, b""),
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

fn replaced(text: &[u8], part: &[u8], by: &[u8]) -> Vec<u8> {
    let (mut all, mut rest) = (Vec::new(), text);
    while let Some(at) = find(rest, part) {
        all.extend([&rest[..at], by].concat());
        rest = &rest[at + part.len()..];
    }
    [&all, rest].concat()
}

#[cfg(test)]
mod tests {
    use oncegate_core::fuzzing::{Edit, edited};
    use proptest::prelude::{any, proptest};

    use super::*;

    macro_rules! seed {
        ($path:literal) => {
            include_bytes!(concat!("../../../fuzz/seeds/", $path)).as_slice()
        };
    }

    #[test]
    fn what_broke_a_property_has_it_now() {
        target(seed!("target/wrong-escape"));
    }

    proptest! {
        #[test]
        fn all_bytes_have_the_properties(edits in any::<Vec<Edit>>()) {
            key(&edited(seed!("key/quoted"), &edits));
            form(&edited(seed!("form/two-parts"), &edits));
            form(&edited(seed!("form/empty-part"), &edits));
            token(&edited(seed!("token/claims"), &edits));
            token(&edited(seed!("token/signature"), &edits));
            target(&edited(seed!("target/escapes"), &edits));
            target(&edited(seed!("target/absolute"), &edits));
            target(&edited(seed!("target/scheme"), &edits));
            target(&edited(seed!("target/wrong-escape"), &edits));
            head(&edited(seed!("head/two-framings"), &edits));
            stored_response(&edited(seed!("stored_response/trailer"), &edits));
        }
    }
}
