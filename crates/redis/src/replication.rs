//! A server's replicas and persistence, and the strength of an acknowledgement with them.

use oncegate_core::engine::Determinate;
use oncegate_core::terms::Span;

use super::acknowledgement::Acknowledgement;
use super::info::field;
use super::url::{Layout, Url};

/// Replicas of a server, from its `INFO replication`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Replication {
    pub(super) is_replica: bool,
    /// Addresses of the attached replicas, including lagging ones.
    pub(super) replicas: Vec<String>,
}

impl Replication {
    pub(super) fn read(info: &str) -> Self {
        let replica = |line: &str| {
            let (name, fields) = line.split_once(':')?;
            name.strip_prefix("slave").filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))?;
            let value = |key: &str| fields.split(',').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
            Some(format!("{}:{}", value("ip")?, value("port")?.trim_end()))
        };
        let is_replica = field(info, "role") == Some("slave");
        Self { is_replica, replicas: info.lines().filter_map(replica).collect() }
    }

    /// Returns the promises of the URL that the server does not keep.
    pub(super) fn warnings(&self, url: &Url, persistence: &Persistence) -> Vec<String> {
        let mut warnings = Vec::new();
        if matches!(url.layout, Layout::Cluster { .. }) && persistence.full_coverage {
            warnings.push(
                "cluster-require-full-coverage is `yes`: one dead shard stops all others; run `CONFIG SET \
                 cluster-require-full-coverage no` on every node"
                    .into(),
            );
        }
        let Some(Acknowledgement { replicas, .. }) = url.acknowledgement.filter(|_| !self.is_replica) else {
            return warnings;
        };
        let attached = self.replicas.len();
        let asked = usize::try_from(replicas).unwrap_or(usize::MAX);
        if attached < asked {
            warnings.push(format!(
                "replicas={asked} is asked for and {attached} are attached: answers are 503 outcome_unknown until there are \
                 {asked}; attach replicas, or write a smaller number"
            ));
        }
        if attached > asked {
            warnings.push(format!(
                "replicas={asked} is asked for and {attached} are attached: one that lacks the newest claims can be promoted; \
                 write replicas={attached} to lose none"
            ));
        }
        if !persistence.aof && !persistence.snapshots {
            warnings.push(
                "neither appendonly nor save is on: a primary that is restarted before the failover comes back empty, and its \
                 replicas with it; turn on one of them"
                    .into(),
            );
        }
        warnings
    }
}

/// Settings of a server for surviving a restart.
#[expect(clippy::struct_excessive_bools, reason = "settings that are independent of each other")]
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Persistence {
    aof: bool,
    fsync_always: bool,
    snapshots: bool,
    full_coverage: bool,
}

impl Persistence {
    /// Reads `INFO persistence`, and names and values of settings.
    pub(super) fn read(info: &str, config: &[String]) -> Self {
        let setting = |name: &str| config.chunks(2).find(|pair| pair[0] == name).and_then(|pair| pair.get(1));
        Self {
            aof: field(info, "aof_enabled") == Some("1"),
            fsync_always: setting("appendfsync").is_some_and(|value| value == "always"),
            // Not known is not warned of.
            snapshots: setting("save").is_none_or(|value| !value.is_empty()),
            full_coverage: setting("cluster-require-full-coverage").is_some_and(|value| value == "yes"),
        }
    }

    /// Returns whether each answer is on the disk before it is given.
    pub(super) fn is_always(&self) -> bool {
        self.aof && self.fsync_always
    }

