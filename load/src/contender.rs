//! Contenders of a comparison, and the programs that they need.

use std::{
    env, fmt,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};

use crate::{
    peers, postgres::Programs, programs::find_program, quorum, redis::Tools, scenario::Scenario, wire::Dialect,
};

/// Server to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Contender {
    Noop,
    Memory,
    Disk,
    Redis,
    /// A cluster of three primaries.
    Cluster,
    /// The same, each with a replica that acknowledges (`replicas=1`).
    Acknowledged,
    /// No gateway: the cluster mode of the Redis client library behind a plain handler, for claims only.
    Library,
    /// Redis commands over HTTP, for claims only.
    Webdis,
    /// Lua in nginx with Redis, for claims only.
    Nginx,
    /// Another service for idempotency with its own durable store, for claims only.
    Diom,
    /// No gateway: `redis-benchmark` with the command that the engine sends.
    #[value(name = "redis-benchmark")]
    Sets,
    /// The same with 16 commands at a time per connection.
    #[value(name = "redis-benchmark-pipelined")]
    PipelinedSets,
    Postgres,
    /// No gateway: single-row inserts by as many clients, with the same durability.
    Pgbench,
    /// The gateway on an etcd of three members
    Etcd,
    /// No gateway: etcd's own `benchmark put` on such an etcd.
    #[value(name = "etcd-benchmark")]
    EtcdPuts,
    /// The gateway on a ZooKeeper of three servers
    #[value(name = "zookeeper")]
    ZooKeeper,
    /// No gateway: asynchronous `create` of the Java client on such a ZooKeeper.
    #[value(name = "zookeeper-creates")]
    ZooKeeperCreates,
    /// The service of the proxied scenario, without a proxy.
    Upstream,
    /// The gateway as a proxy in front of it.
    #[value(name = "proxy-memory")]
    ProxyMemory,
    #[value(name = "proxy-redis")]
    ProxyRedis,
    /// The same on a route without protection.
    #[value(name = "proxy-unprotected")]
    ProxyUnprotected,
    /// nginx in front of it, without deduplication.
    #[value(name = "proxy-nginx")]
    ProxyNginx,
}

impl Contender {
    pub(crate) const ALL: [Self; 23] = [
        Self::Noop,
        Self::Memory,
        Self::Disk,
        Self::Redis,
        Self::Cluster,
        Self::Acknowledged,
        Self::Library,
        Self::Webdis,
        Self::Nginx,
        Self::Diom,
        Self::Sets,
        Self::PipelinedSets,
        Self::Postgres,
        Self::Pgbench,
        Self::Etcd,
        Self::EtcdPuts,
        Self::ZooKeeper,
        Self::ZooKeeperCreates,
        Self::Upstream,
        Self::ProxyMemory,
        Self::ProxyRedis,
        Self::ProxyUnprotected,
        Self::ProxyNginx,
    ];

    /// A gateway on one server or folder of each engine.
    pub(crate) const ENGINES: [Self; 4] = [Self::Memory, Self::Disk, Self::Redis, Self::Postgres];

    /// Returns the protocol of its claims.
    pub(crate) fn dialect(self) -> Dialect {
        match self {
            Self::Webdis => Dialect::Webdis,
            Self::Diom => Dialect::Diom,
            Self::Upstream | Self::ProxyUnprotected | Self::ProxyNginx => Dialect::Forwarding,
            _ => Dialect::Gateway,
        }
    }

    /// Reports whether it is only for the proxied scenario.
    pub(crate) fn is_proxied(self) -> bool {
        use Contender::{ProxyMemory, ProxyNginx, ProxyRedis, ProxyUnprotected, Upstream};
        matches!(self, Upstream | ProxyMemory | ProxyRedis | ProxyUnprotected | ProxyNginx)
    }

    /// Returns the reference server of a scenario.
    pub(crate) fn reference(scenario: Scenario) -> Self {
        if scenario == Scenario::Proxied { Self::Upstream } else { Self::Noop }
    }

