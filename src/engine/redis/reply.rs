//! What replies of the server mean: errors sorted by what the caller may do next, values read as answers.
//! Nothing of a reply is trusted to be what was expected, and no text that could hold a key gets into a message.

use std::time::Duration;

use redis::{ServerError, Value};

use crate::domain::claim::{OutcomeResponse, RenewalResponse};
use crate::domain::operator::ReleaseResponse;
use crate::domain::record::{LiveClaim, Record, State};
use crate::engine::{Determinate, EngineError, Metadata, value};

/// What a claim in progress is given on top of its lease, so that it outlives it, where the lease's end means
/// `unknown`. The scripts hold the same number.
pub(super) const GRACE: Duration = Duration::from_hours(24 * 365 * 100 + 24 * 25);

/// What the store holds under a key, as of one instant.
pub(super) struct Snapshot {
    /// The value, byte by byte.
    pub(super) value: Vec<u8>,
    /// What it says, and whether its time has ended.
    pub(super) held: LiveClaim,
}

/// Reads the reply of the read script.
pub(super) fn snapshot(reply: Value) -> Result<Option<Snapshot>, EngineError> {
    let items = match checked(reply)? {
        Value::Nil => return Ok(None),
        Value::Array(items) => items,
        _ => return Err(unexpected()),
    };
    let [Value::BulkString(value), Value::Int(left_ms)] = &*items else { return Err(unexpected()) };
    let record = value::decode(value)?;
    let left = left_of(&record, *left_ms);
    Ok(LiveClaim::judge(record, left, None).map(|held| Snapshot { value: value.clone(), held }))
}

/// What is left of a record, by the server's count: negative if nothing ends it.
fn left_of(record: &Record, left_ms: i64) -> Option<Duration> {
    if !record.outlives_lease() || left_ms < 0 {
        return left(left_ms);
    }
    // Ended once less than the grace is left: the server, too, lets a key live through its last millisecond.
    let grace_ms = i64::try_from(GRACE.as_millis()).unwrap_or(i64::MAX);
    if left_ms < grace_ms { Some(Duration::ZERO) } else { left(left_ms - grace_ms) }
}

/// Milliseconds as the server counts them: whole ones, and 0 in the last one, which is not over yet.
fn left(left_ms: i64) -> Option<Duration> {
    let left_ms = u64::try_from(left_ms).ok()?;
    Some(Duration::from_millis(left_ms).max(Duration::from_nanos(1)))
}

/// Reads the reply of the settle script.
pub(super) fn settled(reply: Value) -> Result<OutcomeResponse, EngineError> {
    let verdict = Verdict::read(reply)?;
    match &*verdict.name {
        "done" => Ok(OutcomeResponse::Done { state: verdict.state, left: verdict.left, late: Some(verdict.late) }),
        "succeeded" => Ok(OutcomeResponse::AlreadySucceeded),
        "superseded" => verdict.superseded(|state, left| OutcomeResponse::Superseded { state, left }),
        "expired" => Ok(OutcomeResponse::Expired),
        _ => Err(unexpected()),
    }
}

/// Reads the reply of the renewal script.
pub(super) fn renewed(reply: Value) -> Result<RenewalResponse, EngineError> {
    let verdict = Verdict::read(reply)?;
    match &*verdict.name {
        "renewed" => Ok(RenewalResponse::Renewed { left: verdict.left.ok_or_else(unexpected)? }),
        "lost" => Ok(RenewalResponse::LeaseLost),
        "succeeded" => Ok(RenewalResponse::AlreadySucceeded),
        "superseded" => verdict.superseded(|state, left| RenewalResponse::Superseded { state, left }),
        _ => Err(unexpected()),
    }
}

/// Reads the reply of the release script.
pub(super) fn released(reply: Value) -> Result<ReleaseResponse, EngineError> {
    match &*Verdict::read(reply)?.name {
        "released" => Ok(ReleaseResponse::Done),
        "absent" => Ok(ReleaseResponse::Absent),
        "superseded" => Ok(ReleaseResponse::Superseded),
        _ => Err(unexpected()),
    }
}

/// Reads the reply of a GET of a note.
pub(super) fn note(reply: Value) -> Result<Option<Metadata>, EngineError> {
    match checked(reply)? {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => {
            let note = String::from_utf8(bytes).ok().and_then(|text| Metadata::new(text).ok());
            note.map(Some).ok_or_else(|| EngineError::incompatible("a note cannot be read by this release"))
        }
        _ => Err(EngineError::unavailable("the Redis server's reply does not fit what it was asked")),
    }
}

/// What a script decided: its verdict and, where they mean something, state, time left and lateness.
struct Verdict {
    name: String,
    state: Option<State>,
    left: Option<Duration>,
    late: bool,
}

