//! Telling the store what was answered in its place: the entries of a key in order, a claim and its outcome as one. Each step
//! can be repeated, so an end of this process between two of them repeats it. The caller has the key to itself.

use std::sync::Arc;
use std::time::Duration;

use super::super::deadline_budget::DELIVERY_DEADLINE;
use super::super::journal::entry::{Deed, Entry, Seq};
use super::marks::{Hold, is_of_marks};
use super::same_try::{Granted, granted_attempt};
use super::{Core, Queue};
use crate::crash::{self, Point};
use crate::domain::attempt::Attempt;
use crate::domain::claim::{
    ClaimRequest, ClaimResponse, LateTerms, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::domain::clock::Timestamp;
use crate::domain::overlap::{MaskedAttempt, Overlap};
use crate::domain::record::{ClaimState, Contents, Key, LiveClaim, Record};
use crate::domain::terms::{LeaseEnd, Terms};
use crate::engine::EngineError;

/// The lease of a claim whose outcome follows at once, at least: long enough for the outcome to find it.
const PUSHED_LEASE_MIN: Duration = Duration::from_secs(5);

/// How often a claim is sent that finds its own lease at its very end.
const PUSHES_MAX: usize = 3;

/// What a delivery does with a claim of its own try that the store holds as unknown, because its lease ended there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EndedLease {
    /// Nothing: the lease has ended here too, or its outcome follows.
    Leave,
    /// Restores the lease, which a policy extended here while another gateway, which granted the same try, did not.
    Restore,
}

/// Entries that the store has, and what they met there.
#[derive(Default)]
struct Told {
    seqs: Vec<Seq>,
    /// The claim that the store holds instead.
    theirs: Option<LiveClaim>,
    /// Whether a success or an unknown outcome was among them, which the store does not record because of that.
    outcome_refused: bool,
    /// The marks of other grants by policies that overlap with this one.
    beside: Vec<LiveClaim>,
}

impl Core {
    /// Tells the store all that waits on a key.
    ///
    /// # Errors
    /// Why it could not be told; the rest waits on.
    pub(super) async fn deliver(self: &Arc<Self>, key: &Key) -> Result<(), EngineError> {
        loop {
            let queue = self.book.queue(key);
            let Some((seq, first)) = queue.first() else { return Ok(()) };
            let told = match &first.deed {
                Deed::Granted(request) => self.tell_grant(request, first, &queue).await?,
                Deed::Reported(request) => self.tell_outcome(request, first.at, *seq).await?,
                Deed::Renewed(request) => self.tell_renewal(request, *seq).await?,
            };
            let ours = first.attempt();
            let theirs = told.theirs.filter(|theirs| theirs.record.attempt.nonce() != ours.nonce());
            let is_overlap = match &theirs {
                Some(theirs) => told.outcome_refused || self.was_beside(first, &queue[1..], theirs).await?,
                None => false,
            };
            let others = theirs.iter().filter(|_| is_overlap).chain(&told.beside);
            let overlaps = others.map(|theirs| self.overlap(first, ours, theirs)).collect();
            let suspect = ours.clone();
            let (core, key) = (self.clone(), key.clone());
            self.uncancelled(async move {
                if told.outcome_refused && theirs.is_some() {
                    core.keeper.suspect(&key, &suspect);
                }
                core.keeper.delivered(told.seqs.clone(), overlaps).await;
                core.book.delivered(&key, &told.seqs, theirs.as_ref(), core.clock.monotonic());
                Ok(())
            })
            .await?;
        }
    }

