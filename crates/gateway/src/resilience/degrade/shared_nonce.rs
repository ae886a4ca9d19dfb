//! One nonce under two attempts. A caller may repeat a claim call with one nonce at several gateways. While the store is
//! unavailable, each of them may grant it under its own attempt. The store holds one of these attempts, and only that
//! one settles or renews the claim there (S2). A call under another one is sent again under the attempt that the store holds.

use std::time::Duration;

use oncegate_core::attempt::Attempt;
use oncegate_core::claim::{OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse};
use oncegate_core::engine::EngineError;
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::record::Key;

use super::deliver::is_superseded;
use super::{Core, Queue};
use crate::resilience::journal::entry::JournaledOperation;

/// Proof that a policy granted the nonce of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// This gateway's journal has the grant.
    Journal,
    /// A mark in the store that must be looked up.
    Mark,
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
        let attempt = self.other_attempt(&request.key, &request.attempt, proof).await.map_err(uncertain)?;
        let Some(attempt) = attempt else {
            self.remember_outcome(request, &response);
            return Ok(response);
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
        let attempt = self.other_attempt(&request.key, &request.attempt, Proof::Mark).await.map_err(uncertain)?;
        let Some(attempt) = attempt else { return Ok(superseded) };
        let request = RenewalRequest { attempt, ..request.clone() };
        let response = self.engine.renew(&request, deadline).await.map_err(uncertain)?;
        self.remember_renewal(&request, &response);
        Ok(response)
    }

    /// Returns the attempt that the store holds, if it is another one of the same try. The same nonce is no proof, because a
    /// caller may have used it for two tries, against the contract. A grant by a policy is a proof, and has left a mark.
    async fn other_attempt(&self, key: &Key, attempt: &Attempt, proof: Proof) -> Result<Option<Attempt>, EngineError> {
        let held = self.engine.read(key).await?.map(|held| held.record.attempt);
        let Some(other) = held.filter(|held| held.nonce() == attempt.nonce() && held != attempt) else {
            return Ok(None);
        };
        let is_proven = proof == Proof::Journal || self.is_marked(key, attempt.nonce()).await?;
        Ok(is_proven.then_some(other))
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

/// Returns the attempt and the policy of the last grant by this gateway to the nonce of a call, if that grant waits in
/// the journal.
pub(super) fn granted_attempt<'a>(queue: &'a Queue, attempt: &Attempt) -> Option<(&'a Attempt, OutagePolicy)> {
    queue.iter().rev().find_map(|(_, entry)| match &entry.journaled {
        JournaledOperation::Granted(claim) if claim.attempt.nonce() == attempt.nonce() => {
            Some((&claim.attempt, entry.policy))
        }
        JournaledOperation::Granted(_) | JournaledOperation::Renewed(_) | JournaledOperation::Reported(_) => None,
    })
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
