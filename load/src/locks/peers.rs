//! Locks of others under the same load: the `Lock` of redis-py and the lock of etcd.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use futures_util::future::try_join_all;
use serde_json::json;
use tokio::process::Command;

use super::{caller::Caller, hand_overs::HandOvers};
use crate::{
    programs::{find_program, run},
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

/// Python with redis-py.
pub(super) struct RedisPy(PathBuf);

impl RedisPy {
    /// Finds a Python with the module: the one of `PATH`, or the one of the system.
    pub(super) async fn find() -> Option<Self> {
        for python in [find_program("python3"), Some(PathBuf::from("/usr/bin/python3"))].into_iter().flatten() {
            if run(Command::new(&python).args(["-c", "import redis"])).await.is_ok() {
                return Some(Self(python));
            }
        }
        None
    }

    /// Returns the hand-overs per second.
    pub(super) async fn each_second(&self, port: u16, measured: Duration, waiters: usize) -> anyhow::Result<f64> {
        let [port, waiters, seconds] = [port.to_string(), waiters.to_string(), measured.as_secs_f64().to_string()];
        let output = run(Command::new(&self.0).args(["-c", PROGRAM, &port, &waiters, &seconds])).await;
        output.context("redis-py")?.trim().parse().context("redis-py does not print its rate")
    }
}

/// Running etcd.
pub(super) struct Etcd(Running);

impl Etcd {
    /// Starts it in memory if there is such a file system, otherwise with its data in `parent`. `None` if it is not installed.
    pub(super) async fn start(parent: &Path) -> anyhow::Result<Option<Self>> {
        if find_program("etcd").is_none() {
            return Ok(None);
        }
        let in_memory = Path::new(IN_MEMORY);
        Running::start_etcd(if in_memory.is_dir() { in_memory } else { parent }).await.map(|it| Some(Self(it)))
    }

    /// Returns the hand-overs per second.
    pub(super) async fn each_second(&self, measured: Duration, waiters: usize) -> anyhow::Result<f64> {
        let (target, hand_overs) = (self.0.etcd()?, HandOvers::start(measured));
        let callers = (0..waiters).map(|number| {
            let (mut caller, hand_overs) = (Caller::new(&target), &hand_overs);
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
}
