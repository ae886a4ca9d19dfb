//! Stores that keep each claim on three servers, etcd and ZooKeeper, and the same work by their own tools: etcd's
//! `benchmark put`, and programs with ZooKeeper's Java client. `load/peers/prepare` builds the tools.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use oncegate_testkit::{etcd_cluster::EtcdCluster, missing::is_installed, zookeeper_cluster::ZooKeeperCluster};
use tokio::process::Command;

use crate::{
    contender::Contender::{self, Etcd, EtcdPuts, Postgres, ZooKeeper, ZooKeeperCreates},
    goals::{Goal, Loads, MANY, at_least, at_most, claims_per_second, gateway_us, over},
    programs::run,
    redis::rounded,
    trial::{Bench, Trial},
};

/// Folder of what `load/peers/prepare` builds.
const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/peers");

/// Programs in Java, which `java` compiles when it starts them.
const JAVA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/zookeeper");

/// Puts of the first, unmeasured run, which determines how many fill the time.
const TRIAL: u64 = 5_000;

/// Bytes of a key and a value, together those of a claim.
const KEY_BYTES: u32 = 50;
const VALUE_BYTES: u32 = 300;

/// Gateways on a quorum, each with the tool of its store.
const ENGINES: [(Contender, Contender); 2] = [(Etcd, EtcdPuts), (ZooKeeper, ZooKeeperCreates)];

/// Returns what is measured in addition to the peaks: many callers, and batches.
pub(crate) fn trials(loads: Loads) -> Vec<Trial> {
    let of = |(engine, tool)| [loads.many(engine), loads.many(tool), loads.batched(engine)];
    ENGINES.into_iter().flat_map(of).collect()
}

/// Returns the targets of those that were measured.
pub(crate) fn goals(bench: &Bench, loads: Loads) -> Vec<Goal> {
    let rate = |trial| bench.median(&trial, claims_per_second);
    let cpu = |contender| bench.median(&loads.peak(contender), gateway_us);
    let mut goals = Vec::new();
    for (engine, tool) in ENGINES.into_iter().filter(|(engine, _)| bench.reports(&loads.peak(*engine)).is_some()) {
        let [single, many] = [loads.peak(tool), loads.many(tool)].map(rate);
        goals.extend([
            at_least(&format!("claims/s on {engine}, to {tool}"), over(rate(loads.peak(engine)), single), 1.0),
            at_least(
                &format!("claims/s on {engine}, to {tool}, {MANY} at once"),
                over(rate(loads.many(engine)), many),
                1.0,
            ),
            at_least(
                &format!("claims/s on {engine}, 100 per call, to {tool}"),
                over(rate(loads.batched(engine)), single),
                3.0,
            ),
            at_most(
                &format!("gateway CPU per claim on {engine}, to PostgreSQL's"),
                over(cpu(engine), cpu(Postgres)),
                1.5,
            ),
        ]);
    }
    goals
}

/// Three servers.
pub(crate) enum Quorum {
    Etcd(EtcdCluster),
    ZooKeeper(ZooKeeperCluster),
}

impl Quorum {
    pub(crate) async fn start_etcd() -> anyhow::Result<Self> {
        EtcdCluster::start().await.map(Self::Etcd).context("etcd is not installed")
    }

    pub(crate) async fn start_zookeeper() -> anyhow::Result<Self> {
        ZooKeeperCluster::start().await.map(Self::ZooKeeper).context("ZooKeeper is not installed")
    }

