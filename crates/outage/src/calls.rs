//! The route of each call: to the store, after the entries that wait on its key, or else to the policy.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use oncegate_core::call::{Answered, CallContext};
use oncegate_core::claim::{
    ClaimRequest, ClaimResponse, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::engine::{BatchClaim, EngineError};
use oncegate_core::operator::{ReleaseRequest, ReleaseResponse};
use oncegate_core::outage::delivery::Proof;
use oncegate_core::record::{Key, LiveClaim};
use oncegate_core::terms::{ClaimOnOutage, OutcomeOnOutage};
use tokio::time::timeout;

use super::{AnswerSink, Core, OutagePolicies, OutcomeAnswer, PolicyClaim};
use crate::deadline::PolicyBudget;

/// Longest wait of a lookup or a release for deliveries on its key.
const DELIVERY_BEFORE_READ: Duration = Duration::from_millis(300);

impl OutagePolicies {
    /// Claims a key for an attempt.
    ///
    /// # Errors
    /// The store is unavailable, and no policy answers instead.
    pub async fn claim(
        &self,
        request: &ClaimRequest,
        context: CallContext<ClaimOnOutage>,
    ) -> Result<Answered<ClaimResponse>, EngineError> {
        if self.0.is_for_store_alone(request, context) {
            return self.0.engine.claim(request, context.deadline).await.map(Answered::by_store);
        }
        // Boxed, so that other claims do not need the memory.
        Box::pin(self.0.claim_with_policy(request, context)).await
    }

    /// Claims many keys, no two of them the same. Answers go to `sink` as soon as they are known. If this is dropped,
    /// calls without an answer may still take effect.
    pub async fn claim_batch(&self, claims: &[PolicyClaim<'_>], sink: AnswerSink<'_>) {
        let core = &self.0;
        let is_for_store_alone = |at: &usize| core.is_for_store_alone(claims[*at].request, claims[*at].context);
        let (for_store, others): (Vec<_>, Vec<_>) = (0..claims.len()).partition(is_for_store_alone);
        let with_policy = others.into_iter().map(async |at| {
            let PolicyClaim { request, context } = claims[at];
            sink(at, core.claim_with_policy(request, context).await);
        });
        let batch: Vec<_> = for_store
            .iter()
            .map(|at| BatchClaim { request: claims[*at].request, deadline: claims[*at].context.deadline })
            .collect();
        let store_sink = |number: usize, answer: Result<_, _>| sink(for_store[number], answer.map(Answered::by_store));
        join(core.engine.claim_batch(&batch, &store_sink), join_all(with_policy)).await;
    }

    /// Settles a claim, by its attempt.
    ///
    /// # Errors
    /// The store is unavailable, and no policy answers instead.
    pub async fn settle(
        &self,
        request: &OutcomeRequest,
        context: CallContext<OutcomeOnOutage>,
    ) -> Result<Answered<OutcomeAnswer>, EngineError> {
        let core = &self.0;
        let started = core.clock.monotonic();
        let mut failure = None;
        if !core.local_claims.has_waiting_on(&request.key) {
            let answer = if context.on_outage == OutcomeOnOutage::FailClosed {
                core.settle_in_store(request, context.deadline, Proof::Grants).await
            } else {
                let budget = PolicyBudget::of(context.deadline);
                within(budget, core.settle_in_store(request, budget.store, Proof::Grants)).await
            };
            match answer {
                Err(unavailable) if unavailable.is_unavailable() && context.on_outage == OutcomeOnOutage::Spool => {
                    failure = Some(unavailable);
                }
                // Without a policy the failure is the answer. The call is not sent again behind entries that wait by
                // now: a refusal of the second try would hide that the first one may have taken effect.
                answer => return answer.map(stored),
            }
        }
        let (owned, request) = (core.clone(), request.clone());
        // Boxed, so that other outcomes do not need the memory.
        let work = Box::pin(async move { owned.settle_exclusively(&request, context, started, failure).await });
        core.uncancelled(work).await
    }

    /// Extends a lease, by its attempt.
    ///
    /// # Errors
    /// The store is unavailable, and no policy granted the claim.
    pub async fn renew(
        &self,
        request: &RenewalRequest,
        deadline: Duration,
    ) -> Result<Answered<RenewalResponse>, EngineError> {
        let core = &self.0;
        if core.local_claims.has_waiting_on(&request.key) {
            let started = core.clock.monotonic();
            let (owned, request) = (core.clone(), request.clone());
            let work = Box::pin(async move { owned.renew_exclusively(&request, deadline, started).await });
            return core.uncancelled(work).await;
        }
        core.renew_in_store(request, deadline).await.map(Answered::by_store)
    }

    /// Returns the record in the store, after an attempt to deliver the journal entries of its claim.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        // The store's record is the answer even if the delivery failed.
        drop(self.0.deliver_before_read(key).await);
        self.0.engine.read(key).await
    }

    /// Ends a claim for an operator.
    ///
    /// # Errors
    /// The store is unavailable, or journal entries of the claim are not delivered yet.
    pub async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.0.deliver_before_read(&request.key).await?;
        self.0.engine.release(request).await
    }
}