    /// A grant, with its renewals, and with its outcome if there is one.
    async fn tell_grant(&self, request: &ClaimRequest, entry: &Entry, queue: &Queue) -> Result<Told, EngineError> {
        // What others have reported meanwhile does not stand between a claim and what became of it; another grant does.
        let beside = queue[1..].iter().take_while(|(_, entry)| !matches!(entry.deed, Deed::Granted(_)));
        let own = beside.filter(|(_, entry)| *entry.attempt() == request.attempt);
        let (mut seqs, mut ended_at, mut reported) = (vec![queue[0].0], entry.at.plus(request.terms.lease), None);
        for (seq, entry) in own {
            match &entry.deed {
                Deed::Renewed(renewal) => {
                    seqs.push(*seq);
                    ended_at = ended_at.max(entry.at.plus(renewal.lease.unwrap_or(request.terms.lease)));
                }
                Deed::Reported(report) => {
                    seqs.push(*seq);
                    reported = Some((entry.at, report));
                    break;
                }
                Deed::Granted(_) => {}
            }
        }
        let own = self.book.held(&request.key, self.clock.monotonic());
        let own = own.filter(|held| held.record.attempt == request.attempt);
        let mut hold = Hold::of_claim(request, entry.at, ended_at);
        let theirs = match (reported, own) {
            (Some((at, report)), _) => {
                hold.settle(report, at);
                self.tell_both(request, report, ended_at.min(at)).await?
            }
            (None, Some(LiveClaim { record: Record { state: ClaimState::InProgress, .. }, left, .. })) => {
                self.push(request, left.unwrap_or(request.terms.lease), EndedLease::Restore).await?.1
            }
            // Its lease has ended and nobody may guess what became of it: the store has to know that.
            (None, Some(_)) if request.terms.on_lease_end == LeaseEnd::Unknown => {
                self.push(request, Duration::from_millis(1), EndedLease::Leave).await?.1
            }
            (None, _) => self.stood_beside(&request.key, ended_at).await?,
        };
        let beside = self.leave_mark(&request.key, &request.attempt, &hold).await?;
        let happened = reported.is_some_and(|(_, report)| report.outcome != Outcome::Failure);
        Ok(Told { seqs, outcome_refused: happened && theirs.is_some(), theirs, beside })
    }

    /// Tells the store of a grant and its outcome. The claim ended at this instant: with its lease, or with the outcome. Returns
    /// what the store holds instead.
    async fn tell_both(
        &self,
        request: &ClaimRequest,
        report: &OutcomeRequest,
        ended_at: Timestamp,
    ) -> Result<Option<LiveClaim>, EngineError> {
        let mut report = report.clone();
        // Nothing happened, so there is nothing to claim, and only to release what the store may have granted after all. But
        // a take-over ended an unknown outcome, which the store still holds.
        if report.outcome == Outcome::Failure && !request.take_over {
            let settled = self.settle_in_store(&report, DELIVERY_DEADLINE, Granted::Here).await?;
            return if is_superseded(&settled) { self.stood_beside(&request.key, ended_at).await } else { Ok(None) };
        }
        let (holder, theirs) = self.push(request, request.terms.lease.max(PUSHED_LEASE_MIN), EndedLease::Leave).await?;
        crash::here(Point::Reconciling);
        // Another gateway may have granted the same try: the store holds the attempt that it issued.
        report.attempt = holder.unwrap_or(report.attempt);
        report.late = Some(LateTerms {
            operation: Some(request.operation.clone()),
            contents: Contents::keep(&request.contents, request.contents_stored_bytes),
            terms: report.late.map_or(request.terms, |late| late.terms),
        });
        let settled = self.settle_in_store(&report, DELIVERY_DEADLINE, Granted::Here).await?;
        if report.outcome == Outcome::Failure {
            return if is_superseded(&settled) { self.stood_beside(&request.key, ended_at).await } else { Ok(None) };
        }
        if theirs.is_none() && is_superseded(&settled) {
            return self.engine.read(&request.key).await;
        }
        Ok(theirs)
    }