    /// Returns the URL of the engine.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Etcd(etcd) => etcd.url(),
            Self::ZooKeeper(zookeeper) => zookeeper.url(),
        }
    }

    /// Returns the addresses of all servers, with commas.
    pub(crate) fn addresses(&self) -> String {
        match self {
            Self::Etcd(etcd) => etcd.addresses(),
            Self::ZooKeeper(zookeeper) => zookeeper.addresses(),
        }
        .join(",")
    }

    /// Returns the IDs of the servers' processes.
    pub(crate) fn ids(&self) -> Vec<u32> {
        match self {
            Self::Etcd(etcd) => etcd.ids().collect(),
            Self::ZooKeeper(zookeeper) => zookeeper.ids().collect(),
        }
    }

    /// Returns what its own client writes in a second: new keys as long as a claim, so many at a time, for about this time.
    pub(crate) async fn writes_per_second(&self, at_once: u64, measured: Duration) -> anyhow::Result<f64> {
        match self {
            Self::Etcd(_) => {
                let rate = self.puts_per_second(at_once, TRIAL).await?;
                self.puts_per_second(at_once, rounded(rate * measured.as_secs_f64()).max(1)).await
            }
            Self::ZooKeeper(_) => {
                let creates = [VALUE_BYTES.to_string(), at_once.to_string(), measured.as_secs().to_string()];
                self.java("Creates", &creates).await
            }
        }
    }

    async fn puts_per_second(&self, at_once: u64, count: u64) -> anyhow::Result<f64> {
        let mut command = Command::new(Path::new(PEERS).join("etcd-benchmark"));
        command.args(["put", "--endpoints", &self.addresses(), "--sequential-keys", "--key-space-size=2000000000"]);
        command.arg(format!("--key-size={KEY_BYTES}")).arg(format!("--val-size={VALUE_BYTES}"));
        command.args([format!("--conns={at_once}"), format!("--clients={at_once}"), format!("--total={count}")]);
        let output = run(&mut command).await?;
        rate(&output).with_context(|| format!("etcd's benchmark does not say its rate:\n{output}"))
    }

    /// Returns the hand-overs a second of a lock of Curator that so many callers want.
    pub(crate) async fn hand_overs_of_curator(&self, callers: usize, measured: Duration) -> anyhow::Result<f64> {
        self.java("Mutex", &[callers.to_string(), measured.as_secs_f64().to_string()]).await
    }

    /// Runs a program in Java with the addresses and these arguments, and returns the rate that it prints.
    async fn java(&self, program: &str, arguments: &[String]) -> anyhow::Result<f64> {
        let mut command = Command::new("java");
        command.arg("-cp").arg(jars().join("*")).arg(Path::new(JAVA).join(program).with_extension("java"));
        let output = run(command.arg(self.addresses()).args(arguments)).await?;
        let rate = output.lines().last().and_then(|line| line.parse().ok());
        let rate: f64 = rate.with_context(|| format!("{program}.java does not print its rate:\n{output}"))?;
        ensure!(rate > 0.0, "{program}.java did nothing");
        Ok(rate)
    }
}

pub(crate) fn lacks_etcd() -> Option<&'static str> {
    (!is_installed("etcd") || !is_installed("etcdctl")).then_some("etcd and etcdctl are not installed")
}

pub(crate) fn lacks_benchmark() -> Option<&'static str> {
    (!Path::new(PEERS).join("etcd-benchmark").is_file()).then_some("its tool is not built: run load/peers/prepare")
}

pub(crate) fn lacks_zookeeper() -> Option<&'static str> {
    (!is_installed("java") || !ZooKeeperCluster::is_installed())
        .then_some("java and the jars of ZooKeeper are not installed: run scripts/install-test-deps")
}

pub(crate) fn lacks_jars() -> Option<&'static str> {
    (!jars().is_dir()).then_some("its jars are not there: run load/peers/prepare")
}

fn jars() -> PathBuf {
    Path::new(PEERS).join("zookeeper")
}

/// Returns the rate in the report of etcd's tool.
fn rate(output: &str) -> Option<f64> {
    output.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_parsed_from_the_report() {
        let output = "Summary:\n  Total:\t1.5035 secs.\n  Requests/sec:\t3325.5621\n";
        assert_eq!(rate(output), Some(3_325.562_1));
        assert_eq!(rate("Summary:"), None);
    }
}
