//! The stored form of a response: JSON, kept as the result of its claim. A tombstone replaces a response that was not
//! stored. With encryption all of both is encrypted, and nothing else is believed.

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

use super::encryption::{EncryptionKeys, Owner};
use super::fields::{self, REPLAYED, StoredFields};

/// Version of the stored form. A reader refuses others.
const VERSION: u8 = 1;

/// Bytes of all fields of a response that is stored, and of a field of a tombstone.
const FIELDS_BYTES_MAX: usize = 32 << 10;

/// First character of the names of trailers.
const TRAILER: char = ':';

/// Fields that are left in a tombstone.
static TOMBSTONE_FIELDS: [HeaderName; 2] = [header::LOCATION, header::ETAG];

/// Stored form of an empty tombstone: it cannot be read as a response.
const UNREADABLE: &str = "{\"v\":1}";

/// Returns the stored form of the tombstone of a stored response. An unreadable one is erased as a whole.
pub(super) fn forget(result: &str, keys: &EncryptionKeys, owner: Owner<'_>) -> Box<str> {
    let Some(stored) = StoredResponse::read(result, keys, owner) else { return UNREADABLE.into() };
    let fields = stored.fields.into_iter().filter(|(name, _)| is_tombstones(name)).collect();
    StoredResponse { fields, body: None, ..stored }.write(keys, owner)
}

/// A response that is stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct StoredResponse {
    /// Version of this form.
    v: u8,
    status: u16,
    /// Seconds since the epoch at which it was complete.
    at: u64,
    /// Names and values in order. Each character of a value is one byte. Names of trailers begin with a colon.
    fields: Vec<(String, String)>,
    /// The body, stored in Base64; `None` in a tombstone. [`StoredResponse::encode`] writes it.
    #[serde(default, skip_serializing, deserialize_with = "from_base64")]
    body: Option<Bytes>,
}

