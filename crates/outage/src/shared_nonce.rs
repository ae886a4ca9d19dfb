//! One nonce under two attempts. A caller may repeat a claim call with one nonce at several gateways. While the store is
//! unavailable, each of them may grant it under its own attempt. The store holds one of these attempts, and only that
//! one settles or renews the claim there (S2). A call under another one is sent again under the attempt that the store holds.

use std::time::Duration;

use oncegate_core::attempt::Attempt;
use oncegate_core::claim::{OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse};
use oncegate_core::engine::EngineError;
use oncegate_core::outage::delivery::{Proof, is_superseded};
use oncegate_core::record::Key;

use super::Core;

/// The claim that the store holds after it has refused a call.
enum Holder {
    /// None: the claim that refused the call has ended since, so the call can be sent again.
    None,
    /// Another attempt of the same try.
    SameTry(Attempt),
    /// The call's own attempt, or one of another try.
    Other,
}

impl Core {
    /// Sends an outcome to the store.
    pub(super) async fn settle_in_store(
        &self,
        request: &OutcomeRequest,
        deadline: Duration,
        proof: Proof,
    ) -> Result<OutcomeResponse, EngineError> {
        let response = self.engine.settle(request, deadline).await?;
        if !is_superseded(&response) && !is_uncertain(&response) {
            self.remember_outcome(request, &response);
            return Ok(response);
        }
        // Boxed, so that other calls do not need the memory.
        Box::pin(self.settle_other_attempt(request, deadline, proof, response)).await
    }

    async fn settle_other_attempt(
        &self,
        request: &OutcomeRequest,
        deadline: Duration,
        proof: Proof,
        response: OutcomeResponse,
    ) -> Result<OutcomeResponse, EngineError> {
        let attempt = match self.holder(&request.key, &request.attempt, proof).await.map_err(uncertain)? {
            Holder::SameTry(attempt) => attempt,
            Holder::None if is_superseded(&response) => request.attempt.clone(),
            Holder::None | Holder::Other => {
                self.remember_outcome(request, &response);
                return Ok(response);
            }
        };
        let request = OutcomeRequest { attempt, ..request.clone() };
        let response = self.engine.settle(&request, deadline).await.map_err(uncertain)?;
        self.remember_outcome(&request, &response);
        Ok(response)
    }

    /// Sends a renewal to the store.
    pub(super) async fn renew_in_store(
        &self,
        request: &RenewalRequest,
        deadline: Duration,
    ) -> Result<RenewalResponse, EngineError> {
        let response = self.engine.renew(request, deadline).await?;
        if !matches!(response, RenewalResponse::Superseded { .. }) {
            self.remember_renewal(request, &response);
            return Ok(response);
        }
        Box::pin(self.renew_other_attempt(request, deadline, response)).await
    }

    async fn renew_other_attempt(
        &self,
        request: &RenewalRequest,
        deadline: Duration,
        superseded: RenewalResponse,
    ) -> Result<RenewalResponse, EngineError> {
        let attempt = match self.holder(&request.key, &request.attempt, Proof::Grants).await.map_err(uncertain)? {
            Holder::SameTry(attempt) => attempt,
            Holder::None => request.attempt.clone(),
            Holder::Other => return Ok(superseded),
        };
        let request = RenewalRequest { attempt, ..request.clone() };
        let response = self.engine.renew(&request, deadline).await.map_err(uncertain)?;
        self.remember_renewal(&request, &response);
        Ok(response)
    }

    /// Returns which attempt the store holds. The same nonce is no proof of the same try, because a caller may have used it for
    /// two tries, against the contract. A grant by a policy is a proof, and the store keeps it.
    async fn holder(&self, key: &Key, attempt: &Attempt, proof: Proof) -> Result<Holder, EngineError> {
        let Some(held) = self.engine.read(key).await? else { return Ok(Holder::None) };
        let other = held.record.attempt;
        if other.nonce() != attempt.nonce() || other == *attempt {
            return Ok(Holder::Other);
        }
        let is_proven = proof == Proof::Journal || self.read_grants(key).await?.has_nonce(attempt.nonce());
        Ok(if is_proven { Holder::SameTry(other) } else { Holder::Other })
    }
}

/// Returns the failure of a later step of a call. It is uncertain: an earlier try of the first step, whose reply was lost, may
/// still take effect.
fn uncertain(failure: EngineError) -> EngineError {
    if failure.is_unavailable() { EngineError::indeterminate(failure.reason()) } else { failure }
}

/// Reports whether a failure did not find its claim, perhaps because of an earlier try with a lost reply.
fn is_uncertain(response: &OutcomeResponse) -> bool {
    matches!(response, OutcomeResponse::Done { state: None, late: None, .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_found_nothing_is_uncertain_only_if_nobody_knows_whether_it_came_late() {
        let done = |late| OutcomeResponse::Done { state: None, left: None, ends_at: None, late };
        assert!(is_uncertain(&done(None)));
        for certain in [done(Some(false)), done(Some(true)), OutcomeResponse::Expired] {
            assert!(!is_uncertain(&certain), "{certain:?}");
        }
    }
}
