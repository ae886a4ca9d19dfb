//! What is answered in a store's place: one decision for each policy, on the local record, in the journal before it is
//! answered. The caller has the key to itself.

use std::sync::Arc;

use super::super::journal::Refused;
use super::super::journal::entry::{Deed, Entry, Seq};
use super::book::{Standing, Written};
use super::same_try::granted_attempt;
use super::{Core, OutcomeAnswer};
use crate::domain::call::Answered;
use crate::domain::claim::{
    self, ClaimRequest, ClaimResponse, Effect, Grant, LateTerms, Outcome, OutcomeRequest, OutcomeResponse,
    RenewalRequest, RenewalResponse,
};
use crate::domain::clock::Timestamp;
use crate::domain::outage_policy::OutagePolicy;
use crate::domain::record::{Key, LiveClaim};
use crate::domain::terms::{ClaimOnOutage, OutcomeOnOutage};
use crate::engine::{Determinate, EngineError};

/// The failure that the store met, and why no policy answers instead.
fn neither(failure: EngineError, why: &str) -> EngineError {
    match failure {
        EngineError::Indeterminate(uncertain) => EngineError::indeterminate(format!("{}; {why}", uncertain.why)),
        EngineError::Determinate(Determinate::Unavailable(text)) => EngineError::unavailable(format!("{text}; {why}")),
        other @ EngineError::Determinate(_) => other,
    }
}

/// The failure that the store met, and why the journal did not take what a policy would have answered instead. What may be on
/// the disk is in force after a restart, and told to the store: then it is not certain that nothing happens.
fn not_kept(failure: EngineError, refused: &Refused) -> EngineError {
    match refused {
        Refused::Unsure(_) => EngineError::indeterminate(format!("{failure}; {refused}")),
        Refused::Full | Refused::AppFull | Refused::NoRoom(_) | Refused::Broken(_) => {
            neither(failure, &refused.to_string())
        }
    }
}