    /// Claims for at least this lease. Returns the attempt of the same try that holds the claim, or what the store holds instead.
    ///
    /// The store may hold the claim already: it executed an earlier call late, which its caller had given up, and for the
    /// lease of that call. Then the lease is renewed, since a policy may have promised its holder more.
    async fn push(
        &self,
        request: &ClaimRequest,
        lease: Duration,
        ended: EndedLease,
    ) -> Result<(Option<Attempt>, Option<LiveClaim>), EngineError> {
        let lease = lease.max(Duration::from_millis(1));
        let mut pushed = ClaimRequest { terms: Terms { lease, ..request.terms }, ..request.clone() };
        for _ in 0..PUSHES_MAX {
            let grant = match self.engine.claim(&pushed, DELIVERY_DEADLINE).await? {
                ClaimResponse::Granted(grant) => grant,
                ClaimResponse::Duplicate(held) if held.record.attempt.nonce() == request.attempt.nonce() => {
                    if ended == EndedLease::Leave || !held.is_ended_lease() {
                        return Ok((Some(held.record.attempt), None));
                    }
                    pushed = ClaimRequest { attempt: held.record.attempt, take_over: true, ..pushed };
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
                // Its lease has ended just now, or its holder reported it: the next claim call tells.
                RenewalResponse::LeaseLost => {}
                RenewalResponse::Superseded { .. } => {
                    return Ok((None, self.engine.read(&request.key).await?));
                }
            }
        }
        Err(EngineError::unavailable("the claim has ended again and again before its lease could be renewed"))
    }

    /// What the store holds that was claimed before a claim ended here.
    async fn stood_beside(&self, key: &Key, ended_at: Timestamp) -> Result<Option<LiveClaim>, EngineError> {
        let held = self.engine.read(key).await?;
        Ok(held.filter(|held| held.record.attempt.timestamp() < ended_at))
    }

    /// Tells the store of an outcome that was reported at this instant, and whose grant the store knows.
    async fn tell_outcome(&self, request: &OutcomeRequest, at: Timestamp, seq: Seq) -> Result<Told, EngineError> {
        // An entry of an earlier release may say that it is too old to be recorded; but it was accepted.
        let late = request.late.clone().or_else(|| Some(LateTerms::for_a_day()));
        let report = OutcomeRequest { late, ..request.clone() };
        let settled = self.settle_in_store(&report, DELIVERY_DEADLINE, Granted::Elsewhere).await?;
        // A failure that comes late hurts nobody: nothing had happened.
        let hurts = is_superseded(&settled) && request.outcome != Outcome::Failure;
        let theirs = if hurts { self.engine.read(&request.key).await? } else { None };
        // Another gateway may have granted it, and has then again, not knowing of this.
        let beside = match request.outcome {
            Outcome::Failure => Vec::new(),
            // The store keeps nothing of it, and this gateway, or its caller, holds it to be done: as long as it does, what
            // others grant is to be compared with it.
            _ if hurts => self.leave_mark(&request.key, &request.attempt, &Hold::of_outcome(request, at)).await?,
            Outcome::Success { .. } | Outcome::Unknown => {
                self.marks_beside(&request.key, &request.attempt, &Hold::of_outcome(request, at)).await?
            }
        };
        Ok(Told { seqs: vec![seq], outcome_refused: theirs.is_some(), theirs, beside })
    }

    /// Tells the store of a renewal whose grant the store knows.
    async fn tell_renewal(&self, request: &RenewalRequest, seq: Seq) -> Result<Told, EngineError> {
        let held = self.book.held(&request.key, self.clock.monotonic());
        if let Some(left) = held.filter(|held| held.record.attempt == request.attempt).and_then(|held| held.left) {
            let renewal = RenewalRequest { lease: Some(left), ..request.clone() };
            self.renew_in_store(&renewal, DELIVERY_DEADLINE, Granted::Here).await?;
        }
        Ok(Told { seqs: vec![seq], ..Told::default() })
    }

    /// Whether the claim that the store holds was granted beside this one. The store may hold it although it was not, from a
    /// call that the store executed late.
    async fn was_beside(&self, entry: &Entry, later: &Queue, theirs: &LiveClaim) -> Result<bool, EngineError> {
        let Deed::Granted(request) = &entry.deed else { return Ok(true) };
        // It was done, or may have been, whenever its lease ended: its mark may be older than that outcome.
        if theirs.record.state != ClaimState::InProgress {
            return Ok(true);
        }
        // What this gateway granted later it granted because this one had ended.
        let is_later = granted_attempt(later, &theirs.record.attempt).is_some();
        Ok(!is_later && !self.had_ended(&request.key, &theirs.record.attempt, entry.at).await?)
    }

    fn overlap(&self, entry: &Entry, ours: &Attempt, theirs: &LiveClaim) -> Overlap {
        Overlap {
            id: 0,
            app: entry.app().clone(),
            operation: entry.operation().or(theirs.record.operation.as_ref()).filter(|own| !is_of_marks(own)).cloned(),
            global_id: entry.key().global_id,
            policy: entry.policy,
            ours: MaskedAttempt::from(ours),
            theirs: MaskedAttempt::from(&theirs.record.attempt),
            state: theirs.record.state,
            noticed_at: self.clock.wall(),
        }
    }
}

pub(super) fn is_superseded(settled: &OutcomeResponse) -> bool {
    matches!(settled, OutcomeResponse::Superseded { .. })
}
