//! The answers of outage policies: decided by the rules in `core` on what this gateway knows, and in the journal before they are given.
//! The caller holds the key's exclusive lock.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::call::Answered;
use oncegate_core::claim::{ClaimRequest, ClaimResponse, OutcomeRequest, RenewalRequest, RenewalResponse};
use oncegate_core::engine::{Determinate, EngineError};
use oncegate_core::outage::entry::{Entry, JournaledOperation, Queue};
use oncegate_core::outage::policy::{self, Decision, Known, OutcomeAnswer, Recorded};
use oncegate_core::record::Key;
use oncegate_core::terms::{ClaimOnOutage, OutcomeOnOutage};

use crate::Core;
use crate::journal::JournalError;
use crate::local_claims::LocalEffect;

/// Returns the failure of the store, with the reason why no policy answers instead.
fn no_answer(failure: EngineError, why: &str) -> EngineError {
    match failure {
        EngineError::Indeterminate(uncertain) => EngineError::indeterminate(format!("{}; {why}", uncertain.why)),
        EngineError::Determinate(Determinate::Unavailable(text)) => EngineError::unavailable(format!("{text}; {why}")),
        other @ EngineError::Determinate(_) => other,
    }
}

/// Returns the failure of the store, with the reason why the journal did not take the answer of a policy. If the entry may be on
/// the disk, a restart finds and delivers it, so the failure is uncertain.
fn not_journaled(failure: EngineError, error: &JournalError) -> EngineError {
    match error {
        JournalError::Uncertain(_) => EngineError::indeterminate(format!("{}; {error}", failure.reason())),
        JournalError::ShareFull | JournalError::AppFull | JournalError::DiskFull(_) | JournalError::Broken(_) => {
            no_answer(failure, &error.to_string())
        }
    }
}

impl Core {
    /// Answers a claim call that the store did not answer.
    pub(super) async fn claim_by_policy(
        &self,
        request: &ClaimRequest,
        on_outage: ClaimOnOutage,
        failure: EngineError,
    ) -> Result<Answered<ClaimResponse>, EngineError> {
        let decide = |known: &Known<'_>| policy::claim(request, on_outage, known);
        self.answer_by_policy(&request.key, failure, decide).await
    }

    /// Answers an outcome call that the store did not answer.
    pub(super) async fn settle_by_policy(
        &self,
        request: &OutcomeRequest,
        on_outage: OutcomeOnOutage,
        failure: EngineError,
    ) -> Result<Answered<OutcomeAnswer>, EngineError> {
        let decide = |known: &Known<'_>| policy::settle(request, on_outage, known);
        self.answer_by_policy(&request.key, failure, decide).await
    }

    /// Answers a renewal that the store did not answer, if a policy granted the claim.
    pub(super) async fn renew_by_policy(
        &self,
        request: &RenewalRequest,
        failure: EngineError,
    ) -> Result<Answered<RenewalResponse>, EngineError> {
        self.answer_by_policy(&request.key, failure, |known| policy::renew(request, known)).await
    }

    /// Answers a call by the decision of a policy. `failure` is that of the store.
    async fn answer_by_policy<Answer>(
        &self,
        key: &Key,
        failure: EngineError,
        decide: impl FnOnce(&Known<'_>) -> Decision<Answer>,
    ) -> Result<Answered<Answer>, EngineError> {
        let queue = self.local_claims.waiting_on(key);
        let decision = decide(&self.known(key, &queue, &failure));
        let (policy, answer) = match decision {
            Decision::Fail(None) => return Err(failure),
            Decision::Fail(Some(why)) => return Err(no_answer(failure, why)),
            Decision::Answer(policy, answer) => (policy, answer),
            Decision::Record(recorded) => {
                let Recorded { policy, journaled, effect, answer } = *recorded;
                let granted_by = matches!(journaled, JournaledOperation::Granted(_)).then_some(policy);
                // A lease counts from its entry's instant here too: however slow the disk is, a repeated call is not promised
                // more than the degraded grant in the store covers.
                let now = self.clock.monotonic();
                let entry = Arc::new(Entry { chain: self.chain.clone(), policy, at: self.clock.wall(), journaled });
                let seq = self.journal.append(&entry).await.map_err(|error| not_journaled(failure, &error))?;
                self.local_claims.add(seq, entry, LocalEffect::of(effect, granted_by, |lasts| now + lasts), now);
                self.wake.notify_one();
                (policy, answer)
            }
        };
        self.journal.count_answer(&key.app, policy);
        Ok(Answered::by_policy(policy, answer))
    }

    fn known<'a>(&self, key: &Key, queue: &'a Queue, failure: &EngineError) -> Known<'a> {
        let now: Duration = self.clock.monotonic();
        Known {
            queue,
            local: self.local_claims.live_claim(key, now),
            granted_by: self.local_claims.granted_by(key),
            has_forgotten: self.local_claims.has_forgotten(&key.app, now),
            is_unavailable: failure.is_unavailable(),
            wall: self.clock.wall(),
        }
    }
}
