//! The ID of a request, which its response and the log lines about it carry.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use oncegate_core::attempt::Entropy;
use oncegate_core::hex;

/// The header that carries it, in both directions.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The ID of a request: the caller's own, or a random one.
#[derive(Clone, Debug)]
pub struct RequestId(pub(super) HeaderValue);

impl RequestId {
    /// Returns its text.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or("")
    }

    /// Returns the caller's own ID if it is well-formed, else a random one.
    pub fn of(headers: &HeaderMap, entropy: &dyn Entropy) -> Self {
        let is_valid = |value: &&HeaderValue| {
            let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
            (1..=64).contains(&value.len()) && value.as_bytes().iter().all(allowed)
        };
        headers.get(REQUEST_ID).filter(is_valid).map_or_else(|| Self::random(entropy), |own| Self(own.clone()))
    }

    /// Returns a random ID.
    pub fn random(entropy: &dyn Entropy) -> Self {
        let text = &mut [0; 16];
        hex::write(&entropy.bits().to_be_bytes(), text);
        Self(HeaderValue::from_bytes(text).unwrap_or(HeaderValue::from_static("")))
    }
}
