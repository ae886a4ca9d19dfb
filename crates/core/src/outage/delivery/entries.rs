//! The steps by which a grant or an outcome is delivered.

use std::time::Duration;

use super::super::entry::JournaledOperation;
use super::super::grants::{DegradedGrant, Grants};
use super::{Delivered, Plan, Planned, Proof, Step, is_superseded};
use crate::attempt::Attempt;
use crate::claim::{ClaimRequest, ClaimResponse, LateTerms, Outcome, OutcomeRequest, RenewalRequest, RenewalResponse};
use crate::clock::Timestamp;
use crate::record::{ClaimState, Contents, LiveClaim, Record};
use crate::terms::Terms;

/// Shortest lease of a claim whose outcome follows at once: long enough for the outcome to find it.
const DELIVERED_LEASE_MIN: Duration = Duration::from_secs(5);

/// Claim calls of one delivery: the lease of the claim that each finds may end before it is renewed.
const CLAIMS_MAX: usize = 3;

/// Treatment of a claim of the same nonce that the store holds as unknown because its lease ended there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EndedLease {
    /// Leaves it unknown: the lease has ended here too, or its outcome follows.
    Leave,
    /// Restores the lease: a policy extended it here, and another gateway that granted the same nonce did not know of that.
    Restore,
}

