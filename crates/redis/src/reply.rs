//! Replies of the server, read as answers; its errors, sorted by what the caller may do next. No reply is assumed to have the
//! expected form, and no text that could hold a key gets into a message.

use std::time::Duration;

use oncegate_core::claim::{OutcomeResponse, RenewalResponse};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{Determinate, EngineError, value};
use oncegate_core::operator::ReleaseResponse;
use oncegate_core::record::{ClaimState, LiveClaim, Record};
use redis::{ServerError, Value};

use super::redirect::Redirect;

/// Added to the lease of a claim that turns `unknown` at its end, so that it is still stored then. The scripts hold the same
/// number.
pub(super) const GRACE: Duration = Duration::from_hours(24 * 365 * 100 + 24 * 25);

/// The value stored under a key, as of one instant.
pub(super) struct Snapshot {
    /// The value itself.
    pub(super) value: Vec<u8>,
    /// The claim that it means at that instant.
    pub(super) held: LiveClaim,
}

/// Reads the reply of a step that reads a claim.
pub(super) fn snapshot(reply: Value) -> Result<Option<Snapshot>, EngineError> {
    let items = match checked(reply)? {
        Value::Nil => return Ok(None),
        Value::Array(items) => items,
        _ => return Err(unexpected()),
    };
    let mut items = items.into_iter();
    let (Some(Value::BulkString(value)), Some(Value::Int(left_ms)), Some(Value::Int(ends_ms))) =
        (items.next(), items.next(), items.next())
    else {
        return Err(unexpected());
    };
    let record = value::decode(&value)?;
    let (left, ends_at) = (left_of(&record, left_ms), ends_at_of(&record, ends_ms));
    Ok(LiveClaim::of_stored(record, left, ends_at, None).map(|held| Snapshot { value, held }))
}

/// Returns the remaining time of a record, by the server's count: negative if nothing ends it.
fn left_of(record: &Record, left_ms: i64) -> Option<Duration> {
    if !record.outlives_lease() || left_ms < 0 {
        return left(left_ms);
    }
    // It has ended once less than the grace is left: the server, too, keeps a key through its last millisecond.
    let grace_ms = grace_ms();
    if left_ms < grace_ms { Some(Duration::ZERO) } else { left(left_ms - grace_ms) }
}

/// Returns the end of a record: that of its key, without the grace.
fn ends_at_of(record: &Record, ends_ms: i64) -> Option<Timestamp> {
    ends_at(if record.outlives_lease() { ends_ms.saturating_sub(grace_ms()) } else { ends_ms })
}

/// Returns an instant of the server's clock, in milliseconds since the epoch: negative if there is none.
fn ends_at(ends_ms: i64) -> Option<Timestamp> {
    Some(Timestamp::from_micros(u64::try_from(ends_ms).ok()?.saturating_mul(1000)))
}

fn grace_ms() -> i64 {
    i64::try_from(GRACE.as_millis()).unwrap_or(i64::MAX)
}

/// Milliseconds as the server counts them: whole ones, and 0 in the last one, which is not over yet.
fn left(left_ms: i64) -> Option<Duration> {
    let left_ms = u64::try_from(left_ms).ok()?;
    Some(Duration::from_millis(left_ms).max(Duration::from_nanos(1)))
}

/// Reads the reply of the settle script, and whether the claim may have an entry in the index of unknown claims.
pub(super) fn settled(reply: Value) -> Result<(OutcomeResponse, bool), EngineError> {
    let result = ScriptResult::read(reply)?;
    let answer = match &*result.name {
        "done" => {
            let ScriptResult { state, left, ends_at, late, .. } = result;
            OutcomeResponse::Done { state, left, ends_at, late: Some(late) }
        }
        "succeeded" => OutcomeResponse::AlreadySucceeded,
        "superseded" => result.superseded(|state, left| OutcomeResponse::Superseded { state, left })?,
        "expired" => OutcomeResponse::Expired,
        _ => return Err(unexpected()),
    };
    Ok((answer, result.has_entry))
}

