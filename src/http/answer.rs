//! The bodies of answers, as `openapi.yaml` describes them, made from what the gateway says.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode};
use itoa::Buffer;
use serde::Serialize;
use serde_json::value::RawValue;

use super::problem::{Code, Members, Problem};
use crate::domain::attempt::AttemptHash;
use crate::domain::claim::{Mismatch, Renewed, Settled};
use crate::domain::clock::Timestamp;
use crate::domain::degraded::Degraded;
use crate::domain::global_id::GlobalId;
use crate::domain::hex;
use crate::domain::observed::WouldBe;
use crate::domain::record::{Contents, State};
use crate::domain::terms::{LeaseEnd, Retention};
use crate::gateway::claim::{ClaimAnswer, Granted};
use crate::gateway::outcome::Reported;
use crate::gateway::{Inspected, RenewalAnswer};

/// How long to wait before asking again for an operation that is in progress: most end long before their lease.
const POLL: Duration = Duration::from_secs(1);

/// Where an outcome stands that is to be delivered.
const SPOOLED: &str = "spooled";

/// The body of a success, by which its head is written too.
pub trait Success: Serialize {
    /// Its status.
    fn status(&self) -> StatusCode;

    /// The policy that answers in place of the store.
    fn degraded(&self) -> Option<Degraded>;

    /// Adds its JSON text.
    ///
    /// # Errors
    /// It has none.
    fn write(&self, text: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(text, self)
    }
}

/// 201 to a PRE.
#[derive(Serialize)]
pub struct GrantedBody {
    global_id: GlobalId,
    attempt: String,
    timestamp: u64,
    fence: Option<u64>,
    state: State,
    repeated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    taken_over: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    would_be: Option<&'static str>,
    claimed_at: Timestamp,
    lease_ms: u64,
    lease_expires_at: Timestamp,
    degraded: Option<Degraded>,
}

impl GrantedBody {
    /// Where the claim that was granted can be looked up.
    pub fn location(&self) -> HeaderValue {
        const CLAIMS: &[u8] = b"/v1/claims/";
        let text = &mut [0; CLAIMS.len() + 32];
        let (claims, id) = text.split_at_mut(CLAIMS.len());
        claims.copy_from_slice(CLAIMS);
        hex::write(self.global_id.as_bytes(), id);
        HeaderValue::from_bytes(text).unwrap_or(HeaderValue::from_static("/v1/claims"))
    }
}

/// What a duplicate is told of the claim that stands.
#[derive(Clone, Serialize)]
pub struct DuplicateMembers {
    global_id: GlobalId,
    state: State,
    timestamp: u64,
    attempt_hash: AttemptHash,
    claimed_at: Timestamp,
    expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_omitted: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    contents_verified: Option<bool>,
}

impl DuplicateMembers {
    /// Leaves the result out, and says so; returns how many bytes that saves.
    pub fn omit_result(&mut self) -> usize {
        let saved = self.result.take().map_or(0, |result| result.get().len());
        self.result_omitted = (saved > 0).then_some(true).or(self.result_omitted);
        saved
    }

    /// How many bytes the result takes.
    pub fn result_bytes(&self) -> usize {
        self.result.as_ref().map_or(0, |result| result.get().len())
    }
}

/// 200 to a POST.
#[derive(Debug, Serialize)]
pub struct OutcomeBody {
    global_id: GlobalId,
    state: &'static str,
    expires_at: Option<Timestamp>,
    late: Option<bool>,
    degraded: Option<Degraded>,
}

/// 200 to a renewal.
#[derive(Debug, Serialize)]
pub struct RenewalBody {
    global_id: GlobalId,
    lease_ms: u64,
    lease_expires_at: Option<Timestamp>,
    degraded: Option<Degraded>,
}

/// 200 to a lookup.
#[derive(Debug, Serialize)]
pub struct RecordBody {
    global_id: GlobalId,
    operation: Option<String>,
    state: State,
    timestamp: u64,
    attempt_hash: AttemptHash,
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

impl Success for GrantedBody {
    fn status(&self) -> StatusCode {
        StatusCode::CREATED
    }

    fn degraded(&self) -> Option<Degraded> {
        self.degraded
    }