impl Core {
    /// A claim that the store did not answer.
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
        let queue = self.book.queue(&request.key);
        let held = self.book.held(&request.key, now).or_else(|| reported_beside(&queue, self.clock.wall()));
        // What tells of a claim that nobody granted here: an outcome that waits, or what was remembered.
        let teller = policy.or_else(|| queue.last().map(|(_, entry)| entry.policy));
        match claim::claim(held.as_ref(), request, None) {
            (Effect::Put(..), ClaimResponse::Granted(grant)) => match policy {
                Some(policy) if failure.is_unavailable() => self.grant(request, grant, policy, failure).await,
                _ => Err(failure),
            },
            (_, ClaimResponse::Granted(grant)) => match self.book.granted_by(&request.key).or(policy) {
                Some(policy) => {
                    Ok(self.answer(&request.key, policy, ClaimResponse::Granted(Grant { fence: None, ..grant })))
                }
                None => Err(failure),
            },
            (_, answer) => match teller {
                Some(policy) => Ok(self.answer(&request.key, policy, answer)),
                None => Err(failure),
            },
        }
    }

    /// Grants a claim in the store's place.
    async fn grant(
        &self,
        request: &ClaimRequest,
        grant: Grant,
        policy: OutagePolicy,
        failure: EngineError,
    ) -> Result<Answered<ClaimResponse>, EngineError> {
        if policy == OutagePolicy::Local && self.book.is_blind(&request.key.app, self.clock.monotonic()) {
            return Err(neither(failure, "and more is in progress than this gateway can remember"));
        }
        self.keep(Deed::Granted(request.clone()), policy, |now| {
            Written::Stands(Box::new(Standing::new(request.record(), Some(now + request.terms.lease), Some(policy))))
        })
        .await
        .map_err(|refused| not_kept(failure, &refused))?;
        Ok(self.answer(&request.key, policy, ClaimResponse::Granted(grant)))
    }

    /// Counts and wraps an answer of a policy.
    fn answer<Answer>(&self, key: &Key, policy: OutagePolicy, answer: Answer) -> Answered<Answer> {
        self.keeper.answered(&key.app, policy);
        Answered::by_policy(policy, answer)
    }

    /// Answers an outcome call that the store did not answer.
    pub(super) async fn settle_by_policy(
        &self,
        request: &OutcomeRequest,
        on_outage: OutcomeOnOutage,
        failure: EngineError,
    ) -> Result<Answered<OutcomeAnswer>, EngineError> {
        let queue = self.book.queue(&request.key);
        let attempt = granted_attempt(&queue, &request.attempt).unwrap_or_else(|| request.attempt.clone());
        let request = &OutcomeRequest { attempt, ..request.clone() };
        let grants =
            |entry: &Entry| matches!(&entry.deed, Deed::Granted(granted) if granted.attempt == request.attempt);
        if queue.iter().any(|(_, entry)| entry.policy == OutagePolicy::Local && grants(entry)) {
            return self.settle_locally(request, failure).await;
        }
        // With an outcome that waits the store is out for this key, whatever it says now: order is kept.
        if on_outage != OutcomeOnOutage::Spool || (queue.is_empty() && !failure.is_unavailable()) {
            return Err(failure);
        }
        let reports = queue.iter().rev().filter_map(|(_, entry)| match &entry.deed {
            Deed::Reported(report) => Some(report),
            Deed::Granted(_) | Deed::Renewed(_) => None,
        });
        match reports.into_iter().find(|report| report.attempt == request.attempt).map(|report| &report.outcome) {
            Some(Outcome::Success { .. }) if !matches!(request.outcome, Outcome::Success { .. }) => {
                let answer = OutcomeAnswer::Response(OutcomeResponse::AlreadySucceeded);
                return Ok(self.answer(&request.key, OutagePolicy::Spool, answer));
            }
            Some(kept) if std::mem::discriminant(kept) == std::mem::discriminant(&request.outcome) => {
                return Ok(self.answer(&request.key, OutagePolicy::Spool, OutcomeAnswer::Spooled));
            }
            _ => {}
        }
        let held = on_its_terms(self.book.held(&request.key, self.clock.monotonic()), request);
        let held = held.filter(|held| held.record.attempt == request.attempt || request.late.is_some());
        let (effect, answer) = claim::settle(held.as_ref(), request);
        if answer == OutcomeResponse::Expired {
            // The store would not record it either, unless the claim stands there: it must not be taken and dropped later.
            return Ok(self.answer(&request.key, OutagePolicy::Spool, OutcomeAnswer::Response(answer)));
        }
        // What is accepted can be recorded whenever it is delivered, also where its claim has ended by then.
        let late = request.late.clone().or_else(|| held.map(|held| LateTerms::of(held.record)));
        let request = &OutcomeRequest { late, ..request.clone() };
        let kept = self.keep(Deed::Reported(request.clone()), OutagePolicy::Spool, |now| written(effect, now)).await;
        kept.map_err(|refused| not_kept(failure, &refused))?;
        Ok(self.answer(&request.key, OutagePolicy::Spool, OutcomeAnswer::Spooled))
    }

    /// An outcome of what was granted here: the local record decides.
    async fn settle_locally(
        &self,
        request: &OutcomeRequest,
        failure: EngineError,
    ) -> Result<Answered<OutcomeAnswer>, EngineError> {
        let held = self.book.held(&request.key, self.clock.monotonic());
        let (effect, answer) = claim::settle(held.as_ref(), request);
        if effect != Effect::Keep {
            let kept =
                self.keep(Deed::Reported(request.clone()), OutagePolicy::Local, |now| written(effect, now)).await;
            kept.map_err(|refused| not_kept(failure, &refused))?;
        }
        Ok(self.answer(&request.key, OutagePolicy::Local, OutcomeAnswer::Response(answer)))
    }

    /// Answers a renewal that the store did not answer: only of what a policy has granted.
    pub(super) async fn renew_by_policy(
        &self,
        request: &RenewalRequest,
        failure: EngineError,
    ) -> Result<Answered<RenewalResponse>, EngineError> {
        let queue = self.book.queue(&request.key);
        let attempt = granted_attempt(&queue, &request.attempt).unwrap_or_else(|| request.attempt.clone());
        let request = &RenewalRequest { attempt, ..request.clone() };
        let granted = queue
            .iter()
            .find(|(_, entry)| matches!(&entry.deed, Deed::Granted(granted) if granted.attempt == request.attempt));
        let Some(policy) = granted.map(|(_, entry)| entry.policy) else { return Err(failure) };
        let held = self.book.held(&request.key, self.clock.monotonic());
        let (effect, answer) = claim::renew(held.as_ref(), request);
        if let Effect::Extend(lease) = effect {
            let renewal = RenewalRequest { lease: Some(lease), ..request.clone() };
            let kept = self.keep(Deed::Renewed(renewal), policy, |now| Written::EndsAt(now + lease)).await;
            kept.map_err(|refused| not_kept(failure, &refused))?;
        }
        Ok(self.answer(&request.key, policy, answer))
    }

    /// Puts a deed into the journal, and then into the local record. A lease counts from when the disk has it: longer than
    /// its holder is told.
    async fn keep(
        &self,
        deed: Deed,
        policy: OutagePolicy,
        effect: impl FnOnce(std::time::Duration) -> Written,
    ) -> Result<(), Refused> {
        let entry = Arc::new(Entry { chain: self.chain.clone(), policy, at: self.clock.wall(), deed });
        let seq = self.keeper.keep(&entry).await?;
        let now = self.clock.monotonic();
        self.book.add(seq, entry, effect(now), now);
        self.wake.notify_one();
        Ok(())
    }
}

