//! The body of a grant, the most frequent response.

use axum::http::{HeaderValue, StatusCode};
use itoa::Buffer;
use oncegate_core::claim::Mismatch;
use oncegate_core::clock::Timestamp;
use oncegate_core::global_id::GlobalId;
use oncegate_core::hex;
use oncegate_core::observed::WouldBe;
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::record::ClaimState;
use oncegate_gateway::claim::Granted;
use oncegate_web::problem::Code;
use oncegate_web::recent::{Kind, Noted};
use serde::Serialize;

use super::Success;

/// Body of the 201 response to a claim call.
#[derive(Serialize)]
pub struct GrantedBody {
    global_id: GlobalId,
    attempt: String,
    timestamp: u64,
    fence: Option<u64>,
    state: ClaimState,
    repeated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    taken_over: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    would_be: Option<&'static str>,
    claimed_at: Timestamp,
    lease_ms: u64,
    lease_expires_at: Timestamp,
    degraded: Option<OutagePolicy>,
}

/// Body of the 201 response to a claim call that has waited.
#[derive(Serialize)]
pub struct WaitedBody {
    #[serde(flatten)]
    granted: GrantedBody,
    waited_ms: u64,
}

impl Success for WaitedBody {
    fn status(&self) -> StatusCode {
        self.granted.status()
    }

    fn degraded(&self) -> Option<OutagePolicy> {
        self.granted.degraded()
    }

    fn noted(&self) -> Option<Noted> {
        self.granted.noted()
    }
}

impl GrantedBody {
    /// Adds how long the call has waited.
    pub fn waited(self, waited_ms: u64) -> WaitedBody {
        WaitedBody { granted: self, waited_ms }
    }

    /// Returns the path of the granted claim.
    pub fn location(&self) -> HeaderValue {
        const CLAIMS: &[u8] = b"/v1/claims/";
        let text = &mut [0; CLAIMS.len() + 32];
        let (claims, id) = text.split_at_mut(CLAIMS.len());
        claims.copy_from_slice(CLAIMS);
        hex::write_bytes(self.global_id.as_bytes(), id);
        HeaderValue::from_bytes(text).unwrap_or(HeaderValue::from_static("/v1/claims"))
    }
}

impl Success for GrantedBody {
    fn status(&self) -> StatusCode {
        StatusCode::CREATED
    }

    fn degraded(&self) -> Option<OutagePolicy> {
        self.degraded
    }

    fn noted(&self) -> Option<Noted> {
        match (self.degraded, self.would_be) {
            (None, None) => None,
            (Some(policy), _) => Some(Noted::of(Kind::Degraded, policy.name(), self.global_id)),
            (None, Some(code)) => Some(Noted::of(Kind::Observed, code, self.global_id)),
        }
    }

    /// Appends the same text as its `Serialize`, from parts. It is the most frequent response, and none of its fields needs an
    /// escape, which a serializer would look for in each character.
    fn write(&self, text: &mut Vec<u8>) -> serde_json::Result<()> {
        let (mut timestamp, mut lease_ms, mut fence) = (Buffer::new(), Buffer::new(), Buffer::new());
        let (mut global_id, mut claimed_at, mut lease_expires_at) = ([0; 32], [0; _], [0; _]);
        let (quoted_would_be, would_be) = self.would_be.map_or(("", ""), |code| (",\"would_be\":\"", code));
        let degraded = self.degraded.map(OutagePolicy::name);
        let parts: [&[u8]; _] = [
            b"{\"global_id\":\"",
            hex::write_bytes(self.global_id.as_bytes(), &mut global_id),
            b"\",\"attempt\":\"",
            self.attempt.as_bytes(),
            b"\",\"timestamp\":",
            timestamp.format(self.timestamp).as_bytes(),
            b",\"fence\":",
            self.fence.map_or("null", |number| fence.format(number)).as_bytes(),
            b",\"state\":\"",
            self.state.name().as_bytes(),
            if self.repeated { b"\",\"repeated\":true" } else { b"\",\"repeated\":false" },
            if self.taken_over == Some(true) { b",\"taken_over\":true" } else { b"" },
            quoted_would_be.as_bytes(),
            would_be.as_bytes(),
            if would_be.is_empty() { b"" } else { b"\"" },
            b",\"claimed_at\":\"",
            self.claimed_at.write(&mut claimed_at),
            b"\",\"lease_ms\":",
            lease_ms.format(self.lease_ms).as_bytes(),
            b",\"lease_expires_at\":\"",
            self.lease_expires_at.write(&mut lease_expires_at),
            if degraded.is_some() { b"\",\"degraded\":\"" } else { b"\",\"degraded\":null}" },
            degraded.unwrap_or_default().as_bytes(),
            if degraded.is_some() { b"\"}" } else { b"" },
        ];
        for part in parts {
            text.extend_from_slice(part);
        }
        Ok(())
    }
}

impl GrantedBody {
    /// Returns the body of a grant, by the store or by this policy.
    pub(super) fn new(granted: &Granted, degraded: Option<OutagePolicy>) -> Self {
        let timestamp = granted.attempt.timestamp();
        Self {
            global_id: granted.global_id,
            attempt: granted.attempt.text(),
            timestamp: timestamp.as_micros(),
            fence: granted.fence,
            state: ClaimState::InProgress,
            repeated: granted.repeated,
            taken_over: granted.taken_over.then_some(true),
            would_be: granted.would_be.map(would_be),
            claimed_at: timestamp,
            lease_ms: granted.lease_ms,
            lease_expires_at: granted.lease_expires_at,
            degraded,
        }
    }
}

/// Returns the code that the mode `enforce` would have answered.
fn would_be(would_be: WouldBe) -> &'static str {
    match would_be {
        WouldBe::Duplicate(_) => Code::Duplicate.name(),
        WouldBe::Mismatch(Mismatch::Contents) => Code::ContentsMismatch.name(),
        WouldBe::Mismatch(Mismatch::Fingerprint) => Code::FingerprintMismatch.name(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_grant_is_written_as_its_fields_say() {
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let plain = GrantedBody {
            global_id: GlobalId::from_bytes([7; 16]),
            attempt: "1700000000000000-0123456789abcdef".into(),
            timestamp: now.as_micros(),
            fence: None,
            state: ClaimState::InProgress,
            repeated: false,
            taken_over: None,
            would_be: None,
            claimed_at: now,
            lease_ms: 30_000,
            lease_expires_at: now.plus(Duration::from_millis(1_250)),
            degraded: None,
        };
        let full = GrantedBody {
            attempt: plain.attempt.clone(),
            fence: Some(u64::MAX),
            repeated: true,
            taken_over: Some(true),
            would_be: Some("duplicate"),
            degraded: Some(OutagePolicy::FailOpen),
            ..plain
        };
        for body in [plain, full] {
            let mut text = Vec::new();
            body.write(&mut text).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), serde_json::to_string(&body).unwrap());
            let waited = serde_json::to_value(body.waited(7)).unwrap();
            assert_eq!(waited["waited_ms"], 7);
        }
    }
}