impl Core {
    /// Returns whether the store alone answers a claim: it has no policy, and nothing must be delivered before it.
    fn is_for_store_alone(&self, request: &ClaimRequest, context: CallContext<ClaimOnOutage>) -> bool {
        context.on_outage == ClaimOnOutage::FailClosed && !self.local_claims.has_waiting_on(&request.key)
    }

    async fn claim_with_policy(
        self: &Arc<Self>,
        request: &ClaimRequest,
        context: CallContext<ClaimOnOutage>,
    ) -> Result<Answered<ClaimResponse>, EngineError> {
        let started = self.clock.monotonic();
        let failure = match self.try_claim(request, context).await {
            Some(Err(failure)) if failure.is_unavailable() => Some(failure),
            Some(answer) => return answer.map(Answered::by_store),
            None => None,
        };
        let (core, request) = (self.clone(), request.clone());
        let work = Box::pin(async move { core.claim_exclusively(&request, context, started, failure).await });
        self.uncancelled(work).await
    }

    /// Sends a claim to the store, at the same time as others on its key; `None` if journal entries wait on the key.
    async fn try_claim(
        &self,
        request: &ClaimRequest,
        context: CallContext<ClaimOnOutage>,
    ) -> Option<Result<ClaimResponse, EngineError>> {
        let is_local = context.on_outage == ClaimOnOutage::Local;
        // The local claims must include a grant of the store before a policy decides on them.
        let _guard = if is_local { Some(self.locks.shared(&request.key).await) } else { None };
        if self.local_claims.has_waiting_on(&request.key) {
            return None;
        }
        let budget = PolicyBudget::of(context.deadline);
        Some(within(budget, self.claim_in_store(request, context.on_outage, budget.store)).await)
    }

    /// Sends a claim to the store, and remembers the answer if the app decides locally.
    async fn claim_in_store(
        &self,
        request: &ClaimRequest,
        on_outage: ClaimOnOutage,
        deadline: Duration,
    ) -> Result<ClaimResponse, EngineError> {
        let sent_at = self.clock.monotonic();
        let answer = self.engine.claim(request, deadline).await?;
        if on_outage == ClaimOnOutage::Local {
            self.local_claims.remember_claim(request, &answer, sent_at, self.clock.monotonic());
        }
        Ok(answer)
    }

    /// Locks the key, delivers what waits, sends the claim to the store, and applies the policy if the store is unavailable.
    async fn claim_exclusively(
        self: &Arc<Self>,
        request: &ClaimRequest,
        context: CallContext<ClaimOnOutage>,
        started: Duration,
        failure: Option<EngineError>,
    ) -> Result<Answered<ClaimResponse>, EngineError> {
        let _guard = self.locks.exclusive(&request.key).await;
        if self.clock.monotonic().saturating_sub(started) >= context.deadline {
            // The caller has stopped waiting: a grant would only block others.
            return Err(failure.unwrap_or_else(waited_too_long));
        }
        let budget = PolicyBudget::of(context.deadline);
        let call = self.claim_in_store(request, context.on_outage, budget.store);
        match self.after_deliveries(&request.key, budget, failure, call).await {
            Ok(answer) => Ok(Answered::by_store(answer)),
            Err(failure) => self.claim_by_policy(request, context.on_outage, failure).await,
        }
    }

