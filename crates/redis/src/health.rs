//! The health check of a server: version, cluster mode, eviction of keys, presence of its data, replicas. Made
//! at each connect and again at intervals, since an operator may change all of it at any time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use oncegate_core::engine::Determinate;
use oncegate_driver::Server;
use redis::{Cmd, Value};

use super::info::field;
use super::marker::{Marker, Markers};
use super::redirect::Redirect;
use super::replication::{Persistence, Replication};
use super::reply::{PART_OF_CLUSTER, checked};
use super::url::{Layout, Url};

/// The oldest major version with `SET … NX GET` and script flags. Valkey reports a `redis_version` of 7 as well.
const VERSION_MIN: (u32, u32) = (7, 0);

/// Fitness of a server to keep claims, as its connections have found it.
pub(super) struct Health {
    server: Arc<Server>,
    url: Arc<Url>,
    /// Nothing while it answers for no slot.
    marker: ArcSwapOption<Marker>,
    markers: Arc<Markers>,
    /// Reason for refusing grants.
    evicts: ArcSwapOption<String>,
    replication: ArcSwap<Replication>,
    /// The most replicas that were attached at once.
    replicas_max: AtomicUsize,
    /// The last warnings.
    warnings: ArcSwap<Vec<String>>,
}

impl Health {
    pub(super) fn new(url: Arc<Url>, server: Arc<Server>, marker: Option<Marker>, markers: Arc<Markers>) -> Self {
        Self {
            server,
            url,
            marker: ArcSwapOption::new(marker.map(Arc::new)),
            markers,
            evicts: ArcSwapOption::empty(),
            replication: ArcSwap::default(),
            replicas_max: AtomicUsize::new(0),
            warnings: ArcSwap::default(),
        }
    }

    /// Returns the marker of the server, if there is a slot for one.
    pub(super) fn marker(&self) -> Option<Arc<Marker>> {
        self.marker.load_full()
    }

    /// Moves the marker, after slots have moved.
    pub(super) fn set_marker(&self, marker: Option<Marker>) {
        self.marker.store(marker.map(Arc::new));
    }

    /// Returns the last report of the server about its replicas.
    pub(super) fn replication(&self) -> Arc<Replication> {
        self.replication.load_full()
    }

    /// Returns how many replicas were attached at most.
    pub(super) fn replicas_max(&self) -> usize {
        self.replicas_max.load(Ordering::Relaxed)
    }

    /// Counts replicas as attached, as a health check does.
    #[cfg(test)]
    pub(super) fn attach(&self, replicas: usize) {
        self.replicas_max.fetch_max(replicas, Ordering::Relaxed);
    }

    /// Returns the commands of a health check. INFO by sections: older servers accept one at a time, and their version must
    /// be read to be refused.
    pub(super) fn commands(&self) -> Vec<Cmd> {
        let mut commands = vec![
            with("INFO", &["server"]),
            with("INFO", &["memory"]),
            with("INFO", &["persistence"]),
            with("INFO", &["replication"]),
            with("INFO", &["cluster"]),
            with("CONFIG", &["GET", "appendfsync", "save", "cluster-require-full-coverage"]),
        ];
        commands.extend(self.marker_commands());
        commands
    }

    /// Returns the commands that check the presence of the server's data.
    pub(super) fn marker_commands(&self) -> [Cmd; 2] {
        match &*self.marker.load() {
            // Stored only where there is none.
            Some(marker) => [with("SET", &[&marker.key, &Marker::value(), "NX"]), with("GET", &[&marker.key])],
            None => [with("PING", &[]), with("PING", &[])],
        }
    }