/// Reads the reply of the renewal script.
pub(super) fn renewed(reply: Value) -> Result<RenewalResponse, EngineError> {
    let result = ScriptResult::read(reply)?;
    match &*result.name {
        "renewed" => {
            Ok(RenewalResponse::Renewed { left: result.left.ok_or_else(unexpected)?, ends_at: result.ends_at })
        }
        "lost" => Ok(RenewalResponse::LeaseLost),
        "succeeded" => Ok(RenewalResponse::AlreadySucceeded),
        "superseded" => result.superseded(|state, left| RenewalResponse::Superseded { state, left }),
        _ => Err(unexpected()),
    }
}

/// Reads the reply of the release script.
pub(super) fn released(reply: Value) -> Result<ReleaseResponse, EngineError> {
    match &*ScriptResult::read(reply)?.name {
        "released" => Ok(ReleaseResponse::Done),
        "absent" => Ok(ReleaseResponse::Absent),
        "superseded" => Ok(ReleaseResponse::Superseded),
        _ => Err(unexpected()),
    }
}

/// The result of a script: its name and, where they have a meaning, state, remaining time, end, lateness, and whether the claim may have
/// an entry in the index of unknown claims.
struct ScriptResult {
    name: String,
    state: Option<ClaimState>,
    left: Option<Duration>,
    ends_at: Option<Timestamp>,
    late: bool,
    has_entry: bool,
}

impl ScriptResult {
    fn read(reply: Value) -> Result<Self, EngineError> {
        let Value::Array(items) = checked(reply)? else { return Err(unexpected()) };
        let text = |index: usize| match items.get(index) {
            Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        };
        let number = |index: usize| match items.get(index) {
            Some(Value::Int(number)) => *number,
            _ => -1,
        };
        let name = text(0);
        if name == "unreadable" {
            return Err(EngineError::incompatible("a record cannot be read by this release; it was not changed"));
        }
        let (state, left) = (value::state_of(&text(1)), left(number(2)));
        // The key of a lease that has ended still has an end.
        let ends_at = left.and_then(|_| ends_at(number(3)));
        Ok(Self { name, state, left, ends_at, late: number(4) == 1, has_entry: number(5) == 1 })
    }

    fn superseded<T>(&self, answer: impl FnOnce(ClaimState, Option<Duration>) -> T) -> Result<T, EngineError> {
        self.state.map(|state| answer(state, self.left)).ok_or_else(unexpected)
    }
}

/// Reason to refuse a node of a cluster behind another URL.
pub(super) const PART_OF_CLUSTER: &str =
    "the Redis server is part of a cluster; write redis+cluster:// in place of redis://";

/// Returns the reply unless it is an error.
pub(super) fn checked(reply: Value) -> Result<Value, Determinate> {
    match reply {
        Value::ServerError(error) => Err(refusal(&error)),
        reply => Ok(reply),
    }
}

/// Returns what an error reply means. The server refuses a command before it changes anything, and our scripts write last.
pub(super) fn refusal(error: &ServerError) -> Determinate {
    let code = error.code();
    let why = match code {
        "OOM" => return Determinate::Full("the Redis server is at its maxmemory".into()),
        "WRONGTYPE" => {
            return Determinate::Incompatible("a key of the engine holds a value that is not a record".into());
        }
        "MOVED" | "ASK" | "CROSSSLOT" | "TRYAGAIN" => {
            return Determinate::Incompatible(PART_OF_CLUSTER.into());
        }
        "LOADING" => "it is still loading its data",
        "READONLY" => "it is a replica and takes no writes",
        "MASTERDOWN" => "it is a replica that has lost its master",
        "CLUSTERDOWN" => "its cluster is down",
        "NOREPLICAS" => "it has fewer replicas than its min-replicas-to-write",
        "MISCONF" => "it takes no writes because it cannot save them; see its log",
        "BUSY" => "it is busy with a script",
        "NOAUTH" => "it requires a password; put it into the engine's URL",
        "WRONGPASS" => "it does not accept the user and password of the engine's URL",
        "NOPERM" => {
            let command = command_of(error).map(|command| format!(", the command {command}")).unwrap_or_default();
            return Determinate::Unavailable(format!(
                "NOPERM: the Redis server refuses: its ACL does not allow our user what is needed{command}; see docs/engines/redis.md"
            ));
        }
        _ => return Determinate::Unavailable(format!("the Redis server answered {}", message(error))),
    };
    Determinate::Unavailable(format!("{code}: the Redis server refuses: {why}"))
}

