//! The calls of an engine, as one that is guarded passes them on: how long each may take, and what its second try is told.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;

use super::{FOR_LISTS, Guarded, late};
use crate::domain::claim::{
    ClaimRequest, ClaimResponse, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::domain::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::domain::record::{Key, LiveClaim};
use crate::engine::breaker::BreakerStatus;
use crate::engine::{BatchClaim, Capabilities, ClaimSink, Engine, EngineError, Metadata};
use crate::telemetry::metrics::EngineCall;
use crate::telemetry::traces;

/// Two tries have one attempt: what is granted to one is granted to both.
pub(super) fn is_granted(answer: &ClaimResponse) -> bool {
    matches!(answer, ClaimResponse::Granted(_))
}

/// What a failure's second try is told if the first one's answer was lost. Absent may mean "deleted by the first try",
/// and another attempt may have claimed since: either way the caller's claim is gone, and whether it was late cannot be
/// told.
fn after_lost_reply(request: &OutcomeRequest, answer: OutcomeResponse) -> OutcomeResponse {
    match (&request.outcome, answer) {
        (Outcome::Failure, OutcomeResponse::Done { state: None, .. } | OutcomeResponse::Superseded { .. }) => {
            OutcomeResponse::Done { state: None, left: None, late: None }
        }
        (_, answer) => answer,
    }
}

#[async_trait]
impl Engine for Guarded {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        let engine = &self.0.engine;
        self.0
            .request(EngineCall::Claim, deadline, || engine.claim(request, deadline), |answer| answer, is_granted)
            .await
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], tell: ClaimSink<'_>) {
        let span = traces::child!(
            "store",
            otel.kind = "client",
            oncegate.engine = self.0.name,
            oncegate.call = EngineCall::Claim.label(),
            oncegate.items = claims.len(),
        );
        traces::in_span!(span, self.0.claim_batch(claims, tell));
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        let engine = &self.0.engine;
        let second = |answer| after_lost_reply(request, answer);
        self.0.request(EngineCall::Settle, deadline, || engine.settle(request, deadline), second, |_| true).await
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        let engine = &self.0.engine;
        self.0.request(EngineCall::Renew, deadline, || engine.renew(request, deadline), |answer| answer, |_| true).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        let engine = &self.0.engine;
        self.0.request(EngineCall::Read, self.0.deadline, || engine.read(key), |answer| answer, |_| true).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        let engine = &self.0.engine;
        // Absent may mean "released by the first try": either way it is gone, as was asked.
        let second = |answer| if answer == ReleaseResponse::Absent { ReleaseResponse::Done } else { answer };
        self.0.request(EngineCall::Release, self.0.deadline, || engine.release(request), second, |_| true).await
    }

    /// Lists are long, and some engines have none: they say nothing about the store.
    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        let guard = &self.0;
        let begun = guard.clock.monotonic();
        let answer = timeout(FOR_LISTS, guard.engine.list(request)).await.unwrap_or_else(|_| late(FOR_LISTS));
        guard.meter.called(EngineCall::List, &answer, guard.clock.monotonic().saturating_sub(begun));
        answer
    }

    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        self.0.noted(self.0.engine.get_metadata(name)).await
    }

    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        let swap = || self.0.engine.compare_and_set_metadata(name, expected, new);
        let resolved = async {
            match swap().await {
                Err(EngineError::Indeterminate(first)) => match swap().await {
                    Ok(true) => Ok(true),
                    // The first may have put it, and somebody else another one since.
                    Ok(false) | Err(EngineError::Determinate(_)) => Err(first.into()),
                    Err(uncertain) => Err(uncertain),
                },
                certain => certain,
            }
        };
        self.0.noted(resolved).await
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.0.probe().await
    }

    fn capabilities(&self) -> Capabilities {
        self.0.engine.capabilities()
    }

    fn breaker(&self) -> Option<BreakerStatus> {
        let since = Duration::from_micros(self.0.stands_since.load(Ordering::Relaxed));
        let lasted = self.0.clock.monotonic().saturating_sub(since);
        Some(BreakerStatus { state: self.0.breaker.state(), lasted })
    }

    fn data_lost(&self) -> u64 {
        self.0.engine.data_lost()
    }

    async fn close(&self) {
        self.0.meter.close();
        self.0.engine.close().await;
    }
}
