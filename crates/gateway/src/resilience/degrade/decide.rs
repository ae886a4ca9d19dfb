//! The answers of outage policies: decided on the local claims, and in the journal before they are given. The caller holds the
//! key's exclusive lock.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::call::Answered;
use oncegate_core::claim::{
    self, ClaimRequest, ClaimResponse, Effect, Grant, LateTerms, Outcome, OutcomeRequest, OutcomeResponse,
    RenewalRequest, RenewalResponse,
};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{Determinate, EngineError};
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::record::{Key, LiveClaim};
use oncegate_core::terms::{ClaimOnOutage, OutcomeOnOutage};

use super::super::journal::JournalError;
use super::super::journal::entry::{Entry, JournaledOperation, Seq};
use super::local_claims::{LocalClaim, LocalEffect};
use super::shared_nonce::granted_attempt;
use super::{Core, OutcomeAnswer};

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
        let now = self.clock.monotonic();
        let policy = match on_outage {
            ClaimOnOutage::FailClosed => None,
            ClaimOnOutage::Local => Some(OutagePolicy::Local),
            ClaimOnOutage::FailOpen => Some(OutagePolicy::FailOpen),
        };
        let queue = self.local_claims.waiting_on(&request.key);
        let held =
            self.local_claims.live_claim(&request.key, now).or_else(|| reported_after_end(&queue, self.clock.wall()));
        match claim::claim(held.as_ref(), request, None) {
            (Effect::Put(..), ClaimResponse::Granted(grant)) => match policy {
                Some(policy) if failure.is_unavailable() => self.grant(request, grant, policy, failure).await,
                _ => Err(failure),
            },
            (_, answer) => {
                let policy = match &answer {
                    ClaimResponse::Granted(_) => self.local_claims.granted_by(&request.key).or(policy),
                    // It was not granted here: the policy is the caller's own, or that of a waiting outcome.
                    ClaimResponse::Duplicate(_) | ClaimResponse::Mismatch(_) => {
                        policy.or_else(|| queue.last().map(|(_, entry)| entry.policy))
                    }
                };
                policy.map(|policy| self.answer(&request.key, policy, answer)).ok_or(failure)
            }
        }
    }

    async fn grant(
        &self,
        request: &ClaimRequest,
        grant: Grant,
        policy: OutagePolicy,
        failure: EngineError,
    ) -> Result<Answered<ClaimResponse>, EngineError> {
        if policy == OutagePolicy::Local && self.local_claims.has_forgotten(&request.key.app, self.clock.monotonic()) {
            return Err(no_answer(failure, "and more claims are in progress than this gateway can remember"));
        }
        self.record_operation(JournaledOperation::Granted(request.clone()), policy, failure, |now| {
            LocalEffect::Put(Box::new(LocalClaim::new(request.record(), Some(now + request.terms.lease), Some(policy))))
        })
        .await?;
        Ok(self.answer(&request.key, policy, ClaimResponse::Granted(grant)))
    }

    /// Counts an answer, and adds its policy.
    fn answer<Answer>(&self, key: &Key, policy: OutagePolicy, answer: Answer) -> Answered<Answer> {
        self.journal.count_answer(&key.app, policy);
        Answered::by_policy(policy, answer)
    }

    /// Answers an outcome call that the store did not answer.
    pub(super) async fn settle_by_policy(
        &self,
        request: &OutcomeRequest,
        on_outage: OutcomeOnOutage,
        failure: EngineError,
    ) -> Result<Answered<OutcomeAnswer>, EngineError> {
        let queue = self.local_claims.waiting_on(&request.key);
        let granted = granted_attempt(&queue, &request.attempt);
        let attempt = granted.map_or(&request.attempt, |(attempt, _)| attempt).clone();
        let request = &OutcomeRequest { attempt, ..request.clone() };
        if granted.is_some_and(|(_, policy)| policy == OutagePolicy::Local) {
            return self.settle_locally(request, failure).await;
        }
        // While an outcome waits, later ones wait behind it to keep their order, even if the store answers again.
        if on_outage != OutcomeOnOutage::Spool || (queue.is_empty() && !failure.is_unavailable()) {
            return Err(failure);
        }
        let reports = queue.iter().rev().filter_map(|(_, entry)| match &entry.journaled {
            JournaledOperation::Reported(report) => Some(report),
            JournaledOperation::Granted(_) | JournaledOperation::Renewed(_) => None,
        });
        match reports.into_iter().find(|report| report.attempt == request.attempt).map(|report| &report.outcome) {
            Some(Outcome::Success { .. }) if !matches!(request.outcome, Outcome::Success { .. }) => {
                let answer = OutcomeAnswer::Response(OutcomeResponse::AlreadySucceeded);
                return Ok(self.answer(&request.key, OutagePolicy::Spool, answer));
            }
            Some(recorded) if std::mem::discriminant(recorded) == std::mem::discriminant(&request.outcome) => {
                return Ok(self.answer(&request.key, OutagePolicy::Spool, OutcomeAnswer::Spooled));
            }
            _ => {}
        }
        let held = with_terms_of_outcome(self.local_claims.live_claim(&request.key, self.clock.monotonic()), request);
        let held = held.filter(|held| held.record.attempt == request.attempt || request.late.is_some());
        let (effect, answer) = claim::settle(held.as_ref(), request);
        if answer == OutcomeResponse::Expired {
            // The store would not record it either, unless it has the claim: it must not be accepted and dropped later.
            return Ok(self.answer(&request.key, OutagePolicy::Spool, OutcomeAnswer::Response(answer)));
        }
        // Keeps the terms, so that the outcome can be recorded even if its claim has ended before delivery.
        let late = request.late.clone().or_else(|| held.map(|held| LateTerms::of(held.record)));
        let request = &OutcomeRequest { late, ..request.clone() };
        let reported = JournaledOperation::Reported(request.clone());
        self.record_operation(reported, OutagePolicy::Spool, failure, |now| {
            LocalEffect::of(effect, |lasts| now + lasts)
        })
        .await?;
        Ok(self.answer(&request.key, OutagePolicy::Spool, OutcomeAnswer::Spooled))
    }

    /// Settles a claim that was granted here, by the local claims.
    async fn settle_locally(
        &self,
        request: &OutcomeRequest,
        failure: EngineError,
    ) -> Result<Answered<OutcomeAnswer>, EngineError> {
        let held = self.local_claims.live_claim(&request.key, self.clock.monotonic());
        let (effect, answer) = claim::settle(held.as_ref(), request);
        if effect != Effect::Keep {
            let reported = JournaledOperation::Reported(request.clone());
            self.record_operation(reported, OutagePolicy::Local, failure, |now| {
                LocalEffect::of(effect, |lasts| now + lasts)
            })
            .await?;
        }
        Ok(self.answer(&request.key, OutagePolicy::Local, OutcomeAnswer::Response(answer)))
    }

    /// Answers a renewal that the store did not answer, if a policy granted the claim.
    pub(super) async fn renew_by_policy(
        &self,
        request: &RenewalRequest,
        failure: EngineError,
    ) -> Result<Answered<RenewalResponse>, EngineError> {
        let queue = self.local_claims.waiting_on(&request.key);
        let Some((attempt, policy)) = granted_attempt(&queue, &request.attempt) else { return Err(failure) };
        let request = &RenewalRequest { attempt: attempt.clone(), ..request.clone() };
        let held = self.local_claims.live_claim(&request.key, self.clock.monotonic());
        let (effect, answer) = claim::renew(held.as_ref(), request);
        if let Effect::Extend(lease) = effect {
            let renewed = JournaledOperation::Renewed(RenewalRequest { lease: Some(lease), ..request.clone() });
            self.record_operation(renewed, policy, failure, |now| LocalEffect::of(effect, |lasts| now + lasts)).await?;
        }
        Ok(self.answer(&request.key, policy, answer))
    }

    /// Puts an operation into the journal, and then into the local claims. A lease counts from its entry's instant here too: however
    /// slow the disk is, a repeated call is not promised more than the mark of the grant covers. `failure` is that of the store.
    async fn record_operation(
        &self,
        journaled: JournaledOperation,
        policy: OutagePolicy,
        failure: EngineError,
        effect: impl FnOnce(Duration) -> LocalEffect,
    ) -> Result<(), EngineError> {
        let now = self.clock.monotonic();
        let entry = Arc::new(Entry { chain: self.chain.clone(), policy, at: self.clock.wall(), journaled });
        let seq = self.journal.append(&entry).await.map_err(|error| not_journaled(failure, &error))?;
        self.local_claims.add(seq, entry, effect(now), now);
        self.wake.notify_one();
        Ok(())
    }
}

