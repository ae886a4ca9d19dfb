//! Delivery of journal entries to the store: the entries of a key in order, a claim and its outcome together. Each step can be
//! repeated, so a process that ends between two of them repeats it. The caller holds the key's exclusive lock.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::attempt::Attempt;
use oncegate_core::claim::{
    ClaimRequest, ClaimResponse, LateTerms, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::EngineError;
use oncegate_core::record::{ClaimState, Contents, Key, LiveClaim, Record};
use oncegate_core::suspect::{Cause, MaskedAttempt, Superseded, Suspect};
use oncegate_core::terms::Terms;

use super::super::deadline_budget::DELIVERY_DEADLINE;
use super::super::journal::entry::{Entry, JournaledOperation, Seq};
use super::marks::{ExclusiveTime, is_of_marks};
use super::shared_nonce::{Proof, granted_attempt};
use super::{Core, Queue};
use crate::crash::{self, Point};

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

/// Entries that were delivered, and the claim that the store had.
#[derive(Default)]
struct Delivered {
    seqs: Vec<Seq>,
    /// The claim that the store holds instead.
    theirs: Option<LiveClaim>,
    /// True if they include a success or an unknown outcome, and the store refused it because of that claim.
    outcome_refused: bool,
    /// The marks of other grants by policies that overlap with this one.
    overlapping: Vec<LiveClaim>,
}

impl Core {
    /// Delivers the entries that wait on a key.
    ///
    /// # Errors
    /// The store did not take an entry; it and later ones still wait.
    pub(super) async fn deliver(self: &Arc<Self>, key: &Key) -> Result<(), EngineError> {
        loop {
            let queue = self.local_claims.waiting_on(key);
            let Some((seq, first)) = queue.first() else { return Ok(()) };
            let delivered = match &first.journaled {
                JournaledOperation::Granted(request) => self.deliver_grant(request, first, &queue).await?,
                JournaledOperation::Reported(request) => self.deliver_outcome(request, first.at, *seq).await?,
                // It is delivered with its grant. Without one, because the journal was damaged, nothing is known of its lease.
                JournaledOperation::Renewed(_) => Delivered { seqs: vec![*seq], ..Delivered::default() },
            };
            let ours = first.attempt();
            let theirs = delivered.theirs.filter(|theirs| theirs.record.attempt.nonce() != ours.nonce());
            let is_overlap = match &theirs {
                Some(theirs) => delivered.outcome_refused || self.is_overlap_with(first, &queue[1..], theirs).await?,
                None => false,
            };
            let others = theirs.iter().filter(|_| is_overlap).chain(&delivered.overlapping);
            let mut suspects: Vec<_> = others.map(|theirs| self.overlap(first, ours, theirs)).collect();
            if let Some(theirs) = theirs.as_ref().filter(|_| delivered.outcome_refused) {
                suspects.push(Suspect {
                    cause: Cause::Double(refused_outcome(&queue, &delivered.seqs)),
                    ..self.overlap(first, ours, theirs)
                });
            }
            let (core, key) = (self.clone(), key.clone());
            self.uncancelled(async move {
                core.journal.remove_delivered(delivered.seqs.clone(), suspects).await;
                core.local_claims.remove_delivered(&key, &delivered.seqs, theirs.as_ref(), core.clock.monotonic());
                Ok(())
            })
            .await?;
        }
    }

    /// Delivers a grant, with its renewals, and with its outcome if there is one.
    async fn deliver_grant(
        &self,
        request: &ClaimRequest,
        entry: &Entry,
        queue: &Queue,
    ) -> Result<Delivered, EngineError> {
        // Outcomes of other attempts do not separate a grant from its renewals and outcome; another grant does.
        let until_next_grant =
            queue[1..].iter().take_while(|(_, entry)| !matches!(entry.journaled, JournaledOperation::Granted(_)));
        let own = until_next_grant.filter(|(_, entry)| *entry.attempt() == request.attempt);
        let (mut seqs, mut ended_at, mut reported) = (vec![queue[0].0], entry.at.plus(request.terms.lease), None);
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
        let mut exclusive = ExclusiveTime::of_claim(request, entry.at, ended_at);
        if let Some((at, report)) = reported {
            exclusive.settle(report, at);
        }
        let own = self.local_claims.live_claim(&request.key, self.clock.monotonic());
        let own = own.filter(|held| held.record.attempt == request.attempt);
        let leaves_record = reported.map_or(own.is_some(), |(_, report)| report.outcome != Outcome::Failure);
        let leave_mark = || self.leave_mark(&request.key, &request.attempt, &exclusive);
        // A grant without a record leaves its mark before the store is read. So if another gateway delivers an outcome
        // at that time, this read finds the outcome, or that delivery finds the mark. A claim in progress may still end
        // before the end in its mark, so it is marked after the store has answered.
        let marked = if leaves_record { None } else { Some(leave_mark().await?) };
        let mut theirs = match (reported, own) {
            (Some((at, report)), _) => self.deliver_grant_and_outcome(request, report, ended_at.min(at)).await?,
            (None, Some(LiveClaim { record: Record { state: ClaimState::InProgress, .. }, left, .. })) => {
                self.claim_for_lease(request, left.unwrap_or(request.terms.lease), EndedLease::Restore).await?.1
            }
            // Its lease has ended, and that means unknown: the store has to record it.
            (None, Some(_)) => self.claim_for_lease(request, Duration::from_millis(1), EndedLease::Leave).await?.1,
            (None, None) => self.claim_made_before(&request.key, ended_at).await?,
        };
        let overlapping = if let Some(overlapping) = marked {
            overlapping
        } else {
            let overlapping = leave_mark().await?;
            // If its lease has ended since then, such an outcome may have missed both.
            if reported.is_none() && theirs.is_none() && self.clock.wall() >= ended_at {
                theirs = self.claim_made_before(&request.key, ended_at).await?;
            }
            overlapping
        };
        let happened = reported.is_some_and(|(_, report)| report.outcome != Outcome::Failure);
        Ok(Delivered { seqs, outcome_refused: happened && theirs.is_some(), theirs, overlapping })
    }

    /// Delivers a grant and its outcome. `ended_at` is the end of its lease, or the outcome if that was earlier. Returns the
    /// claim that the store holds instead.
    async fn deliver_grant_and_outcome(
        &self,
        request: &ClaimRequest,
        report: &OutcomeRequest,
        ended_at: Timestamp,
    ) -> Result<Option<LiveClaim>, EngineError> {
        let mut report = report.clone();
        let is_failure = report.outcome == Outcome::Failure;
        // A failure needs no claim: it only releases a grant that the store may have made after all. But a take-over
        // has ended an unknown outcome, which the store still holds.
        let theirs = if is_failure && !request.take_over {
            None
        } else {
            let lease = request.terms.lease.max(DELIVERED_LEASE_MIN);
            let (holder, theirs) = self.claim_for_lease(request, lease, EndedLease::Leave).await?;
            crash::here(Point::Reconciling);
            // Another gateway may have granted the same nonce: then the store holds the attempt of that gateway.
            report.attempt = holder.unwrap_or(report.attempt);
            report.late = Some(LateTerms {
                operation: Some(request.operation.clone()),
                contents: Contents::keep(&request.contents, request.contents_stored_bytes),
                terms: report.late.map_or(request.terms, |late| late.terms),
            });
            theirs
        };
        let settled = self.settle_in_store(&report, DELIVERY_DEADLINE, Proof::Journal).await?;
        match (is_failure, is_superseded(&settled)) {
            (true, true) => self.claim_made_before(&request.key, ended_at).await,
            (true, false) => Ok(None),
            (false, true) if theirs.is_none() => self.engine.read(&request.key).await,
            (false, _) => Ok(theirs),
        }
    }

    /// Claims for at least this lease. Returns the attempt of the same nonce that holds the claim, or the other claim that the
    /// store holds.
    ///
    /// The store may hold the claim already, for the lease of an earlier call that it executed late. Then the lease is renewed,
    /// because a policy may have granted a longer one.
    async fn claim_for_lease(
        &self,
        request: &ClaimRequest,
        lease: Duration,
        ended: EndedLease,
    ) -> Result<(Option<Attempt>, Option<LiveClaim>), EngineError> {
        let lease = lease.max(Duration::from_millis(1));
        let mut claim = ClaimRequest { terms: Terms { lease, ..request.terms }, ..request.clone() };
        for _ in 0..CLAIMS_MAX {
            let grant = match self.engine.claim(&claim, DELIVERY_DEADLINE).await? {
                ClaimResponse::Granted(grant) => grant,
                ClaimResponse::Duplicate(held) if held.record.attempt.nonce() == request.attempt.nonce() => {
                    if ended == EndedLease::Leave || !held.is_ended_lease() {
                        return Ok((Some(held.record.attempt), None));
                    }
                    claim = ClaimRequest { attempt: held.record.attempt, take_over: true, ..claim };
                    continue;
                }
                ClaimResponse::Duplicate(held) => return Ok((None, Some(held))),
                ClaimResponse::Mismatch(_) => {
                    return Ok((None, self.engine.read(&request.key).await?));
                }
            };
            if grant.lease_left.is_none_or(|left| left >= lease) {
                return Ok((Some(grant.attempt), None));
            }
            let (key, attempt) = (request.key.clone(), grant.attempt);
            let renewal = RenewalRequest { key, attempt, lease: Some(lease) };
            match self.engine.renew(&renewal, DELIVERY_DEADLINE).await? {
                RenewalResponse::Renewed { .. } | RenewalResponse::AlreadySucceeded => {
                    return Ok((Some(renewal.attempt), None));
                }
                // Its lease has just ended, or its outcome was reported: the next claim call shows which.
                RenewalResponse::LeaseLost => {}
                RenewalResponse::Superseded { .. } => {
                    return Ok((None, self.engine.read(&request.key).await?));
                }
            }
        }
        Err(EngineError::unavailable("the lease ended before each of three renewals; delivery will be tried again"))
    }

    /// Returns the claim in the store if it was made before the local grant had ended.
    async fn claim_made_before(&self, key: &Key, ended_at: Timestamp) -> Result<Option<LiveClaim>, EngineError> {
        let held = self.engine.read(key).await?;
        Ok(held.filter(|held| held.record.attempt.timestamp() < ended_at))
    }

    /// Delivers an outcome that was reported at this instant. Its grant is in the store.
    async fn deliver_outcome(
        &self,
        request: &OutcomeRequest,
        at: Timestamp,
        seq: Seq,
    ) -> Result<Delivered, EngineError> {
        let settled = self.settle_in_store(request, DELIVERY_DEADLINE, Proof::Mark).await?;
        // A late failure has no consequences: nothing had happened.
        let is_refused = is_superseded(&settled) && request.outcome != Outcome::Failure;
        let theirs = if is_refused { self.engine.read(&request.key).await? } else { None };
        if is_refused && theirs.is_none() {
            return Err(EngineError::unavailable("the other claim has just ended; delivery will be tried again"));
        }
        // Another gateway may have granted the claim again without knowing of this outcome.
        let overlapping = match request.outcome {
            Outcome::Failure => Vec::new(),
            // The store does not record this outcome, but its caller relies on it: later grants are compared with its mark.
            _ if is_refused => {
                self.leave_mark(&request.key, &request.attempt, &ExclusiveTime::of_outcome(request, at)).await?
            }
            Outcome::Success { .. } | Outcome::Unknown => {
                self.overlapping_marks(0, &request.key, &request.attempt, &ExclusiveTime::of_outcome(request, at))
                    .await?
            }
        };
        Ok(Delivered { seqs: vec![seq], outcome_refused: theirs.is_some(), theirs, overlapping })
    }

    /// Reports whether the claim that the store holds was granted while this one was held. If the store executed the other
    /// claim call late, it may have been granted after this one had ended.
    async fn is_overlap_with(&self, entry: &Entry, later: &Queue, theirs: &LiveClaim) -> Result<bool, EngineError> {
        let JournaledOperation::Granted(request) = &entry.journaled else { return Ok(true) };
        // This gateway granted the later one because this one had ended.
        if granted_attempt(later, &theirs.record.attempt).is_some() {
            return Ok(false);
        }
        // The operation was done, or may have been, at any end of its lease: its mark may be older than that outcome.
        if theirs.record.state != ClaimState::InProgress {
            return Ok(true);
        }
        Ok(!self.had_ended(&request.key, &theirs.record, entry.at).await?)
    }

    fn overlap(&self, entry: &Entry, ours: &Attempt, theirs: &LiveClaim) -> Suspect {
        Suspect {
            id: 0,
            app: entry.app().clone(),
            operation: entry.operation().or(theirs.record.operation.as_ref()).filter(|own| !is_of_marks(own)).cloned(),
            realm: entry.key().realm,
            global_id: entry.key().global_id,
            cause: Cause::Overlap(entry.policy),
            ours: MaskedAttempt::from(ours),
            theirs: Some(MaskedAttempt::from(&theirs.record.attempt)),
            state: Some(theirs.record.state),
            noticed_at: self.clock.wall(),
            checked: None,
        }
    }
}

/// Returns which outcome was delivered and refused.
fn refused_outcome(queue: &Queue, delivered: &[Seq]) -> Superseded {
    let is_unknown = |(seq, entry): &(Seq, Arc<Entry>)| {
        let is_reported = |request: &OutcomeRequest| request.outcome == Outcome::Unknown;
        delivered.contains(seq)
            && matches!(&entry.journaled, JournaledOperation::Reported(request) if is_reported(request))
    };
    if queue.iter().any(is_unknown) { Superseded::SupersededUnknown } else { Superseded::SupersededSuccess }
}

pub(super) fn is_superseded(settled: &OutcomeResponse) -> bool {
    matches!(settled, OutcomeResponse::Superseded { .. })
}
