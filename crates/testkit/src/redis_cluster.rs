//! A Redis Cluster of a test's own: nodes on free ports of the loopback interface, killed on drop.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use redis::{FromRedisValue, Value};

use crate::fresh;
use crate::redis_server::RedisServer;
use crate::tcp_proxy::{Mode, TcpProxy};
use crate::wait::until;

/// Number of slots.
const SLOTS: usize = 16384;

/// Slots that are on their way at a time.
const SLOTS_AT_ONCE: usize = 20;

/// Time after which a node counts as dead: as short as a loaded machine allows.
pub const NODE_TIMEOUT: Duration = Duration::from_millis(800);

/// A running cluster. The first nodes are the primaries it begins with.
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
    primaries: usize,
    /// The proxies in front of the nodes, for tests that break connections.
    ways: Vec<Way>,
}

/// The ways to a node: for commands, from clients and replicas, and for the bus between nodes. Each node calls from a
/// different address, so that the proxies can distinguish nodes from clients.
struct Way {
    commands: TcpProxy,
    bus: TcpProxy,
}

impl RedisCluster {
    /// Starts a cluster of primaries and this many replicas of each. Returns nothing if redis-server is not installed.
    pub async fn start(primaries: usize, replicas: usize) -> Option<Self> {
        Self::start_with(primaries, replicas, &[]).await
    }

    /// Starts a cluster whose nodes have these lines of configuration, too.
    pub async fn start_with(primaries: usize, replicas: usize, config: &[&str]) -> Option<Self> {
        let mut nodes = Vec::new();
        for _ in 0..primaries * (1 + replicas) {
            nodes.push(start_node(config).await?);
        }
        Some(Self { nodes, primaries, ways: Vec::new() }.joined().await)
    }

    /// Starts a cluster for tests that cut a node off from the others, or delay replicas.
    pub async fn start_apart(primaries: usize, replicas: usize, config: &[&str]) -> Option<Self> {
        let (mut nodes, mut ways) = (Vec::new(), Vec::new());
        for index in 0..primaries * (1 + replicas) {
            // Where they lead to is known once the node listens.
            let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
            let way = Way { commands: TcpProxy::start_any(nowhere).await, bus: TcpProxy::start_any(nowhere).await };
            let announced = [
                format!("cluster-announce-port {}", way.commands.address().port()),
                format!("cluster-announce-bus-port {}", way.bus.address().port()),
                format!("bind-source-addr {}", source(index)),
            ];
            let lines: Vec<_> = config.iter().copied().chain(announced.iter().map(String::as_str)).collect();
            let node = start_node(&lines).await?;
            way.commands.redirect_to(node.address());
            way.bus.redirect_to((Ipv4Addr::LOCALHOST, bus_port(&node)).into());
            nodes.push(node);
            ways.push(way);
        }
        Some(Self { nodes, primaries, ways }.joined().await)
    }

