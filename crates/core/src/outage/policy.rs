//! Decisions of outage policies: what a gateway answers instead of a store that did not, from what it knows itself. As pure functions;
//! the gateway writes what they record to its journal before it answers.

#[cfg(test)]
mod tests;

use super::delivery::granted_attempt;
use super::entry::{JournaledOperation, Queue};
use crate::attempt::Attempt;
use crate::claim::{
    self, ClaimRequest, ClaimResponse, Effect, LateTerms, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest,
    RenewalResponse,
};
use crate::clock::Timestamp;
use crate::outage_policy::OutagePolicy;
use crate::record::LiveClaim;
use crate::terms::{ClaimOnOutage, OutcomeOnOutage};

/// What a gateway knows of a key while its store does not answer.
#[derive(Clone, Debug)]
pub struct Known<'a> {
    /// The entries that wait on the key.
    pub queue: &'a Queue,
    /// The live claim of the key among the local claims.
    pub local: Option<LiveClaim>,
    /// The policy that granted it, until the grant is delivered.
    pub granted_by: Option<OutagePolicy>,
    /// True if a live claim of the app may have been forgotten for lack of room.
    pub has_forgotten: bool,
    /// True if the store is unavailable: otherwise it has answered with another failure, which no policy overrides.
    pub is_unavailable: bool,
    /// The instant by the wall clock.
    pub wall: Timestamp,
}

/// A decision.
#[derive(Clone, Debug)]
pub enum Decision<Answer> {
    /// No policy answers: the failure of the store is the answer, with this reason if there is one.
    Fail(Option<&'static str>),
    /// A policy answers, and nothing changes.
    Answer(OutagePolicy, Answer),
    /// A policy answers, once the journal has this operation.
    Record(Box<Recorded<Answer>>),
}

/// An operation for the journal, its effect on the local claims, and the answer.
#[derive(Clone, Debug)]
pub struct Recorded<Answer> {
    /// The policy that answers.
    pub policy: OutagePolicy,
    /// The operation.
    pub journaled: JournaledOperation,
    /// The change of the local claim.
    pub effect: Effect,
    /// The answer.
    pub answer: Answer,
}

/// The answer to an outcome call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutcomeAnswer {
    /// The response to the outcome, from the store or from the local record.
    Response(OutcomeResponse),
    /// The outcome is in the journal and will be delivered.
    Spooled,
}

impl<Answer> Decision<Answer> {
    /// A decision without a reason to add to the failure.
    const FAIL: Self = Self::Fail(None);

    fn record(policy: OutagePolicy, journaled: JournaledOperation, effect: Effect, answer: Answer) -> Self {
        Self::Record(Box::new(Recorded { policy, journaled, effect, answer }))
    }
}

/// Returns the policy of a choice for claims.
const fn policy_of(on_outage: ClaimOnOutage) -> Option<OutagePolicy> {
    match on_outage {
        ClaimOnOutage::FailClosed => None,
        ClaimOnOutage::Local => Some(OutagePolicy::Local),
        ClaimOnOutage::FailOpen => Some(OutagePolicy::FailOpen),
    }
}

/// Decides a claim call that the store did not answer.
pub fn claim(request: &ClaimRequest, on_outage: ClaimOnOutage, known: &Known<'_>) -> Decision<ClaimResponse> {
    let policy = policy_of(on_outage);
    let held = known.local.clone().or_else(|| reported_after_end(known.queue, known.wall));
    match claim::claim(held.as_ref(), request, None) {
        (effect @ Effect::Put(..), answer @ ClaimResponse::Granted(_)) => match policy {
            Some(OutagePolicy::Local) if known.is_unavailable && known.has_forgotten => {
                Decision::Fail(Some("and more claims are in progress than this gateway can remember"))
            }
            Some(policy) if known.is_unavailable => {
                Decision::record(policy, JournaledOperation::Granted(request.clone()), effect, answer)
            }
            _ => Decision::FAIL,
        },
        (_, answer) => {
            let policy = match &answer {
                ClaimResponse::Granted(_) => known.granted_by.or(policy),
                // It was not granted here: the policy is the caller's own, or that of a waiting outcome.
                ClaimResponse::Duplicate(_) | ClaimResponse::Mismatch(_) => {
                    policy.or_else(|| known.queue.last().map(|(_, entry)| entry.policy))
                }
            };
            policy.map_or(Decision::FAIL, |policy| Decision::Answer(policy, answer))
        }
    }
}

