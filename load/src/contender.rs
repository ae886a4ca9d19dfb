//! Contenders of a comparison, and the programs that they need.

use std::{
    env, fmt,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use crate::{peers, postgres::Programs, programs::find_program, redis::Tools, wire::Dialect};

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
    /// No gateway: `redis-benchmark` with the command that the engine sends.
    #[value(name = "redis-benchmark")]
    Sets,
    /// The same with 16 commands at a time per connection.
    #[value(name = "redis-benchmark-pipelined")]
    PipelinedSets,
    Postgres,
    /// No gateway: single-row inserts by as many clients, with the same durability.
    Pgbench,
}

impl Contender {
    pub(crate) const ALL: [Self; 13] = [
        Self::Noop,
        Self::Memory,
        Self::Disk,
        Self::Redis,
        Self::Cluster,
        Self::Acknowledged,
        Self::Library,
        Self::Webdis,
        Self::Nginx,
        Self::Sets,
        Self::PipelinedSets,
        Self::Postgres,
        Self::Pgbench,
    ];

    /// Returns the protocol of its claims.
    pub(crate) fn dialect(self) -> Dialect {
        if self == Self::Webdis { Dialect::Webdis } else { Dialect::Gateway }
    }

    /// Reports whether it supports single claims only.
    pub(crate) fn only_claims(self) -> bool {
        matches!(self, Self::Library | Self::Webdis | Self::Nginx | Self::Sets | Self::PipelinedSets | Self::Pgbench)
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
            Self::Sets => "redis-benchmark",
            Self::PipelinedSets => "redis-benchmark -P 16",
            Self::Postgres => "postgres",
            Self::Pgbench => "pgbench",
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
    /// The program, and the folder of its modules.
    pub(crate) nginx: Option<(PathBuf, PathBuf)>,
    pub(crate) postgres: Option<Programs>,
}

impl Installed {
    /// Finds the programs. Without a path, the gateway is the one beside this executable.
    pub(crate) fn find(gateway: Option<&Path>) -> anyhow::Result<Self> {
        let gateway = match gateway {
            Some(path) => {
                Some(path.canonicalize().with_context(|| format!("there is no gateway at {}", path.display()))?)
            }
            None => Some(env::current_exe()?.with_file_name("oncegate")).filter(|path| path.is_file()),
        };
        let redis_server = ["redis-server", "valkey-server"].into_iter().find_map(find_program);
        let webdis = find_program("webdis");
        let nginx = find_program("nginx").zip(peers::nginx_modules());
        Ok(Self { gateway, redis_server, redis_tools: Tools::find(), webdis, nginx, postgres: Programs::find() })
    }

    /// Returns what is missing for a contender.
    pub(crate) fn lacks(&self, contender: Contender) -> Option<&'static str> {
        let redis = (self.redis_server.is_none()).then_some("neither redis-server nor valkey-server is installed");
        match contender {
            Contender::Noop | Contender::Memory | Contender::Disk => None,
            Contender::Redis => redis,
            // The starter of clusters knows no other name.
            Contender::Cluster | Contender::Acknowledged | Contender::Library => {
                find_program("redis-server").is_none().then_some("redis-server is not installed")
            }
            Contender::Sets | Contender::PipelinedSets => {
                redis.or(self.redis_tools.is_none().then_some("redis-benchmark and redis-cli are not installed"))
            }
            Contender::Webdis => redis.or(self.webdis.is_none().then_some("webdis is not installed")),
            Contender::Nginx => {
                redis.or(self.nginx.is_none().then_some("nginx with its Lua module and libraries is not installed"))
            }
            Contender::Postgres | Contender::Pgbench => {
                self.postgres.is_none().then_some("PostgreSQL with its pgbench is not installed")
            }
        }
    }
}
