//! Topology: the shards and servers of a store, its promises, health and lost data.

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use serde::Serialize;

use super::error::EngineError;
use super::identity::StoreIdentity;
use super::node::Node;
use super::shared_record::RecordName;
use crate::record::Key;

/// Number of shards that have different numbers. In a store with more, several have the same number.
pub const SHARDS_MAX: u16 = 1024;

/// The shards and servers of a store, and calls about the store as a whole. Part of the contract of [`Engine`](super::Engine).
#[async_trait]
pub trait Topology: Send + Sync + 'static {
    /// Returns the present promises of the engine.
    fn capabilities(&self) -> Capabilities;

    /// Returns the shards that there are now; none while the engine does not know them.
    fn shards(&self) -> Vec<u16>;

    /// Returns the shard that keeps a key, as far as the engine knows.
    fn shard_of(&self, key: &Key) -> u16;

    /// Returns the shard that keeps a shared record, as far as the engine knows. The degraded grants of a key are in the shard of
    /// the key.
    fn shard_of_record(&self, name: &RecordName) -> u16;

    /// Returns the name under which a record about a shard is stored in that shard. It changes if the shard loses the
    /// slot.
    fn metadata_name(&self, shard: u16, name: &str) -> String;

    /// Checks that the store would answer now. With several shards, one answering shard is enough. Changes nothing.
    async fn probe(&self) -> Result<(), EngineError>;

    /// Checks that a shard would answer now. A removed shard counts as answering.
    async fn probe_shard(&self, shard: u16) -> Result<(), EngineError>;

    /// Returns the number of losses since this engine was opened: a shard came back without its data, or a replica took
    /// over that may have lacked the newest claims.
    fn losses(&self, shard: u16) -> u64;

    /// Returns how often the store came back without its data since this engine was opened.
    fn data_lost(&self) -> u64;

    /// Returns whether an answer may wait for replicas for most of its deadline. Then a late answer shows nothing about
    /// the store.
    fn waits_for_replicas(&self) -> bool;

    /// Returns the servers of the store, where it has several.
    fn nodes(&self) -> Vec<Node>;

    /// Returns what tells the store from others. `None` while that is unknown, and for a store that only this process uses.
    fn identity(&self) -> Option<StoreIdentity>;

    /// Begins a backup of the store's present content: everything that an answer before the call depends on, and no later
    /// change. Holds up other calls no longer than a read does. `None` if the engine makes no backups. Fails while another backup
    /// is in progress; if this is dropped, the backup ends.
    async fn backup(&self) -> Result<Option<Backup>, EngineError>;

    /// Makes all data durable, and releases the store. Later calls fail as unavailable.
    async fn close(&self);
}

/// Topology of a store of one shard, number 0. Every method is as in [`Topology`].
#[async_trait]
pub trait OneShard: Send + Sync + 'static {
    /// Returns what the engine promises now.
    fn capabilities(&self) -> Capabilities;

    /// Checks that the store would answer now. Changes nothing.
    async fn probe(&self) -> Result<(), EngineError>;

    /// Returns how often the store came back without its data since this engine was opened.
    fn data_lost(&self) -> u64;

    /// Returns the servers of the store, where operators can tell them apart.
    fn nodes(&self) -> Vec<Node>;

    /// Returns what tells the store from others.
    fn identity(&self) -> Option<StoreIdentity>;

    /// Begins a backup; `None` if the engine makes no backups.
    async fn backup(&self) -> Result<Option<Backup>, EngineError>;

    /// Makes durable what is not yet durable, and releases the store.
    async fn close(&self);
}

#[async_trait]
impl<T: OneShard> Topology for T {
    fn capabilities(&self) -> Capabilities {
        OneShard::capabilities(self)
    }

    fn shards(&self) -> Vec<u16> {
        vec![0]
    }

    fn shard_of(&self, _: &Key) -> u16 {
        0
    }

    fn shard_of_record(&self, _: &RecordName) -> u16 {
        0
    }

    fn metadata_name(&self, _: u16, name: &str) -> String {
        name.to_owned()
    }

    async fn probe(&self) -> Result<(), EngineError> {
        OneShard::probe(self).await
    }

    async fn probe_shard(&self, _: u16) -> Result<(), EngineError> {
        OneShard::probe(self).await
    }

    fn losses(&self, _: u16) -> u64 {
        OneShard::data_lost(self)
    }

    fn data_lost(&self) -> u64 {
        OneShard::data_lost(self)
    }

    fn waits_for_replicas(&self) -> bool {
        false
    }

    fn nodes(&self) -> Vec<Node> {
        OneShard::nodes(self)
    }

    fn identity(&self) -> Option<StoreIdentity> {
        OneShard::identity(self)
    }

    async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        OneShard::backup(self).await
    }

    async fn close(&self) {
        OneShard::close(self).await;
    }
}

/// Bytes of a backup, in pieces. An error is the last piece: the backup is incomplete then.
pub type Backup = BoxStream<'static, Result<Vec<u8>, EngineError>>;

/// Promises of an engine; the table is in `docs/engines/README.md`.
#[expect(clippy::struct_excessive_bools, reason = "a table of independent yes and no")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Capabilities {
    /// Fences of a key rise strictly.
    pub strict_fence: bool,
    /// Acknowledged answers survive a crash of the store, as far as this process knows.
    pub durable: bool,
    /// Several gateways can share the store.
    pub shared: bool,
    /// A retention `forever` outlives the process.
    pub forever: bool,
    /// [`Claims::list`](super::Claims::list) is supported.
    pub lists: bool,
}
