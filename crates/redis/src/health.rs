//! The health check of a server: its version, whether it evicts keys, whether it still has its data. Made at each connect
//! and again at intervals, since an operator may change all of it at any time.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use redis::{Cmd, Value};

use super::keys::Keys;
use super::reply::checked;
use super::url::Url;
use crate::domain::attempt::{Entropy, SystemEntropy};
use crate::driver::Server;
use crate::engine::Determinate;

/// The oldest major version with `SET … NX GET` and script flags. Valkey reports a `redis_version` of 7 as well.
const VERSION_MIN: u32 = 7;

/// Whether a server may keep claims, as its connections have found it.
pub(super) struct Health {
    server: Arc<Server>,
    allow_eviction: bool,
    marker_key: String,
    /// Why claims are refused.
    evicts: ArcSwapOption<String>,
}

impl Health {
    pub(super) fn new(url: &Url, server: Arc<Server>) -> Self {
        let marker_key = Keys::new(url.prefix.clone()).marker();
        Self { server, allow_eviction: url.allow_eviction, marker_key, evicts: ArcSwapOption::empty() }
    }

    /// Returns the commands of a health check. INFO by sections: older servers accept one at a time, and their version must
    /// be read to be refused.
    pub(super) fn commands(&self) -> Vec<Cmd> {
        let mut commands = vec![
            with("INFO", &["server"]),
            with("INFO", &["memory"]),
            with("INFO", &["persistence"]),
            with("CONFIG", &["GET", "appendfsync"]),
        ];
        commands.extend(self.marker_commands());
        commands
    }

    /// Returns the commands that check whether the server still has its data.
    pub(super) fn marker_commands(&self) -> [Cmd; 2] {
        // A new value each time, stored only where there is none: the value that is found identifies the store.
        let mark = format!("{:016x}", SystemEntropy.bits());
        [with("SET", &[&self.marker_key, &mark, "NX"]), with("GET", &[&self.marker_key])]
    }

    /// Judges the replies to a health check. An error means that the server must not be used at all now.
    pub(super) fn judge(&self, replies: Vec<Value>) -> Result<(), Determinate> {
        let Ok([server, memory, persistence, appendfsync, set_marker, marker]) = <[Value; 6]>::try_from(replies) else {
            return Err(unfit());
        };
        let (server, memory) = (text(checked(server)?), text(checked(memory)?));
        check_version(&server)?;
        // A managed server may forbid CONFIG; then durability is not promised.
        let (persistence, appendfsync) = (text(persistence), words(appendfsync));
        let always = field(&persistence, "aof_enabled") == Some("1") && appendfsync.iter().any(|word| word == "always");
        self.server.set_durable(always);
        self.judge_eviction(&memory);
        self.judge_marker(vec![set_marker, marker])
    }

    /// Judges the replies to [`Self::marker_commands`]. An error means that the server must not be used at all now.
    pub(super) fn judge_marker(&self, replies: Vec<Value>) -> Result<(), Determinate> {
        let Ok([set_marker, marker]) = <[Value; 2]>::try_from(replies) else { return Err(unfit()) };
        // A full server may still be used. A server that refuses writes for another reason may not.
        if !matches!(&set_marker, Value::ServerError(error) if error.code() == "OOM") {
            checked(set_marker)?;
        }
        match checked(marker)? {
            Value::BulkString(marker) => self.server.set_marker(Some(&marker)),
            _ => self.server.set_marker(None),
        }
        Ok(())
    }

    fn judge_eviction(&self, memory: &str) {
        let why = if self.allow_eviction { None } else { eviction(memory) };
        let was_refused = self.evicts.swap(why.clone().map(Into::into)).is_some();
        let server = self.server.address();
        match (was_refused, why) {
            (false, Some(why)) => tracing::error!(server, "Claims are refused: {why}"),
            (true, None) => {
                tracing::info!(server, "Claims are accepted again: the store does not evict keys");
            }
            (true, Some(_)) | (false, None) => {}
        }
    }

    /// Returns why claims are refused now, if they are.
    pub(super) fn refusal_of_claims(&self) -> Option<Determinate> {
        self.evicts.load().as_ref().map(|why| Determinate::Incompatible(why.to_string()))
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("evicts", &self.evicts.load()).finish_non_exhaustive()
    }
}