/// Returns the live claim, with the terms of its outcome if only renewals of it are known here.
fn with_terms_of_outcome(held: Option<LiveClaim>, request: &OutcomeRequest) -> Option<LiveClaim> {
    let mut held = held?;
    let is_renewed_only = held.record.operation.is_none() && held.record.attempt == request.attempt;
    if let Some(late) = request.late.as_ref().filter(|_| is_renewed_only) {
        held.record.terms = late.terms;
    }
    Some(held)
}

/// Returns the claim of an attempt that the store had granted, if its outcome waits. It counts once the claim of this
/// process has ended.
fn reported_after_end(queue: &[(Seq, Arc<Entry>)], wall: Timestamp) -> Option<LiveClaim> {
    let (mut granted, mut reported) = (None, None);
    for (_, entry) in queue {
        match &entry.journaled {
            // Nothing was reported before this grant.
            JournaledOperation::Granted(request) => (granted, reported) = (Some(&request.attempt), None),
            // The local claims have this outcome.
            JournaledOperation::Reported(request) if granted == Some(&request.attempt) => {}
            JournaledOperation::Reported(request) if request.outcome == Outcome::Failure => {
                reported.take_if(|(known, _): &mut (&OutcomeRequest, _)| known.attempt == request.attempt);
            }
            JournaledOperation::Reported(request) => reported = Some((request, entry.at)),
            JournaledOperation::Renewed(_) => {}
        }
    }
    let (request, at) = reported?;
    let record = request.late_record()?;
    let left = record.settled_retention().duration().map(|lifetime| at.plus(lifetime).since(wall));
    LiveClaim::of_stored(record, left, None, None)
}