impl Plan<'_> {
    /// Delivers a grant, with its renewals, and with its outcome if there is one.
    pub(super) fn deliver_grant(&mut self, request: &ClaimRequest) -> Planned<Delivered> {
        // Outcomes of other attempts do not separate a grant from its renewals and outcome; another grant does.
        let until_next_grant =
            self.queue[1..].iter().take_while(|(_, entry)| !matches!(entry.journaled, JournaledOperation::Granted(_)));
        let own = until_next_grant.filter(|(_, entry)| *entry.attempt() == request.attempt);
        let granted_at = self.first.at;
        let (mut seqs, mut ended_at, mut reported) = (Vec::new(), granted_at.plus(request.terms.lease), None);
        for (seq, entry) in own {
            match &entry.journaled {
                JournaledOperation::Renewed(renewal) => {
                    seqs.push(*seq);
                    ended_at = ended_at.max(entry.at.plus(renewal.lease.unwrap_or(request.terms.lease)));
                }
                JournaledOperation::Reported(report) => {
                    seqs.push(*seq);
                    reported = Some((entry.at, report));
                    break;
                }
                JournaledOperation::Granted(_) => {}
            }
        }
        let mut grant = DegradedGrant::of_claim(request, granted_at, ended_at);
        if let Some((at, report)) = reported {
            grant.settle(report, at);
        }
        let own = self.local.filter(|local| local.record.attempt == request.attempt);
        let leaves_record = reported.map_or(own.is_some(), |(_, report)| report.outcome != Outcome::Failure);
        // A grant without a record is written before the store is read. So if another gateway delivers an outcome at that
        // time, this read finds the outcome, or that delivery finds the grant. A claim in progress may still end before the
        // end that is written, so it is written after the store has answered.
        let written = if leaves_record { None } else { Some(self.write_and_compare(&grant)?) };
        let mut theirs = match (reported, own) {
            (Some((at, report)), _) => self.deliver_grant_and_outcome(request, report, ended_at.min(at))?,
            (None, Some(LiveClaim { record: Record { state: ClaimState::InProgress, .. }, left, .. })) => {
                self.claim_for_lease(request, left.unwrap_or(request.terms.lease), EndedLease::Restore)?.1
            }
            // Its lease has ended, and that means unknown: the store has to record it.
            (None, Some(_)) => self.claim_for_lease(request, Duration::from_millis(1), EndedLease::Leave)?.1,
            (None, None) => self.claim_made_before(ended_at)?,
        };
        let overlapping = if let Some(overlapping) = written {
            overlapping
        } else {
            let overlapping = self.write_and_compare(&grant)?;
            // If its lease has ended since then, such an outcome may have missed both.
            if reported.is_none() && theirs.is_none() && self.now >= ended_at {
                theirs = self.claim_made_before(ended_at)?;
            }
            overlapping
        };
        let happened = reported.is_some_and(|(_, report)| report.outcome != Outcome::Failure);
        Ok(Delivered { seqs, outcome_refused: happened && theirs.is_some(), theirs, overlapping })
    }

    /// Delivers a grant and its outcome. `ended_at` is the end of its lease, or the outcome if that was earlier. Returns the
    /// claim that the store holds instead.
    fn deliver_grant_and_outcome(
        &mut self,
        request: &ClaimRequest,
        report: &OutcomeRequest,
        ended_at: Timestamp,
    ) -> Planned<Option<LiveClaim>> {
        let mut report = report.clone();
        let is_failure = report.outcome == Outcome::Failure;
        // A failure needs no claim: it only releases a grant that the store may have made after all. But a take-over
        // has ended an unknown outcome, which the store still holds.
        let theirs = if is_failure && !request.take_over {
            None
        } else {
            let lease = request.terms.lease.max(DELIVERED_LEASE_MIN);
            let (holder, theirs) = self.claim_for_lease(request, lease, EndedLease::Leave)?;
            // Another gateway may have granted the same nonce: then the store holds the attempt of that gateway.
            report.attempt = holder.unwrap_or(report.attempt);
            report.late = Some(LateTerms {
                operation: Some(request.operation.clone()),
                contents: Contents::keep(&request.contents, request.contents_stored_bytes),
                terms: report.late.map_or(request.terms, |late| late.terms),
            });
            theirs
        };
        let is_refused = is_superseded(self.settle(&report, Proof::Journal)?);
        match (is_failure, is_refused) {
            (true, true) => self.claim_made_before(ended_at),
            (true, false) => Ok(None),
            (false, true) if theirs.is_none() => Ok(Some(self.read_other()?)),
            (false, _) => Ok(theirs),
        }
    }

    /// Claims for at least this lease. Returns the attempt of the same nonce that holds the claim, or the other claim that the
    /// store holds.
    ///
    /// The store may hold the claim already, for the lease of an earlier call that it executed late. Then the lease is renewed,
    /// because a policy may have granted a longer one.
    fn claim_for_lease(
        &mut self,
        request: &ClaimRequest,
        lease: Duration,
        ended: EndedLease,
    ) -> Planned<(Option<Attempt>, Option<LiveClaim>)> {
        let lease = lease.max(Duration::from_millis(1));
        let mut claim = ClaimRequest { terms: Terms { lease, ..request.terms }, ..request.clone() };
        for _ in 0..CLAIMS_MAX {
            let grant = match self.claim(&claim)? {
                ClaimResponse::Granted(grant) => grant,
                ClaimResponse::Duplicate(held) if held.record.attempt.nonce() == request.attempt.nonce() => {
                    if ended == EndedLease::Leave || !held.is_ended_lease() {
                        return Ok((Some(held.record.attempt.clone()), None));
                    }
                    claim = ClaimRequest { attempt: held.record.attempt.clone(), take_over: true, ..claim };
                    continue;
                }
                ClaimResponse::Duplicate(held) => return Ok((None, Some(held.clone()))),
                ClaimResponse::Mismatch(_) => return Ok((None, self.read()?.clone())),
            };
            if grant.lease_left.is_none_or(|left| left >= lease) {
                return Ok((Some(grant.attempt.clone()), None));
            }
            let (key, attempt) = (request.key.clone(), grant.attempt.clone());
            let renewal = RenewalRequest { key, attempt, lease: Some(lease) };
            match self.renew(&renewal)? {
                RenewalResponse::Renewed { .. } | RenewalResponse::AlreadySucceeded => {
                    return Ok((Some(renewal.attempt), None));
                }
                // Its lease has just ended, or its outcome was reported: the next claim call shows which.
                RenewalResponse::LeaseLost => {}
                RenewalResponse::Superseded { .. } => return Ok((None, self.read()?.clone())),
            }
        }
        Err(Box::new(Step::Postpone("the lease ended before each of three renewals; delivery will be tried again")))
    }

    /// Returns the claim that made the store refuse an outcome. If that claim has ended, the outcome is not recorded yet: the
    /// delivery is postponed.
    fn read_other(&mut self) -> Planned<LiveClaim> {
        let ended = || Box::new(Step::Postpone("the other claim has just ended; delivery will be tried again"));
        self.read()?.clone().ok_or_else(ended)
    }

    /// Returns the claim in the store if it was made before the local grant had ended.
    fn claim_made_before(&mut self, ended_at: Timestamp) -> Planned<Option<LiveClaim>> {
        let held = self.read()?.as_ref();
        Ok(held.filter(|held| held.record.attempt.timestamp() < ended_at).cloned())
    }

    /// Delivers an outcome. Its grant is in the store.
    pub(super) fn deliver_outcome(&mut self, request: &OutcomeRequest) -> Planned<Delivered> {
        // A late failure has no consequences: nothing had happened.
        let is_failure = request.outcome == Outcome::Failure;
        let is_refused = is_superseded(self.settle(request, Proof::Grants)?) && !is_failure;
        let theirs = if is_refused { Some(self.read_other()?) } else { None };
        // Another gateway may have granted the claim again without knowing of this outcome.
        let grant = DegradedGrant::of_outcome(request, self.first.at);
        let overlapping = if is_failure {
            Vec::new()
        } else if is_refused {
            // The store does not record this outcome, but its caller relies on it: later grants are compared with it.
            self.write_and_compare(&grant)?
        } else {
            overlapping(self.read_grants()?, &grant)
        };
        Ok(Delivered { seqs: Vec::new(), outcome_refused: theirs.is_some(), theirs, overlapping })
    }

    /// Writes a degraded grant, and returns those that it overlaps. The second delivered grant of any two finds the first.
    fn write_and_compare(&mut self, grant: &DegradedGrant) -> Planned<Vec<DegradedGrant>> {
        let grants = if grant.is_empty() { self.read_grants()? } else { self.write_grants(grant)? };
        Ok(overlapping(grants, grant))
    }
}

fn overlapping(grants: &Grants, own: &DegradedGrant) -> Vec<DegradedGrant> {
    grants.overlapping(own).into_iter().cloned().collect()
}
