//! A Redis Cluster of a test's own: nodes on free ports of the loopback interface, killed on drop.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use redis::{FromRedisValue, Value};

use crate::redis_server::RedisServer;
use crate::wait::until;

/// Number of slots.
const SLOTS: usize = 16384;

/// A node is taken for dead after this long: as short as a loaded machine allows.
pub const NODE_TIMEOUT: Duration = Duration::from_millis(800);

/// A running cluster. The first nodes are the primaries it begins with.
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
    primaries: usize,
}

impl RedisCluster {
    /// Starts a cluster of primaries and this many replicas of each. Nothing where redis-server is not installed.
    pub async fn start(primaries: usize, replicas: usize) -> Option<Self> {
        Self::start_with(primaries, replicas, &[]).await
    }

    /// Starts a cluster whose nodes have these lines of configuration, too.
    pub async fn start_with(primaries: usize, replicas: usize, config: &[&str]) -> Option<Self> {
        let mut nodes = Vec::new();
        for _ in 0..primaries * (1 + replicas) {
            nodes.push(start_node(config).await?);
        }
        let cluster = Self { nodes, primaries };
        let ports: Vec<_> = cluster.nodes.iter().map(|node| node.address().port()).collect();
        for (index, node) in cluster.nodes.iter().enumerate() {
            node.query::<()>(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
            if index < primaries {
                let (first, last) = (SLOTS * index / primaries, SLOTS * (index + 1) / primaries - 1);
                node.query::<()>(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
            }
            if index > 0 {
                let bus = cluster.nodes[0].setting("cluster-port");
                node.query::<()>(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", ports[0]));
            }
        }
        cluster
            .wait("all nodes know one another", |cluster| {
                cluster.nodes.iter().all(|node| info(node, "cluster_known_nodes") == cluster.nodes.len().to_string())
            })
            .await;
        let ids: Vec<String> = cluster.nodes.iter().map(|node| node.query("CLUSTER MYID")).collect();
        for (index, node) in cluster.nodes.iter().enumerate().skip(primaries) {
            node.query::<()>(&format!("CLUSTER REPLICATE {}", ids[(index - primaries) % primaries]));
        }
        cluster.settled().await;
        Some(cluster)
    }

    /// Adds a primary without slots.
    pub async fn add_node(&mut self) -> usize {
        let node = start_node(&[]).await.expect("redis-server is installed");
        let bus = self.nodes[0].setting("cluster-port");
        node.query::<()>(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", self.nodes[0].address().port()));
        self.nodes.push(node);
        let all = self.nodes.len().to_string();
        self.wait("the new node is known", |cluster| {
            let knows_all =
                |node: &RedisServer| info(node, "cluster_known_nodes") == all && info(node, "cluster_state") == "ok";
            cluster.nodes.iter().all(knows_all)
        })
        .await;
        self.nodes.len() - 1
    }

    /// Its URL, with every node as a seed.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(|node| node.address().to_string()).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// Waits until every primary has its replicas, and the cluster works.
    pub async fn settled(&self) {
        let replicas = (self.nodes.len() - self.primaries) / self.primaries;
        self.wait("the cluster works", |cluster| {
            let works = |node: &RedisServer| {
                let replication: String = node.query("INFO replication");
                let is_linked = if replication.contains("role:master") {
                    replication.matches("state=online").count() >= replicas
                } else {
                    replication.contains("master_link_status:up")
                };
                is_linked && info(node, "cluster_state") == "ok" && rows(node).len() >= cluster.primaries
            };
            cluster.nodes.iter().all(works)
        })
        .await;
    }

    /// Index of the node that answers for a key, as the others see it.
    pub fn primary_of(&self, key: &str) -> usize {
        let running = self.nodes.iter().find(|node| node.is_running()).expect("a node runs");
        let slot: i64 = running.query_words(&["CLUSTER", "KEYSLOT", key]);
        let port =
            rows(running).into_iter().find(|(first, last, _)| (*first..=*last).contains(&slot)).expect("covered").2;
        self.nodes.iter().position(|node| i64::from(node.address().port()) == port).expect("a node of ours")
    }

    /// Indexes of the replicas of a node.
    pub fn replicas_of(&self, primary: usize) -> Vec<usize> {
        let port = self.nodes[primary].address().port();
        let replicates =
            |node: &RedisServer| node.query::<String>("INFO replication").contains(&format!("master_port:{port}\r"));
        (0..self.nodes.len())
            .filter(|index| self.nodes[*index].is_running() && replicates(&self.nodes[*index]))
            .collect()
    }

    /// Waits until another node than this one answers for a key, and returns it.
    pub async fn taken_over(&self, key: &str, from: usize) -> usize {
        let survivor = (0..self.nodes.len()).find(|index| *index != from && self.nodes[*index].is_running());
        let survivor = &self.nodes[survivor.expect("another node runs")];
        let slot: i64 = survivor.query_words(&["CLUSTER", "KEYSLOT", key]);
        let port = i64::from(self.nodes[from].address().port());
        self.wait("a replica took over", |_| {
            rows(survivor).iter().any(|(first, last, owner)| (*first..=*last).contains(&slot) && *owner != port)
        })
        .await;
        self.primary_of(key)
    }

    /// Moves slots from one node to another, as `redis-cli --cluster reshard` does: key by key, while clients go on.
    pub async fn move_slots(&self, slots: std::ops::Range<u16>, from: usize, to: usize) {
        let ids: Vec<String> = [from, to].map(|index| self.nodes[index].query("CLUSTER MYID")).into();
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let (mut out, mut into) = (source.connection(), target.connection());
        let port = target.address().port().to_string();
        for slot in slots {
            let ask = |connection: &mut redis::Connection, words: &[&str]| -> Value {
                let mut command = redis::cmd(words[0]);
                command.arg(&words[1..]).query(connection).unwrap_or_else(|error| panic!("{words:?}: {error}"))
            };
            let slot = slot.to_string();
            ask(&mut into, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[0]]);
            ask(&mut out, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]]);
            loop {
                let keys = ask(&mut out, &["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
                let keys = Vec::<String>::from_redis_value(keys).expect("keys");
                if keys.is_empty() {
                    break;
                }
                let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
                words.extend(keys.iter().map(String::as_str));
                ask(&mut out, &words);
            }
            ask(&mut into, &["CLUSTER", "SETSLOT", &slot, "NODE", &ids[1]]);
            ask(&mut out, &["CLUSTER", "SETSLOT", &slot, "NODE", &ids[1]]);
            tokio::task::yield_now().await;
        }
    }

    async fn wait(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        until(what, Duration::from_secs(20), async || holds(self)).await;
    }
}

/// A field of what a node says of the cluster.
fn info(node: &RedisServer, field: &str) -> String {
    let info: String = node.query("CLUSTER INFO");
    let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':').map(str::to_owned));
    line.unwrap_or_default()
}

/// First slot, last slot and the primary's port.
fn rows(node: &RedisServer) -> Vec<(i64, i64, i64)> {
    let Value::Array(rows) = node.query::<Value>("CLUSTER SLOTS") else { return Vec::new() };
    let row = |row: Value| {
        let Value::Array(row) = row else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(node), ..] = &*row else { return None };
        let Some(Value::Int(port)) = node.get(1) else { return None };
        Some((*first, *last, *port))
    };
    rows.into_iter().filter_map(row).collect()
}

async fn start_node(config: &[&str]) -> Option<RedisServer> {
    let bus =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr()).expect("a free port");
    let timeout = NODE_TIMEOUT.as_millis();
    let mut lines = vec![
        "cluster-enabled yes".to_owned(),
        format!("cluster-port {}", bus.port()),
        format!("cluster-node-timeout {timeout}"),
        "cluster-require-full-coverage no".to_owned(),
        "repl-diskless-sync-delay 0".to_owned(),
        "cluster-replica-validity-factor 0".to_owned(),
    ];
    lines.extend(config.iter().map(ToString::to_string));
    RedisServer::start_with(&lines.iter().map(String::as_str).collect::<Vec<_>>()).await
}
