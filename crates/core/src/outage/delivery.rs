//! Delivery of journal entries to the store, as a pure plan: the entries of a key in order, a claim and its outcome together. Each step
//! can be repeated, so a process that ends between two of them begins the delivery again.

mod entries;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::entry::{Entry, JournaledOperation, Queue, Seq};
use super::grants::{DegradedGrant, GrantEnd, Grants};
use crate::attempt::Attempt;
use crate::claim::{
    ClaimRequest, ClaimResponse, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::clock::Timestamp;
use crate::outage_policy::OutagePolicy;
use crate::record::{ClaimState, LiveClaim, Record};
use crate::suspect::{Cause, MaskedAttempt, Superseded, Suspect};
use crate::tenant::Operation;

/// A delivery of the first entry that waits on a key, with those that belong to it.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The entries that wait on the key.
    pub queue: &'a Queue,
    /// The live claim of the key among the local claims, when the delivery begins.
    pub local: Option<&'a LiveClaim>,
}

/// The next step of a delivery.
#[derive(Clone, Debug)]
pub enum Step {
    /// Claim the key.
    Claim(ClaimRequest),
    /// Renew the claim.
    Renew(RenewalRequest),
    /// Settle the claim.
    Settle(OutcomeRequest, Proof),
    /// Write a grant to the record of degraded grants, and return that record.
    WriteGrants(DegradedGrant),
    /// Read the record of degraded grants.
    ReadGrants,
    /// Read the claim.
    Read,
    /// Try again later, for this reason.
    Postpone(&'static str),
    /// The delivery is complete.
    Done(Report),
}

/// Answer of the store to a step.
#[derive(Clone, Debug)]
pub enum StoreAnswer {
    /// To [`Step::Claim`].
    Claimed(ClaimResponse),
    /// To [`Step::Renew`].
    Renewed(RenewalResponse),
    /// To [`Step::Settle`].
    Settled(OutcomeResponse),
    /// To [`Step::WriteGrants`] and [`Step::ReadGrants`].
    Grants(Grants),
    /// To [`Step::Read`].
    Found(Option<LiveClaim>),
}

/// Proof that a policy granted the nonce of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proof {
    /// This gateway's journal has the grant.
    Journal,
    /// The record of degraded grants, which must be read.
    Grants,
}

/// Result of a delivery.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The entries that were delivered.
    pub delivered: Vec<Seq>,
    /// The suspects that the delivery found, not yet numbered.
    pub suspects: Vec<Suspect>,
    /// The claim of another try that the store holds instead.
    pub theirs: Option<LiveClaim>,
}

/// Entries that were delivered, and what the store had.
#[derive(Default)]
struct Delivered {
    seqs: Vec<Seq>,
    /// The claim that the store holds instead.
    theirs: Option<LiveClaim>,
    /// True if they include a success or an unknown outcome, and the store refused it because of that claim.
    outcome_refused: bool,
    /// Other degraded grants that overlap with this one.
    overlapping: Vec<DegradedGrant>,
}

/// A value of the plan; or else the step whose answer it needs.
type Planned<T> = Result<T, Box<Step>>;

/// Returns the next step of a delivery, after these answers of the store to the steps before.
pub fn next_step(delivery: Delivery<'_>, answers: &[StoreAnswer], now: Timestamp) -> Step {
    let Some((seq, first)) = delivery.queue.first() else { return Step::Done(Report::default()) };
    let mut plan = Plan { queue: delivery.queue, local: delivery.local, first, answers: answers.iter(), now };
    plan.report(*seq).map_or_else(|step| *step, Step::Done)
}

/// Returns the attempt and the policy of the last grant by this gateway to the nonce of a call, if that grant waits in
/// the journal.
pub fn granted_attempt<'a>(queue: &'a Queue, attempt: &Attempt) -> Option<(&'a Attempt, OutagePolicy)> {
    queue.iter().rev().find_map(|(_, entry)| match &entry.journaled {
        JournaledOperation::Granted(claim) if claim.attempt.nonce() == attempt.nonce() => {
            Some((&claim.attempt, entry.policy))
        }
        JournaledOperation::Granted(_) | JournaledOperation::Renewed(_) | JournaledOperation::Reported(_) => None,
    })
}

/// Returns whether an outcome was refused because another attempt holds the claim.
pub fn is_superseded(settled: &OutcomeResponse) -> bool {
    matches!(settled, OutcomeResponse::Superseded { .. })
}

/// The plan of a delivery. It runs from the start each time, over the answers that there are.
struct Plan<'a> {
    queue: &'a Queue,
    local: Option<&'a LiveClaim>,
    first: &'a Entry,
    answers: std::slice::Iter<'a, StoreAnswer>,
    now: Timestamp,
}

/// Defines the call of a step: returns its answer, or else the step.
macro_rules! call {
    ($name:ident($($argument:ident: $type:ty),*) -> $answer:ty, $found:ident => $step:expr) => {
        fn $name(&mut self, $($argument: $type),*) -> Planned<&'a $answer> {
            match self.answers.next() {
                Some(StoreAnswer::$found(answer)) => Ok(answer),
                _ => Err(Box::new($step)),
            }
        }
    };
}