#[cfg(test)]
mod tests {
    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_core::record::{Contents, Record};
    use oncegate_core::terms::Terms;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn outcome(claim: &ClaimRequest, outcome: Outcome) -> OutcomeRequest {
        let late = LateTerms { operation: None, contents: Contents::Unverified, terms: claim.terms };
        OutcomeRequest { key: claim.key.clone(), attempt: claim.attempt.clone(), outcome, late: Some(late) }
    }

    fn success(claim: &ClaimRequest) -> OutcomeRequest {
        outcome(claim, Outcome::Success { result: None, retention: None })
    }

    /// Returns the claim that these queued operations report, if the claim has ended here.
    fn reported(operations: Vec<JournaledOperation>) -> Option<LiveClaim> {
        let at = Timestamp::from_micros(1_700_000_000_000_000);
        let entry = |(seq, journaled)| {
            (seq, Arc::new(Entry { chain: "default".into(), policy: OutagePolicy::Spool, at, journaled }))
        };
        let queue: Vec<_> = (1..).zip(operations).map(entry).collect();
        reported_after_end(&queue, at.plus(SECOND))
    }

    #[test]
    fn an_outcome_that_waits_counts_after_the_end_of_its_claim() {
        use JournaledOperation::{Granted, Reported};

        let (claim, other) = (fresh_claim(), fresh_claim());
        let found = reported(vec![Reported(success(&claim))]).unwrap();
        let retention = claim.terms.retention.duration().unwrap();
        assert_eq!((found.record.attempt, found.left), (claim.attempt.clone(), retention.checked_sub(SECOND)));
        let failure = |claim: &ClaimRequest| Reported(outcome(claim, Outcome::Failure));
        for (operations, counts) in [
            (vec![], false),
            (vec![failure(&claim)], false),
            (vec![Reported(success(&claim)), failure(&claim)], false),
            (vec![Reported(success(&claim)), failure(&other)], true),
            (vec![Reported(success(&claim)), Granted(other.clone())], false),
            // The local claims have this one.
            (vec![Granted(claim.clone()), Reported(success(&claim))], false),
            (vec![Granted(other), Reported(success(&claim))], true),
        ] {
            assert_eq!(reported(operations.clone()).is_some(), counts, "{operations:?}");
        }
    }

    #[test]
    fn a_claim_that_is_known_by_a_renewal_alone_takes_the_terms_of_its_outcome() {
        let claim = fresh_claim();
        let held = |operation| {
            let record = Record { operation, ..claim.record() };
            Some(LiveClaim { record, left: Some(SECOND), ends_at: None, fence: None })
        };
        let terms = Terms { lease: SECOND * 99, ..claim.terms };
        let mut request = success(&claim);
        request.late = request.late.map(|late| LateTerms { terms, ..late });
        let lease = |held, request: &OutcomeRequest| with_terms_of_outcome(held, request).unwrap().record.terms.lease;
        assert_eq!(lease(held(None), &request), terms.lease);
        assert_eq!(lease(held(Some(claim.operation.clone())), &request), claim.terms.lease);
        let other = OutcomeRequest { attempt: fresh_claim().attempt, ..request };
        assert_eq!(lease(held(None), &other), claim.terms.lease);
    }
}
