//! A wrapper that makes an engine fail as a network does: it loses requests, and loses or delays replies. At
//! random from a seed, or as a test says.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{
    Backup, BatchClaim, Capabilities, ChangeResponse, Channel, ClaimSink, Claims, Engine, EngineError, RecordChange,
    RecordName, RecordView, Records, Subscription, Topology, claim_each,
};
use crate::claim::{ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse};
use crate::operator::{
    ListRequest, ListedClaim, LockListRequest, LockPage, ReleaseRequest, ReleaseResponse, UnknownsPage, UnknownsRequest,
};
use crate::record::{Key, LiveClaim};

/// An engine whose calls fail.
pub struct Faulty {
    inner: Arc<dyn Engine>,
    faults: Mutex<Faults>,
    data_lost: AtomicU64,
}

/// Faults of the calls to come.
enum Faults {
    Random { rng: SmallRng, probability: f64 },
    Always(Fault),
}

/// Fault of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Succeeds.
    None,
    /// Does not happen, and the caller knows.
    Refused,
    /// Does not happen, and the caller does not know.
    RequestLost,
    /// Happens, and the caller does not know.
    ReplyLost,
    /// Does not happen, and has no answer.
    Silent,
    /// Happens, and is answered after this time. Calls for metadata are not delayed: they use other connections.
    Delayed(Duration),
}

impl Faulty {
    /// Wraps an engine; each call fails with this probability. The same seed gives the same faults.
    pub fn new(inner: Arc<dyn Engine>, seed: u64, probability: f64) -> Self {
        let faults = Faults::Random { rng: SmallRng::seed_from_u64(seed), probability };
        Self { inner, faults: Mutex::new(faults), data_lost: AtomicU64::new(0) }
    }

    /// Wraps an engine; each call has this fault, until another one is set.
    pub fn always(inner: Arc<dyn Engine>, fault: Fault) -> Self {
        Self { inner, faults: Mutex::new(Faults::Always(fault)), data_lost: AtomicU64::new(0) }
    }

    /// Gives all calls from now on this fault.
    pub fn set(&self, fault: Fault) {
        *self.faults() = Faults::Always(fault);
    }

    /// Reports that the store came back without its data.
    pub fn lose_data(&self) {
        self.data_lost.fetch_add(1, Ordering::SeqCst);
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self) -> Fault {
        match &mut *self.faults() {
            Faults::Always(fault) => *fault,
            Faults::Random { rng, probability } => {
                if !rng.random_bool(*probability) {
                    return Fault::None;
                }
                match rng.random_range(0..3) {
                    0 => Fault::Refused,
                    1 => Fault::RequestLost,
                    _ => Fault::ReplyLost,
                }
            }
        }
    }

    async fn call<Answer>(
        &self,
        call: impl Future<Output = Result<Answer, EngineError>> + Send,
    ) -> Result<Answer, EngineError> {
        match self.draw() {
            Fault::None => call.await,
            Fault::Refused => Err(EngineError::unavailable("refused by the fault wrapper")),
            Fault::RequestLost => Err(EngineError::indeterminate("request lost by the fault wrapper")),
            Fault::ReplyLost => {
                // The call's own failure is lost as well.
                let _ = call.await;
                Err(EngineError::indeterminate("reply lost by the fault wrapper"))
            }
            Fault::Silent => std::future::pending().await,
            Fault::Delayed(time) => {
                let answer = call.await;
                tokio::time::sleep(time).await;
                answer
            }
        }
    }

    async fn record_call<Answer>(
        &self,
        name: &RecordName,
        call: impl Future<Output = Result<Answer, EngineError>> + Send,
    ) -> Result<Answer, EngineError> {
        let is_delayed = matches!(*self.faults(), Faults::Always(Fault::Delayed(_)));
        let is_metadata = matches!(name, RecordName::Metadata(_));
        if is_delayed && is_metadata { call.await } else { self.call(call).await }
    }
}

#[async_trait]
impl Claims for Faulty {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        self.call(self.inner.claim(request, deadline)).await
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        claim_each(self, claims, sink).await;
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        self.call(self.inner.settle(request, deadline)).await
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        self.call(self.inner.renew(request, deadline)).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.call(self.inner.read(key)).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.call(self.inner.release(request)).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.call(self.inner.list(request)).await
    }

    async fn unknowns(&self, request: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        self.call(self.inner.unknowns(request)).await
    }
}

#[async_trait]
impl Records for Faulty {
    async fn get_record(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError> {
        self.record_call(name, self.inner.get_record(name, deadline)).await
    }

    async fn change_record(&self, change: &RecordChange, deadline: Duration) -> Result<ChangeResponse, EngineError> {
        self.record_call(&change.name, self.inner.change_record(change, deadline)).await
    }

    async fn list_records(&self, request: &LockListRequest) -> Result<LockPage, EngineError> {
        self.call(self.inner.list_records(request)).await
    }

    async fn subscribe(&self, channel: &Channel) -> Subscription {
        self.inner.subscribe(channel).await
    }
}

#[async_trait]
impl Topology for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    crate::forward!(shards => inner);

    async fn probe(&self) -> Result<(), EngineError> {
        self.call(self.inner.probe()).await
    }

    async fn probe_shard(&self, shard: u16) -> Result<(), EngineError> {
        self.call(self.inner.probe_shard(shard)).await
    }

    fn losses(&self, shard: u16) -> u64 {
        self.inner.losses(shard) + self.data_lost.load(Ordering::SeqCst)
    }

    fn data_lost(&self) -> u64 {
        self.inner.data_lost() + self.data_lost.load(Ordering::SeqCst)
    }

    fn waits_for_replicas(&self) -> bool {
        self.inner.waits_for_replicas()
    }

    async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        self.call(self.inner.backup()).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
