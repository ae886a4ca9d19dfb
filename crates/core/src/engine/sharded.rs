//! A store of shards for tests: engines that keep different keys, and fail one by one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{
    Backup, BatchClaim, Capabilities, ChangeResponse, Channel, ClaimSink, Claims, Engine, EngineError, Node, NodeRole,
    RecordChange, RecordName, RecordView, Records, StoreIdentity, Subscription, Topology, claim_each,
    without_index_of_unknowns,
};
use crate::claim::{ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse};
use crate::operator::{
    ListRequest, ListedClaim, LockListRequest, LockPage, ReleaseRequest, ReleaseResponse, UnknownsPage, UnknownsRequest,
};
use crate::record::{Key, LiveClaim};

/// Several engines as one. A key belongs to the shard that the last byte of its global ID selects.
pub struct Sharded(Vec<Arc<dyn Engine>>);

impl Sharded {
    /// Returns a store of these shards; at least one.
    pub fn new(shards: Vec<Arc<dyn Engine>>) -> Self {
        Self(shards)
    }

    fn at(&self, key: &Key) -> &dyn Engine {
        self.shard(self.shard_of(key))
    }

    fn shard(&self, shard: u16) -> &dyn Engine {
        &*self.0[usize::from(shard) % self.0.len()]
    }
}

#[async_trait]
impl Claims for Sharded {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        self.at(&request.key).claim(request, deadline).await
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        claim_each(self, claims, sink).await;
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        self.at(&request.key).settle(request, deadline).await
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        self.at(&request.key).renew(request, deadline).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.at(key).read(key).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.at(&request.key).release(request).await
    }

    async fn list(&self, _: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        Err(EngineError::unavailable("a store of shards cannot list claims"))
    }

    async fn unknowns(&self, _: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        Err(without_index_of_unknowns())
    }
}

#[async_trait]
impl Records for Sharded {
    async fn get_record(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError> {
        self.shard(self.shard_of_record(name)).get_record(name, deadline).await
    }

    async fn change_record(&self, change: &RecordChange, deadline: Duration) -> Result<ChangeResponse, EngineError> {
        self.shard(self.shard_of_record(&change.name)).change_record(change, deadline).await
    }

    async fn list_records(&self, _: &LockListRequest) -> Result<LockPage, EngineError> {
        Err(EngineError::unavailable("a store of shards cannot list locks"))
    }

    async fn subscribe(&self, _: &Channel) -> Subscription {
        Subscription::none()
    }
}

#[async_trait]
impl Topology for Sharded {
    fn capabilities(&self) -> Capabilities {
        Capabilities { lists: false, ..self.0[0].capabilities() }
    }

    fn shards(&self) -> Vec<u16> {
        (0..).zip(&self.0).map(|(shard, _)| shard).collect()
    }

    fn shard_of(&self, key: &Key) -> u16 {
        let bytes = key.global_id.as_bytes();
        let shards = u16::try_from(self.0.len()).unwrap_or(u16::MAX);
        u16::from(bytes[bytes.len() - 1]) % shards
    }

    /// Metadata is in the shard that its name ends with, or in the first.
    fn shard_of_record(&self, name: &RecordName) -> u16 {
        let shards = u16::try_from(self.0.len()).unwrap_or(u16::MAX);
        match name {
            RecordName::Metadata(name) => {
                name.rsplit_once(".at.").and_then(|(_, shard)| shard.parse().ok()).unwrap_or(0)
            }
            RecordName::Grants(key) => self.shard_of(key),
            RecordName::Lock(_, name) => u16::from(*name.as_ref().as_bytes().last().unwrap_or(&0)) % shards,
        }
    }

    fn metadata_name(&self, shard: u16, name: &str) -> String {
        format!("{name}.at.{shard}")
    }

    async fn probe(&self) -> Result<(), EngineError> {
        let mut answer = Ok(());
        for shard in &self.0 {
            answer = shard.probe().await;
            if answer.is_ok() {
                break;
            }
        }
        answer
    }

    async fn probe_shard(&self, shard: u16) -> Result<(), EngineError> {
        self.shard(shard).probe().await
    }

    fn losses(&self, shard: u16) -> u64 {
        self.shard(shard).data_lost()
    }

    fn data_lost(&self) -> u64 {
        self.0.iter().map(|shard| shard.data_lost()).sum()
    }

    fn waits_for_replicas(&self) -> bool {
        false
    }

    fn nodes(&self) -> Vec<Node> {
        let primary = |shard: u16| Node {
            address: format!("shard-{shard}:1"),
            role: NodeRole::Primary,
            version: None,
            shard,
            up: true,
            breaker: None,
            warnings: Vec::new(),
        };
        self.shards().into_iter().map(primary).collect()
    }

    fn identity(&self) -> Option<StoreIdentity> {
        None
    }

    async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        Ok(None)
    }

    async fn close(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::conformance::Subject;
    use crate::engine::memory::{BYTES_MAX_DEFAULT, Memory};

    fn open() -> Subject {
        Subject::on_manual_clock(|clock| {
            let memory = |_| -> Arc<dyn Engine> { Arc::new(Memory::new(clock.clone(), BYTES_MAX_DEFAULT)) };
            Arc::new(Sharded::new((0..3).map(memory).collect()))
        })
    }

    crate::conformance!(async { Some(open()) });
}
