//! The wait before an answer: replicas must have the writes that it depends on (`WAIT`, `WAITAOF`).

use std::time::Duration;

use oncegate_core::clock::millis;
use redis::{Cmd, Value};

use super::reply::{checked, refusal};

/// Time to live of the marker, a hundred years in milliseconds. Each write sets it: this write needs no memory and
/// changes nothing else.
const MARKER_MS: u64 = 3_155_760_000_000;

/// The acknowledgement that the URL asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Acknowledgement {
    /// Number of replicas that must have it.
    pub(super) replicas: u32,
    /// Time that the server waits for them with one command.
    pub(super) timeout: Duration,
    /// True if it must be in the append-only files of the primary and of the replicas.
    pub(super) aof: bool,
}

/// The result of waiting for replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Acknowledged {
    /// Enough replicas have all that was written before.
    Yes,
    /// Too few have, up to now.
    Short(String),
    /// They will not: the server has become a replica.
    Never(String),
}

impl Acknowledgement {
    /// Returns the commands that end a batch. The write is necessary: from version 7.2 on WAIT covers the last write of
    /// the same connection. Without it, a batch that only reads could be answered from data that no replica has yet.
    /// `marker` is the key to write, if the server has any.
    pub(super) fn commands(&self, marker: Option<&str>, repeated: Option<&str>) -> Vec<Cmd> {
        let mut commands = Vec::with_capacity(3);
        if let Some(marker) = marker {
            // The marker may be missing, and then the write below would write nothing.
            if let Some(mark) = repeated {
                let mut set = redis::cmd("SET");
                set.arg(marker).arg(mark).arg("NX");
                commands.push(set);
            }
            let mut write = redis::cmd("PEXPIRE");
            write.arg(marker).arg(MARKER_MS);
            commands.push(write);
        }
        let timeout_ms = millis(self.timeout);
        let mut wait = redis::cmd(if self.aof { "WAITAOF" } else { "WAIT" });
        if self.aof {
            wait.arg(1);
        }
        wait.arg(self.replicas).arg(timeout_ms);
        commands.push(wait);
        commands
    }

    /// Reads the replies to [`Self::commands`], by the last two: whether the marker had to be written again does not matter.
    pub(super) fn read_replies(&self, mut replies: Vec<Value>, has_marker: bool) -> Acknowledged {
        let waited = replies.pop();
        match replies.pop() {
            Some(Value::Int(1)) => {}
            None if !has_marker => {}
            Some(Value::ServerError(error)) if error.code() == "READONLY" => {
                return Acknowledged::Never(refusal(&error).reason().to_owned());
            }
            Some(Value::ServerError(error)) => return Acknowledged::Short(refusal(&error).reason().to_owned()),
            _ => return Acknowledged::Short("the marker that each batch writes is missing".into()),
        }
        let reply = match checked(waited.unwrap_or(Value::Nil)) {
            Ok(reply) => reply,
            Err(why) => return Acknowledged::Short(why.reason().to_owned()),
        };
        let (here, there) = match &reply {
            Value::Int(there) => (1, *there),
            Value::Array(counts) => match &**counts {
                [Value::Int(here), Value::Int(there)] => (*here, *there),
                _ => (0, 0),
            },
            _ => (0, 0),
        };
        if here >= 1 && there >= i64::from(self.replicas) {
            return Acknowledged::Yes;
        }
        let what = if self.aof { "on the disk of" } else { "at" };
        Acknowledged::Short(format!(
            "it is {what} {there} replicas of the {} that replicas= asks for, after {} ms",
            self.replicas,
            self.timeout.as_millis()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> Value {
        redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap()
    }

    fn words(command: &Cmd) -> String {
        let packed = String::from_utf8(command.get_packed_command()).unwrap();
        packed.lines().filter(|line| !line.starts_with(['*', '$'])).collect::<Vec<_>>().join(" ")
    }

    const TWO: Acknowledgement = Acknowledgement { replicas: 2, timeout: Duration::from_millis(100), aof: false };

    #[test]
    fn a_batch_ends_with_a_write_and_a_wait() {
        let first: Vec<_> = TWO.commands(Some("og:marker"), None).iter().map(words).collect();
        assert_eq!(first, ["PEXPIRE og:marker 3155760000000", "WAIT 2 100"]);
        let again: Vec<_> = TWO.commands(Some("og:marker"), Some("x")).iter().map(words).collect();
        assert_eq!(again, ["SET og:marker x NX", "PEXPIRE og:marker 3155760000000", "WAIT 2 100"]);
        let aof = Acknowledgement { aof: true, ..TWO };
        assert_eq!(aof.commands(None, None).iter().map(words).collect::<Vec<_>>(), ["WAITAOF 1 2 100"]);
    }

    #[test]
    fn fewer_replicas_or_any_error_is_a_shortfall() {
        let read = |replies: Vec<Value>| TWO.read_replies(replies, true);
        for enough in [2, 3] {
            assert_eq!(read(vec![Value::Int(1), Value::Int(enough)]), Acknowledged::Yes);
        }
        let short = [
            vec![Value::Int(1), Value::Int(1)],
            vec![Value::Int(0), Value::Int(2)],
            vec![Value::Int(2)],
            vec![],
            vec![error("MOVED 1 h:1"), Value::Int(2)],
            vec![Value::Int(1), error("UNBLOCKED force unblock")],
            vec![Value::Int(1), Value::Nil],
        ];
        for replies in short {
            assert!(matches!(read(replies.clone()), Acknowledged::Short(_)), "{replies:?}");
        }
        assert!(matches!(read(vec![error("READONLY x"), Value::Int(2)]), Acknowledged::Never(_)));
        assert_eq!(TWO.read_replies(vec![Value::Int(2)], false), Acknowledged::Yes);
    }

    #[test]
    fn with_aof_the_disks_here_and_there_count() {
        let aof = Acknowledgement { aof: true, ..TWO };
        let read = |here, there| {
            aof.read_replies(vec![Value::Int(1), Value::Array(vec![Value::Int(here), Value::Int(there)])], true)
        };
        assert_eq!(read(1, 2), Acknowledged::Yes);
        assert!(matches!(read(0, 2), Acknowledged::Short(_)));
        assert!(matches!(read(1, 1), Acknowledged::Short(_)));
    }

    #[test]
    fn a_shortfall_has_the_reason_of_the_server() {
        let refused = TWO.read_replies(vec![error("MISCONF x"), Value::Int(2)], true);
        assert!(matches!(&refused, Acknowledged::Short(why) if why.contains("MISCONF")), "{refused:?}");
        let demoted = TWO.read_replies(vec![error("READONLY x"), Value::Int(2)], true);
        assert!(matches!(&demoted, Acknowledged::Never(why) if why.contains("READONLY")), "{demoted:?}");
    }
}