    /// The same text as by its `Serialize`, put together as it reads: it is the answer that is given most, and no field of it
    /// needs an escape, which a serialiser would look for letter by letter.
    fn write(&self, text: &mut Vec<u8>) -> serde_json::Result<()> {
        let (mut timestamp, mut lease_ms, mut fence) = (Buffer::new(), Buffer::new(), Buffer::new());
        let (mut global_id, mut claimed_at, mut lease_expires_at) = ([0; 32], [0; _], [0; _]);
        let (quoted_would_be, would_be) = self.would_be.map_or(("", ""), |code| (",\"would_be\":\"", code));
        let degraded = self.degraded.map(Degraded::name);
        let parts = [
            "{\"global_id\":\"",
            hex::write(self.global_id.as_bytes(), &mut global_id),
            "\",\"attempt\":\"",
            &self.attempt,
            "\",\"timestamp\":",
            timestamp.format(self.timestamp),
            ",\"fence\":",
            self.fence.map_or("null", |number| fence.format(number)),
            ",\"state\":\"",
            self.state.name(),
            if self.repeated { "\",\"repeated\":true" } else { "\",\"repeated\":false" },
            if self.taken_over == Some(true) { ",\"taken_over\":true" } else { "" },
            quoted_would_be,
            would_be,
            if would_be.is_empty() { "" } else { "\"" },
            ",\"claimed_at\":\"",
            self.claimed_at.write(&mut claimed_at),
            "\",\"lease_ms\":",
            lease_ms.format(self.lease_ms),
            ",\"lease_expires_at\":\"",
            self.lease_expires_at.write(&mut lease_expires_at),
            if degraded.is_some() { "\",\"degraded\":\"" } else { "\",\"degraded\":null}" },
            degraded.unwrap_or_default(),
            if degraded.is_some() { "\"}" } else { "" },
        ];
        parts.into_iter().for_each(|part| text.extend_from_slice(part.as_bytes()));
        Ok(())
    }
}

impl Success for OutcomeBody {
    fn status(&self) -> StatusCode {
        if self.state == SPOOLED { StatusCode::ACCEPTED } else { StatusCode::OK }
    }

    fn degraded(&self) -> Option<Degraded> {
        self.degraded
    }
}

impl Success for RenewalBody {
    fn status(&self) -> StatusCode {
        StatusCode::OK
    }

    fn degraded(&self) -> Option<Degraded> {
        self.degraded
    }
}

/// The answer to a PRE.
///
/// # Errors
/// The problem, if it was not granted.
pub fn granted(answer: ClaimAnswer) -> Result<GrantedBody, Problem> {
    match answer {
        ClaimAnswer::Granted(granted) => Ok(GrantedBody::from(granted)),
        ClaimAnswer::Duplicate(found) => Err(duplicate(found)),
        ClaimAnswer::Mismatch(mismatch, degraded) => Err(Problem { degraded, ..mismatched(mismatch) }),
    }
}

fn mismatched(mismatch: Mismatch) -> Problem {
    match mismatch {
        Mismatch::Contents => Problem::new(
            Code::ContentsMismatch,
            "A claim with this global ID but other contents stands; nothing was changed. Never retry this: look at how \
             the contents are made.",
        ),
        Mismatch::Fingerprint => Problem::new(
            Code::FingerprintMismatch,
            "The same operation was claimed with another fingerprint; nothing was changed. Two different requests use \
             the same contents, or one was altered on the way.",
        ),
    }
}

impl From<Granted> for GrantedBody {
    fn from(granted: Granted) -> Self {
        let timestamp = granted.attempt.timestamp();
        Self {
            global_id: granted.global_id,
            attempt: granted.attempt.text(),
            timestamp: timestamp.as_micros(),
            fence: granted.fence,
            state: State::InProgress,
            repeated: granted.repeated,
            taken_over: granted.taken_over.then_some(true),
            would_be: granted.would_be.map(would_be),
            claimed_at: timestamp,
            lease_ms: granted.lease_ms,
            lease_expires_at: granted.lease_expires_at,
            degraded: granted.degraded,
        }
    }
}

/// How a holder is told what enforcing would have answered: by its code.
fn would_be(would_be: WouldBe) -> &'static str {
    match would_be {
        WouldBe::Duplicate(_) => Code::Duplicate.name(),
        WouldBe::Mismatch(Mismatch::Contents) => Code::ContentsMismatch.name(),
        WouldBe::Mismatch(Mismatch::Fingerprint) => Code::FingerprintMismatch.name(),
    }
}

fn duplicate(found: Inspected) -> Problem {
    let Inspected { global_id, held, expires_at, degraded } = found;
    let record = held.record;
    let detail = match record.state {
        State::InProgress => {
            "Another attempt is doing this operation. Wait for its outcome: ask again after Retry-After, or answer that it \
             is being done."
        }
        State::Succeeded => "This operation has been done. Do not do it again; `result` is what was reported with it.",
        State::Unknown => {
            "Nobody knows whether this operation was done. Look its effect up, then claim it with take_over: true."
        }
    };
    let wait = held.left.unwrap_or(POLL).min(POLL);
    let retry_after = (record.state == State::InProgress).then_some(wait);
    let members = DuplicateMembers {
        global_id,
        state: record.state,
        timestamp: record.attempt.timestamp().as_micros(),
        attempt_hash: record.attempt.hash(),
        claimed_at: record.attempt.timestamp(),
        expires_at,
        result: record.result.and_then(raw),
        result_omitted: None,
        contents_verified: (record.contents == Contents::Unverified).then_some(false),
    };
    let members = Members::Duplicate(Box::new(members));
    Problem { retry_after, members, degraded, ..Problem::new(Code::Duplicate, detail) }
}