/// Returns the error of a command that was sent again until its time was over, and was executed by no server.
pub(super) fn not_executed(redirect: &Redirect) -> Determinate {
    let why = match redirect {
        Redirect::Moved { .. } | Redirect::Ask { .. } | Redirect::Later("TRYAGAIN") => {
            "the slot of the key is being moved"
        }
        Redirect::Later("CLUSTERDOWN") => "the cluster is down, or no node of it answers for the slot of the key",
        Redirect::Later("LOADING") => "it is still loading its data",
        Redirect::Later(_) => "it is a replica, and no other server has become the primary yet",
    };
    Determinate::Unavailable(format!("{}: the Redis server refuses: {why}", redirect.code()))
}

/// Returns the command that an ACL refuses, as the server names it: "… to run the 'time' command".
fn command_of(error: &ServerError) -> Option<&str> {
    let command = error.details()?.split_once("to run the '")?.1.split_once('\'')?.0;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"|_.-".contains(&byte);
    (command.len() <= 64 && command.bytes().all(is_name)).then_some(command)
}

/// Returns an error in the server's words, up to where it would repeat what it was sent.
fn message(error: &ServerError) -> String {
    let details = error.details().unwrap_or_default();
    let details = details.split(['\'', '"', '`', '{']).next().unwrap_or_default();
    let details: String = details.chars().filter(|char| !char.is_control()).take(120).collect();
    format!("{}: {}", error.code(), details.trim_end())
}

