//! The network between one gateway and the store: calls and replies take time, are lost, arrive after their caller has given
//! up, or are refused. All of it from the world's random numbers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::claim::{
    ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::engine::{
    Backup, BatchClaim, Capabilities, ChangeResponse, Channel, ClaimSink, Claims, EngineError, Node, OneShard,
    RecordChange, RecordName, RecordView, Records, StoreIdentity, Subscription, claim_each, without_index_of_unknowns,
};
use oncegate_core::operator::{
    ListRequest, ListedClaim, LockListRequest, LockPage, ReleaseRequest, ReleaseResponse, UnknownsPage, UnknownsRequest,
};
use oncegate_core::record::{Key, LiveClaim};
use tokio::runtime::Handle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::engine_call::{EngineCall, Timed};
use crate::store::Store;
use crate::world::{Kind, World};

/// State of a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NetworkState {
    /// Nothing is lost, and all is quick.
    Healthy,
    /// Nothing is lost, and all takes long.
    Slow,
    /// This percentage of calls is lost, before or after they have executed effect.
    Lossy(u64),
    /// Nothing arrives, without an error.
    Blackhole,
    /// Calls arrive, and replies do not.
    NoReplies,
    /// Connections are refused.
    Refused,
}

/// Network of a gateway to a store.
#[derive(Clone)]
pub(crate) struct Network {
    world: Arc<World>,
    store: Arc<Store>,
    gateway: u16,
    state: Arc<Mutex<NetworkState>>,
    process: Process,
}

/// The process that calls.
#[derive(Clone, Default)]
struct Process {
    /// Cancelled at its death: a dead process sends nothing.
    died: CancellationToken,
    /// Losses of data of the store when this process first reached it, and when it last did; `None` before.
    losses: Arc<Mutex<Option<(u64, u64)>>>,
}

impl Network {
    pub(crate) fn new(world: Arc<World>, store: Arc<Store>, gateway: u16) -> Self {
        let (state, process) = (Arc::new(Mutex::new(NetworkState::Healthy)), Process::default());
        Self { world, store, gateway, state, process }
    }

    /// Returns the same network for a new process, until its death.
    pub(crate) fn of_process(&self, died: CancellationToken) -> Self {
        Self { process: Process { died, ..Process::default() }, ..self.clone() }
    }

    /// Sets the state.
    pub(crate) fn set(&self, state: NetworkState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn state(&self) -> NetworkState {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call<Q: EngineCall>(&self, request: &Q) -> Result<Q::Answer, EngineError> {
        self.alive(self.send(request)).await
    }

    /// Runs a call until the process dies.
    async fn alive<Answer>(
        &self,
        call: impl Future<Output = Result<Answer, EngineError>>,
    ) -> Result<Answer, EngineError> {
        let dead = || Err(EngineError::indeterminate("the process has died"));
        self.process.died.run_until_cancelled(call).await.unwrap_or_else(dead)
    }

    /// Records that the store was reached: each connection first checks whether it is the same as before.
    fn reached(&self) {
        let losses = self.store.losses();
        let mut seen = self.process.losses.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = Some((seen.map_or(losses, |(first, _)| first), losses));
    }

    async fn send<Q: EngineCall>(&self, request: &Q) -> Result<Q::Answer, EngineError> {
        let trial = self.world.trial(self.gateway, request);
        let rng = &self.world.rng;
        let state = self.state();
        let crashes = self.store.crashes();
        let mut in_transit = InTransit { network: self, request, arrived: false };
        match state {
            NetworkState::Refused => {
                in_transit.arrived = true;
                let refused = EngineError::unavailable("the connection was refused");
                self.world.refused(&trial, &refused);
                return Err(refused);
            }
            NetworkState::Blackhole => std::future::pending().await,
            NetworkState::Lossy(percent) if rng.percent(percent) => {
                in_transit.arrived = true;
                return lost(rng.percent(50), "the call was lost").await;
            }
            _ => pause(latency(&self.world, state)).await,
        }
        in_transit.arrived = true;
        drop(in_transit);
        let executed = if self.store.crashes() == crashes { self.store.receive(request).await } else { reset() };
        let executed = match executed {
            Err(failure) => {
                self.world.refused(&trial, &failure);
                return Err(failure);
            }
            Ok(executed) => executed,
        };
        self.reply(state, crashes).await?;
        self.world.answered(&trial, request, &executed);
        Ok(executed.answer)
    }
}

impl Network {
    /// Makes a call that concerns no claim. A lost call never arrives late.
    async fn round_trip<Answer, Call>(&self, call: impl FnOnce() -> Call) -> Result<Answer, EngineError>
    where
        Call: Future<Output = Result<Answer, EngineError>>,
    {
        let (rng, state) = (&self.world.rng, self.state());
        let crashes = self.store.crashes();
        match state {
            NetworkState::Refused => return Err(EngineError::unavailable("the connection was refused")),
            NetworkState::Blackhole => std::future::pending().await,
            NetworkState::Lossy(percent) if rng.percent(percent) => {
                return lost(rng.percent(50), "the call was lost").await;
            }
            _ => pause(latency(&self.world, state)).await,
        }
        let answer = if self.store.crashes() == crashes { call().await } else { reset() };
        self.reply(state, crashes).await?;
        answer
    }

    /// Transports a reply, from a store with this number of crashes at the time of the call.
    async fn reply(&self, state: NetworkState, crashes: u64) -> Result<(), EngineError> {
        let rng = &self.world.rng;
        match state {
            NetworkState::NoReplies => std::future::pending().await,
            NetworkState::Lossy(percent) if rng.percent(percent) => {
                return lost(rng.percent(50), "the reply was lost").await;
            }
            _ => pause(latency(&self.world, state)).await,
        }
        if self.store.crashes() != crashes {
            return reset();
        }
        self.reached();
        Ok(())
    }
}

/// A call in flight. It may arrive although its caller gives up before.
struct InTransit<'a, Q: EngineCall> {
    network: &'a Network,
    request: &'a Q,
    arrived: bool,
}

impl<Q: EngineCall> Drop for InTransit<'_, Q> {
    fn drop(&mut self) {
        let Self { network, request, arrived } = self;
        let world = network.world.clone();
        if *arrived || world.is_over() || !world.rng.percent(70) {
            return;
        }
        // There is no runtime while it is dropped.
        if let Ok(runtime) = Handle::try_current() {
            let (store, request) = (network.store.clone(), (*request).clone());
            let delay = world.rng.millis(1, if world.rng.percent(80) { 200 } else { 8_000 });
            runtime.spawn(async move {
                sleep(delay).await;
                if !world.is_over() {
                    let _unread = store.receive(&request).await;
                }
            });
        }
    }
}