    /// Checks the replies to a health check. An error means that the server must not be used at all now.
    pub(super) fn check_replies(&self, replies: Vec<Value>, marker: Option<&Marker>) -> Result<(), Determinate> {
        let Ok([server, memory, persistence, replication, cluster, config, set_marker, found]) =
            <[Value; 8]>::try_from(replies)
        else {
            return Err(unfit());
        };
        let (server, memory) = (text(checked(server)?), text(checked(memory)?));
        let version = check_version(&server, VERSION_MIN)?;
        if let Some(run_id) = field(&server, "run_id").filter(|run_id| !run_id.is_empty()) {
            self.server.set_name(run_id);
        }
        // Such a node would take only the keys of its slots.
        if !matches!(self.url.layout, Layout::Cluster { .. }) && is_of_cluster(&text(cluster)) {
            return Err(Determinate::Incompatible(PART_OF_CLUSTER.into()));
        }
        // A managed server may forbid CONFIG; then durability is not promised.
        let persistence = Persistence::read(&text(persistence), &words(config));
        self.server.set_durable(persistence.is_always());
        if let Some(acknowledgement) = &self.url.acknowledgement {
            persistence.check(acknowledgement, version)?;
        }
        self.warn_of_eviction(&memory);
        let replication = Replication::read(&text(replication));
        self.warn(replication.warnings(&self.url, &persistence));
        self.replicas_max.fetch_max(replication.replicas.len(), Ordering::Relaxed);
        self.replication.store(Arc::new(replication));
        self.check_marker(vec![set_marker, found], marker)
    }

    /// Checks the replies to [`Self::marker_commands`]. An error means that the server must not be used at all now.
    pub(super) fn check_marker(&self, replies: Vec<Value>, marker: Option<&Marker>) -> Result<(), Determinate> {
        let Ok([set_marker, found]) = <[Value; 2]>::try_from(replies) else { return Err(unfit()) };
        let is_cluster = matches!(self.url.layout, Layout::Cluster { .. });
        // In a cluster the slot may be moving, or the server may be a replica by now. Neither shows anything about its
        // data.
        let is_redirected = |reply: &Value| matches!(Redirect::of(reply, None), Some(why) if why.code() != "LOADING");
        if is_cluster && (is_redirected(&set_marker) || is_redirected(&found)) {
            return Ok(());
        }
        // A full server may still be used. A server that refuses writes for another reason may not.
        if !matches!(&set_marker, Value::ServerError(error) if error.code() == "OOM") {
            checked(set_marker)?;
        }
        let found = checked(found)?;
        let value = match &found {
            Value::BulkString(value) => Some(&**value),
            _ => None,
        };
        match marker.map(|marker| marker.place) {
            Some(None) => self.server.set_marker(value),
            Some(Some(place)) if self.markers.is_lost(place, value) => self.server.report_loss(),
            Some(Some(_)) | None => {}
        }
        Ok(())
    }

    fn warn_of_eviction(&self, memory: &str) {
        let why = if self.url.allow_eviction { None } else { eviction(memory) };
        let was_refused = self.evicts.swap(why.clone().map(Into::into)).is_some();
        let server = self.server.address();
        match (was_refused, why) {
            (false, Some(why)) => tracing::error!(server, "Grants are refused: {why}"),
            (true, None) => {
                tracing::info!(server, "Grants are made again: the store does not evict keys");
            }
            (true, Some(_)) | (false, None) => {}
        }
    }

    /// Logs each warning once, for as long as it lasts.
    fn warn(&self, warnings: Vec<String>) {
        let before = self.warnings.load();
        if **before == warnings {
            return;
        }
        let server = self.server.address();
        for warning in warnings.iter().filter(|warning| !before.contains(warning)) {
            tracing::warn!(server, "{warning}");
        }
        self.warnings.store(Arc::new(warnings));
    }

    /// Returns the differences from the promises of the URL.
    pub(super) fn warnings(&self) -> Arc<Vec<String>> {
        self.warnings.load_full()
    }

