//! A chain: an engine over several. One is active, the same at every gateway. Calls go to the active engine; a switch is
//! followed, wherever it was made. What this promises: `docs/adr/0020-switching-a-chain.md`.

mod core;
mod failover;
mod follow;
mod freeze;
mod grants;
mod member;
mod moment;
mod same_server;
mod setup;
mod state;
mod status;
mod switch;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join, join_all};
use oncegate_core::claim::{
    self, ClaimRequest, ClaimResponse, Effect, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::engine::{
    Backup, BatchClaim, Capabilities, ChangePurpose, ChangeResponse, Channel, ClaimSink, Claims, Determinate, Engine,
    EngineError, Node, RecordChange, RecordName, RecordView, Records, StoreIdentity, Subscription, Topology,
};
use oncegate_core::operator::{
    ListRequest, ListedClaim, LockListRequest, LockPage, ReleaseRequest, ReleaseResponse, UnknownsPage, UnknownsRequest,
};
use oncegate_core::record::{Key, LiveClaim};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::core::{Core, View};
pub use self::moment::Moment;
pub use self::setup::{FailoverSetup, Setup, SwitchAction, SwitchRecorder, Times};
pub use self::status::{
    ChainStatus, ChainSwitchError, FailoverMode, FailoverStatus, Hold, LastSwitch, Phase, SwitchCause, Switched,
    ViewStatus, WitnessStatus,
};
use self::switch::Order;
use super::batch_part::BatchPart;
use crate::resilience::requirement::Requirement;

/// An engine over the engines of a chain. It does not close them: other chains may use them, too.
pub struct Chain {
    core: Arc<Core>,
    stop: CancellationToken,
    _guard: DropGuard,
}

impl Chain {
    /// Creates a chain. Starts tasks if it has several engines, or freezes grants after data loss.
    ///
    /// # Panics
    /// Outside a tokio runtime, if it needs tasks.
    pub fn start(setup: Setup) -> Self {
        let core = Arc::new(Core::new(setup));
        let stop = CancellationToken::new();
        if core.is_switchable() {
            for at in 0..core.places().count() {
                tokio::spawn(follow::follow(core.clone(), at, stop.clone()));
            }
            tokio::spawn(same_server::watch(core.clone(), stop.clone()));
        }
        if core.failover.is_some() {
            tokio::spawn(failover::rounds::run(core.clone(), stop.clone()));
        }
        if core.freeze.is_enabled() {
            tokio::spawn(grants::watch(core.clone(), stop.clone()));
        }
        Self { core, _guard: stop.clone().drop_guard(), stop }
    }

    /// Returns the state of the chain, as far as this gateway knows. Also detects a loss of data, so call it now and
    /// then.
    pub fn status(&self) -> ChainStatus {
        let core = &self.core;
        let view = core.view();
        core.freeze_shards_on_data_loss(&view);
        let state = &view.state;
        ChainStatus {
            engines: core.members.iter().map(|member| member.name.clone()).collect(),
            active: state.serving().to_owned(),
            epoch: state.epoch,
            phase: state.phase,
            switching_to: (state.phase == Phase::Closing).then(|| state.active.clone()),
            frozen_for: core.frozen_for(),
            failover: core.failover.as_ref().map(|failover| failover.status(core)),
        }
    }

    /// Makes another engine the active one, at every gateway that reaches the stores. Returns once it is in use. The
    /// new engine does not know the work that was done on the previous one.
    ///
    /// # Errors
    /// The reason why it was not done, and whether it may still happen.
    pub async fn switch(&self, to: &str) -> Result<Switched, ChainSwitchError> {
        self.core.switch(to, Order::Operator).await
    }

    /// Holds the automatic switches of the chain at every gateway, or ends a hold. Returns the state after it; `None`: the chain is
    /// never switched automatically.
    ///
    /// # Errors
    /// The witness did not confirm it.
    pub async fn set_hold(&self, hold: Option<Hold>) -> Result<Option<FailoverStatus>, EngineError> {
        let Some(failover) = self.core.failover.as_ref().filter(|failover| failover.is_automatic()) else {
            return Ok(None);
        };
        failover.set_hold(hold).await?;
        Ok(Some(failover.status(&self.core)))
    }

    /// Reads the hold at the witness, for operators who look. After a failure the status has the one that was read before.
    pub(crate) async fn read_hold(&self) {
        if let Some(failover) = &self.core.failover {
            let _ = failover.read_hold().await;
        }
    }

    /// Returns whether gateways switch the chain automatically.
    pub(crate) fn switches_by_itself(&self) -> bool {
        self.core.failover.as_ref().is_some_and(failover::Failover::is_automatic)
    }

    /// Returns what the chain requires of its engine, if anything.
    pub(crate) fn requirement(&self) -> Option<&Requirement> {
        self.core.requirement.as_ref()
    }

    fn engine(&self, view: &View) -> Result<&dyn Engine, EngineError> {
        Ok(&*self.core.serving(view)?.engine)
    }

    /// Returns the active engine, or the first one if the active one is unknown here.
    fn current(&self) -> &dyn Engine {
        let view = self.core.view();
        &*self.core.members[view.serving.unwrap_or(0)].engine
    }

    /// Returns the chain, and the shard of a key, if claims of the shard may be granted now.
    async fn begin_claim(&self, key: &Key) -> Result<(Arc<View>, u16), EngineError> {
        let view = self.core.fresh_view().await?;
        let shard = self.core.freeze.shard_of(self.engine(&view)?, key);
        self.may_grant(&view, shard).await?;
        Ok((view, shard))
    }

    /// Fails if nothing of a shard may be granted now: no claim and no lock.
    async fn may_grant(&self, view: &View, shard: u16) -> Result<(), EngineError> {
        if let Some(requirement) = self.requirement() {
            requirement.enforce(self.engine(view)?).await?;
        }
        self.core.check_grants(view, shard)?;
        self.core.check_data(view, shard).await
    }

    /// Returns a record that may hold a grant to repeat, read from an engine that may grant before and after it. A repeat needs no room and
    /// changes nothing, so what the chain requires of its engine is not asked for; but a chain that closes, or has lost data,
    /// may have granted the same to another caller.
    pub(crate) async fn get_granted(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError> {
        let started = self.core.fresh_view().await?;
        let engine = self.engine(&started)?;
        let shard = self.core.freeze.shard_of_record(engine, name);
        self.core.check_grants(&started, shard)?;
        self.core.check_data(&started, shard).await?;
        let view = engine.get_record(name, deadline).await.map_err(EngineError::of_read)?;
        if self.core.is_current(&started, shard) { Ok(view) } else { Err(switched()) }
    }

    /// Returns the shards of a batch whose claims may not be granted now, and why.
    async fn closed_shards(&self, view: &View, shards: &[u16]) -> BTreeMap<u16, EngineError> {
        let check = async |shard: u16| Some((shard, self.may_grant(view, shard).await.err()?));
        let shards: BTreeSet<_> = shards.iter().copied().collect();
        join_all(shards.into_iter().map(check)).await.into_iter().flatten().collect()
    }

    /// Returns the answer to a claim call that grants nothing: during a grant freeze, existing records still stop
    /// duplicates.
    async fn not_granted(&self, request: &ClaimRequest, failure: EngineError) -> Result<ClaimResponse, EngineError> {
        let is_paused = matches!(failure, EngineError::Determinate(Determinate::Paused(_)));
        let shard = self.core.freeze.shard_of(self.current(), &request.key);
        if !is_paused || self.core.shard_frozen_for(shard).is_none() {
            return Err(failure);
        }
        match self.read(&request.key).await.map(|held| claim::claim(held.as_ref(), request, None)) {
            Ok((Effect::Keep, known @ (ClaimResponse::Duplicate(_) | ClaimResponse::Mismatch(_)))) => Ok(known),
            _ => Err(failure),
        }
    }

    /// Returns the answer of a call that changes a claim, if its engine is still the active one; otherwise the caller has to
    /// repeat it. During a switch the new engine is called: another gateway may have granted the claim there.
    async fn changed<Answer>(
        &self,
        started: &View,
        answer: Result<Answer, EngineError>,
    ) -> Result<Answer, EngineError> {
        if answer.is_ok() && started.state.phase == Phase::Closing {
            self.core.refresh_next(started).await?;
        }
        if self.core.view().serving == started.serving { answer } else { answer.and(Err(switched())) }
    }

    /// Returns the answer to a claim call, but no grant if the chain has started to close, or its store has lost its data: another
    /// gateway may have granted the same.
    fn claimed(
        &self,
        started: &View,
        shard: u16,
        answer: Result<ClaimResponse, EngineError>,
    ) -> Result<ClaimResponse, EngineError> {
        match answer {
            Ok(ClaimResponse::Granted(_)) if !self.core.is_current(started, shard) => Err(switched()),
            answer => answer,
        }
    }
}

fn switched() -> EngineError {
    EngineError::indeterminate("the chain was switched, or its store lost its data, during the call")
}

#[async_trait]
impl Claims for Chain {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        let (started, shard) = match self.begin_claim(&request.key).await {
            Ok(started) => started,
            // Boxed, so that every other claim takes less memory.
            Err(failure) => return Box::pin(self.not_granted(request, failure)).await,
        };
        self.core.freeze.requested(request.terms.lease);
        let answer = self.engine(&started)?.claim(request, deadline).await;
        self.claimed(&started, shard, answer)
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        let refused = async |position: usize, failure: EngineError| {
            sink(position, self.not_granted(claims[position].request, failure).await);
        };
        let answered = async {
            let started = self.core.fresh_view().await?;
            let engine = self.engine(&started)?;
            let shards: Vec<_> =
                claims.iter().map(|claim| self.core.freeze.shard_of(engine, &claim.request.key)).collect();
            let closed = self.closed_shards(&started, &shards).await;
            let left_out: Vec<_> = (0..claims.len()).filter(|at| closed.contains_key(&shards[*at])).collect();
            let part = BatchPart::without(claims, &left_out);
            let longest = claims.iter().map(|claim| claim.request.terms.lease).max().unwrap_or_default();
            self.core.freeze.requested(longest);
            let claimed = |at, answer| {
                let position = part.position(at);
                sink(position, self.claimed(&started, shards[position], answer));
            };
            let others = left_out.iter().map(|at| refused(*at, closed[&shards[*at]].clone()));
            join(engine.claim_batch(part.claims(), &claimed), join_all(others)).await;
            Ok::<_, EngineError>(())
        };
        if let Err(failure) = answered.await {
            join_all((0..claims.len()).map(|position| refused(position, failure.clone()))).await;
        }
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        let started = self.core.fresh_view().await?;
        let answer = self.engine(&started)?.settle(request, deadline).await;
        self.changed(&started, answer).await
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        self.core.freeze.requested(request.lease.unwrap_or_default());
        let started = self.core.fresh_view().await?;
        let answer = self.engine(&started)?.renew(request, deadline).await;
        self.changed(&started, answer).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        let view = self.core.fresh_view().await?;
        self.engine(&view)?.read(key).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        let started = self.core.fresh_view().await?;
        let answer = self.engine(&started)?.release(request).await;
        self.changed(&started, answer).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        let view = self.core.fresh_view().await?;
        self.engine(&view)?.list(request).await
    }

    async fn unknowns(&self, request: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        let view = self.core.fresh_view().await?;
        self.engine(&view)?.unknowns(request).await
    }
}

#[async_trait]
impl Records for Chain {
    async fn get_record(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError> {
        let view = self.core.fresh_view().await?;
        self.engine(&view)?.get_record(name, deadline).await
    }

    async fn change_record(&self, change: &RecordChange, deadline: Duration) -> Result<ChangeResponse, EngineError> {
        self.core.freeze.requested(change.lease_max);
        if change.purpose == ChangePurpose::Grant {
            let started = self.core.fresh_view().await?;
            let engine = self.engine(&started)?;
            let shard = self.core.freeze.shard_of_record(engine, &change.name);
            self.may_grant(&started, shard).await?;
            let answer = engine.change_record(change, deadline).await;
            return if answer.is_ok() && !self.core.is_current(&started, shard) { Err(switched()) } else { answer };
        }
        let started = self.core.fresh_view().await?;
        let answer = self.engine(&started)?.change_record(change, deadline).await;
        self.changed(&started, answer).await
    }

    async fn list_records(&self, request: &LockListRequest) -> Result<LockPage, EngineError> {
        let view = self.core.fresh_view().await?;
        self.engine(&view)?.list_records(request).await
    }

    /// Subscribes at the active engine. After a switch its owner finds out by polling.
    async fn subscribe(&self, channel: &Channel) -> Subscription {
        self.current().subscribe(channel).await
    }
}

#[async_trait]
impl Topology for Chain {
    fn capabilities(&self) -> Capabilities {
        self.current().capabilities()
    }

    fn shards(&self) -> Vec<u16> {
        self.current().shards()
    }

    fn shard_of(&self, key: &Key) -> u16 {
        self.current().shard_of(key)
    }

    fn shard_of_record(&self, name: &RecordName) -> u16 {
        self.current().shard_of_record(name)
    }

    fn metadata_name(&self, shard: u16, name: &str) -> String {
        self.current().metadata_name(shard, name)
    }

    async fn probe(&self) -> Result<(), EngineError> {
        let view = self.core.fresh_view().await?;
        self.engine(&view)?.probe().await
    }

    async fn probe_shard(&self, shard: u16) -> Result<(), EngineError> {
        let view = self.core.fresh_view().await?;
        self.engine(&view)?.probe_shard(shard).await
    }

    fn losses(&self, shard: u16) -> u64 {
        self.core.members.iter().map(|member| member.engine.losses(shard)).sum()
    }

    fn data_lost(&self) -> u64 {
        self.core.members.iter().map(|member| member.engine.data_lost()).sum()
    }

    fn waits_for_replicas(&self) -> bool {
        self.core.members.iter().any(|member| member.engine.waits_for_replicas())
    }

    fn nodes(&self) -> Vec<Node> {
        self.core.members.iter().flat_map(|member| member.engine.nodes()).collect()
    }

    fn identity(&self) -> Option<StoreIdentity> {
        self.current().identity()
    }

    async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        let view = self.core.fresh_view().await?;
        self.engine(&view)?.backup().await
    }

    async fn close(&self) {
        self.stop.cancel();
    }
}
