//! Claims: the calls that every store answers for one key.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;

use super::error::EngineError;
use crate::claim::{ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse};
use crate::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse, UnknownsPage, UnknownsRequest};
use crate::record::{Key, LiveClaim};

/// Calls of claims. Part of the contract of [`Engine`](super::Engine).
#[async_trait]
pub trait Claims: Send + Sync + 'static {
    /// Claims a key for an attempt.
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError>;

    /// Claims several different keys, independently of each other: `sink` receives its position and its answer as soon as the
    /// answer is known, and no answer waits for another. If this is dropped, claims without an answer may still happen.
    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>);

    /// Settles a claim by its attempt. Accepted also while the store has no room for new claims.
    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError>;

    /// Extends a lease by its attempt. Never shortens it.
    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError>;

    /// Returns the live claim of a key, if there is one.
    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError>;

    /// Ends a claim for an operator, in any state, if the given attempt holds it. Later fences of the key are still higher.
    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError>;

    /// Lists live claims if [`Capabilities::lists`](super::Capabilities::lists) is set; otherwise fails as unavailable, with the
    /// reason. Each claim is read separately: a claim that changes during the call may or may not be in the list. The list is
    /// shorter than `limit` only if there are no more claims. Does not hold up other calls.
    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError>;

    /// Returns unknown claims from the index of an engine that cannot list. The index is a hint: it may lack claims whose entry was
    /// lost, and each claim is read before it is returned. Fails as unavailable if the engine has no index.
    async fn unknowns(&self, request: &UnknownsRequest) -> Result<UnknownsPage, EngineError>;
}

/// One claim of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchClaim<'a> {
    /// The claim.
    pub request: &'a ClaimRequest,
    /// The deadline of its call.
    pub deadline: Duration,
}

/// Receives the answers to the claims of a batch: the position in the batch, and the answer.
pub type ClaimSink<'a> = &'a (dyn Fn(usize, Result<ClaimResponse, EngineError>) + Sync);

/// Claims several keys by a call of each, for [`Claims::claim_batch`] of an engine that cannot send them together.
pub async fn claim_each<E: Claims + ?Sized>(engine: &E, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
    let claims = claims.iter().enumerate();
    join_all(claims.map(|(position, claim)| async move {
        sink(position, engine.claim(claim.request, claim.deadline).await);
    }))
    .await;
}

/// Returns the answer of an engine that has no index of unknown claims to [`Claims::unknowns`].
pub fn without_index_of_unknowns() -> EngineError {
    EngineError::unavailable("the engine has no index of unknown claims")
}