    /// Makes the nodes one cluster.
    async fn joined(self) -> Self {
        let primaries = self.primaries;
        for (index, node) in self.nodes.iter().enumerate() {
            node.query::<()>(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
            if index < primaries {
                let (first, last) = (SLOTS * index / primaries, SLOTS * (index + 1) / primaries - 1);
                node.query::<()>(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
            }
            if index > 0 {
                let bus = self.ways.first().map_or(bus_port(&self.nodes[0]), |way| way.bus.address().port());
                let port = if self.ways.is_empty() { self.nodes[0].replication_address().port() } else { self.port(0) };
                node.query::<()>(&format!("CLUSTER MEET 127.0.0.1 {port} {bus}"));
            }
        }
        self.wait("all nodes know one another", |cluster| {
            cluster.nodes.iter().all(|node| info(node, "cluster_known_nodes") == cluster.nodes.len().to_string())
        })
        .await;
        let ids: Vec<String> = self.nodes.iter().map(|node| node.query("CLUSTER MYID")).collect();
        for (index, node) in self.nodes.iter().enumerate().skip(primaries) {
            node.query::<()>(&format!("CLUSTER REPLICATE {}", ids[(index - primaries) % primaries]));
        }
        self.settled().await;
        self
    }

    /// Cuts the connections between a node and the others. Clients still reach it.
    pub fn cut_off(&self, node: usize) {
        self.set_between(node, Mode::Blackhole);
    }

    /// Ends what [`RedisCluster::cut_off`] began.
    pub fn reconnect(&self, node: usize) {
        self.set_between(node, Mode::Pass);
    }

    /// Returns the way of commands to a node. Only of a cluster from [`RedisCluster::start_apart`].
    pub fn way_to(&mut self, node: usize) -> &mut TcpProxy {
        &mut self.ways[node].commands
    }

    fn set_between(&self, node: usize, mode: Mode) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            for (from, to) in [(node, other), (other, node)] {
                self.ways[to].commands.set_from(source(from), mode);
                self.ways[to].bus.set_from(source(from), mode);
            }
        }
    }

    /// Lets this node replicate with a delay, from any primary.
    pub fn lag(&self, replica: usize, delay: Duration) {
        for way in &self.ways {
            way.commands.set_from(source(replica), if delay.is_zero() { Mode::Pass } else { Mode::Delay(delay) });
        }
    }

    /// Kills a node as the loss of its machine would: bytes in flight are lost.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
        if let Some(way) = self.ways.get(node) {
            way.commands.drop_connections();
        }
    }

    /// Adds a primary without slots.
    pub async fn add_node(&mut self) -> usize {
        let node = start_node(&[]).await.expect("redis-server is installed");
        node.query::<()>(&format!("CLUSTER MEET 127.0.0.1 {} {}", self.port(0), bus_port(&self.nodes[0])));
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
        let hosts: Vec<_> = (0..self.nodes.len()).map(|index| format!("127.0.0.1:{}", self.port(index))).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// Its URL with TLS, if the nodes have a `tls-port`.
    pub fn tls_url(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.setting("tls-port"))).collect();
        format!("rediss+cluster://{}", hosts.join(","))
    }

    /// Port that a node is known by.
    fn port(&self, index: usize) -> u16 {
        self.ways.get(index).map_or(self.nodes[index].address().port(), |way| way.commands.address().port())
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
        self.owner_of(slot_of(key))
    }

    /// Index of the node that answers for a slot, as the others see it.
    pub fn owner_of(&self, slot: u16) -> usize {
        let running = self.nodes.iter().find(|node| node.is_running()).expect("a node runs");
        self.owner_as_seen_by(running, slot).expect("covered")
    }

    fn owner_as_seen_by(&self, node: &RedisServer, slot: u16) -> Option<usize> {
        let covers = |(first, last, _): &(i64, i64, i64)| (*first..=*last).contains(&slot.into());
        let port = rows(node).into_iter().find(covers)?.2;
        (0..self.nodes.len()).find(|index| i64::from(self.port(*index)) == port)
    }

    /// Indexes of the replicas of a node.
    pub fn replicas_of(&self, primary: usize) -> Vec<usize> {
        let port = self.port(primary);
        let replicates =
            |node: &RedisServer| node.query::<String>("INFO replication").contains(&format!("master_port:{port}\r"));
        (0..self.nodes.len())
            .filter(|index| self.nodes[*index].is_running() && replicates(&self.nodes[*index]))
            .collect()
    }

    /// Waits until another node than this one answers for a slot, and returns it.
    pub async fn taken_over(&self, slot: u16, from: usize) -> usize {
        let survivor = (0..self.nodes.len()).find(|index| *index != from && self.nodes[*index].is_running());
        let survivor = &self.nodes[survivor.expect("another node runs")];
        let owner = |cluster: &Self| cluster.owner_as_seen_by(survivor, slot).filter(|owner| *owner != from);
        self.wait("a replica took over", |cluster| owner(cluster).is_some()).await;
        owner(self).expect("it has just been seen")
    }

    /// Moves slots from one node to another, as `redis-cli --cluster reshard` does: key by key, while clients continue.
    pub async fn move_slots(&self, slots: std::ops::Range<u16>, from: usize, to: usize) {
        let ids: Vec<String> = [from, to].map(|index| self.nodes[index].query("CLUSTER MYID")).into();
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let (mut out, mut into) = (source.connection(), target.connection());
        let port = target.address().port().to_string();
        // Many slots at a time: one after the other, the round trips take most of the time.
        let slots: Vec<_> = slots.map(|slot| slot.to_string()).collect();
        for slots in slots.chunks(SLOTS_AT_ONCE) {
            let each = |words: &dyn Fn(&str) -> Vec<String>| slots.iter().map(|slot| words(slot)).collect::<Vec<_>>();
            let set = |state: &str, id: &str| {
                each(&|slot| ["CLUSTER", "SETSLOT", slot, state, id].map(str::to_owned).to_vec())
            };
            ask(&mut into, &set("IMPORTING", &ids[0]));
            ask(&mut out, &set("MIGRATING", &ids[1]));
            loop {
                let keys_of = each(&|slot| ["CLUSTER", "GETKEYSINSLOT", slot, "100"].map(str::to_owned).to_vec());
                let keys = ask(&mut out, &keys_of).into_iter();
                let keys = keys.map(|keys| Vec::<String>::from_redis_value(keys).expect("keys"));
                let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"].map(str::to_owned);
                let moves = keys.filter(|keys| !keys.is_empty()).map(|keys| [migrate.to_vec(), keys].concat());
                let moves: Vec<_> = moves.collect();
                if moves.is_empty() {
                    break;
                }
                ask(&mut out, &moves);
            }
            ask(&mut into, &set("NODE", &ids[1]));
            ask(&mut out, &set("NODE", &ids[1]));
            tokio::task::yield_now().await;
        }
    }

    async fn wait(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        until(what, Duration::from_secs(20), async || holds(self)).await;
    }
}

