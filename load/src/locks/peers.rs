//! Locks of others under the same load: the `Lock` of redis-py, the lock of etcd, and Curator's `InterProcessMutex`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use futures_util::future::try_join_all;
use serde_json::json;
use tokio::process::Command;

use super::{caller::Caller, hand_overs::HandOvers};
use crate::{
    client::Target,
    contender::Contender,
    programs::{find_program, run},
    quorum,
    running::Running,
};

/// File system in memory, where an fsync costs nothing.
const IN_MEMORY: &str = "/dev/shm";

/// Threads that acquire and release the lock of redis-py with its defaults: it polls every 100 ms.
const PROGRAM: &str = "
import sys, threading, time, redis
port, callers, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
last, count, end = [None], [0], time.monotonic() + seconds
def run(me):
    lock = redis.Redis(port=port).lock('hot', timeout=60)
    while time.monotonic() < end:
        with lock:
            if last[0] != me:
                last[0] = me
                count[0] += 1
threads = [threading.Thread(target=run, args=(me,)) for me in range(callers)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(count[0] / seconds)
";

/// Another lock.
pub(super) enum Peer {
    /// A Python with redis-py, on the Redis of the gateways.
    RedisPy(PathBuf),
    /// An etcd of one member in memory, to compare it with Redis.
    EtcdOfOne(Box<Running>),
    /// On the etcd of the gateways.
    Etcd,
    /// On the ZooKeeper of the gateways.
    Curator,
}

impl Peer {
    pub(super) const REDIS_PY: &str = "redis-py";
    const ETCD: &str = "etcd";
    const ETCD_OF_ONE: &str = "a single etcd";
    const CURATOR: &str = "Curator";

    /// Returns the names of the locks that are compared with the one on this engine.
    pub(super) fn names(engine: Contender) -> &'static [&'static str] {
        match engine {
            Contender::Redis => &[Self::REDIS_PY, Self::ETCD_OF_ONE],
            Contender::Etcd => &[Self::ETCD],
            Contender::ZooKeeper => &[Self::CURATOR],
            _ => &[],
        }
    }

    /// Finds a lock; `None` if it is not installed. A store for it alone is started in memory if there is such a file system, otherwise
    /// with its data in `parent`.
    pub(super) async fn find(name: &str, parent: &Path) -> anyhow::Result<Option<Self>> {
        match name {
            Self::REDIS_PY => Ok(python_with_redis().await.map(Self::RedisPy)),
            Self::ETCD => Ok(Some(Self::Etcd)),
            Self::CURATOR => Ok(quorum::lacks_jars().is_none().then_some(Self::Curator)),
            _ if find_program("etcd").is_none() => Ok(None),
            _ => {
                let in_memory = Path::new(IN_MEMORY);
                Running::start_etcd(if in_memory.is_dir() { in_memory } else { parent })
                    .await
                    .map(|it| Some(Self::EtcdOfOne(Box::new(it))))
            }
        }
    }

    /// Returns the hand-overs per second, on the store of the gateways or on its own.
    pub(super) async fn each_second(
        &self,
        running: &Running,
        measured: Duration,
        waiters: usize,
    ) -> anyhow::Result<f64> {
        let quorum = || running.quorum.as_ref().context("no quorum was started");
        match self {
            Self::RedisPy(python) => {
                let arguments = [running.port.to_string(), waiters.to_string(), measured.as_secs_f64().to_string()];
                let output =
                    run(Command::new(python).args(["-c", PROGRAM]).args(arguments)).await.context("redis-py")?;
                output.trim().parse().context("redis-py does not print its rate")
            }
            Self::EtcdOfOne(etcd) => on_etcd(&[etcd.etcd()?], measured, waiters).await,
            Self::Etcd => {
                let addresses = quorum()?.addresses();
                let targets: Vec<_> = addresses
                    .split(',')
                    .map(|address| Target::parse(&format!("http://{address}"), None, false).map(Arc::new))
                    .collect::<anyhow::Result<_>>()?;
                on_etcd(&targets, measured, waiters).await
            }
            Self::Curator => quorum()?.hand_overs_of_curator(waiters, measured).await,
        }
    }
}

/// Finds a Python with redis-py: the one of `PATH`, or the one of the system.
async fn python_with_redis() -> Option<PathBuf> {
    for python in [find_program("python3"), Some(PathBuf::from("/usr/bin/python3"))].into_iter().flatten() {
        if run(Command::new(&python).args(["-c", "import redis"])).await.is_ok() {
            return Some(python);
        }
    }
    None
}

/// Returns the hand-overs per second of etcd's own lock, which `etcdctl lock` uses. The members share the callers.
async fn on_etcd(members: &[Arc<Target>], measured: Duration, waiters: usize) -> anyhow::Result<f64> {
    let hand_overs = HandOvers::start(measured);
    let callers = (0..waiters).map(|number| {
        let (mut caller, hand_overs) = (Caller::new(&members[number % members.len()]), &hand_overs);
        async move {
            let lease = caller.post("/v3/lease/grant", &json!({ "TTL": "60" }), 200).await?;
            // `hot` in Base64.
            let lock = json!({ "name": "aG90", "lease": lease["ID"] });
            while !hand_overs.is_over() {
                let held = caller.post("/v3/lock/lock", &lock, 200).await?;
                hand_overs.held_by(number);
                caller.post("/v3/lock/unlock", &json!({ "key": held["key"] }), 200).await?;
            }
            anyhow::Ok(())
        }
    });
    try_join_all(callers).await.context("etcd")?;
    Ok(hand_overs.each_second())
}