    /// Returns why grants of every kind are refused now, if they are.
    pub(super) fn refusal_of_grants(&self) -> Option<Determinate> {
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

fn check_version(server: &str, min: (u32, u32)) -> Result<(u32, u32), Determinate> {
    let version = field(server, "redis_version").unwrap_or("unknown");
    let mut numbers = version.split('.').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= min => Ok((major, minor)),
        _ => Err(Determinate::Incompatible(format!(
            "the Redis server is of version {version}; {}.{} or later is needed",
            min.0, min.1
        ))),
    }
}

/// Returns whether a server is a node of a cluster, by its `INFO cluster`.
fn is_of_cluster(cluster: &str) -> bool {
    field(cluster, "cluster_enabled") == Some("1")
}

/// Returns why a server may evict claims, by its `INFO memory`.
fn eviction(memory: &str) -> Option<String> {
    let policy = field(memory, "maxmemory_policy").unwrap_or("unknown");
    if policy == "noeviction" || field(memory, "maxmemory") == Some("0") {
        return None;
    }
    Some(format!(
        "the Redis server has a maxmemory and the policy `{policy}`: it may evict claims and locks, and what is evicted is \
         granted twice. Run `CONFIG SET maxmemory-policy noeviction`, or put ?allow_eviction=true into the engine's URL"
    ))
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
        let (replication, cluster) = (bulk("role:master\r\nconnected_slaves:0\r\n"), bulk("cluster_enabled:0\r\n"));
        let aof = bulk("aof_enabled:1\r\n");
        vec![bulk(&server), bulk(memory), aof, replication, cluster, fsync, set_marker, bulk(marker)]
    }

    fn health(url: &str) -> Health {
        let url = Url::parse(url).unwrap();
        let server = Server::new("redis", url.to_string(), None);
        Health::new(Arc::new(url), Arc::new(server), Some(marker()), Arc::default())
    }

    fn marker() -> Marker {
        Marker { key: "og:marker".into(), place: None }
    }

    const FIT: &str = "maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n";

    #[test]
    fn old_servers_are_refused() {
        for (version, fit) in [("7.0.15", true), ("8.2.1", true), ("10.0.0", true), ("6.2.14", false), ("x", false)] {
            let checked = health("redis://h").check_replies(answers(version, FIT, Value::Nil, "a"), Some(&marker()));
            assert_eq!(checked.is_ok(), fit, "{version}: {checked:?}");
            assert!(checked.err().is_none_or(|why| matches!(why, Determinate::Incompatible(_))));
        }
    }

    #[test]
    fn a_server_that_may_evict_gets_no_claims_until_it_is_put_right() {
        let evicting = "maxmemory:1000\r\nmaxmemory_policy:volatile-ttl\r\n";
        let health = health("redis://h");
        for (memory, refused) in
            [(FIT, false), (evicting, true), ("maxmemory:1000\r\nmaxmemory_policy:noeviction\r\n", false), ("", true)]
        {
            health.check_replies(answers("7.0.0", memory, Value::Nil, "a"), Some(&marker())).unwrap();
            assert_eq!(health.refusal_of_grants().is_some(), refused, "{memory}");
        }
        let allowing = self::health("redis://h?allow_eviction=true");
        allowing.check_replies(answers("7.0.0", evicting, Value::Nil, "a"), Some(&marker())).unwrap();
        assert_eq!(allowing.refusal_of_grants(), None);
    }

    #[test]
    fn a_node_of_a_cluster_is_refused_unless_the_url_names_one() {
        for (url, is_cluster) in [("redis://h", false), ("redis+sentinel://h/main", false), ("redis+cluster://h", true)]
        {
            for enabled in ["0", "1"] {
                let mut replies = answers("7.0.0", FIT, Value::Nil, "a");
                replies[4] = bulk(&format!("# Cluster\r\ncluster_enabled:{enabled}\r\n"));
                let checked = health(url).check_replies(replies, Some(&marker()));
                let is_refused =
                    matches!(&checked, Err(Determinate::Incompatible(why)) if why.contains("redis+cluster://"));
                assert_eq!(is_refused, enabled == "1" && !is_cluster, "{url}: {checked:?}");
            }
        }
    }