impl Verdict {
    fn read(reply: Value) -> Result<Self, EngineError> {
        let Value::Array(items) = checked(reply)? else { return Err(unexpected()) };
        let text = |place: usize| match items.get(place) {
            Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        };
        let number = |place: usize| match items.get(place) {
            Some(Value::Int(number)) => *number,
            _ => -1,
        };
        let name = text(0);
        if name == "unreadable" {
            return Err(EngineError::incompatible("a record cannot be read by this release; it was left as it is"));
        }
        Ok(Self { name, state: value::state_of(&text(1)), left: left(number(2)), late: number(3) == 1 })
    }

    fn superseded<T>(&self, answer: impl FnOnce(State, Option<Duration>) -> T) -> Result<T, EngineError> {
        self.state.map(|state| answer(state, self.left)).ok_or_else(unexpected)
    }
}

/// The reply, if it is none of an error.
pub(super) fn checked(reply: Value) -> Result<Value, Determinate> {
    match reply {
        Value::ServerError(error) => Err(refusal(&error)),
        reply => Ok(reply),
    }
}

/// What it means that a command was refused. The server refuses before it changes anything, and our scripts write last.
pub(super) fn refusal(error: &ServerError) -> Determinate {
    let code = error.code();
    let why = match code {
        "OOM" => return Determinate::Full("the Redis server is at its maxmemory".into()),
        "WRONGTYPE" => return Determinate::Incompatible("a key of ours holds something that is not a record".into()),
        "MOVED" | "ASK" | "CROSSSLOT" | "TRYAGAIN" => {
            let why = "the Redis server is part of a cluster, which is not supported: name a server that is not";
            return Determinate::Incompatible(why.into());
        }
        "LOADING" => "it is still loading its data",
        "READONLY" => "it is a replica and takes no writes",
        "MASTERDOWN" => "it is a replica that has lost its master",
        "CLUSTERDOWN" => "its cluster is down",
        "NOREPLICAS" => "it has fewer replicas than its min-replicas-to-write",
        "MISCONF" => "it takes no writes because it cannot save them; see its log",
        "BUSY" => "it is busy with somebody's script",
        "NOAUTH" => "it asks for a password; put it into the engine's URL",
        "WRONGPASS" => "it does not accept the user and password of the engine's URL",
        "NOPERM" => "its ACL does not let our user do what is needed; see docs/engines/redis.md",
        _ => return Determinate::Unavailable(format!("the Redis server answered {}", plain(error))),
    };
    Determinate::Unavailable(format!("{code}: the Redis server refuses: {why}"))
}

/// An error in the server's own words, up to where it would repeat what it was sent.
fn plain(error: &ServerError) -> String {
    let details = error.details().unwrap_or_default();
    let details = details.split(['\'', '"', '`', '{']).next().unwrap_or_default();
    let details: String = details.chars().filter(|char| !char.is_control()).take(120).collect();
    format!("{}: {}", error.code(), details.trim_end())
}

/// A reply that no server gives to what was asked. It is not known what happened.
pub(super) fn unexpected() -> EngineError {
    EngineError::indeterminate("the Redis server's reply does not fit what it was asked")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> ServerError {
        match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn refusals_are_certain_and_sorted() {
        for code in
            ["LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "MISCONF", "BUSY", "NOAUTH", "NOPERM", "ERR", "NEW"]
        {
            let refused = refusal(&error(&format!("{code} some text")));
            assert!(matches!(&refused, Determinate::Unavailable(why) if why.contains(code)), "{refused:?}");
        }
        assert!(matches!(refusal(&error("OOM command not allowed")), Determinate::Full(_)));
        assert!(matches!(refusal(&error("WRONGTYPE Operation against")), Determinate::Incompatible(_)));
        assert!(matches!(refusal(&error("MOVED 1 10.0.0.1:1")), Determinate::Incompatible(_)));
    }

    #[test]
    fn what_was_sent_is_not_repeated() {
        let refused = refusal(&error("ERR unknown command 'SET', with args beginning with: 'og:{secret}'"));
        assert_eq!(refused, Determinate::Unavailable("the Redis server answered ERR: unknown command".into()));
    }

    #[test]
    fn the_last_millisecond_is_not_over() {
        assert_eq!(left(0), Some(Duration::from_nanos(1)));
        assert_eq!(left(5), Some(Duration::from_millis(5)));
        assert_eq!(left(-1), None);
    }

    #[test]
    fn replies_that_do_not_fit_are_uncertain() {
        for reply in [Value::Okay, Value::Int(1), Value::Array(vec![]), Value::Array(vec![Value::Nil, Value::Nil])] {
            assert!(matches!(snapshot(reply.clone()), Err(EngineError::Indeterminate(_))), "{reply:?}");
            assert!(matches!(settled(reply.clone()), Err(EngineError::Indeterminate(_))), "{reply:?}");
            assert!(matches!(renewed(reply.clone()), Err(EngineError::Indeterminate(_))), "{reply:?}");
            assert!(matches!(released(reply.clone()), Err(EngineError::Indeterminate(_))), "{reply:?}");
        }
    }
}
