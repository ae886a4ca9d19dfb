//! The way of each call: to the store, behind what waits for it on the same key, and else to the policy.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::same_try::Granted;
use super::{Core, OutcomeAnswer};
use crate::domain::call::{Answered, CallContext};
use crate::domain::claim::{
    ClaimRequest, ClaimResponse, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::domain::record::Key;
use crate::domain::terms::{ClaimOnOutage, OutcomeOnOutage};
use crate::engine::EngineError;
use crate::resilience::deadline_budget::PolicyBudget;

/// Time that a lookup or a release waits for deliveries on its key.
const BEFORE_READING: Duration = Duration::from_millis(300);

/// Bounds the time that a call with this budget waits for the store. What takes longer may still happen.
async fn within<Answer>(
    budget: PolicyBudget,
    call: impl Future<Output = Result<Answer, EngineError>>,
) -> Result<Answer, EngineError> {
    let late = |_| Err(EngineError::indeterminate("the store has not answered in time for a policy to do so"));
    timeout(budget.wait, call).await.unwrap_or_else(late)
}

/// The failure of a call that got the lock of its key after its deadline.
fn too_long() -> EngineError {
    EngineError::unavailable("others had the claim to themselves too long")
}

impl Core {
    /// Returns whether the store alone answers a claim: it has no policy, and nothing must be delivered before it.
    pub(super) fn is_for_store_alone(&self, request: &ClaimRequest, context: CallContext<ClaimOnOutage>) -> bool {
        context.on_outage == ClaimOnOutage::FailClosed && !self.book.waits(&request.key)
    }

    pub(super) async fn claim_with_policy(
        self: &Arc<Self>,
        request: &ClaimRequest,
        context: CallContext<ClaimOnOutage>,
    ) -> Result<Answered<ClaimResponse>, EngineError> {
        let begun = self.clock.monotonic();
        let failure = match self.try_claim(request, context).await {
            Some(Err(failure)) if failure.is_unavailable() => Some(failure),
            Some(answer) => return answer.map(Answered::by_store),
            None => None,
        };
        let (core, request) = (self.clone(), request.clone());
        let work = Box::pin(async move { core.claim_alone(&request, context, begun, failure).await });
        self.uncancelled(work).await
    }

    /// Sends a claim to the store, beside others on the same key; nothing if entries of the journal wait on the key.
    async fn try_claim(
        &self,
        request: &ClaimRequest,
        context: CallContext<ClaimOnOutage>,
    ) -> Option<Result<ClaimResponse, EngineError>> {
        let is_local = context.on_outage == ClaimOnOutage::Local;
        // The local record must have a grant of the store before it decides in its place.
        let _turn = if is_local { Some(self.locks.shared(&request.key).await) } else { None };
        if self.book.waits(&request.key) {
            return None;
        }
        let budget = PolicyBudget::of(context.deadline);
        let answer = within(budget, self.engine.claim(request, budget.store)).await;
        if is_local && let Ok(answer) = &answer {
            self.book.learn_claim(request, answer, self.clock.monotonic());
        }
        Some(answer)
    }

    /// With the key locked: delivers what waits, sends the claim to the store, and else applies the policy.
    async fn claim_alone(
        self: &Arc<Self>,
        request: &ClaimRequest,
        context: CallContext<ClaimOnOutage>,
        begun: Duration,
        failure: Option<EngineError>,
    ) -> Result<Answered<ClaimResponse>, EngineError> {
        let _turn = self.locks.alone(&request.key).await;
        if self.clock.monotonic().saturating_sub(begun) >= context.deadline {
            // The caller has stopped waiting: a grant would only block others.
            return Err(failure.unwrap_or_else(too_long));
        }
        let failure = if let Some(failure) = failure {
            failure
        } else {
            let budget = PolicyBudget::of(context.deadline);
            let call = async {
                self.deliver(&request.key).await?;
                self.engine.claim(request, budget.store).await
            };
            match within(budget, call).await {
                Ok(answer) => {
                    if context.on_outage == ClaimOnOutage::Local {
                        self.book.learn_claim(request, &answer, self.clock.monotonic());
                    }
                    return Ok(Answered::by_store(answer));
                }
                Err(failure) => failure,
            }
        };
        self.claim_by_policy(request, context.on_outage, failure).await
    }

    pub(super) async fn settle(
        self: &Arc<Self>,
        request: &OutcomeRequest,
        context: CallContext<OutcomeOnOutage>,
    ) -> Result<Answered<OutcomeAnswer>, EngineError> {
        let begun = self.clock.monotonic();
        let mut failure = None;
        if !self.book.waits(&request.key) {
            let answer = if context.on_outage == OutcomeOnOutage::FailClosed {
                self.settle_in_store(request, context.deadline, Granted::Elsewhere).await
            } else {
                let budget = PolicyBudget::of(context.deadline);
                within(budget, self.settle_in_store(request, budget.store, Granted::Elsewhere)).await
            };
            match answer {
                Err(unavailable) if unavailable.is_unavailable() && context.on_outage == OutcomeOnOutage::Spool => {
                    failure = Some(unavailable);
                }
                // Without a policy the failure is the answer. The store is not asked again behind entries that wait by now:
                // if it refused the second try, the caller would not learn that the first one may have been taken.
                answer => return answer.map(stored),
            }
        }
        let (core, request) = (self.clone(), request.clone());
        // Boxed, so that other outcomes do not need the memory.
        let work = Box::pin(async move { core.settle_alone(&request, context, begun, failure).await });
        self.uncancelled(work).await
    }

    async fn settle_alone(
        self: &Arc<Self>,
        request: &OutcomeRequest,
        context: CallContext<OutcomeOnOutage>,
        begun: Duration,
        failure: Option<EngineError>,
    ) -> Result<Answered<OutcomeAnswer>, EngineError> {
        let _turn = self.locks.alone(&request.key).await;
        let left = match request.outcome {
            // What was done, or may have been, is recorded even after the caller stopped waiting.
            Outcome::Success { .. } | Outcome::Unknown => context.deadline,
            // A failure that nobody waits for would only delete the claim, and its repeat would be answered as too late.
            Outcome::Failure => context.deadline.saturating_sub(self.clock.monotonic().saturating_sub(begun)),
        };
        if left.is_zero() {
            return Err(failure.unwrap_or_else(too_long));
        }
        let failure = if let Some(failure) = failure {
            failure
        } else {
            let budget = PolicyBudget::of(left);
            let call = async {
                self.deliver(&request.key).await?;
                self.settle_in_store(request, budget.store, Granted::Elsewhere).await
            };
            match within(budget, call).await {
                Ok(answer) => return Ok(stored(answer)),
                Err(failure) => failure,
            }
        };
        self.settle_by_policy(request, context.on_outage, failure).await
    }

    /// Records the store's response to an outcome, if the app decides locally.
    pub(super) fn learn_settle(&self, request: &OutcomeRequest, response: &OutcomeResponse) {
        if self.book.is_local(&request.key.app) {
            self.book.learn_settle(request, response, self.clock.monotonic());
        }
    }

    /// Records the store's response to a renewal, if the app decides locally.
    pub(super) fn learn_renew(&self, request: &RenewalRequest, response: &RenewalResponse) {
        if self.book.is_local(&request.key.app) {
            self.book.learn_renew(request, response, self.clock.monotonic());
        }
    }

    pub(super) async fn renew(
        self: &Arc<Self>,
        request: &RenewalRequest,
        deadline: Duration,
    ) -> Result<Answered<RenewalResponse>, EngineError> {
        if self.book.waits(&request.key) {
            let (core, request) = (self.clone(), request.clone());
            let work = Box::pin(async move { core.renew_alone(&request, deadline).await });
            return self.uncancelled(work).await;
        }
        self.renew_in_store(request, deadline, Granted::Elsewhere).await.map(Answered::by_store)
    }

    async fn renew_alone(
        self: &Arc<Self>,
        request: &RenewalRequest,
        deadline: Duration,
    ) -> Result<Answered<RenewalResponse>, EngineError> {
        let _turn = self.locks.alone(&request.key).await;
        let budget = PolicyBudget::of(deadline);
        let call = async {
            self.deliver(&request.key).await?;
            self.renew_in_store(request, budget.store, Granted::Elsewhere).await
        };
        match within(budget, call).await {
            Ok(answer) => Ok(Answered::by_store(answer)),
            Err(failure) => self.renew_by_policy(request, failure).await,
        }
    }

    /// Delivers what waits on a key before its record is read, within a bounded time.
    pub(super) async fn before_reading(self: &Arc<Self>, key: &Key) -> Result<(), EngineError> {
        if !self.book.waits(key) {
            return Ok(());
        }
        let (core, key) = (self.clone(), key.clone());
        let delivered = self.uncancelled(Box::pin(async move {
            let _turn = core.locks.alone(&key).await;
            core.deliver(&key).await
        }));
        let late =
            |_| Err(EngineError::unavailable("what waits for the store on this claim has not been delivered yet"));
        timeout(BEFORE_READING, delivered).await.unwrap_or_else(late)
    }
}

fn stored(response: OutcomeResponse) -> Answered<OutcomeAnswer> {
    Answered::by_store(OutcomeAnswer::Response(response))
}
