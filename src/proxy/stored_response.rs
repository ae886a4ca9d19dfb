//! The stored form of a response: JSON, kept as the result of its claim. A tombstone is what is left of a response that was not
//! stored. With encryption, only what a tombstone has can be read without the key.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use serde::{Deserialize, Deserializer, Serialize};

use super::encryption::{EncryptionKeys, Owner, Sealed};
use super::fields::{REPLAYED, StoredFields};

/// Version of the stored form. A reader refuses others.
const VERSION: u8 = 1;

/// Bytes of all fields of a response that is stored, and of a field of a tombstone.
const FIELDS_BYTES_MAX: usize = 32 << 10;

/// First character of the names of trailers.
const TRAILER: char = ':';

/// Fields that are left in a tombstone.
static TOMBSTONE_FIELDS: [HeaderName; 2] = [header::LOCATION, header::ETAG];

/// Returns the stored form of the tombstone of a stored response. `None` if it is none.
pub fn forget(result: &str) -> Option<Box<str>> {
    let stored = StoredResponse::decode(result)?;
    let fields = stored.fields.into_iter().filter(|(name, _)| is_tombstones(name)).collect();
    Some(StoredResponse { fields, body: None, sealed: None, ..stored }.encode())
}

/// A response that is stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct StoredResponse {
    /// Version of this form.
    v: u8,
    status: u16,
    /// Seconds since the epoch at which it was complete.
    at: u64,
    /// Names and values in order. Each character of a value is one byte. Names of trailers begin with a colon: gateways of before
    /// leave them out.
    fields: Vec<(String, String)>,
    /// The body, stored in Base64; `None` in a tombstone. [`StoredResponse::encode`] writes it.
    #[serde(default, skip_serializing, deserialize_with = "from_base64")]
    body: Option<Bytes>,
    /// Fields as JSON, a line feed, and the body, encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sealed: Option<Sealed>,
}

impl StoredResponse {
    /// Returns the stored form of a response to a caller; a tombstone if its fields are too long.
    pub(super) fn new(status: StatusCode, headers: &HeaderMap, stored: &StoredFields, body: Bytes, at: u64) -> Self {
        let Some(kept) = kept(headers, stored) else { return Self::tombstone(status, headers, at) };
        let fields = kept.map(|(name, value)| (name.as_str().to_owned(), latin1(value))).collect();
        Self { v: VERSION, status: status.as_u16(), at, fields, body: Some(body), sealed: None }
    }

    /// Adds the fields that followed the body. If they are too long, the rest is a tombstone.
    pub(super) fn with_trailers(mut self, trailers: &HeaderMap, stored: &StoredFields) -> Self {
        if let Some(kept) = kept(trailers, stored) {
            self.fields.extend(kept.map(|(name, value)| (format!("{TRAILER}{name}"), latin1(value))));
        } else {
            self.body = None;
            self.fields.retain(|(name, _)| is_tombstones(name));
        }
        self
    }

    /// Returns what is left of a response that is not stored: its status, and where its effect can be found.
    pub(super) fn tombstone(status: StatusCode, headers: &HeaderMap, at: u64) -> Self {
        let value = |name: &HeaderName| headers.get(name).filter(|value| value.len() <= FIELDS_BYTES_MAX);
        let kept = TOMBSTONE_FIELDS.iter().filter_map(|name| Some((name.as_str().to_owned(), latin1(value(name)?))));
        Self { v: VERSION, status: status.as_u16(), at, fields: kept.collect(), body: None, sealed: None }
    }

    /// Reports whether this is more than a tombstone.
    pub(super) fn has_body(&self) -> bool {
        self.body.is_some() || self.sealed.is_some()
    }