/// Returns the error for a reply of a form that no server sends: the outcome is uncertain.
pub(super) fn unexpected() -> EngineError {
    EngineError::indeterminate("the Redis server sent a reply of an unexpected form")
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
    fn a_command_that_the_acl_refuses_is_named() {
        let why = |line: &str| refusal(&error(line)).reason().to_owned();
        let named = why("NOPERM User oncegate has no permissions to run the 'script|load' command");
        assert!(named.contains("what is needed, the command script|load; see"), "{named}");
        let key = why("NOPERM No permissions to access a key");
        assert!(key.contains("what is needed; see"), "{key}");
        let odd = why("NOPERM no permissions to run the 'og:{secret}' command");
        assert!(!odd.contains("secret"), "{odd}");
    }

    #[test]
    fn errors_do_not_repeat_what_was_sent() {
        let refused = refusal(&error("ERR unknown command 'SET', with args beginning with: 'og:{secret}'"));
        assert_eq!(refused, Determinate::Unavailable("the Redis server answered ERR: unknown command".into()));
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        for (code, words) in [
            ("LOADING", "still loading"),
            ("READONLY", "takes no writes"),
            ("MASTERDOWN", "lost its master"),
            ("CLUSTERDOWN", "its cluster is down"),
            ("NOREPLICAS", "min-replicas-to-write"),
            ("MISCONF", "cannot save"),
            ("BUSY", "busy with a script"),
            ("NOAUTH", "requires a password"),
            ("WRONGPASS", "does not accept the user"),
            ("NOPERM", "ACL"),
        ] {
            let refused = refusal(&error(&format!("{code} some text"))).to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn a_claim_that_outlives_its_lease_is_stored_for_longer_than_it_is_in_progress() {
        use oncegate_core::engine::conformance::fresh_claim;
        use oncegate_core::terms::{LeaseEnd, Terms};

        let record = |on_lease_end| {
            let record = fresh_claim().record();
            Record { terms: Terms { on_lease_end, ..record.terms }, ..record }
        };
        let (usual, outliving) = (record(LeaseEnd::Release), record(LeaseEnd::Unknown));
        let grace = i64::try_from(GRACE.as_millis()).unwrap();
        let millis = |millis| Some(Duration::from_millis(millis));
        for (record, left_ms, left) in [
            (&usual, 5, millis(5)),
            (&usual, -1, None),
            (&usual, grace + 5, millis(u64::try_from(grace).unwrap() + 5)),
            (&outliving, grace + 5, millis(5)),
            (&outliving, grace, Some(Duration::from_nanos(1))),
            (&outliving, grace - 1, Some(Duration::ZERO)),
            (&outliving, 0, Some(Duration::ZERO)),
            (&outliving, -1, None),
        ] {
            assert_eq!(left_of(record, left_ms), left, "{left_ms}");
        }
        let end = Some(Timestamp::from_micros(7_000));
        assert_eq!((ends_at_of(&usual, 7), ends_at_of(&outliving, grace + 7)), (end, end));
        assert_eq!((ends_at_of(&usual, -1), ends_at_of(&outliving, -1)), (None, None));
    }

    #[test]
    fn results_of_scripts_are_read() {
        let result = |name: &str, numbers: &[i64]| {
            let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
            let mut items = vec![text(name), text("s")];
            items.extend(numbers.iter().map(|number| Value::Int(*number)));
            Value::Array(items)
        };
        let (state, left) = (Some(ClaimState::Succeeded), Some(Duration::from_millis(5)));
        let ends_at = Some(Timestamp::from_micros(1_700_000_000_123_000));
        for (late, is_late) in [(0, false), (1, true), (2, false)] {
            let done = OutcomeResponse::Done { state, left, ends_at, late: Some(is_late) };
            assert_eq!(settled(result("done", &[5, 1_700_000_000_123, late])).unwrap(), (done, false));
        }
        let done = OutcomeResponse::Done { state, left: None, ends_at: None, late: Some(false) };
        for numbers in [&[][..], &[-1, -1], &[-1, 7]] {
            assert_eq!(settled(result("done", numbers)).unwrap(), (done.clone(), false), "without an end, and on time");
        }
        assert_eq!(settled(result("succeeded", &[])).unwrap(), (OutcomeResponse::AlreadySucceeded, false));
        assert_eq!(settled(result("expired", &[])).unwrap(), (OutcomeResponse::Expired, false));
        let superseded = OutcomeResponse::Superseded { state: ClaimState::Succeeded, left };
        assert_eq!(settled(result("superseded", &[5, 0])).unwrap(), (superseded, false));
        assert!(settled(result("unreadable", &[])).is_err_and(|why| !why.is_uncertain()));
        assert_eq!(
            renewed(result("renewed", &[5, 1_700_000_000_123])).unwrap(),
            RenewalResponse::Renewed { left: Duration::from_millis(5), ends_at }
        );
        assert_eq!(renewed(result("lost", &[])).unwrap(), RenewalResponse::LeaseLost);
        assert_eq!(renewed(result("succeeded", &[])).unwrap(), RenewalResponse::AlreadySucceeded);
        assert_eq!(released(result("released", &[])).unwrap(), ReleaseResponse::Done);
        assert_eq!(released(result("absent", &[])).unwrap(), ReleaseResponse::Absent);
        assert_eq!(released(result("superseded", &[])).unwrap(), ReleaseResponse::Superseded);
    }

    #[test]
    fn the_last_millisecond_is_not_over() {
        assert_eq!(left(0), Some(Duration::from_nanos(1)));
        assert_eq!(left(5), Some(Duration::from_millis(5)));
        assert_eq!(left(-1), None);
    }

    #[test]
    fn replies_of_an_unexpected_form_are_uncertain() {
        for reply in [Value::Okay, Value::Int(1), Value::Array(vec![]), Value::Array(vec![Value::Nil, Value::Nil])] {
            assert!(matches!(snapshot(reply.clone()), Err(EngineError::Indeterminate(_))), "{reply:?}");
            assert!(matches!(settled(reply.clone()), Err(EngineError::Indeterminate(_))), "{reply:?}");
            assert!(matches!(renewed(reply.clone()), Err(EngineError::Indeterminate(_))), "{reply:?}");
            assert!(matches!(released(reply.clone()), Err(EngineError::Indeterminate(_))), "{reply:?}");
        }
    }
}