/// What stands, on the terms that an outcome brings where nothing but renewals of its claim has passed through here.
fn on_its_terms(held: Option<LiveClaim>, request: &OutcomeRequest) -> Option<LiveClaim> {
    let mut held = held?;
    let is_renewed_only = held.record.operation.is_none() && held.record.attempt == request.attempt;
    if let Some(late) = request.late.as_ref().filter(|_| is_renewed_only) {
        held.record.terms = late.terms;
    }
    Some(held)
}

/// What stands where a claim of this process has ended: an attempt that the store had granted was reported beside it, and
/// the store has to be told.
fn reported_beside(queue: &[(Seq, Arc<Entry>)], wall: Timestamp) -> Option<LiveClaim> {
    let (mut granted, mut reported) = (None, None);
    for (_, entry) in queue {
        match &entry.deed {
            // It was not granted beside what stood already.
            Deed::Granted(request) => (granted, reported) = (Some(&request.attempt), None),
            // What became of it the local record has.
            Deed::Reported(request) if granted == Some(&request.attempt) => {}
            Deed::Reported(request) if request.outcome == Outcome::Failure => {
                reported.take_if(|(known, _): &mut (&OutcomeRequest, _)| known.attempt == request.attempt);
            }
            Deed::Reported(request) => reported = Some((request, entry.at)),
            Deed::Renewed(_) => {}
        }
    }
    let (request, at) = reported?;
    let record = request.late_record()?;
    let left = record.settled_retention().duration().map(|lasts| at.plus(lasts).since(wall));
    LiveClaim::judge(record, left, None)
}

/// What a transition does to the local record.
pub(super) fn written(effect: Effect, now: std::time::Duration) -> Written {
    match effect {
        Effect::Keep => Written::AsBefore,
        Effect::Put(record, lasts) => {
            Written::Stands(Box::new(Standing::new(record, lasts.map(|lasts| now + lasts), None)))
        }
        Effect::Extend(lasts) => Written::EndsAt(now + lasts),
        Effect::Delete => Written::Gone,
    }
}