    /// Encrypts a response, if there is a key. One that cannot be encrypted leaves a tombstone.
    pub(super) fn seal(self, keys: &EncryptionKeys, owner: Owner<'_>) -> Self {
        let Some(body) = self.body.as_ref().filter(|_| !keys.is_empty()) else { return self };
        let sealed = serde_json::to_vec(&self.fields).ok().and_then(|mut plain| {
            plain.push(b'\n');
            plain.extend_from_slice(body);
            keys.seal(owner, plain)
        });
        let fields = self.fields.into_iter().filter(|(name, _)| is_tombstones(name));
        Self { fields: fields.collect(), body: None, sealed, ..self }
    }

    /// Decrypts a response. What cannot be decrypted is a tombstone.
    pub(super) fn open(mut self, keys: &EncryptionKeys, owner: Owner<'_>) -> Self {
        let plain = self.sealed.take().and_then(|sealed| keys.open(owner, &sealed));
        let parts = plain.and_then(|plain| {
            // JSON in one line: the first line feed ends the fields.
            let end = plain.iter().position(|byte| *byte == b'\n')?;
            Some((serde_json::from_slice(&plain[..end]).ok()?, Bytes::from(plain).slice(end + 1..)))
        });
        match parts {
            Some((fields, body)) => Self { fields, body: Some(body), ..self },
            None => self,
        }
    }

    pub(super) fn encode(&self) -> Box<str> {
        let mut text = serde_json::to_string(self).unwrap_or_default();
        if let Some(body) = &self.body
            && text.pop().is_some()
        {
            // Its text needs no escapes, so nothing has to look for them.
            text.reserve_exact(body.len().div_ceil(3) * 4 + 12);
            text.push_str(",\"body\":\"");
            STANDARD.encode_string(body, &mut text);
            text.push_str("\"}");
        }
        text.into()
    }

    /// Reads the stored form. `None` if it is none, or that of another version.
    pub(super) fn decode(result: &str) -> Option<Self> {
        serde_json::from_str(result).ok().filter(|stored: &Self| stored.v == VERSION)
    }

    /// Returns the response for a repeat at this time; `None` if this is a tombstone, or older than `age_max` seconds.
    pub(super) fn replay(&self, now: u64, age_max: Option<u64>) -> Option<Response> {
        let age = now.saturating_sub(self.at);
        if age_max.is_some_and(|max| age >= max) {
            return None;
        }
        let body = self.body.clone()?;
        let trailers =
            headers(self.fields.iter().filter_map(|(name, value)| Some((name.strip_prefix(TRAILER)?, value))));
        let body = if trailers.is_empty() {
            Body::from(body)
        } else {
            // A body of known length has no trailers.
            let frames = [Ok::<_, Infallible>(Frame::data(body)), Ok(Frame::trailers(trailers))];
            Body::new(StreamBody::new(stream::iter(frames)))
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status();
        *response.headers_mut() = self.headers();
        let fields = response.headers_mut();
        fields.insert(REPLAYED, HeaderValue::from_static("true"));
        let earlier = fields.get(header::AGE).and_then(|age| age.to_str().ok()?.parse::<u64>().ok()).unwrap_or(0);
        fields.insert(header::AGE, HeaderValue::from(age.saturating_add(earlier)));
        Some(response)
    }

    pub(super) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Returns the fields that say where the effect can be found.
    pub(super) fn tombstone_headers(&self) -> HeaderMap {
        let headers = self.headers();
        let kept = TOMBSTONE_FIELDS.iter().filter_map(|name| Some((name.clone(), headers.get(name)?.clone())));
        kept.collect()
    }

    fn headers(&self) -> HeaderMap {
        headers(self.fields.iter().map(|(name, value)| (name.as_str(), value)))
    }
}

/// Returns the fields to store; `None` if they are too long.
fn kept<'h>(
    headers: &'h HeaderMap,
    stored: &StoredFields,
) -> Option<impl Iterator<Item = (&'h HeaderName, &'h HeaderValue)>> {
    let bytes: usize = stored.of(headers).map(|(name, value)| name.as_str().len() + value.len()).sum();
    (bytes <= FIELDS_BYTES_MAX).then(|| stored.of(headers))
}

