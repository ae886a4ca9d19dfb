//! Telling the store what was answered in its place: the entries of a key in order, a claim and its outcome as one. Each step
//! can be repeated, so an end of this process between two of them repeats it. The caller has the key to itself.

use std::sync::Arc;
use std::time::Duration;

use super::super::journal::DELIVERY_DEADLINE;
use super::super::journal::entry::{Deed, Entry, Seq};
use super::Core;
use crate::crash::{self, Point};
use crate::domain::attempt::Attempt;
use crate::domain::claim::{Claim, Claimed, LateTerms, Outcome, Renew, Settle, Settled};
use crate::domain::clock::Timestamp;
use crate::domain::overlap::{Contender, Overlap};
use crate::domain::record::{Contents, Held, Key, Record, State};
use crate::domain::terms::{LeaseEnd, Retention, Terms};
use crate::engine::EngineError;

/// The lease of a claim whose outcome follows at once, at least: long enough for the outcome to find it.
const PUSHED_LEASE_MIN: Duration = Duration::from_secs(5);

/// What the store has been told, what it held instead, and which other degraded grants have left their marks there.
#[derive(Default)]
struct Told {
    seqs: Vec<Seq>,
    theirs: Option<Held>,
    beside: Vec<Held>,
}

type Queue = [(Seq, Arc<Entry>)];

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
                Deed::Granted(ask) => self.tell_grant(ask, first, &queue).await?,
                Deed::Reported(ask) => self.tell_outcome(ask, first.at, *seq).await?,
                Deed::Renewed(ask) => self.tell_renewal(ask, *seq).await?,
            };
            let ours = first.attempt();
            let theirs = told.theirs.filter(|theirs| theirs.record.attempt.nonce() != ours.nonce());
            let overlaps = theirs.iter().chain(&told.beside).map(|theirs| self.overlap(first, ours, theirs)).collect();
            let (core, key) = (self.clone(), key.clone());
            self.uncancelled(async move {
                core.keeper.delivered(told.seqs.clone(), overlaps).await;
                core.book.delivered(&key, &told.seqs, theirs.as_ref(), core.clock.monotonic());
                Ok(())
            })
            .await?;
        }
    }

    /// A grant, with its renewals, and with its outcome if there is one.
    async fn tell_grant(&self, ask: &Claim, entry: &Entry, queue: &Queue) -> Result<Told, EngineError> {
        // What others have reported meanwhile does not stand between a claim and what became of it; another grant does.
        let beside = queue[1..].iter().take_while(|(_, entry)| !matches!(entry.deed, Deed::Granted(_)));
        let own = beside.filter(|(_, entry)| *entry.attempt() == ask.attempt);
        let (mut seqs, mut ended_at, mut reported) = (vec![queue[0].0], entry.at.plus(ask.terms.lease), None);
        for (seq, entry) in own {
            match &entry.deed {
                Deed::Renewed(renewal) => {
                    seqs.push(*seq);
                    ended_at = ended_at.max(entry.at.plus(renewal.lease.unwrap_or(ask.terms.lease)));
                }
                Deed::Reported(report) => {
                    seqs.push(*seq);
                    reported = Some((entry.at, report));
                    break;
                }
                Deed::Granted(_) => {}
            }
        }
        let own = self.book.held(&ask.key, self.clock.monotonic());
        let own = own.filter(|held| held.record.attempt == ask.attempt);
        let mut until = ended_at;
        let theirs = match (reported, own) {
            (Some((at, report)), _) => {
                until = blocked_until(report, at);
                self.tell_both(ask, report, at).await?
            }
            (None, Some(Held { record: Record { state: State::InProgress, .. }, left, .. })) => {
                self.push(ask, left.unwrap_or(ask.terms.lease)).await?.1
            }
            // Its lease has ended and nobody may guess what became of it: the store has to know that.
            (None, Some(_)) if ask.terms.on_lease_end == LeaseEnd::Unknown => {
                self.push(ask, Duration::from_millis(1)).await?.1
            }
            (None, _) => self.stood_beside(&ask.key, ended_at).await?,
        };
        let beside = self.leave_mark(&ask.key, &ask.attempt, until).await?;
        Ok(Told { seqs, theirs, beside })
    }

    /// A grant and what became of it, as was reported then.
    async fn tell_both(&self, ask: &Claim, report: &Settle, at: Timestamp) -> Result<Option<Held>, EngineError> {
        let mut report = report.clone();
        report.deadline = DELIVERY_DEADLINE;
        if report.outcome == Outcome::Failure {
            // It did not happen: there is nothing to claim, and only what the store may have granted after all to release.
            let settled = self.engine.settle(&report).await?;
            return if is_superseded(&settled) { self.stood_beside(&ask.key, at).await } else { Ok(None) };
        }
        let (holder, theirs) = self.push(ask, ask.terms.lease.max(PUSHED_LEASE_MIN)).await?;
        crash::here(Point::Reconciling);
        // The same try of the same caller may hold it under the attempt that another gateway issued.
        report.attempt = holder.unwrap_or(report.attempt);
        report.late = Some(LateTerms {
            operation: Some(ask.operation.clone()),
            contents: Contents::keep(&ask.contents, ask.contents_stored_bytes),
            terms: report.late.map_or(ask.terms, |late| late.terms),
        });
        let settled = self.engine.settle(&report).await?;
        if theirs.is_none() && is_superseded(&settled) {
            return self.engine.read(&ask.key).await;
        }
        Ok(theirs)
    }

    /// Claims for a lease of this length, and tells which attempt of the same try holds it, or what the store holds instead.
    async fn push(&self, ask: &Claim, lease: Duration) -> Result<(Option<Attempt>, Option<Held>), EngineError> {
        let lease = lease.max(Duration::from_millis(1));
        let pushed = Claim { terms: Terms { lease, ..ask.terms }, deadline: DELIVERY_DEADLINE, ..ask.clone() };
        match self.engine.claim(&pushed).await?.split().0 {
            Claimed::Granted(grant) => Ok((Some(grant.attempt), None)),
            Claimed::Duplicate(held) if held.record.attempt.nonce() == ask.attempt.nonce() => {
                Ok((Some(held.record.attempt), None))
            }
            Claimed::Duplicate(held) => Ok((None, Some(held))),
            Claimed::Mismatch(_) | Claimed::Degraded(..) => Ok((None, self.engine.read(&ask.key).await?)),
        }
    }

    /// What the store holds that was claimed before a claim ended here.
    async fn stood_beside(&self, key: &Key, ended_at: Timestamp) -> Result<Option<Held>, EngineError> {
        let held = self.engine.read(key).await?;
        Ok(held.filter(|held| held.record.attempt.timestamp() < ended_at))
    }

    /// An outcome of what the store had granted.
    async fn tell_outcome(&self, ask: &Settle, at: Timestamp, seq: Seq) -> Result<Told, EngineError> {
        // An entry of an earlier release may say that it is too old to be recorded; but it was accepted.
        let late = ask.late.clone().or_else(|| Some(LateTerms::for_a_day()));
        let settled = self.engine.settle(&Settle { deadline: DELIVERY_DEADLINE, late, ..ask.clone() }).await?;
        // A failure that comes late hurts nobody: nothing had happened.
        let hurts = is_superseded(&settled) && ask.outcome != Outcome::Failure;
        let theirs = if hurts { self.engine.read(&ask.key).await? } else { None };
        // Another gateway may have granted it, and has then again, not knowing of this.
        let beside = match ask.outcome {
            Outcome::Failure => Vec::new(),
            // The store keeps nothing of it, and this gateway, or its caller, holds it to be done: as long as it does, what
            // others grant is to be compared with it.
            _ if hurts => self.leave_mark(&ask.key, &ask.attempt, blocked_until(ask, at)).await?,
            Outcome::Success { .. } | Outcome::Unknown => self.marks_beside(ask, blocked_until(ask, at)).await?,
        };
        Ok(Told { seqs: vec![seq], theirs, beside })
    }

    /// A renewal whose grant the store has been told of.
    async fn tell_renewal(&self, ask: &Renew, seq: Seq) -> Result<Told, EngineError> {
        let held = self.book.held(&ask.key, self.clock.monotonic());
        if let Some(left) = held.filter(|held| held.record.attempt == ask.attempt).and_then(|held| held.left) {
            self.engine.renew(&Renew { lease: Some(left), deadline: DELIVERY_DEADLINE, ..ask.clone() }).await?;
        }
        Ok(Told { seqs: vec![seq], ..Told::default() })
    }

    fn overlap(&self, entry: &Entry, ours: &Attempt, theirs: &Held) -> Overlap {
        Overlap {
            id: 0,
            app: entry.app().clone(),
            operation: entry.operation().or(theirs.record.operation.as_ref()).cloned(),
            global_id: entry.key().global_id,
            policy: entry.policy,
            ours: Contender::from(ours),
            theirs: Contender::from(&theirs.record.attempt),
            state: theirs.record.state,
            noticed_at: self.clock.wall(),
        }
    }
}

fn is_superseded(settled: &Settled) -> bool {
    matches!(settled, Settled::Superseded { .. })
}

/// Until when an outcome that was reported then blocks others.
fn blocked_until(report: &Settle, at: Timestamp) -> Timestamp {
    let own = report.late.as_ref().map(|late| late.terms);
    let kept = match report.outcome {
        Outcome::Success { retention, .. } => retention.or(own.map(|terms| terms.retention)),
        Outcome::Unknown => own.map(|terms| terms.unknown_retention),
        Outcome::Failure => return at,
    };
    at.plus(kept.and_then(Retention::duration).unwrap_or(Duration::MAX))
}