/// The answer to a POST.
///
/// # Errors
/// The problem, if the outcome was not taken.
pub fn reported(answer: &Reported) -> Result<OutcomeBody, Problem> {
    let (global_id, settled, expires_at, degraded) = match *answer {
        Reported::Settled { global_id, ref settled, expires_at, degraded } => {
            (global_id, settled, expires_at, degraded)
        }
        Reported::Observed { global_id } => {
            let late = None;
            return Ok(OutcomeBody { global_id, state: "observed", expires_at: None, late, degraded: None });
        }
    };
    let problem = match settled {
        Settled::Spooled | Settled::Degraded(..) => {
            return Ok(OutcomeBody { global_id, state: SPOOLED, expires_at: None, late: None, degraded });
        }
        Settled::Done { state, late, .. } => {
            let state = match state {
                None => "released",
                Some(State::Succeeded) => "succeeded",
                Some(State::Unknown | State::InProgress) => "unknown",
            };
            return Ok(OutcomeBody { global_id, state, expires_at, late: *late, degraded });
        }
        Settled::AlreadySucceeded => already_succeeded(),
        Settled::Superseded { state, left } => superseded(*state, *left),
        Settled::Expired => Problem::new(
            Code::Expired,
            "No claim stands, and this attempt is older than what its outcome would be kept for; nothing was recorded.",
        ),
    };
    Err(Problem { degraded, ..problem })
}

fn already_succeeded() -> Problem {
    Problem::new(
        Code::AlreadySucceeded,
        "This attempt has reported success before, which is never undone; nothing was changed.",
    )
}

fn superseded(state: State, left: Option<Duration>) -> Problem {
    let detail = "Another attempt's claim stands and was not touched: this attempt's lease had ended, or it was taken over. \
                  If this attempt has done its operation, it may have been done twice.";
    let retry_after = (state == State::InProgress).then_some(left.unwrap_or(POLL).min(POLL));
    Problem { retry_after, members: Members::Superseded { state }, ..Problem::new(Code::Superseded, detail) }
}

/// The answer to a renewal.
///
/// # Errors
/// The problem, if nothing was renewed.
pub fn renewed(answer: &RenewalAnswer) -> Result<RenewalBody, Problem> {
    let degraded = answer.degraded;
    let problem = match &answer.renewed {
        Renewed::Renewed { left } => {
            return Ok(RenewalBody {
                global_id: answer.global_id,
                lease_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
                lease_expires_at: answer.expires_at,
                degraded,
            });
        }
        Renewed::LeaseLost | Renewed::Degraded(..) => Problem::new(
            Code::LeaseLost,
            "This attempt holds no claim any more. Stop the operation if you can; if its effect may have happened, report \
             `success` or `unknown`.",
        ),
        Renewed::AlreadySucceeded => already_succeeded(),
        Renewed::Superseded { state, left } => superseded(*state, *left),
    };
    Err(Problem { degraded, ..problem })
}

/// The answer to a lookup.
pub fn record(found: Inspected) -> RecordBody {
    let Inspected { global_id, held, expires_at, degraded: _ } = found;
    let record = held.record;
    let (contents, contents_sha256, contents_bytes) = match &record.contents {
        Contents::Canonical(contents) => (raw(contents.as_str().into()), None, None),
        Contents::Digest(digest, bytes) => (None, Some(hex::encode(digest)), Some(*bytes)),
        Contents::Unverified => (None, None, None),
    };
    RecordBody {
        global_id,
        operation: record.operation.as_ref().map(ToString::to_string),
        state: record.state,
        timestamp: record.attempt.timestamp().as_micros(),
        attempt_hash: record.attempt.hash(),
        claimed_at: record.attempt.timestamp(),
        expires_at,
        fence: held.fence,
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

/// JSON text to be written as it is. It was checked when it came in; what a store gives back garbled is left out.
fn raw(text: Box<str>) -> Option<Box<RawValue>> {
    RawValue::from_string(text.into()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_written_as_its_fields_say() {
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let plain = GrantedBody {
            global_id: GlobalId::from_bytes([7; 16]),
            attempt: "1700000000000000-0123456789abcdef".into(),
            timestamp: now.as_micros(),
            fence: None,
            state: State::InProgress,
            repeated: false,
            taken_over: None,
            would_be: None,
            claimed_at: now,
            lease_ms: 30_000,
            lease_expires_at: now.plus(Duration::from_micros(1_250_000)),
            degraded: None,
        };
        let full = GrantedBody {
            attempt: plain.attempt.clone(),
            fence: Some(u64::MAX),
            repeated: true,
            taken_over: Some(true),
            would_be: Some("duplicate"),
            degraded: Some(Degraded::FailOpen),
            ..plain
        };
        for body in [plain, full] {
            let mut text = Vec::new();
            body.write(&mut text).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), serde_json::to_string(&body).unwrap());
        }
    }
}
