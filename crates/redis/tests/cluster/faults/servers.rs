//! The servers under faults: a cluster, or a primary with Sentinels.

use std::time::Duration;

use oncegate_testkit::redis_cluster::RedisCluster;
use oncegate_testkit::redis_sentinels::RedisSentinels;
use oncegate_testkit::redis_server::RedisServer;
use tokio::time::sleep;

use super::super::now;
use super::{Fault, Lag, Row};

/// A slot of the struck shard that is not moved.
const SLOT: u16 = 5000;
/// Minimum delay of lagging replicas.
const LAG: Duration = Duration::from_millis(100);
/// The same for a replica that may be the only one left to acknowledge in time: its acknowledgement is late as well.
const LAG_OF_ONE: Duration = Duration::from_millis(20);
/// A killed primary must come back with its data.
const CONFIG: [&str; 2] = ["appendonly yes", "appendfsync everysec"];
/// Time that a killed replica is away.
const AWAY: Duration = Duration::from_millis(600);

pub(super) struct Servers {
    kind: Kind,
    /// The killed server, until it is back.
    dead: Option<usize>,
    /// Writes to former primaries that had come back.
    pub(super) stale_writes: u64,
}

enum Kind {
    Cluster(RedisCluster),
    Sentinels(RedisSentinels),
}

impl Servers {
    pub(super) async fn start(row: &Row) -> Option<Self> {
        let mut config = CONFIG.to_vec();
        if row.fault == Fault::Reshard {
            // No node dies here, so a node that a busy machine delays must not count as dead.
            config.push("cluster-node-timeout 10000");
        }
        let kind = if row.sentinels {
            Kind::Sentinels(RedisSentinels::start_with(row.replicas, &config).await?)
        } else if row.lag != Lag::None || row.fault == Fault::CutOff {
            Kind::Cluster(RedisCluster::start_apart(3, row.replicas, &config).await?)
        } else {
            Kind::Cluster(RedisCluster::start_with(3, row.replicas, &config).await?)
        };
        Some(Self { kind, dead: None, stale_writes: 0 })
    }

    pub(super) fn url(&self) -> String {
        match &self.kind {
            Kind::Cluster(cluster) => cluster.url(),
            Kind::Sentinels(group) => group.url(),
        }
    }

    /// Makes replicas of the struck shard lag.
    pub(super) fn lag(&self, lag: Lag) {
        let Kind::Cluster(cluster) = &self.kind else { return };
        let replicas = cluster.replicas_of(self.primary());
        let (lagging, delay) = match lag {
            Lag::None => (0, Duration::ZERO),
            Lag::One => (1, LAG_OF_ONE),
            Lag::All => (replicas.len(), LAG),
        };
        for replica in &replicas[..lagging] {
            cluster.lag(*replica, delay);
        }
    }

    /// Lets the fault happen, and returns when the shard could be back: after the promotion, and with as many replicas as must
    /// acknowledge.
    pub(super) async fn strike(&mut self, row: &Row) -> Duration {
        let primary = self.primary();
        match row.fault {
            Fault::Kill => {
                self.kill(primary);
                self.taken_over(primary).await;
                if row.sentinels || row.asked >= row.replicas {
                    self.restart(row).await;
                }
            }
            Fault::KillReplica => {
                self.kill(self.replica());
                sleep(AWAY).await;
                if row.asked >= row.replicas {
                    self.restart(row).await;
                }
            }
            Fault::Stop => {
                self.server(primary).freeze();
                self.taken_over(primary).await;
                self.server(primary).thaw();
                self.settled(row).await;
            }
            Fault::CutOff => {
                self.cluster().cut_off(primary);
                self.taken_over(primary).await;
                self.cluster().reconnect(primary);
                self.settled(row).await;
            }
            Fault::Reshard => {
                let other = self.cluster().owner_of(8192);
                self.cluster().move_slots(0..4000, primary, other).await;
                self.cluster().move_slots(0..4000, other, primary).await;
            }
        }
        now()
    }

    /// Brings everything back to work.
    pub(super) async fn heal(&mut self, row: &Row) {
        if let Kind::Cluster(cluster) = &self.kind
            && row.lag != Lag::None
        {
            (0..cluster.nodes.len()).for_each(|node| cluster.lag(node, Duration::ZERO));
        }
        self.restart(row).await;
    }

    fn primary(&self) -> usize {
        match &self.kind {
            Kind::Cluster(cluster) => cluster.owner_of(SLOT),
            Kind::Sentinels(group) => group.primary(),
        }
    }

    fn replica(&self) -> usize {
        self.cluster().replicas_of(self.primary())[0]
    }

    fn kill(&mut self, server: usize) {
        match &mut self.kind {
            Kind::Cluster(cluster) => cluster.kill(server),
            Kind::Sentinels(group) => group.servers[server].kill(),
        }
        self.dead = Some(server);
    }

    async fn taken_over(&self, from: usize) {
        match &self.kind {
            Kind::Cluster(cluster) => cluster.taken_over(SLOT, from).await,
            Kind::Sentinels(group) => group.taken_over(from).await,
        };
    }

    /// Starts the dead server again, if there is one, and waits until it is a replica.
    async fn restart(&mut self, row: &Row) {
        if let Some(dead) = self.dead.take() {
            match &mut self.kind {
                Kind::Cluster(cluster) => cluster.nodes[dead].restart().await,
                Kind::Sentinels(group) => {
                    group.servers[dead].restart().await;
                    // It is a primary until the Sentinels demote it.
                    self.stale_writes += writes_until_demoted(&group.servers[dead]).await;
                }
            }
        }
        self.settled(row).await;
    }

    async fn settled(&self, row: &Row) {
        match &self.kind {
            Kind::Cluster(cluster) => cluster.settled().await,
            Kind::Sentinels(group) => group.settled(row.replicas).await,
        }
    }

    fn server(&self, index: usize) -> &RedisServer {
        match &self.kind {
            Kind::Cluster(cluster) => &cluster.nodes[index],
            Kind::Sentinels(group) => &group.servers[index],
        }
    }

    fn cluster(&self) -> &RedisCluster {
        match &self.kind {
            Kind::Cluster(cluster) => cluster,
            Kind::Sentinels(_) => panic!("the row is for clusters"),
        }
    }
}

async fn writes_until_demoted(server: &RedisServer) -> u64 {
    let mut writes = 0;
    for _ in 0..3000 {
        sleep(Duration::from_millis(10)).await;
        // It closes its connections when it is demoted.
        let ask = |section| RedisServer::try_query::<String>(&server.url(), &["INFO", section]);
        let (Ok(stats), Ok(replication)) = (ask("commandstats"), ask("replication")) else { continue };
        if replication.contains("role:slave") {
            return writes;
        }
        let calls = |line: &str| {
            let line = line.strip_prefix("cmdstat_set:").or_else(|| line.strip_prefix("cmdstat_evalsha:"))?;
            line.strip_prefix("calls=")?.split(',').next()?.parse::<u64>().ok()
        };
        writes = stats.lines().filter_map(calls).sum();
    }
    panic!("the former primary was not demoted");
}
