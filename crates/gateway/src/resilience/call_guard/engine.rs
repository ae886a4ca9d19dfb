//! The engine that a call guard is: the deadline of each call, and the meaning of an answer after a lost reply.

use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::claim::{
    ClaimRequest, ClaimResponse, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::engine::{
    Backup, BatchClaim, Capabilities, ChangeResponse, Channel, ClaimSink, Claims, EngineError, Node, RecordChange,
    RecordName, RecordView, Records, StoreIdentity, Subscription, Topology,
};
use oncegate_core::operator::{
    ListRequest, ListedClaim, LockListRequest, LockPage, ReleaseRequest, ReleaseResponse, UnknownsPage, UnknownsRequest,
};
use oncegate_core::record::{Key, LiveClaim};
use oncegate_telemetry::metrics::EngineCall;
use oncegate_telemetry::traces;

use super::CallGuard;
use crate::resilience::deadline_budget::{LIST_TIMEOUT, METADATA_TIMEOUT};
use crate::resilience::retry::RetryRule;

/// Returns whether an answer holds while another try is in progress. Both tries have one attempt, so a grant to one is a grant
/// to both.
pub(super) fn is_granted(answer: &ClaimResponse) -> bool {
    matches!(answer, ClaimResponse::Granted(_))
}

/// Returns the answer to a failure report whose first reply was lost. An absent claim may mean that the first try
/// deleted it, and another attempt may have claimed since. Either way the caller's claim has ended, and it is unknown
/// whether the report was late.
fn after_lost_reply(request: &OutcomeRequest, answer: OutcomeResponse) -> OutcomeResponse {
    match (&request.outcome, answer) {
        (Outcome::Failure, OutcomeResponse::Done { state: None, .. } | OutcomeResponse::Superseded { .. }) => {
            OutcomeResponse::Done { state: None, left: None, ends_at: None, late: None }
        }
        (_, answer) => answer,
    }
}

/// Returns the answer to a change whose first reply was lost: the first try may have stored the record, and another gateway may
/// have replaced it since.
fn after_lost_change(answer: ChangeResponse) -> ChangeResponse {
    match answer {
        ChangeResponse::Refused { view, .. } => ChangeResponse::Refused { view, maybe_stored: true },
        stored @ ChangeResponse::Stored(_) => stored,
    }
}

/// Returns the kind of a call on a shared record.
fn call_of(name: &RecordName) -> EngineCall {
    match name {
        RecordName::Metadata(_) => EngineCall::Metadata,
        RecordName::Lock(..) => EngineCall::Lock,
        RecordName::Grants(_) => EngineCall::Grants,
    }
}

#[async_trait]
impl Claims for CallGuard {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        let engine = &self.0.engine;
        self.0
            .request(
                EngineCall::Claim,
                &request.key,
                deadline,
                || engine.claim(request, deadline),
                |answer| answer,
                is_granted,
            )
            .await
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        let span = traces::child!(
            "store",
            otel.kind = "client",
            oncegate.engine = self.0.name,
            oncegate.call = EngineCall::Claim.label(),
            oncegate.items = claims.len(),
        );
        traces::in_span!(span, self.0.claim_batch(claims, sink));
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        let engine = &self.0.engine;
        let amend = |answer| after_lost_reply(request, answer);
        self.0
            .request(EngineCall::Settle, &request.key, deadline, || engine.settle(request, deadline), amend, |_| true)
            .await
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        let engine = &self.0.engine;
        self.0
            .request(
                EngineCall::Renew,
                &request.key,
                deadline,
                || engine.renew(request, deadline),
                |answer| answer,
                |_| true,
            )
            .await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        let engine = &self.0.engine;
        self.0.request(EngineCall::Read, key, self.0.deadline, || engine.read(key), |answer| answer, |_| true).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        let engine = &self.0.engine;
        // Absent may mean "released by the first try": the claim has ended, as requested.
        let amend = |answer| if answer == ReleaseResponse::Absent { ReleaseResponse::Done } else { answer };
        self.0
            .request(EngineCall::Release, &request.key, self.0.deadline, || engine.release(request), amend, |_| true)
            .await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.0.uncounted(EngineCall::List, None, LIST_TIMEOUT, self.0.engine.list(request)).await
    }

    async fn unknowns(&self, request: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        self.0.uncounted(EngineCall::List, None, LIST_TIMEOUT, self.0.engine.unknowns(request)).await
    }
}