/// Sends commands together, and returns their replies.
fn ask(connection: &mut redis::Connection, commands: &[Vec<String>]) -> Vec<Value> {
    let mut pipeline = redis::pipe();
    for words in commands {
        pipeline.cmd(&words[0]).arg(&words[1..]);
    }
    pipeline.query(connection).unwrap_or_else(|error| panic!("{commands:?}: {error}"))
}

/// Slot of a key: that of its hash tag, if it has one.
pub fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let key = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = key.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| if crc < 0x8000 { crc << 1 } else { (crc << 1) ^ 0x1021 })
    });
    crc % 16384
}

/// A field of a node's report about the cluster.
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

/// Address of a node's connections to other nodes.
fn source(index: usize) -> IpAddr {
    Ipv4Addr::new(127, 0, 1, u8::try_from(index + 1).expect("few nodes")).into()
}

fn bus_port(node: &RedisServer) -> u16 {
    node.setting("cluster-port").parse().expect("a port")
}

async fn start_node(config: &[&str]) -> Option<RedisServer> {
    let timeout = NODE_TIMEOUT.as_millis();
    let mut lines = vec![
        "cluster-enabled yes".to_owned(),
        format!("cluster-port {}", fresh::port()),
        format!("cluster-node-timeout {timeout}"),
        "cluster-require-full-coverage no".to_owned(),
        "repl-diskless-sync-delay 0".to_owned(),
        "cluster-replica-validity-factor 0".to_owned(),
        // Right after a promotion, a replica of another shard may move to the new primary.
        "cluster-allow-replica-migration no".to_owned(),
    ];
    lines.extend(config.iter().map(ToString::to_string));
    RedisServer::start_with(&lines.iter().map(String::as_str).collect::<Vec<_>>()).await
}
