//! Whether the server is fit to keep claims: its version, whether it evicts, whether it still has its data. Asked at
//! each connect and again while running, since an operator may change all of it at any time.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use redis::{Cmd, Value};

use super::options::{Address, Options};
use super::reply::checked;
use crate::domain::attempt::{Entropy, SystemEntropy};
use crate::engine::Determinate;

/// The oldest major version with `SET … NX GET` and script flags. Valkey tells a `redis_version` of 7 as well.
const VERSION_MIN: u32 = 7;

/// What is known of the server's fitness, shared by all connections.
pub(super) struct Health {
    server: String,
    allow_eviction: bool,
    marker_key: String,
    on_data_lost: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Why claims are refused.
    evicts: ArcSwapOption<String>,
    durable: AtomicBool,
    /// What the marker held when it was last seen.
    marker: Mutex<Option<Vec<u8>>>,
    data_lost: AtomicU64,
}

impl Health {
    pub(super) fn new(address: &Address, options: &Options) -> Self {
        Self {
            server: address.to_string(),
            allow_eviction: address.allow_eviction,
            marker_key: format!("{}og:marker", address.prefix),
            on_data_lost: options.on_data_lost.clone(),
            evicts: ArcSwapOption::empty(),
            durable: AtomicBool::new(false),
            marker: Mutex::new(None),
            data_lost: AtomicU64::new(0),
        }
    }

    /// What to ask the server. INFO by sections, since older servers know only one at a time, and are to be told so.
    pub(super) fn questions(&self) -> Vec<Cmd> {
        let mut questions = vec![
            with("INFO", &["server"]),
            with("INFO", &["memory"]),
            with("INFO", &["persistence"]),
            with("CONFIG", &["GET", "appendfsync"]),
        ];
        questions.extend(self.marker_questions());
        questions
    }

    /// What to ask the server more often: whether it still has its data.
    pub(super) fn marker_questions(&self) -> [Cmd; 2] {
        // A fresh mark each time: the one that is found tells whether this is the store that was there before.
        let mark = format!("{:016x}", SystemEntropy.bits());
        [with("SET", &[&self.marker_key, &mark, "NX"]), with("GET", &[&self.marker_key])]
    }

    /// Judges the answers. An error means that the server is not to be used at all for now.
    pub(super) fn judge(&self, answers: Vec<Value>) -> Result<(), Determinate> {
        let Ok([server, memory, persistence, appendfsync, set_marker, marker]) = <[Value; 6]>::try_from(answers) else {
            return Err(unfit());
        };
        let (server, memory) = (text(checked(server)?), text(checked(memory)?));
        check_version(&server)?;
        // A managed server may forbid CONFIG; then nothing is promised.
        let (persistence, appendfsync) = (text(persistence), words(appendfsync));
        let always = field(&persistence, "aof_enabled") == Some("1") && appendfsync.iter().any(|word| word == "always");
        self.durable.store(always, Ordering::Relaxed);
        self.judge_eviction(&memory);
        self.judge_marker(vec![set_marker, marker])
    }

    /// Judges whether the server still has its data. An error means that it is not to be used at all for now.
    pub(super) fn judge_marker(&self, answers: Vec<Value>) -> Result<(), Determinate> {
        let Ok([set_marker, marker]) = <[Value; 2]>::try_from(answers) else { return Err(unfit()) };
        // Being full is no reason not to be used. Any other refusal of a write is.
        if !matches!(&set_marker, Value::ServerError(error) if error.code() == "OOM") {
            checked(set_marker)?;
        }
        let marker = match checked(marker)? {
            Value::BulkString(marker) => Some(marker),
            _ => None,
        };
        if self.replace_marker(marker) {
            self.tell_data_lost();
        }
        Ok(())
    }

    fn judge_eviction(&self, memory: &str) {
        let why = if self.allow_eviction { None } else { eviction(memory) };
        let was_refused = self.evicts.swap(why.clone().map(Into::into)).is_some();
        match (was_refused, why) {
            (false, Some(why)) => tracing::error!(redis.server = self.server, "claims are refused: {why}"),
            (true, None) => {
                tracing::info!(redis.server = self.server, "claims are taken again: the store does not evict");
            }
            (true, Some(_)) | (false, None) => {}
        }
    }

    /// Remembers the marker; tells whether it is another one than last time, or gone.
    fn replace_marker(&self, marker: Option<Vec<u8>>) -> bool {
        let mut known = self.marker.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = known.is_some() && *known != marker;
        *known = marker;
        lost
    }

    fn tell_data_lost(&self) {
        self.data_lost.fetch_add(1, Ordering::Relaxed);
        let server = &self.server;
        tracing::error!(
            redis.server = server,
            "the store has lost its data: what was done before can be claimed again"
        );
        if let Some(hook) = &self.on_data_lost {
            hook();
        }
    }

    /// Why no claim may be made now, if so.
    pub(super) fn refusal_of_claims(&self) -> Option<Determinate> {
        self.evicts.load().as_ref().map(|why| Determinate::Incompatible(why.to_string()))
    }

    /// Whether the server fsyncs before it answers.
    pub(super) fn durable(&self) -> bool {
        self.durable.load(Ordering::Relaxed)
    }

    /// How often the store came back without its data.
    pub(super) fn data_lost(&self) -> u64 {
        self.data_lost.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health")
            .field("evicts", &self.evicts.load())
            .field("durable", &self.durable())
            .field("data_lost", &self.data_lost())
            .finish_non_exhaustive()
    }
}

fn with(name: &str, arguments: &[&str]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(arguments);
    command
}

fn unfit() -> Determinate {
    Determinate::Unavailable("the Redis server does not answer what it was asked".into())
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

/// Why a server must be taken to evict claims, by its `INFO memory`.
fn eviction(memory: &str) -> Option<String> {
    let policy = field(memory, "maxmemory_policy").unwrap_or("unknown");
    if policy == "noeviction" || field(memory, "maxmemory") == Some("0") {
        return None;
    }
    Some(format!(
        "the Redis server has a maxmemory and the policy `{policy}`: it may evict claims, and an evicted claim is a double \
         execution. Say `CONFIG SET maxmemory-policy noeviction`, or put ?allow_eviction=true into the engine's URL"
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
        Health::new(&Address::parse(url).unwrap(), &Options::default())
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
            assert_eq!(health.data_lost(), lost);
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