/// Returns stored fields. Those that are none are left out.
fn headers<'a>(fields: impl Iterator<Item = (&'a str, &'a String)>) -> HeaderMap {
    let field = |(name, value): (&str, &String)| {
        let bytes: Option<Vec<u8>> = value.chars().map(|byte| u8::try_from(u32::from(byte)).ok()).collect();
        Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_bytes(&bytes?).ok()?))
    };
    let mut headers = HeaderMap::new();
    for (name, value) in fields.filter_map(field) {
        headers.append(name, value);
    }
    headers
}

fn is_tombstones(name: &str) -> bool {
    TOMBSTONE_FIELDS.iter().any(|kept| kept == name)
}

/// Returns the bytes of a value, one character each.
fn latin1(value: &HeaderValue) -> String {
    let bytes = || value.as_bytes().iter().map(|byte| char::from(*byte)).collect();
    value.to_str().map_or_else(|_| bytes(), str::to_owned)
}

/// Reads a body. One that is not Base64 is that of a tombstone.
fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.and_then(|text| STANDARD.decode(text).ok()).map(Bytes::from))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::proxy::encryption::tests as encryption;

    fn without_location() -> StoredFields {
        StoredFields::new(&[], &["Location".to_owned()]).unwrap()
    }

    fn headers() -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.append("x-twice", HeaderValue::from_static("1"));
        headers.append("x-twice", HeaderValue::from_static("2"));
        headers.append("x-bytes", HeaderValue::from_bytes(b"\xe4\xff").unwrap());
        headers.append(header::LOCATION, HeaderValue::from_static("/orders/1"));
        headers.append(header::SET_COOKIE, HeaderValue::from_static("secret=1"));
        headers
    }

    #[tokio::test]
    async fn a_replay_has_the_status_fields_and_bytes_of_the_response() {
        let body = Bytes::from_static(b"\x00\xffbytes");
        let stored = StoredResponse::new(StatusCode::CREATED, &headers(), &StoredFields::default(), body.clone(), 100);
        assert_eq!(StoredResponse::decode(&stored.encode()).as_ref(), Some(&stored));
        let replay = StoredResponse::decode(&stored.encode()).unwrap().replay(107, Some(8)).unwrap();
        assert_eq!(replay.status(), 201);
        let mut expected = headers();
        expected.remove(header::SET_COOKIE);
        expected.insert(REPLAYED, HeaderValue::from_static("true"));
        expected.insert(header::AGE, HeaderValue::from_static("7"));
        assert_eq!(replay.headers(), &expected);
        assert_eq!(replay.into_body().collect().await.unwrap().to_bytes(), body);
    }

    #[test]
    fn an_encrypted_response_shows_no_more_than_a_tombstone_without_its_key() {
        let (keys, attempt) = (encryption::keys(&[("k", &"0f".repeat(32))]), encryption::attempt());
        let owner = Owner { global_id: "c72034d8c477e40bda98523df450ed90".parse().unwrap(), attempt: &attempt };
        let body = Bytes::from_static(b"a\nprivate\xff");
        let stored = StoredResponse::new(StatusCode::CREATED, &headers(), &StoredFields::default(), body, 100);
        let encoded = stored.clone().seal(&keys, owner).encode();
        assert!(!encoded.contains("x-twice") && !encoded.contains(&STANDARD.encode("private")), "{encoded}");
        let read = || StoredResponse::decode(&encoded).unwrap();
        assert_eq!(read().open(&keys, owner), stored);
        let without = read().open(&EncryptionKeys::default(), owner);
        assert!(without.replay(100, None).is_none());
        assert_eq!((without.status(), without.headers().len()), (StatusCode::CREATED, 1));
        assert_eq!(stored.clone().seal(&EncryptionKeys::default(), owner), stored, "no key: clear text");
        assert_eq!(stored.clone().open(&keys, owner), stored, "stored before there was a key");
    }

    #[tokio::test]
    async fn fields_that_follow_the_body_are_replayed_after_it() {
        let (keys, attempt) = (encryption::keys(&[("k", &"0f".repeat(32))]), encryption::attempt());
        let owner = Owner { global_id: "c72034d8c477e40bda98523df450ed90".parse().unwrap(), attempt: &attempt };
        let (stored, trailers) = (
            StoredResponse::new(StatusCode::OK, &headers(), &StoredFields::default(), Bytes::from_static(b"body"), 100),
            headers(),
        );
        let plain = stored.clone().with_trailers(&trailers, &without_location());
        let sealed = plain.clone().seal(&keys, owner).open(&keys, owner);
        for stored in [plain, sealed] {
            let replay = StoredResponse::decode(&stored.encode()).unwrap().replay(100, None).unwrap();
            let body = replay.into_body().collect().await.unwrap();
            let mut expected = headers();
            expected.remove(header::SET_COOKIE);
            expected.remove(header::LOCATION);
            assert_eq!(body.trailers(), Some(&expected));
            assert_eq!(body.to_bytes(), "body");
        }
        let mut long = HeaderMap::new();
        for _ in 0..40 {
            long.append("x-long", HeaderValue::from_str(&"x".repeat(1000)).unwrap());
        }
        assert!(!stored.with_trailers(&long, &StoredFields::default()).has_body());
    }

    #[test]
    fn a_tombstone_has_no_response_but_says_where_the_effect_is() {
        let stored =
            StoredResponse::decode(&StoredResponse::tombstone(StatusCode::OK, &headers(), 0).encode()).unwrap();
        assert!(stored.replay(0, None).is_none());
        assert_eq!(stored.status(), 200);
        assert_eq!(stored.headers().len(), 1);
        assert_eq!(stored.headers()[header::LOCATION], "/orders/1");
    }

    #[test]
    fn a_response_that_is_forgotten_is_a_tombstone() {
        let stored = StoredResponse::new(
            StatusCode::CREATED,
            &headers(),
            &StoredFields::default(),
            Bytes::from_static(b"private"),
            100,
        );
        let left = forget(&stored.encode()).unwrap();
        assert_eq!(left, StoredResponse::tombstone(StatusCode::CREATED, &headers(), 100).encode());
        assert_eq!(forget(&left), Some(left), "twice is once");
        assert_eq!(forget("{\"v\":2}"), None);
    }

    #[test]
    fn what_is_no_stored_response_is_not_replayed() {
        for wrong in ["", "1", "{}", r#"{"v":2,"status":200,"at":1,"fields":[]}"#, r#"{"v":1,"status":200}"#] {
            assert_eq!(StoredResponse::decode(wrong), None, "{wrong}");
        }
        let torn = StoredResponse::decode(r#"{"v":1,"status":200,"at":0,"fields":[],"body":"="}"#).unwrap();
        assert!(torn.replay(0, None).is_none());
        assert_eq!(torn.status(), 200);
    }

    #[test]
    fn a_response_is_replayed_for_its_time_and_never_with_what_a_route_excludes() {
        let stored = StoredResponse::new(StatusCode::OK, &headers(), &without_location(), Bytes::new(), 100);
        assert!(!stored.headers().contains_key(header::LOCATION));
        assert!(stored.replay(159, Some(60)).is_some());
        assert!(stored.replay(160, Some(60)).is_none());
        assert!(stored.replay(1 << 40, None).is_some());
    }

    #[test]
    fn a_response_with_too_many_bytes_of_fields_leaves_a_tombstone() {
        let mut long = headers();
        for _ in 0..40 {
            long.append("x-long", HeaderValue::from_str(&"x".repeat(1000)).unwrap());
        }
        let stored = StoredResponse::new(StatusCode::OK, &long, &StoredFields::default(), Bytes::new(), 0);
        assert!(!stored.has_body());
        assert_eq!(stored.tombstone_headers().len(), 1);
    }
}
