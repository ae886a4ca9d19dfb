//! Results and errors as the vectors write them, and the other way round.

use std::time::{Duration, SystemTime};

use oncegate_client::{
    Cause, Claimed, Contents, Duplicate, Error, Event, Grant, NotCanonical, Once, OnceError, Reason, Rejected, State,
    WorkError, canonical,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::{Value, json};

/// Result of the work.
pub(crate) enum Returned {
    Value(Value),
    Unserialisable,
}

impl Returned {
    pub(crate) fn value(&self) -> Value {
        match self {
            Self::Value(value) => value.clone(),
            Self::Unserialisable => "unserialisable".into(),
        }
    }
}

impl Serialize for Returned {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Value(value) => value.serialize(serializer),
            Self::Unserialisable => Err(ser::Error::custom("a channel is no JSON")),
        }
    }
}

impl<'de> Deserialize<'de> for Returned {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::Value)
    }
}

pub(crate) fn of_once(ended: Result<Once<Returned>, OnceError<Returned>>) -> Value {
    match ended {
        Ok(Once::Done(done)) => json!({ "done": {
            "result": done.result.value(), "state": done.state.as_ref().map(State::name), "degraded": done.degraded, "late": done.late,
            "would_be": done.would_be, "result_omitted": done.result_omitted.is_some(), "global_id": done.global_id,
        }}),
        Ok(Once::Duplicate(duplicate)) => of_duplicate(&duplicate),
        Ok(Once::Mismatch(mismatch)) => {
            json!({ "mismatch": { "code": mismatch.code, "global_id": mismatch.global_id } })
        }
        Err(OnceError::Work(error)) if error.is_nothing_happened() => json!({ "error": "nothing_happened" }),
        Err(OnceError::Work(_)) => json!({ "error": "work" }),
        Err(OnceError::Call { error, result }) => {
            let mut got = of_error(&error);
            if let Some(result) = result {
                got["result"] = result.value();
            }
            got
        }
    }
}

pub(crate) fn of_claimed(claimed: Result<Claimed, Error>) -> Value {
    match claimed {
        Ok(Claimed::Grant(grant)) => json!({ "grant": of_grant(&grant) }),
        Ok(Claimed::Duplicate(duplicate)) => of_duplicate(&duplicate),
        Ok(Claimed::Mismatch(mismatch)) => {
            json!({ "mismatch": { "code": mismatch.code, "global_id": mismatch.global_id } })
        }
        Err(error) => of_error(&error),
    }
}

fn of_duplicate<T: Serialize>(duplicate: &Duplicate<T>) -> Value {
    let instant = |at: Option<SystemTime>| {
        at.map(|at| canonical(&Contents::from(at)).expect("an instant").trim_matches('"').to_owned())
    };
    json!({ "duplicate": {
        "state": duplicate.state.name(), "result": duplicate.result, "retry_after_ms": millis(duplicate.retry_after),
        "claimed_at": instant(duplicate.claimed_at), "expires_at": instant(duplicate.expires_at),
        "contents_verified": duplicate.contents_verified, "degraded": duplicate.degraded, "would_be": duplicate.would_be,
        "global_id": duplicate.global_id,
    }})
}

pub(crate) fn of_grant(grant: &Grant) -> Value {
    json!({
        "global_id": grant.global_id(), "fence": grant.fence(), "repeated": grant.repeated(), "taken_over": grant.taken_over(),
        "degraded": grant.degraded(), "would_be": grant.would_be(), "is_live": grant.is_live(), "lost": grant.lost(),
    })
}

pub(crate) fn of_error(error: &Error) -> Value {
    match error {
        Error::Unavailable { causes, .. } => {
            json!({ "error": "unavailable", "causes": causes.iter().map(of_cause).collect::<Vec<_>>() })
        }
        Error::Rejected(rejected) => json!({
            "error": "rejected", "status": rejected.status, "code": rejected.code, "request_id": rejected.request_id,
            "retry_after_ms": rejected.retry_after.map(millis),
        }),
        Error::OutcomeRefused { code } => json!({ "error": "outcome_refused", "code": code }),
        Error::NotSettled { report, cause } => {
            let report: Value = serde_json::from_str(report).expect("a report is JSON");
            json!({ "error": "not_settled", "report": report, "cause": of_error(cause) })
        }
        Error::NotCanonical(why) => json!({ "error": "not_canonical", "reason": why.reason.name(), "path": why.path }),
        Error::LockNotAcquired { code, retry_after, limit, .. } => json!({
            "error": "lock_not_acquired", "code": code, "retry_after_ms": millis(*retry_after), "limit": limit,
        }),
        Error::Argument(_) => json!({ "error": "argument" }),
        other => json!({ "error": other.to_string() }),
    }
}

fn of_cause(cause: &Cause) -> Value {
    json!({
        "url": cause.url, "kind": cause.kind.name(), "status": cause.status, "code": cause.code, "request_id": cause.request_id,
    })
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a field of an event, or its name.
pub(crate) fn field(event: &Event, name: &str) -> Value {
    if name == "name" {
        return event.name.into();
    }
    let found = event.fields.iter().find(|(known, _)| *known == name);
    found.map_or(Value::Null, |(_, value)| value.clone())
}

/// Returns the end of `once` that a decision is about.
pub(crate) fn end_of(end: &Value) -> Result<Once<()>, OnceError<()>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let after = |value: &Value| value["retry_after_ms"].as_u64().map(Duration::from_millis);
    let state = |name: &str| match name {
        "in_progress" => State::InProgress,
        "succeeded" => State::Succeeded,
        "spooled" => State::Spooled,
        _ => State::Unknown,
    };
    let error = match end["error"].as_str() {
        None => {
            if let Some(done) = end["done"].as_object() {
                return Ok(Once::done((), Some(state(&text(&done["state"])))));
            }
            if let Some(duplicate) = end.get("duplicate") {
                return Ok(Once::duplicate(state(&text(&duplicate["state"])), after(duplicate).unwrap_or_default()));
            }
            return Ok(Once::mismatch(text(&end["mismatch"]["code"])));
        }
        Some("work") => return Err(OnceError::Work("who knows".into())),
        Some("nothing_happened") => return Err(OnceError::Work(WorkError::nothing_happened("who knows"))),
        Some("not_canonical") => {
            Error::NotCanonical(NotCanonical { reason: Reason::Empty, path: "$".to_owned(), detail: String::new() })
        }
        Some("rejected") => Error::Rejected(Rejected {
            status: u16::try_from(end["status"].as_u64().expect("a status")).expect("a status"),
            code: String::new(),
            detail: String::new(),
            request_id: None,
            retry_after: after(end),
        }),
        Some("unavailable") => unavailable(),
        Some("outcome_refused") => Error::OutcomeRefused { code: text(&end["code"]) },
        Some("not_settled") => Error::NotSettled { report: "{}".to_owned(), cause: Box::new(unavailable()) },
        Some(other) => panic!("unknown end {other}"),
    };
    Err(error.into())
}

fn unavailable() -> Error {
    Error::Unavailable { causes: Vec::new(), may_have_acted: false }
}