    /// Checks that the server can give an acknowledgement.
    pub(super) fn check(&self, acknowledgement: &Acknowledgement, version: (u32, u32)) -> Result<(), Determinate> {
        if !acknowledgement.aof {
            return Ok(());
        }
        let refuse = |why: String| Err(Determinate::Incompatible(why));
        if version < (7, 2) {
            return refuse(format!(
                "aof=1 needs a Redis server of version 7.2 or later, and this one is of {}.{}; upgrade it, or leave out aof=1",
                version.0, version.1
            ));
        }
        if !self.aof {
            return refuse("aof=1 needs `appendonly yes` on the Redis server; turn it on, or leave out aof=1".into());
        }
        if !self.fsync_always && acknowledgement.timeout.as_millis() < 1500 {
            return refuse(format!(
                "aof=1 waits for the disk, which the Redis server writes once a second, and replica_timeout is {}; set \
                 `appendfsync always`, or write replica_timeout=1500ms&response_timeout=2s and a deadline of 2s or more",
                Span(acknowledgement.timeout)
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn persistence(config: &[&str]) -> Persistence {
        let config: Vec<_> = config.iter().map(ToString::to_string).collect();
        Persistence::read("aof_enabled:1\r\n", &config)
    }

    const TWO: &str = "role:master\r\nconnected_slaves:2\r\nslave0:ip=10.0.0.1,port=6379,state=online,offset=1,lag=0\r\n\
                       slave1:ip=10.0.0.2,port=6380,state=wait_bgsave,offset=0,lag=0\r\nslave_read_only:1\r\n";

    #[test]
    fn attached_replicas_are_read_and_compared_with_what_is_asked_for() {
        let replication = Replication::read(TWO);
        assert_eq!(replication.replicas, ["10.0.0.1:6379", "10.0.0.2:6380"]);
        assert!(Replication::read("role:slave\r\n").is_replica);
        for (url, warned) in [
            ("redis://h", None),
            ("redis://h?replicas=2", None),
            ("redis://h?replicas=1", Some("write replicas=2")),
            ("redis://h?replicas=3", Some("outcome_unknown until there are 3")),
        ] {
            let warnings = replication.warnings(&Url::parse(url).unwrap(), &persistence(&[]));
            assert_eq!(warnings.len(), usize::from(warned.is_some()), "{url}: {warnings:?}");
            assert!(warned.is_none_or(|text| warnings[0].contains(text)), "{warnings:?}");
        }
        let off = Persistence::read("aof_enabled:0\r\n", &["save".into(), String::new()]);
        assert!(
            replication.warnings(&Url::parse("redis://h?replicas=2").unwrap(), &off)[0].contains("comes back empty")
        );
        let covering = persistence(&["cluster-require-full-coverage", "yes"]);
        let warnings = replication.warnings(&Url::parse("redis+cluster://h").unwrap(), &covering);
        assert!(warnings[0].contains("full-coverage no"), "{warnings:?}");
    }

    #[test]
    fn only_what_is_wrong_is_warned_of() {
        let replication = Replication::read(TWO);
        let off = |save: &str| Persistence::read("aof_enabled:0\r\n", &["save".into(), save.into()]);
        for (url, persistence, warned) in [
            ("redis+cluster://h", persistence(&[]), false),
            ("redis://h", persistence(&["cluster-require-full-coverage", "yes"]), false),
            ("redis://h?replicas=2", off("3600 1"), false),
            ("redis://h?replicas=2", off(""), true),
            ("redis://h", off(""), false),
        ] {
            let warnings = replication.warnings(&Url::parse(url).unwrap(), &persistence);
            assert_eq!(!warnings.is_empty(), warned, "{url}: {warnings:?}");
        }
    }

    #[test]
    fn an_answer_is_on_the_disk_if_the_log_is_on_and_synced_each_time() {
        let read = |aof: &str, fsync: &str| Persistence::read(aof, &["appendfsync".into(), fsync.into()]).is_always();
        assert!(read("aof_enabled:1\r\n", "always"));
        assert!(!read("aof_enabled:0\r\n", "always"));
        assert!(!read("aof_enabled:1\r\n", "everysec"));
    }

    #[test]
    fn an_acknowledgement_from_the_disk_needs_a_server_that_gives_it() {
        let asked = |ms| Acknowledgement { replicas: 1, timeout: Duration::from_millis(ms), aof: true };
        let checked = |on: &Persistence, ms, version| on.check(&asked(ms), version).map_err(|why| why.to_string());
        let (always, everysec) = (persistence(&["appendfsync", "always"]), persistence(&["appendfsync", "everysec"]));
        assert_eq!(checked(&always, 100, (7, 2)), Ok(()));
        assert_eq!(checked(&everysec, 1500, (8, 0)), Ok(()));
        assert!(checked(&always, 100, (7, 0)).unwrap_err().contains("7.2 or later"));
        assert!(checked(&everysec, 1000, (8, 0)).unwrap_err().contains("replica_timeout=1500ms"));
        assert!(checked(&Persistence::default(), 2000, (8, 0)).unwrap_err().contains("appendonly yes"));
        let plain = Acknowledgement { aof: false, ..asked(100) };
        assert_eq!(Persistence::default().check(&plain, (7, 0)), Ok(()));
    }
}
