//! Transactions: commands that the server executes at one instant, and the reply to them as a whole.
//!
//! They find a claim together with its remaining time. A script would do the same, but takes every text through Lua: two
//! times as much of the server for a short value, six times for one of 16 KiB.

use std::iter;

use redis::Value;

use super::commands::Commands;

/// Returns the commands that claim a key, or else read what is stored under it.
pub(super) fn claim(key: &str, value: &str, px: &str) -> Commands {
    of(&[&["SET", key, value, "NX", "GET", "PX", px], &["PTTL", key], &["PEXPIRETIME", key]])
}

/// Returns the commands that read a key. The last one changes nothing: no time of a key is before now. But it is a write, and so a
/// replica refuses all of them, instead of answering from its data, which lags behind.
pub(super) fn read(key: &str) -> Commands {
    of(&[&["GET", key], &["PTTL", key], &["PEXPIRETIME", key], &["PEXPIRE", key, "0", "GT"]])
}

/// Returns a transaction of these commands.
fn of(own: &[&[&str]]) -> Commands {
    let mut commands = Commands::default();
    let (begin, end): (&[&str], &[&str]) = (&["MULTI"], &["EXEC"]);
    for words in iter::once(&begin).chain(own).chain([&end]) {
        commands.push(words.iter().map(|word| word.as_bytes()));
    }
    commands
}

/// Returns the reply to the commands of a key: to the only one, or to the transaction that they are. A transaction is answered with the
/// replies to its commands, with nil if nothing is stored under its key, or with the error of the command that was refused. After an
/// error, none of its commands was executed.
pub(super) fn reply(replies: Vec<Value>) -> Option<Value> {
    if replies.len() < 2 {
        return replies.into_iter().next();
    }
    let is_error = |reply: &Value| matches!(reply, Value::ServerError(_));
    // The errors after the first one only say that there was one.
    if let Some(at) = replies.iter().position(is_error) {
        return replies.into_iter().nth(at);
    }
    match replies.into_iter().last()? {
        Value::Array(items) if items.first() == Some(&Value::Nil) => Some(Value::Nil),
        Value::Array(mut items) => match items.iter().position(is_error) {
            Some(at) => Some(items.swap_remove(at)),
            None => Some(Value::Array(items)),
        },
        // No other reply may be mistaken for one that means "nothing is stored".
        _ => Some(Value::Array(Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(line: &str) -> Value {
        redis::parse_redis_value(format!("{line}\r\n").as_bytes()).unwrap()
    }

    fn queued(commands: usize, last: Value) -> Option<Value> {
        let queued = iter::repeat_n(value("+QUEUED"), commands);
        reply([Value::Okay].into_iter().chain(queued).chain([last]).collect())
    }

    #[test]
    fn a_transaction_has_the_reply_that_a_script_would_have() {
        let found = || Value::Array(vec![Value::BulkString(b"value".to_vec()), Value::Int(5), Value::Int(1000)]);
        let nothing = Value::Array(vec![Value::Nil, Value::Int(-2), Value::Int(-2)]);
        assert_eq!(queued(3, found()), Some(found()));
        assert_eq!(queued(3, nothing.clone()), Some(Value::Nil));
        assert_eq!(reply(vec![nothing.clone()]), Some(nothing), "a reply to one command is that reply");
        assert_eq!(reply(vec![Value::Nil]), Some(Value::Nil));
        assert_eq!(reply(Vec::new()), None);
    }

    #[test]
    fn a_transaction_that_was_refused_is_answered_with_the_first_error() {
        let [full, aborted, wrong] = ["-OOM full", "-EXECABORT Transaction discarded", "-WRONGTYPE no text"].map(value);
        let replies = vec![Value::Okay, full.clone(), value("+QUEUED"), value("+QUEUED"), aborted];
        assert_eq!(reply(replies), Some(full));
        let executed = vec![wrong.clone(), Value::Int(-1), Value::Int(-1)];
        assert_eq!(queued(3, Value::Array(executed)), Some(wrong));
        for unexpected in [Value::Nil, Value::Okay, value("+QUEUED")] {
            assert_eq!(queued(3, unexpected), Some(Value::Array(Vec::new())), "this grants nothing");
        }
    }

    #[test]
    fn a_claim_reads_what_it_does_not_get_and_a_read_is_refused_by_replicas() {
        let words = |commands: Commands| String::from_utf8(commands.into_bytes()).unwrap().replace("\r\n", " ");
        let claimed = words(claim("k", "v", "9"));
        let set = "*1 $5 MULTI *7 $3 SET $1 k $1 v $2 NX $3 GET $2 PX $1 9 *2 $4 PTTL $1 k ";
        assert!(claimed.starts_with(set) && claimed.ends_with("*2 $11 PEXPIRETIME $1 k *1 $4 EXEC "), "{claimed}");
        let found = words(read("k"));
        let write = "*4 $7 PEXPIRE $1 k $1 0 $2 GT *1 $4 EXEC ";
        assert!(found.contains("*2 $3 GET $1 k ") && found.ends_with(write), "{found}");
    }
}
