//! The servers of an engine, for operators.

use oncegate_core::engine::node::{Node, NodeRole};

use super::Topology;
use crate::primary::Primary;
use crate::sentinel::Discovery;

impl Topology {
    /// Returns the servers: each primary, and its replicas after it. Nothing for a single server without replicas.
    pub(in super::super) fn nodes(&self) -> Vec<Node> {
        match self {
            Self::One(one) => {
                let address = one.discovery().and_then(Discovery::address);
                let replicas = one.server.health().replication().replicas.clone();
                if address.is_none() && replicas.is_empty() {
                    return Vec::new();
                }
                let address = address.unwrap_or_else(|| one.server.server().address().to_owned());
                nodes(0, address, &one.server, replicas).collect()
            }
            Self::Cluster(cluster) => cluster
                .shards()
                .into_iter()
                .flat_map(|shard| {
                    let replicas = shard.replicas.iter().map(ToString::to_string).collect();
                    nodes(shard.number, shard.address.to_string(), &shard.primary, replicas)
                })
                .collect(),
        }
    }
}

fn nodes(shard: u16, address: String, primary: &Primary, replicas: Vec<String>) -> impl Iterator<Item = Node> + use<> {
    let warnings = primary.health().warnings().to_vec();
    let up = primary.is_connected();
    let first = Node { address, role: NodeRole::Primary, version: None, shard, up, breaker: None, warnings };
    let (role, breaker) = (NodeRole::Replica, None);
    let replica = move |address| Node { address, role, version: None, shard, up: true, breaker, warnings: Vec::new() };
    std::iter::once(first).chain(replicas.into_iter().map(replica))
}