    #[test]
    fn what_the_server_says_is_kept_for_operators() {
        let health = health("redis://h?replicas=1");
        assert!(health.warnings().is_empty() && !health.server.is_durable());
        let attached = |count: usize| {
            let lines = (0..count).map(|at| format!("slave{at}:ip=10.0.0.{at},port=6379,state=online\r\n"));
            bulk(&format!("role:master\r\n{}", lines.collect::<String>()))
        };
        for (count, most, warnings) in [(0, 0, 1), (2, 2, 1), (1, 2, 0)] {
            let mut replies = answers("7.0.0", FIT, Value::Nil, "a");
            replies[3] = attached(count);
            health.check_replies(replies, Some(&marker())).unwrap();
            assert_eq!((health.replication().replicas.len(), health.replicas_max()), (count, most));
            assert_eq!(health.warnings().len(), warnings, "{:?}", health.warnings());
        }
        assert!(health.server.is_durable(), "its log is synced each time");
    }

    #[test]
    fn the_marker_of_a_server_can_move() {
        let health = health("redis+cluster://h");
        assert_eq!(health.marker().as_deref(), Some(&marker()));
        let moved = Marker { key: "og:{7}:marker".into(), place: Some((7, 0)) };
        health.set_marker(Some(moved.clone()));
        assert_eq!(health.marker().as_deref(), Some(&moved));
        health.set_marker(None);
        assert_eq!(health.marker(), None);
        let packed = |commands: [Cmd; 2]| commands.map(|command| command.get_packed_command());
        assert!(packed(health.marker_commands()).iter().all(|command| command.windows(4).any(|word| word == b"PING")));
    }

    #[test]
    fn another_marker_means_lost_data() {
        let health = health("redis://h");
        for (found, lost) in [("a", 0), ("a", 0), ("b", 1), ("b", 1), ("a", 2)] {
            health.check_replies(answers("7.0.0", FIT, bulk(found), found), Some(&marker())).unwrap();
            assert_eq!(health.server.data_losses(), lost);
        }
    }

    #[test]
    fn a_slot_on_its_way_says_nothing_about_the_data() {
        let health = health("redis+cluster://h");
        let marker = Marker { key: "og:{1}:marker".into(), place: Some((9842, 0)) };
        let check = |set: Value, found: Value| health.check_marker(vec![set, found], Some(&marker));
        let moved = redis::parse_redis_value(b"-MOVED 9842 h:1\r\n").unwrap();
        let loading = redis::parse_redis_value(b"-LOADING x\r\n").unwrap();
        check(Value::Nil, bulk("a")).unwrap();
        for (set, found) in [(&moved, &moved), (&moved, &bulk("b")), (&Value::Nil, &moved)] {
            check(set.clone(), found.clone()).unwrap();
        }
        assert_eq!(health.server.data_losses(), 0);
        assert!(check(loading.clone(), loading).is_err());
        check(Value::Okay, bulk("b")).unwrap();
        assert_eq!(health.server.data_losses(), 1);
    }

    #[test]
    fn answers_that_are_refusals_make_the_server_unavailable() {
        let error = redis::parse_redis_value(b"-LOADING Redis is loading the dataset in memory\r\n").unwrap();
        let checked = health("redis://h").check_replies(answers("7.0.0", FIT, error.clone(), "a"), Some(&marker()));
        assert!(matches!(checked, Err(Determinate::Unavailable(why)) if why.contains("LOADING")));
        let checked = health("redis://h").check_replies(vec![error; 8], Some(&marker()));
        assert!(matches!(checked, Err(Determinate::Unavailable(why)) if why.contains("LOADING")));
        assert!(health("redis://h").check_replies(vec![], Some(&marker())).is_err());
    }
}