    /// Returns whether it can play a scenario. The tools of stores only make new claims; other alternatives make single claims.
    pub(crate) fn plays(self, scenario: Scenario) -> bool {
        match self {
            Self::Sets | Self::PipelinedSets | Self::Pgbench | Self::EtcdPuts | Self::ZooKeeperCreates => {
                scenario == Scenario::Unique
            }
            Self::Library | Self::Webdis | Self::Nginx | Self::Diom => {
                matches!(scenario, Scenario::Unique | Scenario::RunningStorm)
            }
            _ => true,
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Noop => "no-op handler",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Redis => "redis",
            Self::Cluster => "cluster",
            Self::Acknowledged => "cluster, replicas=1",
            Self::Library => "library on the cluster",
            Self::Webdis => "webdis",
            Self::Nginx => "nginx with Lua",
            Self::Diom => "Diom",
            Self::Sets => "redis-benchmark",
            Self::PipelinedSets => "redis-benchmark -P 16",
            Self::Postgres => "postgres",
            Self::Pgbench => "pgbench",
            Self::Etcd => "etcd",
            Self::EtcdPuts => "etcd's benchmark",
            Self::ZooKeeper => "zookeeper",
            Self::ZooKeeperCreates => "zookeeper's client",
            Self::Upstream => "upstream alone",
            Self::ProxyMemory => "proxy on memory",
            Self::ProxyRedis => "proxy on redis",
            Self::ProxyUnprotected => "proxy, unprotected",
            Self::ProxyNginx => "nginx proxy_pass",
        })
    }
}

/// Programs that are installed.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) gateway: Option<PathBuf>,
    pub(crate) redis_server: Option<PathBuf>,
    pub(crate) redis_tools: Option<Tools>,
    pub(crate) webdis: Option<PathBuf>,
    pub(crate) nginx: Option<PathBuf>,
    pub(crate) diom: Option<PathBuf>,
    /// Folder of nginx's modules, if the one for Lua is among them.
    pub(crate) nginx_modules: Option<PathBuf>,
    pub(crate) postgres: Option<Programs>,
}

impl Installed {
    /// Finds the programs as [`Self::find`] does, and requires a gateway.
    pub(crate) fn with_gateway(gateway: Option<&Path>) -> anyhow::Result<Self> {
        let installed = Self::find(gateway)?;
        ensure!(
            installed.gateway.is_some(),
            "there is no gateway to measure: build it with `cargo build --profile dist`, or name it with --gateway PATH"
        );
        Ok(installed)
    }

    /// Finds the programs. Without a path, the gateway is the one in the folder of this executable.
    pub(crate) fn find(gateway: Option<&Path>) -> anyhow::Result<Self> {
        let gateway = match gateway {
            Some(path) => {
                Some(path.canonicalize().with_context(|| format!("there is no gateway at {}", path.display()))?)
            }
            None => Some(env::current_exe()?.with_file_name("oncegate")).filter(|path| path.is_file()),
        };
        let redis_server = ["redis-server", "valkey-server"].into_iter().find_map(find_program);
        let webdis = find_program("webdis");
        let nginx = find_program("nginx");
        let nginx_modules = peers::nginx_modules();
        Ok(Self {
            gateway,
            redis_server,
            redis_tools: Tools::find(),
            webdis,
            nginx,
            nginx_modules,
            diom: find_program("diom-server"),
            postgres: Programs::find(),
        })
    }

    /// Returns the missing requirement of a contender.
    pub(crate) fn lacks(&self, contender: Contender) -> Option<&'static str> {
        let redis = (self.redis_server.is_none()).then_some("neither redis-server nor valkey-server is installed");
        match contender {
            Contender::Noop
            | Contender::Memory
            | Contender::Disk
            | Contender::Upstream
            | Contender::ProxyMemory
            | Contender::ProxyUnprotected => None,
            Contender::ProxyNginx => self.nginx.is_none().then_some("nginx is not installed"),
            Contender::Redis | Contender::ProxyRedis => redis,
            // The starter of clusters knows no other name.
            Contender::Cluster | Contender::Acknowledged | Contender::Library => {
                find_program("redis-server").is_none().then_some("redis-server is not installed")
            }
            Contender::Sets | Contender::PipelinedSets => {
                redis.or(self.redis_tools.is_none().then_some("redis-benchmark and redis-cli are not installed"))
            }
            Contender::Webdis => redis.or(self.webdis.is_none().then_some("webdis is not installed")),
            Contender::Nginx => redis.or(self
                .nginx
                .as_ref()
                .and(self.nginx_modules.as_ref())
                .is_none()
                .then_some("nginx with its Lua module and libraries is not installed")),
            Contender::Diom => self.diom.is_none().then_some("diom-server is not on PATH"),
            Contender::Postgres | Contender::Pgbench => {
                self.postgres.is_none().then_some("PostgreSQL with its pgbench is not installed")
            }
            Contender::Etcd => quorum::lacks_etcd(),
            Contender::EtcdPuts => quorum::lacks_etcd().or_else(quorum::lacks_benchmark),
            Contender::ZooKeeper => quorum::lacks_zookeeper(),
            Contender::ZooKeeperCreates => quorum::lacks_zookeeper().or_else(quorum::lacks_jars),
        }
    }
}
