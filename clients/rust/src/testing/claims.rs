//! Claims of the gateway in memory.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Answer, Now, duration, problem};
use crate::contents::Contents;
use crate::identity::{canonical, global_id_of};
use crate::state::State;

const LEASE: Duration = Duration::from_secs(30);
const RETENTION: Duration = Duration::from_secs(86_400);
const UNKNOWN: Duration = Duration::from_secs(7 * 86_400);
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A claim, as a test looks at it.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// Global ID of the operation.
    pub global_id: String,
    /// Operation.
    pub operation: String,
    /// Contents.
    pub contents: Value,
    /// In progress, succeeded or unknown.
    pub state: State,
    /// Result of a success.
    pub result: Option<Value>,
}

#[derive(Default)]
pub(super) struct Claims {
    records: HashMap<String, Record>,
    /// Number of grants.
    grants: i64,
}

struct Record {
    claim: Claim,
    attempt: String,
    nonce: String,
    fence: i64,
    fingerprint: Option<Value>,
    claimed_at: String,
    /// End of the lease or of the record.
    ends: Instant,
    lease: Duration,
    retention: Duration,
    is_unknown_at_end: bool,
}

impl Claims {
    pub(super) fn all(&mut self, now: Now) -> Vec<Claim> {
        self.expire(now);
        let mut records: Vec<_> = self.records.values().collect();
        records.sort_by_key(|record| record.fence);
        records.into_iter().map(|record| record.claim.clone()).collect()
    }

    pub(super) fn claim(&mut self, app: &str, request: &Value, now: Now) -> Answer {
        self.expire(now);
        let operation = request["operation"].as_str().unwrap_or_default();
        let contents = &request["contents"];
        let Ok(text) = canonical(&Contents::json(contents.to_string())) else {
            return problem(422, "contents_not_canonical", json!({}));
        };
        let id = global_id_of(app, operation, &text);
        let nonce = request["attempt_nonce"].as_str().unwrap_or_default();
        let fingerprint = request.get("fingerprint").cloned();
        let mut taken_over = false;
        if let Some(record) = self.records.get(&id) {
            if record.nonce == nonce && record.claim.state == State::InProgress {
                return record.granted(now, true, false);
            }
            if record.fingerprint != fingerprint {
                return problem(422, "fingerprint_mismatch", json!({}));
            }
            taken_over = record.claim.state == State::Unknown && request["take_over"] == true;
            if !taken_over {
                return record.duplicate(now);
            }
        }
        self.grants += 1;
        let lease = duration(&request["lease"]).unwrap_or(LEASE);
        let record = Record {
            claim: Claim {
                global_id: id.clone(),
                operation: operation.to_owned(),
                contents: contents.clone(),
                state: State::InProgress,
                result: None,
            },
            attempt: format!("{}-{nonce}", self.grants),
            nonce: nonce.to_owned(),
            fence: self.grants,
            fingerprint,
            claimed_at: now.text(Duration::ZERO),
            ends: now.at + lease,
            lease,
            retention: duration(&request["retention"]).unwrap_or(RETENTION),
            is_unknown_at_end: request["on_lease_end"] == "unknown",
        };
        let answer = record.granted(now, false, taken_over);
        self.records.insert(id, record);
        answer
    }