impl StoredResponse {
    /// Returns the stored form of a response to a caller; a tombstone if its fields are too long.
    pub(super) fn new(status: StatusCode, headers: &HeaderMap, stored: &StoredFields, body: Bytes, at: u64) -> Self {
        let Some(kept) = kept(headers, stored) else { return Self::tombstone(status, headers, stored, at) };
        let fields = kept.map(|(name, value)| (name.as_str().to_owned(), latin1(value))).collect();
        Self { v: VERSION, status: status.as_u16(), at, fields, body: Some(body) }
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

    /// Returns the tombstone of a response that is not stored: its status, and the place of its effect.
    pub(super) fn tombstone(status: StatusCode, headers: &HeaderMap, stored: &StoredFields, at: u64) -> Self {
        let value = |name| first(headers, stored, name).filter(|value| value.len() <= FIELDS_BYTES_MAX);
        let kept = TOMBSTONE_FIELDS.iter().filter_map(|name| Some((name.as_str().to_owned(), latin1(value(name)?))));
        Self { v: VERSION, status: status.as_u16(), at, fields: kept.collect(), body: None }
    }

    /// Reports whether this is more than a tombstone.
    pub(super) fn has_body(&self) -> bool {
        self.body.is_some()
    }

    /// Returns the stored form: encrypted, if there are keys.
    pub(super) fn write(&self, keys: &EncryptionKeys, owner: Owner<'_>) -> Box<str> {
        if keys.is_empty() {
            return self.encode();
        }
        let mut plain = serde_json::to_vec(self).unwrap_or_default();
        if let Some(body) = &self.body {
            plain.push(b'\n');
            plain.extend_from_slice(body);
        }
        let sealed = keys.seal(owner, plain).and_then(|sealed| serde_json::to_string(&sealed).ok());
        sealed.map_or_else(|| UNREADABLE.into(), String::into)
    }

    /// Reads the stored form. `None` if it is none, that of another version, or was not written with one of these keys.
    pub(super) fn read(result: &str, keys: &EncryptionKeys, owner: Owner<'_>) -> Option<Self> {
        if keys.is_empty() {
            return Self::decode(result);
        }
        let plain = keys.open(owner, &serde_json::from_str(result).ok()?)?;
        // JSON in one line: the first line feed ends it, and the body follows.
        let end = plain.iter().position(|byte| *byte == b'\n');
        let stored: Self = serde_json::from_slice(&plain[..end.unwrap_or(plain.len())]).ok()?;
        let body = end.map(|end| Bytes::from(plain).slice(end + 1..));
        Some(Self { body, ..stored }).filter(|stored| stored.v == VERSION)
    }

    fn encode(&self) -> Box<str> {
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

    fn decode(result: &str) -> Option<Self> {
        serde_json::from_str(result).ok().filter(|stored: &Self| stored.v == VERSION)
    }

    /// Returns the response for a repeat at this time; `None` if this is a tombstone, or older than `age_max` seconds.
    /// Its fields are filtered like those of an upstream: the store is not trusted more, and the stored fields of the
    /// route may have changed.
    pub(super) fn replay(&self, now: u64, age_max: Option<u64>, stored: &StoredFields) -> Option<Response> {
        let age = now.saturating_sub(self.at);
        if age_max.is_some_and(|max| age >= max) {
            return None;
        }
        let body = self.body.clone()?;
        let trailers =
            headers(self.fields.iter().filter_map(|(name, value)| Some((name.strip_prefix(TRAILER)?, value))));
        let trailers = fields::replayed(trailers, stored);
        let body = if trailers.is_empty() {
            Body::from(body)
        } else {
            // A body of known length has no trailers.
            let frames = [Ok::<_, Infallible>(Frame::data(body)), Ok(Frame::trailers(trailers))];
            Body::new(StreamBody::new(stream::iter(frames)))
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status();
        *response.headers_mut() = fields::replayed(self.headers(), stored);
        let fields = response.headers_mut();
        fields.insert(REPLAYED, HeaderValue::from_static("true"));
        let earlier = fields.get(header::AGE).and_then(|age| age.to_str().ok()?.parse::<u64>().ok()).unwrap_or(0);
        fields.insert(header::AGE, HeaderValue::from(age.saturating_add(earlier)));
        Some(response)
    }

    pub(super) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Returns the fields that name the place of the effect.
    pub(super) fn tombstone_headers(&self, stored: &StoredFields) -> HeaderMap {
        let headers = self.headers();
        TOMBSTONE_FIELDS
            .iter()
            .filter_map(|name| Some((name.clone(), first(&headers, stored, name)?.clone())))
            .collect()
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

/// Returns stored fields. Invalid ones are left out.
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

/// Returns the first value of a field; `None` if it is not one of those that the route stores.
fn first<'h>(headers: &'h HeaderMap, stored: &StoredFields, name: &HeaderName) -> Option<&'h HeaderValue> {
    stored.of(headers).find_map(|(field, value)| (field == name).then_some(value))
}

fn is_tombstones(name: &str) -> bool {
    TOMBSTONE_FIELDS.iter().any(|kept| kept == name)
}

/// Returns the bytes of a value, one character each.
fn latin1(value: &HeaderValue) -> String {
    let bytes = || value.as_bytes().iter().map(|byte| char::from(*byte)).collect();
    value.to_str().map_or_else(|_| bytes(), str::to_owned)
}

/// Reads a body. A body that is not Base64 is that of a tombstone.
fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.and_then(|text| STANDARD.decode(text).ok()).map(Bytes::from))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::encryption::tests as encryption;

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
        let replay =
            StoredResponse::decode(&stored.encode()).unwrap().replay(107, Some(8), &StoredFields::default()).unwrap();
        assert_eq!(replay.status(), 201);
        let mut expected = headers();
        expected.remove(header::SET_COOKIE);
        expected.insert(REPLAYED, HeaderValue::from_static("true"));
        expected.insert(header::AGE, HeaderValue::from_static("7"));
        assert_eq!(replay.headers(), &expected);
        assert_eq!(replay.into_body().collect().await.unwrap().to_bytes(), body);
    }