#[async_trait]
impl Records for CallGuard {
    async fn get_record(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError> {
        let engine = &self.0.engine;
        match name {
            RecordName::Metadata(_) => {
                self.0.uncounted(EngineCall::Metadata, None, METADATA_TIMEOUT, engine.get_record(name, deadline)).await
            }
            RecordName::Lock(..) | RecordName::Grants(_) => {
                let (read, shard) = (|| engine.get_record(name, deadline), engine.shard_of_record(name));
                self.0.request_on(shard, call_of(name), deadline, read, |answer| answer, |_| true).await
            }
        }
    }

    async fn change_record(&self, change: &RecordChange, deadline: Duration) -> Result<ChangeResponse, EngineError> {
        let write = || self.0.engine.change_record(change, deadline);
        if let RecordName::Lock(..) | RecordName::Grants(_) = change.name {
            let is_final = |answer: &ChangeResponse| matches!(answer, ChangeResponse::Stored(_));
            let shard = self.0.engine.shard_of_record(&change.name);
            let call = call_of(&change.name);
            return self.0.request_on(shard, call, deadline, write, after_lost_change, is_final).await;
        }
        let resolved = async {
            match write().await {
                Err(lost) if RetryRule::METADATA_WRITE.allows(&lost, Duration::ZERO) => match write().await {
                    Ok(answer) => Ok(after_lost_change(answer)),
                    // The first try may have written it.
                    Err(EngineError::Determinate(_)) => Err(lost),
                    uncertain => uncertain,
                },
                answer => answer,
            }
        };
        self.0.uncounted(EngineCall::Metadata, None, METADATA_TIMEOUT, resolved).await
    }

    async fn list_records(&self, request: &LockListRequest) -> Result<LockPage, EngineError> {
        self.0.uncounted(EngineCall::List, None, LIST_TIMEOUT, self.0.engine.list_records(request)).await
    }

    async fn subscribe(&self, channel: &Channel) -> Subscription {
        self.0.engine.subscribe(channel).await
    }
}

#[async_trait]
impl Topology for CallGuard {
    fn capabilities(&self) -> Capabilities {
        self.0.engine.capabilities()
    }

    fn shards(&self) -> Vec<u16> {
        self.0.engine.shards()
    }

    fn shard_of(&self, key: &Key) -> u16 {
        self.0.engine.shard_of(key)
    }

    fn shard_of_record(&self, name: &RecordName) -> u16 {
        self.0.engine.shard_of_record(name)
    }

    fn metadata_name(&self, shard: u16, name: &str) -> String {
        self.0.engine.metadata_name(shard, name)
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.0.probe().await
    }

    async fn probe_shard(&self, shard: u16) -> Result<(), EngineError> {
        self.0.probe_shard(shard).await
    }

    fn losses(&self, shard: u16) -> u64 {
        self.0.engine.losses(shard)
    }

    fn data_lost(&self) -> u64 {
        self.0.engine.data_lost()
    }

    fn waits_for_replicas(&self) -> bool {
        self.0.waits_for_replicas
    }

    fn nodes(&self) -> Vec<Node> {
        self.0.nodes()
    }

    fn identity(&self) -> Option<StoreIdentity> {
        self.0.engine.identity()
    }

    async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        self.0.uncounted(EngineCall::List, None, LIST_TIMEOUT, self.0.engine.backup()).await
    }

    async fn close(&self) {
        self.0.meter.close();
        self.0.engine.close().await;
    }
}
