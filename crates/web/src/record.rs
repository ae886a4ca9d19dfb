//! The JSON form of a claim's record, for lookups and for operators.

use oncegate_core::attempt::AttemptHash;
use oncegate_core::caller::Caller;
use oncegate_core::clock::Timestamp;
use oncegate_core::global_id::GlobalId;
use oncegate_core::hex;
use oncegate_core::record::{ClaimState, Contents};
use oncegate_core::terms::{LeaseEnd, Retention};
use oncegate_gateway::ClaimView;
use serde::Serialize;
use serde_json::value::RawValue;

/// Body of the 200 response to a lookup.
#[derive(Debug, Serialize)]
pub struct RecordBody {
    global_id: GlobalId,
    operation: Option<String>,
    state: ClaimState,
    timestamp: u64,
    attempt_hash: AttemptHash,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<Caller>,
    claimed_at: Timestamp,
    expires_at: Option<Timestamp>,
    fence: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    late: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    contents: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    contents_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    contents_bytes: Option<u64>,
    has_fingerprint: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    retention: Retention,
    on_lease_end: LeaseEnd,
}

impl RecordBody {
    /// Removes the data of the operation: contents, their digest, and the result.
    #[must_use]
    pub fn without_contents(self) -> Self {
        Self { contents: None, contents_sha256: None, contents_bytes: None, result: None, ..self }
    }
}

impl From<ClaimView> for RecordBody {
    fn from(found: ClaimView) -> Self {
        let ClaimView { global_id, claim, result_omitted: _ } = found;
        let record = claim.record;
        let (contents, contents_sha256, contents_bytes) = match &record.contents {
            Contents::Canonical(contents) => (raw(contents.as_str().into()), None, None),
            Contents::Digest(digest, bytes) => (None, Some(hex::encode(digest)), Some(*bytes)),
            Contents::Unverified => (None, None, None),
        };
        Self {
            global_id,
            operation: record.operation.as_ref().map(ToString::to_string),
            state: record.state,
            timestamp: record.attempt.timestamp().as_micros(),
            attempt_hash: record.attempt.hash(),
            caller: record.caller,
            claimed_at: record.attempt.timestamp(),
            expires_at: claim.ends_at,
            fence: claim.fence,
            late: record.late,
            contents,
            contents_sha256,
            contents_bytes,
            has_fingerprint: record.fingerprint.is_some(),
            result: record.result.and_then(raw),
            retention: record.terms.retention,
            on_lease_end: record.terms.on_lease_end,
        }
    }
}

/// Returns JSON text to write unchanged. It was checked when it was received; text that a store has damaged is left out.
pub fn raw(text: Box<str>) -> Option<Box<RawValue>> {
    RawValue::from_string(text.into()).ok()
}