/// Decides an outcome call that the store did not answer.
pub fn settle(request: &OutcomeRequest, on_outage: OutcomeOnOutage, known: &Known<'_>) -> Decision<OutcomeAnswer> {
    let granted = granted_attempt(known.queue, &request.attempt);
    let attempt = granted.map_or(&request.attempt, |(attempt, _)| attempt).clone();
    let request = OutcomeRequest { attempt, ..request.clone() };
    if granted.is_some_and(|(_, policy)| policy == OutagePolicy::Local) {
        return settle_locally(request, known);
    }
    // While an outcome waits, later ones wait behind it to keep their order, even if the store answers again.
    if on_outage != OutcomeOnOutage::Spool || (known.queue.is_empty() && !known.is_unavailable) {
        return Decision::FAIL;
    }
    let spooled = |answer| Decision::Answer(OutagePolicy::Spool, answer);
    match last_report(known.queue, &request.attempt) {
        Some(Outcome::Success { .. }) if !matches!(request.outcome, Outcome::Success { .. }) => {
            return spooled(OutcomeAnswer::Response(OutcomeResponse::AlreadySucceeded));
        }
        Some(recorded) if std::mem::discriminant(recorded) == std::mem::discriminant(&request.outcome) => {
            return spooled(OutcomeAnswer::Spooled);
        }
        _ => {}
    }
    let held = with_terms_of_outcome(known.local.clone(), &request);
    let held = held.filter(|held| held.record.attempt == request.attempt || request.late.is_some());
    let (effect, answer) = claim::settle(held.as_ref(), &request);
    if answer == OutcomeResponse::Expired {
        // The store would not record it either, unless it has the claim: it must not be accepted and dropped later.
        return spooled(OutcomeAnswer::Response(answer));
    }
    // Keeps the terms, so that the outcome can be recorded even if its claim has ended before delivery.
    let late = request.late.clone().or_else(|| held.map(|held| LateTerms::of(held.record)));
    let reported = JournaledOperation::Reported(OutcomeRequest { late, ..request });
    Decision::record(OutagePolicy::Spool, reported, effect, OutcomeAnswer::Spooled)
}

/// Decides the outcome of a claim that was granted here, by the local claims.
fn settle_locally(request: OutcomeRequest, known: &Known<'_>) -> Decision<OutcomeAnswer> {
    let (effect, answer) = claim::settle(known.local.as_ref(), &request);
    let answer = OutcomeAnswer::Response(answer);
    if effect == Effect::Keep {
        return Decision::Answer(OutagePolicy::Local, answer);
    }
    Decision::record(OutagePolicy::Local, JournaledOperation::Reported(request), effect, answer)
}

/// Decides a renewal that the store did not answer. It is accepted if a policy granted the claim.
pub fn renew(request: &RenewalRequest, known: &Known<'_>) -> Decision<RenewalResponse> {
    let Some((attempt, policy)) = granted_attempt(known.queue, &request.attempt) else { return Decision::FAIL };
    let request = RenewalRequest { attempt: attempt.clone(), ..request.clone() };
    match claim::renew(known.local.as_ref(), &request) {
        (effect @ Effect::Extend(lease), answer) => {
            let renewed = JournaledOperation::Renewed(RenewalRequest { lease: Some(lease), ..request });
            Decision::record(policy, renewed, effect, answer)
        }
        (_, answer) => Decision::Answer(policy, answer),
    }
}

/// Returns the last outcome of an attempt that waits.
fn last_report<'a>(queue: &'a Queue, attempt: &Attempt) -> Option<&'a Outcome> {
    queue.iter().rev().find_map(|(_, entry)| match &entry.journaled {
        JournaledOperation::Reported(report) if report.attempt == *attempt => Some(&report.outcome),
        JournaledOperation::Reported(_) | JournaledOperation::Granted(_) | JournaledOperation::Renewed(_) => None,
    })
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
fn reported_after_end(queue: &Queue, wall: Timestamp) -> Option<LiveClaim> {
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
