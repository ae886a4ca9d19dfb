//! The shards of a topology: the primaries of a cluster. Other topologies are one shard.

use oncegate_core::engine::EngineError;
use oncegate_core::record::Key;

use super::Topology;

impl Topology {
    /// Checks that the servers answer. With several, one answering server is enough. A dead shard is no reason to ask
    /// no other one.
    pub(in super::super) async fn probe(&self) -> Result<(), EngineError> {
        match self {
            Self::One(one) => one.server.probe().await,
            Self::Cluster(cluster) => cluster.probe().await,
        }
    }

    /// Checks that a shard answers. A removed one need not answer.
    pub(in super::super) async fn probe_shard(&self, shard: u16) -> Result<(), EngineError> {
        match self {
            Self::One(one) => one.server.probe().await,
            Self::Cluster(cluster) => cluster.probe_shard(shard).await,
        }
    }

    /// Returns the shard of a claim.
    pub(in super::super) fn shard_of(&self, key: &Key) -> u16 {
        match self {
            Self::One(_) => 0,
            Self::Cluster(cluster) => cluster.shard_of(key),
        }
    }

    /// Returns the shard of a key in the store.
    pub(in super::super) fn shard_of_key(&self, text: &str) -> u16 {
        match self {
            Self::One(_) => 0,
            Self::Cluster(cluster) => cluster.shard_of_key(text),
        }
    }

    /// Returns the shards; none before there is a slot map.
    pub(in super::super) fn shards(&self) -> Vec<u16> {
        match self {
            Self::One(_) => vec![0],
            Self::Cluster(cluster) => cluster.shards().iter().map(|shard| shard.number).collect(),
        }
    }

    /// Returns how often a server came back without its data.
    pub(in super::super) fn data_losses(&self) -> u64 {
        match self {
            Self::One(one) => one.server.server().data_losses(),
            Self::Cluster(cluster) => cluster.data_losses(),
        }
    }

    /// Returns how often a shard lost its data, or may have lost the newest of it to a replica that took over.
    pub(in super::super) fn losses(&self, shard: u16) -> u64 {
        match self {
            Self::One(one) => one.server.server().data_losses() + one.promotions(),
            Self::Cluster(cluster) => cluster.losses(shard),
        }
    }

    /// Returns the name of metadata about a shard, under which the shard stores it.
    pub(in super::super) fn metadata_name(&self, shard: u16, name: &str) -> String {
        match self {
            Self::One(_) => name.to_owned(),
            Self::Cluster(cluster) => cluster.metadata_name(shard, name),
        }
    }
}
