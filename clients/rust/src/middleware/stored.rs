//! The stored form of a response, the same as the gateway's proxy writes. A tombstone replaces a response that was not
//! stored.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AGE, ETAG, HeaderMap, HeaderName, HeaderValue, LOCATION};
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::body::ResponseBody;
use super::fields::{REPLAYED, StoredFields};

/// Version of the stored form. A reader refuses others.
const VERSION: u8 = 1;

/// Fields that are left in a tombstone.
const TOMBSTONE_FIELDS: [HeaderName; 2] = [LOCATION, ETAG];

/// Bytes of the fields of a head, of those of trailers, and of a field of a tombstone.
const FIELDS_BYTES_MAX: usize = 32 << 10;

/// First character of the names of trailers.
const TRAILER: char = ':';

/// A stored response.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(super) struct Stored {
    v: u8,
    status: u16,
    /// Seconds since the epoch at which it was complete.
    at: u64,
    /// Names and values in order. Each character of a value is one byte. Names of trailers begin with a colon.
    fields: Vec<(String, String)>,
    /// In Base64; absent in a tombstone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<String>,
}

impl Stored {
    /// Returns the stored form of a response; `None` if the fields of its head or of its trailers are too long.
    pub(super) fn new(
        status: StatusCode,
        headers: &HeaderMap,
        trailers: &HeaderMap,
        stored: &StoredFields,
        body: &[u8],
    ) -> Option<Self> {
        let heads = kept(headers, stored)?.map(|(name, value)| (name.as_str().to_owned(), latin1(value)));
        let tails = kept(trailers, stored)?.map(|(name, value)| (format!("{TRAILER}{name}"), latin1(value)));
        let fields = heads.chain(tails).collect();
        Some(Self { v: VERSION, status: status.as_u16(), at: now(), fields, body: Some(STANDARD.encode(body)) })
    }

    /// Returns the tombstone of a response that is not stored: its status, and the place of its effect.
    pub(super) fn tombstone(status: StatusCode, headers: &HeaderMap, stored: &StoredFields) -> Self {
        let headers = filtered(headers, stored);
        let kept = TOMBSTONE_FIELDS.iter().filter_map(|name| {
            let value = headers.get(name).filter(|value| value.len() <= FIELDS_BYTES_MAX)?;
            Some((name.as_str().to_owned(), latin1(value)))
        });
        Self { v: VERSION, status: status.as_u16(), at: now(), fields: kept.collect(), body: None }
    }

    pub(super) fn write(&self) -> Option<Box<RawValue>> {
        to_raw_value(self).ok()
    }

    /// Reads the stored form. `None` if it is none, or that of another version.
    pub(super) fn read(text: &RawValue) -> Option<Self> {
        serde_json::from_str(text.get()).ok().filter(|stored: &Self| stored.v == VERSION)
    }

    /// Returns the response for a repeat; `None` if this is a tombstone. Its fields are filtered as those of a handler.
    pub(super) fn replay(&self, stored: &StoredFields) -> Option<Response<ResponseBody>> {
        let body = Bytes::from(STANDARD.decode(self.body.as_ref()?).ok()?);
        let all = self.fields.iter();
        let trailers = headers(all.filter_map(|(name, value)| Some((name.strip_prefix(TRAILER)?, value))));
        let trailers = filtered(&trailers, stored);
        let heads = headers(self.fields.iter().map(|(name, value)| (name.as_str(), value)));
        let mut response = Response::new(ResponseBody::whole(body, Some(trailers).filter(|fields| !fields.is_empty())));
        *response.status_mut() = StatusCode::from_u16(self.status).ok()?;
        *response.headers_mut() = filtered(&heads, stored);
        let fields = response.headers_mut();
        fields.insert(REPLAYED, HeaderValue::from_static("true"));
        let earlier = fields.get(AGE).and_then(|age| age.to_str().ok()?.parse::<u64>().ok()).unwrap_or(0);
        fields.insert(AGE, HeaderValue::from(now().saturating_sub(self.at).saturating_add(earlier)));
        Some(response)
    }

    pub(super) fn status(&self) -> u16 {
        self.status
    }

    /// Returns the fields that name the place of the effect.
    pub(super) fn tombstone_fields(&self, stored: &StoredFields) -> Vec<(HeaderName, HeaderValue)> {
        let all = filtered(&headers(self.fields.iter().map(|(name, value)| (name.as_str(), value))), stored);
        TOMBSTONE_FIELDS.iter().filter_map(|name| Some((name.clone(), all.get(name)?.clone()))).collect()
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

fn filtered(headers: &HeaderMap, stored: &StoredFields) -> HeaderMap {
    let mut kept = HeaderMap::with_capacity(headers.len());
    for (name, value) in stored.of(headers) {
        kept.append(name.clone(), value.clone());
    }
    kept
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

/// Returns the bytes of a value, one character each.
fn latin1(value: &HeaderValue) -> String {
    value.as_bytes().iter().map(|byte| char::from(*byte)).collect()
}

/// Returns the time of the wall clock in seconds.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_has_only_fields_that_a_handler_may_send() {
        let planted = [
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("content-length", "999"),
            ("proxy-authenticate", "Basic"),
            ("set-cookie", "sid=attacker"),
            ("date", "now"),
            ("oncegate-degraded", "local"),
            ("idempotent-replayed", "false"),
            ("x-kept", "1"),
            ("x-bytes", "\u{e4}\u{ff}"),
            (":oncegate-outcome", "success"),
            (":x-end", "1"),
        ];
        let fields = planted.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let stored = Stored { v: VERSION, status: 200, at: now() - 7, fields, body: Some("Ym9keQ==".to_owned()) };
        let replay = stored.replay(&StoredFields::default()).expect("a replay");
        let mut names: Vec<_> = replay.headers().keys().map(ToString::to_string).collect();
        names.sort_unstable();
        assert_eq!(names, ["age", "idempotent-replayed", "x-bytes", "x-kept"]);
        assert_eq!(
            (&replay.headers()["x-bytes"], &replay.headers()[REPLAYED]),
            (&HeaderValue::from_bytes(b"\xe4\xff").expect("bytes"), &HeaderValue::from_static("true"))
        );
    }

    #[test]
    fn the_form_is_that_of_the_proxy() {
        let of_proxy = r#"{"v":1,"status":201,"at":100,"fields":[["link","a"],["link","b"]],"body":"AP8="}"#;
        let read: Stored = serde_json::from_str(of_proxy).expect("a stored response");
        assert_eq!(serde_json::to_string(&read).expect("JSON"), of_proxy);
        for wrong in ["1", "{}", r#"{"v":2,"status":200,"at":1,"fields":[]}"#, r#"{"$oncegate":{"omitted":"refused"}}"#]
        {
            let raw = RawValue::from_string(wrong.to_owned()).expect("JSON");
            assert_eq!(Stored::read(&raw), None, "{wrong}");
        }
        let mut head = HeaderMap::new();
        head.insert(LOCATION, HeaderValue::from_static("/orders/1"));
        head.insert("x-more", HeaderValue::from_static("1"));
        let all = StoredFields::default();
        let tombstone = Stored::tombstone(StatusCode::OK, &head, &all);
        assert!(tombstone.replay(&all).is_none());
        assert_eq!(tombstone.tombstone_fields(&all).len(), 1);
        let fewer = StoredFields { with: Vec::new(), without: vec![LOCATION] };
        assert_eq!(tombstone.tombstone_fields(&fewer), []);
        assert_eq!(Stored::tombstone(StatusCode::OK, &head, &fewer).tombstone_fields(&all), []);
    }
}