    pub(super) fn settle(&mut self, id: &str, request: &Value, now: Now) -> Answer {
        self.expire(now);
        let (attempt, outcome) = (request["attempt"].as_str().unwrap_or_default(), request["outcome"].as_str());
        let settled =
            |state: &State, late: bool| (200, json!({ "global_id": id, "state": state.name(), "late": late }));
        let Some(record) = self.records.get_mut(id) else {
            if outcome == Some("failure") {
                return settled(&State::Released, false);
            }
            // The outcome of a claim that has ended is kept all the same.
            self.grants += 1;
            let (state, length) =
                if outcome == Some("success") { (State::Succeeded, RETENTION) } else { (State::Unknown, UNKNOWN) };
            let answer = settled(&state, true);
            let claim = Claim {
                global_id: id.to_owned(),
                operation: request["operation"].as_str().unwrap_or_default().to_owned(),
                contents: request["contents"].clone(),
                state,
                result: request.get("result").cloned(),
            };
            let record = Record {
                claim,
                attempt: attempt.to_owned(),
                nonce: String::new(),
                fence: self.grants,
                fingerprint: None,
                claimed_at: now.text(Duration::ZERO),
                ends: now.at + length,
                lease: LEASE,
                retention: RETENTION,
                is_unknown_at_end: false,
            };
            self.records.insert(id.to_owned(), record);
            return answer;
        };
        let is_succeeded = record.claim.state == State::Succeeded;
        if record.attempt != attempt {
            return problem(409, "superseded", json!({ "state": record.claim.state.name() }));
        }
        match outcome {
            Some("success") => {
                if !is_succeeded {
                    record.claim.state = State::Succeeded;
                    record.claim.result = request.get("result").cloned();
                    record.ends = now.at + record.retention;
                }
                settled(&State::Succeeded, false)
            }
            _ if is_succeeded => problem(409, "already_succeeded", json!({})),
            Some("failure") => {
                self.records.remove(id);
                settled(&State::Released, false)
            }
            _ => {
                record.claim.state = State::Unknown;
                record.ends = now.at + UNKNOWN;
                settled(&State::Unknown, false)
            }
        }
    }

    pub(super) fn renew(&mut self, id: &str, request: &Value, now: Now) -> Answer {
        self.expire(now);
        let Some(record) = self.records.get_mut(id) else { return problem(409, "lease_lost", json!({})) };
        if record.attempt != request["attempt"] {
            return problem(409, "superseded", json!({ "state": record.claim.state.name() }));
        }
        match record.claim.state {
            State::Succeeded => problem(409, "already_succeeded", json!({})),
            State::Unknown => problem(409, "lease_lost", json!({})),
            _ => {
                record.lease = duration(&request["lease"]).unwrap_or(record.lease);
                record.ends = now.at + record.lease;
                (200, json!({ "global_id": id, "lease_ms": record.left(now) }))
            }
        }
    }

    pub(super) fn lookup(&mut self, id: &str, now: Now) -> Answer {
        self.expire(now);
        let Some(record) = self.records.get(id) else { return problem(404, "not_found", json!({})) };
        let mut document = json!({
            "global_id": id, "operation": record.claim.operation, "state": record.claim.state.name(), "timestamp": record.fence,
            "attempt_hash": format!("{:08x}", record.fence), "claimed_at": record.claimed_at,
            "expires_at": now.text(record.ends.saturating_duration_since(now.at)), "fence": record.fence,
            "contents": record.claim.contents, "has_fingerprint": record.fingerprint.is_some(),
        });
        if let Some(result) = &record.claim.result {
            document["result"] = result.clone();
        }
        (200, document)
    }

    /// Ends claims whose time is over.
    fn expire(&mut self, now: Now) {
        self.records.retain(|_, record| {
            if record.ends <= now.at && record.is_unknown_at_end && record.claim.state == State::InProgress {
                record.claim.state = State::Unknown;
                // It has no end.
                record.ends = now.at + NEVER;
            }
            record.ends > now.at
        });
    }
}

impl Record {
    fn left(&self, now: Now) -> u64 {
        u64::try_from(self.ends.saturating_duration_since(now.at).as_millis()).unwrap_or(u64::MAX)
    }

    fn granted(&self, now: Now, repeated: bool, taken_over: bool) -> Answer {
        let granted = json!({
            "global_id": self.claim.global_id, "attempt": self.attempt, "fence": self.fence, "state": "in_progress",
            "repeated": repeated, "taken_over": taken_over, "claimed_at": self.claimed_at, "lease_ms": self.left(now),
        });
        (201, granted)
    }

    fn duplicate(&self, now: Now) -> Answer {
        let mut members = json!({
            "global_id": self.claim.global_id, "state": self.claim.state.name(), "claimed_at": self.claimed_at,
            "expires_at": now.text(self.ends.saturating_duration_since(now.at)),
        });
        if self.claim.state == State::InProgress {
            members["retry_after_ms"] = self.left(now).min(1000).into();
        }
        if let Some(result) = &self.claim.result {
            members["result"] = result.clone();
        }
        problem(409, "duplicate", members)
    }
}