impl<'a> Plan<'a> {
    call!(claim(request: &ClaimRequest) -> ClaimResponse, Claimed => Step::Claim(request.clone()));
    call!(renew(request: &RenewalRequest) -> RenewalResponse, Renewed => Step::Renew(request.clone()));
    call!(settle(request: &OutcomeRequest, proof: Proof) -> OutcomeResponse, Settled => Step::Settle(request.clone(), proof));
    call!(write_grants(grant: &DegradedGrant) -> Grants, Grants => Step::WriteGrants(grant.clone()));
    call!(read_grants() -> Grants, Grants => Step::ReadGrants);
    call!(read() -> Option<LiveClaim>, Found => Step::Read);

    fn report(&mut self, seq: Seq) -> Planned<Report> {
        let first = self.first;
        let Delivered { seqs, theirs, outcome_refused, overlapping } = match &first.journaled {
            JournaledOperation::Granted(request) => self.deliver_grant(request)?,
            JournaledOperation::Reported(request) => self.deliver_outcome(request)?,
            // It is delivered with its grant. Without one, because the journal was damaged, nothing is known of its lease.
            JournaledOperation::Renewed(_) => Delivered::default(),
        };
        let delivered: Vec<_> = std::iter::once(seq).chain(seqs).collect();
        let theirs = theirs.filter(|theirs| theirs.record.attempt.nonce() != first.attempt().nonce());
        let is_overlap = match &theirs {
            Some(theirs) => outcome_refused || self.is_overlap_with(theirs)?,
            None => false,
        };
        let overlap = Cause::Overlap(first.policy);
        let held = theirs.iter().map(|theirs| self.suspect_of_claim(overlap, theirs)).filter(|_| is_overlap);
        let granted = overlapping
            .iter()
            .filter(|theirs| !self.is_granted_after(&theirs.attempt))
            .map(|theirs| self.suspect(overlap, &theirs.attempt, theirs.end.state(), None));
        let mut suspects: Vec<_> = held.chain(granted).collect();
        if let Some(theirs) = theirs.as_ref().filter(|_| outcome_refused) {
            suspects.push(self.suspect_of_claim(Cause::Double(self.refused_outcome(&delivered)), theirs));
        }
        Ok(Report { delivered, suspects, theirs })
    }

    /// Returns whether the claim that the store holds was granted while this one was held. If the store executed the other
    /// claim call late, it may have been granted after this one had ended.
    fn is_overlap_with(&mut self, theirs: &LiveClaim) -> Planned<bool> {
        if !matches!(self.first.journaled, JournaledOperation::Granted(_)) {
            return Ok(true);
        }
        let (attempt, later) = (&theirs.record.attempt, &self.queue[1..]);
        if self.is_granted_after(attempt) {
            return Ok(false);
        }
        // The operation was done, or may have been, at any end of its lease: it may be written as an earlier one.
        if theirs.record.state != ClaimState::InProgress {
            return Ok(true);
        }
        let fails = later.iter().any(|(_, entry)| {
            matches!(&entry.journaled, JournaledOperation::Reported(report)
                if report.attempt == *attempt && report.outcome == Outcome::Failure)
        });
        let ended = self.read_grants()?.of(attempt).filter(|grant| grant.until <= self.first.at);
        // Without a failure the store may have extended its lease since.
        Ok(!ended.is_some_and(|grant| fails || grant.end == GrantEnd::Failure))
    }

    /// Returns whether this gateway granted an attempt after this one, because this one had ended. A gateway that has only its
    /// outcome writes it as granted when it was called, which may be earlier. Under another attempt the same try may have been granted
    /// elsewhere.
    fn is_granted_after(&self, attempt: &Attempt) -> bool {
        let is_grant =
            |entry: &Entry| matches!(&entry.journaled, JournaledOperation::Granted(claim) if claim.attempt == *attempt);
        matches!(self.first.journaled, JournaledOperation::Granted(_))
            && self.queue[1..].iter().any(|(_, entry)| is_grant(entry))
    }

    fn suspect_of_claim(&self, cause: Cause, theirs: &LiveClaim) -> Suspect {
        let Record { attempt, state, operation, .. } = &theirs.record;
        self.suspect(cause, attempt, *state, operation.as_ref())
    }

    fn suspect(&self, cause: Cause, theirs: &Attempt, state: ClaimState, operation: Option<&Operation>) -> Suspect {
        let entry = self.first;
        Suspect {
            id: 0,
            app: entry.app().clone(),
            operation: entry.operation().or(operation).cloned(),
            realm: entry.key().realm,
            global_id: entry.key().global_id,
            cause,
            ours: MaskedAttempt::from(entry.attempt()),
            theirs: Some(MaskedAttempt::from(theirs)),
            state: Some(state),
            noticed_at: self.now,
            checked: None,
        }
    }

    /// Returns which outcome was delivered and refused.
    fn refused_outcome(&self, delivered: &[Seq]) -> Superseded {
        let is_unknown = |(seq, entry): &(Seq, Arc<Entry>)| {
            let is_reported = |request: &OutcomeRequest| request.outcome == Outcome::Unknown;
            delivered.contains(seq)
                && matches!(&entry.journaled, JournaledOperation::Reported(request) if is_reported(request))
        };
        if self.queue.iter().any(is_unknown) { Superseded::SupersededUnknown } else { Superseded::SupersededSuccess }
    }
}