    async fn settle_exclusively(
        self: &Arc<Self>,
        request: &OutcomeRequest,
        context: CallContext<OutcomeOnOutage>,
        started: Duration,
        failure: Option<EngineError>,
    ) -> Result<Answered<OutcomeAnswer>, EngineError> {
        let _guard = self.locks.exclusive(&request.key).await;
        let left = match request.outcome {
            // Recorded even after the caller has stopped waiting: the operation was done, or may have been.
            Outcome::Success { .. } | Outcome::Unknown => context.deadline,
            // Without a waiting caller a failure would only delete the claim, and its repeat would be answered as late.
            Outcome::Failure => context.deadline.saturating_sub(self.clock.monotonic().saturating_sub(started)),
        };
        if left.is_zero() {
            return Err(failure.unwrap_or_else(waited_too_long));
        }
        let budget = PolicyBudget::of(left);
        let call = self.settle_in_store(request, budget.store, Proof::Grants);
        match self.after_deliveries(&request.key, budget, failure, call).await {
            Ok(answer) => Ok(stored(answer)),
            Err(failure) => self.settle_by_policy(request, context.on_outage, failure).await,
        }
    }

    /// Records the store's response to an outcome, if the app decides locally.
    pub(super) fn remember_outcome(&self, request: &OutcomeRequest, response: &OutcomeResponse) {
        if self.local_claims.decides_locally(&request.key.app) {
            self.local_claims.remember_outcome(request, response, self.clock.monotonic());
        }
    }

    /// Records the store's response to a renewal, if the app decides locally.
    pub(super) fn remember_renewal(&self, request: &RenewalRequest, response: &RenewalResponse) {
        if self.local_claims.decides_locally(&request.key.app) {
            self.local_claims.remember_renewal(request, response, self.clock.monotonic());
        }
    }

    async fn renew_exclusively(
        self: &Arc<Self>,
        request: &RenewalRequest,
        deadline: Duration,
        started: Duration,
    ) -> Result<Answered<RenewalResponse>, EngineError> {
        let _guard = self.locks.exclusive(&request.key).await;
        // Without a waiting caller a renewal would only block others.
        let left = deadline.saturating_sub(self.clock.monotonic().saturating_sub(started));
        if left.is_zero() {
            return Err(waited_too_long());
        }
        let budget = PolicyBudget::of(left);
        let call = self.renew_in_store(request, budget.store);
        match self.after_deliveries(&request.key, budget, None, call).await {
            Ok(answer) => Ok(Answered::by_store(answer)),
            Err(failure) => self.renew_by_policy(request, failure).await,
        }
    }

    /// Makes a call to the store after the entries that wait on its key, unless it has failed before.
    async fn after_deliveries<Answer>(
        self: &Arc<Self>,
        key: &Key,
        budget: PolicyBudget,
        failure: Option<EngineError>,
        call: impl Future<Output = Result<Answer, EngineError>>,
    ) -> Result<Answer, EngineError> {
        let delivered_first = async {
            self.deliver(key).await?;
            call.await
        };
        match failure {
            Some(failure) => Err(failure),
            None => within(budget, delivered_first).await,
        }
    }

    /// Delivers the entries of a key before its record is read, within a bounded time.
    async fn deliver_before_read(self: &Arc<Self>, key: &Key) -> Result<(), EngineError> {
        if !self.local_claims.has_waiting_on(key) {
            return Ok(());
        }
        let (core, key) = (self.clone(), key.clone());
        let delivered = self.uncancelled(Box::pin(async move {
            let _guard = core.locks.exclusive(&key).await;
            core.deliver(&key).await
        }));
        let late = |_| Err(EngineError::unavailable("journal entries of this claim are not delivered yet; try again"));
        timeout(DELIVERY_BEFORE_READ, delivered).await.unwrap_or_else(late)
    }
}

/// Bounds the time that a call with this budget waits for the store. What takes longer may still happen.
async fn within<Answer>(
    budget: PolicyBudget,
    call: impl Future<Output = Result<Answer, EngineError>>,
) -> Result<Answer, EngineError> {
    let late = |_| Err(EngineError::indeterminate("the store has not answered in time for a policy to answer instead"));
    timeout(budget.wait, call).await.unwrap_or_else(late)
}

/// Returns the failure of a call that got the lock of its key after its deadline.
fn waited_too_long() -> EngineError {
    EngineError::unavailable("other calls on this claim took longer than the deadline; try again")
}

fn stored(response: OutcomeResponse) -> Answered<OutcomeAnswer> {
    Answered::by_store(OutcomeAnswer::Response(response))
}