fn with(name: &str, arguments: &[&str]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(arguments);
    command
}

fn unfit() -> Determinate {
    Determinate::Unavailable("the Redis server sent unexpected replies to a health check".into())
}

fn check_version(server: &str) -> Result<(), Determinate> {
    let version = field(server, "redis_version").unwrap_or("unknown");
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major >= VERSION_MIN) {
        return Ok(());
    }
    Err(Determinate::Incompatible(format!(
        "the Redis server is of version {version}; {VERSION_MIN}.0 or later is needed"
    )))
}

/// Returns why a server may evict claims, by its `INFO memory`.
fn eviction(memory: &str) -> Option<String> {
    let policy = field(memory, "maxmemory_policy").unwrap_or("unknown");
    if policy == "noeviction" || field(memory, "maxmemory") == Some("0") {
        return None;
    }
    Some(format!(
        "the Redis server has a maxmemory and the policy `{policy}`: it may evict claims, and an evicted claim is a double \
         execution. Run `CONFIG SET maxmemory-policy noeviction`, or put ?allow_eviction=true into the engine's URL"
    ))
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim_end)
}

fn text(value: Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        _ => String::new(),
    }
}

fn words(value: Value) -> Vec<String> {
    match value {
        Value::Array(items) => items.into_iter().map(text).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn answers(version: &str, memory: &str, set_marker: Value, marker: &str) -> Vec<Value> {
        let fsync = Value::Array(vec![bulk("appendfsync"), bulk("always")]);
        let server = format!("# Server\r\nredis_version:{version}\r\nos:Linux\r\n");
        vec![bulk(&server), bulk(memory), bulk("aof_enabled:1\r\n"), fsync, set_marker, bulk(marker)]
    }

    fn health(url: &str) -> Health {
        let url = Url::parse(url).unwrap();
        let server = Server::new("redis", url.to_string(), None);
        Health::new(&url, Arc::new(server))
    }

    const FIT: &str = "maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n";

    #[test]
    fn old_servers_are_refused() {
        for (version, fit) in [("7.0.15", true), ("8.2.1", true), ("10.0.0", true), ("6.2.14", false), ("x", false)] {
            let judged = health("redis://h").judge(answers(version, FIT, Value::Nil, "a"));
            assert_eq!(judged.is_ok(), fit, "{version}: {judged:?}");
            assert!(judged.err().is_none_or(|why| matches!(why, Determinate::Incompatible(_))));
        }
    }

    #[test]
    fn a_server_that_may_evict_gets_no_claims_until_it_is_put_right() {
        let evicting = "maxmemory:1000\r\nmaxmemory_policy:volatile-ttl\r\n";
        let health = health("redis://h");
        for (memory, refused) in
            [(FIT, false), (evicting, true), ("maxmemory:1000\r\nmaxmemory_policy:noeviction\r\n", false), ("", true)]
        {
            health.judge(answers("7.0.0", memory, Value::Nil, "a")).unwrap();
            assert_eq!(health.refusal_of_claims().is_some(), refused, "{memory}");
        }
        let allowing = self::health("redis://h?allow_eviction=true");
        allowing.judge(answers("7.0.0", evicting, Value::Nil, "a")).unwrap();
        assert_eq!(allowing.refusal_of_claims(), None);
    }

    #[test]
    fn another_marker_means_lost_data() {
        let health = health("redis://h");
        for (marker, lost) in [("a", 0), ("a", 0), ("b", 1), ("b", 1), ("a", 2)] {
            health.judge(answers("7.0.0", FIT, bulk(marker), marker)).unwrap();
            assert_eq!(health.server.data_losses(), lost);
        }
    }

    #[test]
    fn answers_that_are_refusals_make_the_server_unavailable() {
        let error = redis::parse_redis_value(b"-LOADING Redis is loading the dataset in memory\r\n").unwrap();
        let judged = health("redis://h").judge(answers("7.0.0", FIT, error.clone(), "a"));
        assert!(matches!(judged, Err(Determinate::Unavailable(why)) if why.contains("LOADING")));
        let judged = health("redis://h").judge(vec![error; 6]);
        assert!(matches!(judged, Err(Determinate::Unavailable(why)) if why.contains("LOADING")));
        assert!(health("redis://h").judge(vec![]).is_err());
    }
}