    #[test]
    fn with_keys_only_what_was_encrypted_for_this_claim_is_believed() {
        let (keys, attempt) = (encryption::keys(&[("k", &"0f".repeat(32))]), encryption::attempt());
        let owner = Owner { global_id: "c72034d8c477e40bda98523df450ed90".parse().unwrap(), attempt: &attempt };
        let body = Bytes::from_static(b"a\nprivate\xff");
        let stored = StoredResponse::new(StatusCode::CREATED, &headers(), &StoredFields::default(), body, 100);
        let tombstone = StoredResponse::tombstone(StatusCode::CREATED, &headers(), &StoredFields::default(), 100);
        for stored in [stored, tombstone] {
            let written = stored.write(&keys, owner);
            // Short texts are looked for by where they would stand: ciphertext has any three characters at times.
            let record: serde_json::Value = serde_json::from_str(&written).unwrap();
            let members: Vec<_> = record.as_object().unwrap().keys().collect();
            assert_eq!(members, ["key", "sealed", "v"], "no member in clear: {written}");
            let sealed = STANDARD.decode(record["sealed"].as_str().unwrap()).unwrap();
            for shown in ["x-twice", "/orders/1", "location", &STANDARD.encode("private")] {
                assert!(!sealed.windows(shown.len()).any(|part| part == shown.as_bytes()), "{shown}: {written}");
            }
            assert_eq!(StoredResponse::read(&written, &keys, owner).as_ref(), Some(&stored));
            let none = EncryptionKeys::default();
            assert_eq!(StoredResponse::read(&written, &none, owner), None, "the key is missing");
            let clear = stored.write(&none, owner);
            assert_eq!(StoredResponse::read(&clear, &none, owner).as_ref(), Some(&stored));
            assert_eq!(StoredResponse::read(&clear, &keys, owner), None, "anyone could have written it");
            // Neither the parts of a clear record next to an encrypted one, nor the record of another claim.
            let mixed = format!("{},{}", &clear[..clear.len() - 1], &written[1..]);
            assert_eq!(StoredResponse::read(&mixed, &keys, owner), None, "{mixed}");
            let other = Owner { global_id: "d72034d8c477e40bda98523df450ed90".parse().unwrap(), ..owner };
            assert_eq!(StoredResponse::read(&written, &keys, other), None);
        }
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
        for keys in [EncryptionKeys::default(), keys] {
            let read = StoredResponse::read(&plain.write(&keys, owner), &keys, owner).unwrap();
            let replay = read.replay(100, None, &StoredFields::default()).unwrap();
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
        let all = StoredFields::default();
        let stored = StoredResponse::tombstone(StatusCode::OK, &headers(), &all, 0).encode();
        let stored = StoredResponse::decode(&stored).unwrap();
        assert!(stored.replay(0, None, &all).is_none());
        assert_eq!(stored.status(), 200);
        assert_eq!(stored.headers().len(), 1);
        assert_eq!(stored.headers()[header::LOCATION], "/orders/1");
    }

    #[test]
    fn a_tombstone_has_no_field_that_its_route_does_not_store() {
        let (all, fewer) = (StoredFields::default(), StoredFields::new(&[], &["Location".into()]).unwrap());
        let stored = StoredResponse::new(StatusCode::OK, &headers(), &all, Bytes::new(), 0);
        assert_eq!(stored.tombstone_headers(&all).len(), 1);
        assert!(stored.tombstone_headers(&fewer).is_empty(), "not any more");
        let mut long = headers();
        long.append("x-long", HeaderValue::from_str(&"x".repeat(40_000)).unwrap());
        for response in [
            StoredResponse::tombstone(StatusCode::OK, &headers(), &fewer, 0),
            StoredResponse::new(StatusCode::OK, &long, &fewer, Bytes::new(), 0),
            StoredResponse::new(StatusCode::OK, &headers(), &fewer, Bytes::new(), 0).with_trailers(&long, &fewer),
        ] {
            assert!(!response.has_body() && response.headers().is_empty(), "{response:?}");
        }
    }

    #[test]
    fn a_response_that_is_forgotten_is_a_tombstone() {
        let attempt = encryption::attempt();
        let owner = Owner { global_id: "c72034d8c477e40bda98523df450ed90".parse().unwrap(), attempt: &attempt };
        let body = Bytes::from_static(b"private");
        let stored = StoredResponse::new(StatusCode::CREATED, &headers(), &StoredFields::default(), body, 100);
        let tombstone = StoredResponse::tombstone(StatusCode::CREATED, &headers(), &StoredFields::default(), 100);
        let (clear, keys) = (EncryptionKeys::default(), encryption::keys(&[("k", &"0f".repeat(32))]));
        for keys in [&clear, &keys] {
            let left = forget(&stored.write(keys, owner), keys, owner);
            assert_eq!(StoredResponse::read(&left, keys, owner).as_ref(), Some(&tombstone));
            assert!(left.len() < 300, "nothing of the body is kept: {left}");
            let again = forget(&left, keys, owner);
            assert_eq!(StoredResponse::read(&again, keys, owner).as_ref(), Some(&tombstone), "twice is once");
        }
        // Without its key no part of it can be kept.
        assert_eq!(&*forget(&stored.write(&keys, owner), &clear, owner), UNREADABLE);
        assert_eq!(&*forget(&stored.write(&clear, owner), &keys, owner), UNREADABLE);
        assert_eq!(StoredResponse::decode(UNREADABLE), None);
    }

    #[test]
    fn a_replay_has_only_fields_that_an_upstream_may_send() {
        let planted = [
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("content-length", "999"),
            ("keep-alive", "1"),
            ("upgrade", "h2c"),
            ("proxy-authenticate", "Basic"),
            ("set-cookie", "sid=attacker"),
            ("oncegate-degraded", "local"),
            ("idempotent-replayed", "false"),
            ("x-kept", "1"),
            (":oncegate-outcome", "success"),
            (":set-cookie", "sid=attacker"),
            (":idempotent-replayed", "false"),
            (":x-end", "1"),
        ];
        let fields = planted.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let body = Some(Bytes::from_static(b"body"));
        let stored = StoredResponse { v: VERSION, status: 200, at: 100, fields, body };
        let names = |headers: &HeaderMap| {
            let mut names: Vec<_> = headers.keys().map(ToString::to_string).collect();
            names.sort_unstable();
            names
        };
        let with_cookies = StoredFields::new(&["Set-Cookie".to_owned()], &[]).unwrap();
        for (route, expected) in [
            (&StoredFields::default(), &["age", "idempotent-replayed", "x-kept"][..]),
            (&with_cookies, &["age", "idempotent-replayed", "set-cookie", "x-kept"]),
        ] {
            let replay = stored.replay(100, None, route).unwrap();
            assert_eq!(names(replay.headers()), expected);
            assert_eq!(replay.headers()[REPLAYED], "true");
        }
    }

    #[test]
    fn what_is_no_stored_response_is_not_replayed() {
        for wrong in ["", "1", "{}", r#"{"v":2,"status":200,"at":1,"fields":[]}"#, r#"{"v":1,"status":200}"#] {
            assert_eq!(StoredResponse::decode(wrong), None, "{wrong}");
        }
        let torn = StoredResponse::decode(r#"{"v":1,"status":200,"at":0,"fields":[],"body":"="}"#).unwrap();
        assert!(torn.replay(0, None, &StoredFields::default()).is_none());
        assert_eq!(torn.status(), 200);
    }

    #[test]
    fn a_response_is_replayed_for_its_time_and_never_with_what_a_route_excludes() {
        let stored = StoredResponse::new(StatusCode::OK, &headers(), &without_location(), Bytes::new(), 100);
        assert!(!stored.headers().contains_key(header::LOCATION));
        let replay = |now, age_max| stored.replay(now, age_max, &StoredFields::default());
        assert!(replay(159, Some(60)).is_some());
        assert!(replay(160, Some(60)).is_none());
        assert!(replay(1 << 40, None).is_some());
    }

    #[test]
    fn a_response_with_too_many_bytes_of_fields_leaves_a_tombstone() {
        let mut long = headers();
        for _ in 0..40 {
            long.append("x-long", HeaderValue::from_str(&"x".repeat(1000)).unwrap());
        }
        let stored = StoredResponse::new(StatusCode::OK, &long, &StoredFields::default(), Bytes::new(), 0);
        assert!(!stored.has_body());
        assert_eq!(stored.tombstone_headers(&StoredFields::default()).len(), 1);
    }
}
