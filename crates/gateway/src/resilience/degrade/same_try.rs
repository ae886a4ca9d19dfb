//! One try under two attempts. A caller may repeat a claim call with one nonce at several gateways, and while the store is
//! out each of them may grant it under an attempt of its own. The store holds one of these attempts, and only that one
//! settles or renews the claim there (S2). A call under another one is sent again under the attempt that the store holds.

use std::time::Duration;

use super::deliver::is_superseded;
use super::{Core, Queue};
use crate::domain::attempt::Attempt;
use crate::domain::claim::{OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse};
use crate::domain::record::Key;
use crate::engine::EngineError;
use crate::resilience::journal::entry::Deed;

/// Whether a policy of this gateway granted the try of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Granted {
    /// Yes: the journal has the grant.
    Here,
    /// Not that the journal knows: a mark in the store can tell.
    Elsewhere,
}

impl Core {
    /// Sends an outcome to the store.
    pub(super) async fn settle_in_store(
        &self,
        request: &OutcomeRequest,
        deadline: Duration,
        granted: Granted,
    ) -> Result<OutcomeResponse, EngineError> {
        let response = self.engine.settle(request, deadline).await?;
        if !is_superseded(&response) && !is_unsure(&response) {
            self.learn_settle(request, &response);
            return Ok(response);
        }
        // Few calls come this far: kept out of the memory that every call takes.
        Box::pin(self.settle_same_try(request, deadline, granted, response)).await
    }

    async fn settle_same_try(
        &self,
        request: &OutcomeRequest,
        deadline: Duration,
        granted: Granted,
        response: OutcomeResponse,
    ) -> Result<OutcomeResponse, EngineError> {
        let attempt = self.other_attempt(&request.key, &request.attempt, granted).await.map_err(uncertain)?;
        let Some(attempt) = attempt else {
            self.learn_settle(request, &response);
            return Ok(response);
        };
        let request = OutcomeRequest { attempt, ..request.clone() };
        let response = self.engine.settle(&request, deadline).await.map_err(uncertain)?;
        self.learn_settle(&request, &response);
        Ok(response)
    }

    /// Sends a renewal to the store.
    pub(super) async fn renew_in_store(
        &self,
        request: &RenewalRequest,
        deadline: Duration,
        granted: Granted,
    ) -> Result<RenewalResponse, EngineError> {
        let response = self.engine.renew(request, deadline).await?;
        if !matches!(response, RenewalResponse::Superseded { .. }) {
            self.learn_renew(request, &response);
            return Ok(response);
        }
        Box::pin(self.renew_same_try(request, deadline, granted, response)).await
    }

    async fn renew_same_try(
        &self,
        request: &RenewalRequest,
        deadline: Duration,
        granted: Granted,
        superseded: RenewalResponse,
    ) -> Result<RenewalResponse, EngineError> {
        let attempt = self.other_attempt(&request.key, &request.attempt, granted).await.map_err(uncertain)?;
        let Some(attempt) = attempt else { return Ok(superseded) };
        let request = RenewalRequest { attempt, ..request.clone() };
        let response = self.engine.renew(&request, deadline).await.map_err(uncertain)?;
        self.learn_renew(&request, &response);
        Ok(response)
    }

    /// Returns the attempt that the store holds, if it is another one of the same try. The nonce alone does not prove that: a
    /// caller may have used it for two tries, against the contract. A policy's grant does, which has left a mark.
    async fn other_attempt(
        &self,
        key: &Key,
        attempt: &Attempt,
        granted: Granted,
    ) -> Result<Option<Attempt>, EngineError> {
        let held = self.engine.read(key).await?.map(|held| held.record.attempt);
        let Some(other) = held.filter(|held| held.nonce() == attempt.nonce() && held != attempt) else {
            return Ok(None);
        };
        let is_proven = granted == Granted::Here || self.is_marked(key, attempt.nonce()).await?;
        Ok(is_proven.then_some(other))
    }
}

/// The failure of a later step of a call whose first step the store has answered: an earlier try of that step, whose reply
/// was lost, may still take effect.
fn uncertain(failure: EngineError) -> EngineError {
    if failure.is_unavailable() { EngineError::indeterminate(failure.to_string()) } else { failure }
}

/// Whether a failure found nothing of its own and an earlier try of the same call, whose reply was lost, may be why.
fn is_unsure(response: &OutcomeResponse) -> bool {
    matches!(response, OutcomeResponse::Done { state: None, late: None, .. })
}

/// Returns the attempt under which a policy of this gateway last granted the try of a call, as far as its journal knows.
pub(super) fn granted_attempt(queue: &Queue, attempt: &Attempt) -> Option<Attempt> {
    queue.iter().rev().find_map(|(_, entry)| match &entry.deed {
        Deed::Granted(claim) if claim.attempt.nonce() == attempt.nonce() => Some(claim.attempt.clone()),
        Deed::Granted(_) | Deed::Renewed(_) | Deed::Reported(_) => None,
    })
}