fn latency(world: &World, state: NetworkState) -> Duration {
    let rng = &world.rng;
    match state {
        NetworkState::Slow => rng.millis(10, 400),
        _ if rng.percent(30) => Duration::ZERO,
        _ => rng.millis(1, 4),
    }
}

async fn pause(duration: Duration) {
    if !duration.is_zero() {
        sleep(duration).await;
    }
}

/// Reports a loss at once if the connection was reset, and otherwise never.
async fn lost<Answer>(noticed: bool, why: &str) -> Result<Answer, EngineError> {
    if !noticed {
        std::future::pending::<()>().await;
    }
    Err(EngineError::indeterminate(why))
}

fn reset<Answer>() -> Result<Answer, EngineError> {
    Err(EngineError::indeterminate("the connection was reset"))
}

#[async_trait]
impl Claims for Network {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        self.call(&Timed { request: request.clone(), deadline }).await
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        claim_each(self, claims, sink).await;
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        self.call(&Timed { request: request.clone(), deadline }).await
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        self.call(&Timed { request: request.clone(), deadline }).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.call(key).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.call(request).await
    }

    async fn list(&self, _: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        Err(EngineError::unavailable("callers of a world do not list claims"))
    }

    async fn unknowns(&self, _: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        Err(without_index_of_unknowns())
    }
}

#[async_trait]
impl Records for Network {
    async fn get_record(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError> {
        let RecordName::Metadata(_) = name else {
            return self.alive(self.round_trip(|| self.store.get_record(name, deadline))).await;
        };
        let read = self.world.metadata_read(self.gateway, self.store.number);
        let found = self.alive(self.round_trip(|| self.store.get_record(name, deadline))).await;
        if found.is_ok() {
            read.succeeds();
        }
        found
    }

    async fn change_record(&self, change: &RecordChange, deadline: Duration) -> Result<ChangeResponse, EngineError> {
        let rng = &self.world.rng;
        if !matches!(change.name, RecordName::Metadata(_)) && self.state() != NetworkState::Healthy && rng.percent(20) {
            // It arrives a second time, long after its caller was answered.
            let (world, store, change, delay) =
                (self.world.clone(), self.store.clone(), change.clone(), rng.millis(1, 8_000));
            tokio::spawn(async move {
                sleep(delay).await;
                if !world.is_over() {
                    let _unread = store.change_record(&change, deadline).await;
                }
            });
        }
        self.alive(self.round_trip(|| self.store.change_record(change, deadline))).await
    }

    async fn list_records(&self, _: &LockListRequest) -> Result<LockPage, EngineError> {
        Err(EngineError::unavailable("callers of a world do not list locks"))
    }

    async fn subscribe(&self, channel: &Channel) -> Subscription {
        // Callers of the other worlds do not wait.
        if self.world.kind != Kind::Locks || self.state() != NetworkState::Healthy {
            return Subscription::none();
        }
        self.store.subscribe(channel).await
    }
}

#[async_trait]
impl OneShard for Network {
    fn capabilities(&self) -> Capabilities {
        Capabilities { strict_fence: true, durable: false, shared: true, forever: true, lists: false }
    }

    async fn probe(&self) -> Result<(), EngineError> {
        match self.state() {
            NetworkState::Refused => Err(EngineError::unavailable("the connection was refused")),
            NetworkState::Blackhole | NetworkState::NoReplies => std::future::pending().await,
            state => {
                pause(latency(&self.world, state)).await;
                self.store.ping().await?;
                self.reached();
                pause(latency(&self.world, state)).await;
                Ok(())
            }
        }
    }

    fn data_lost(&self) -> u64 {
        let seen = self.process.losses.lock().unwrap_or_else(PoisonError::into_inner);
        seen.map_or(0, |(first, latest)| latest - first)
    }

    fn nodes(&self) -> Vec<Node> {
        Vec::new()
    }

    fn identity(&self) -> Option<StoreIdentity> {
        None
    }

    async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        Ok(None)
    }

    async fn close(&self) {}
}
