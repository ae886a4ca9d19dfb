//! What is answered in a store's place: one decision for each policy, on the local record, in the journal before it is
//! answered. The caller has the key to itself.

use std::sync::Arc;

use super::super::journal::Refused;
use super::super::journal::entry::{Deed, Entry, Seq};
use super::Core;
use super::book::{Standing, Written};
use super::same_try::granted_attempt;
use crate::domain::claim::{self, Claim, Claimed, Effect, Grant, LateTerms, Outcome, Renew, Renewed, Settle, Settled};
use crate::domain::clock::Timestamp;
use crate::domain::degraded::Degraded;
use crate::domain::record::Held;
use crate::domain::terms::{ClaimOnOutage, OutcomeOnOutage};
use crate::engine::{Determinate, EngineError};

/// Whether a failure means that the store did not answer. One that says that it is full, or that a record cannot be read,
/// has answered.
pub(super) fn is_silence(failure: &EngineError) -> bool {
    matches!(failure, EngineError::Indeterminate(_) | EngineError::Determinate(Determinate::Unavailable(_)))
}

/// The failure that the store met, and why no policy answers instead.
fn neither(failure: EngineError, why: &str) -> EngineError {
    match failure {
        EngineError::Indeterminate(uncertain) => EngineError::indeterminate(format!("{}; {why}", uncertain.0)),
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
    pub(super) async fn claim_by_policy(&self, ask: &Claim, failure: EngineError) -> Result<Claimed, EngineError> {
        let now = self.clock.monotonic();
        let policy = match ask.on_outage {
            ClaimOnOutage::FailClosed => None,
            ClaimOnOutage::Local => Some(Degraded::Local),
            ClaimOnOutage::FailOpen => Some(Degraded::FailOpen),
        };
        let queue = self.book.queue(&ask.key);
        let held = self.book.held(&ask.key, now).or_else(|| reported_beside(&queue, self.clock.wall()));
        // What tells of a claim that nobody granted here: an outcome that waits, or what was remembered.
        let teller = policy.or_else(|| queue.last().map(|(_, entry)| entry.policy));
        match claim::claim(held.as_ref(), ask, None) {
            (Effect::Put(..), Claimed::Granted(grant)) => match policy {
                Some(policy) if is_silence(&failure) => self.grant(ask, grant, policy, failure).await,
                _ => Err(failure),
            },
            (_, Claimed::Granted(grant)) => match self.book.granted_by(&ask.key).or(policy) {
                Some(policy) => Ok(self.degraded_claim(ask, policy, Claimed::Granted(Grant { fence: None, ..grant }))),
                None => Err(failure),
            },
            (_, answer) => match teller {
                Some(policy) => Ok(self.degraded_claim(ask, policy, answer)),
                None => Err(failure),
            },
        }
    }

    /// Grants a claim in the store's place.
    async fn grant(
        &self,
        ask: &Claim,
        grant: Grant,
        policy: Degraded,
        failure: EngineError,
    ) -> Result<Claimed, EngineError> {
        if policy == Degraded::Local && self.book.is_blind(&ask.key.app, self.clock.monotonic()) {
            return Err(neither(failure, "and more is in progress than this gateway can remember"));
        }
        self.keep(Deed::Granted(ask.clone()), policy, |now| {
            Written::Stands(Box::new(Standing::new(ask.record(), Some(now + ask.terms.lease), Some(policy))))
        })
        .await
        .map_err(|refused| not_kept(failure, &refused))?;
        Ok(self.degraded_claim(ask, policy, Claimed::Granted(grant)))
    }

    fn degraded_claim(&self, ask: &Claim, policy: Degraded, answer: Claimed) -> Claimed {
        self.keeper.answered(&ask.key.app, policy);
        Claimed::Degraded(policy, Box::new(answer))
    }

    /// Answers an outcome call that the store did not answer.
    pub(super) async fn settle_by_policy(&self, ask: &Settle, failure: EngineError) -> Result<Settled, EngineError> {
        let queue = self.book.queue(&ask.key);
        let attempt = granted_attempt(&queue, &ask.attempt).unwrap_or_else(|| ask.attempt.clone());
        let ask = &Settle { attempt, ..ask.clone() };
        let grants = |entry: &Entry| matches!(&entry.deed, Deed::Granted(granted) if granted.attempt == ask.attempt);
        if queue.iter().any(|(_, entry)| entry.policy == Degraded::Local && grants(entry)) {
            return self.settle_locally(ask, failure).await;
        }
        // With an outcome that waits the store is out for this key, whatever it says now: order is kept.
        if ask.on_outage != OutcomeOnOutage::Spool || (queue.is_empty() && !is_silence(&failure)) {
            return Err(failure);
        }
        let reports = queue.iter().rev().filter_map(|(_, entry)| match &entry.deed {
            Deed::Reported(report) => Some(report),
            Deed::Granted(_) | Deed::Renewed(_) => None,
        });
        match reports.into_iter().find(|report| report.attempt == ask.attempt).map(|report| &report.outcome) {
            Some(Outcome::Success { .. }) if !matches!(ask.outcome, Outcome::Success { .. }) => {
                self.keeper.answered(&ask.key.app, Degraded::Spool);
                return Ok(Settled::Degraded(Degraded::Spool, Box::new(Settled::AlreadySucceeded)));
            }
            Some(kept) if std::mem::discriminant(kept) == std::mem::discriminant(&ask.outcome) => {
                self.keeper.answered(&ask.key.app, Degraded::Spool);
                return Ok(Settled::Spooled);
            }
            _ => {}
        }
        let held = on_its_terms(self.book.held(&ask.key, self.clock.monotonic()), ask);
        let held = held.filter(|held| held.record.attempt == ask.attempt || ask.late.is_some());
        let (effect, answer) = claim::settle(held.as_ref(), ask);
        if answer == Settled::Expired {
            // The store would not record it either, unless the claim stands there: it must not be taken and dropped later.
            self.keeper.answered(&ask.key.app, Degraded::Spool);
            return Ok(Settled::Degraded(Degraded::Spool, Box::new(answer)));
        }
        // What is accepted can be recorded whenever it is delivered, also where its claim has ended by then.
        let late = ask.late.clone().or_else(|| held.map(|held| LateTerms::of(held.record)));
        let ask = &Settle { late, ..ask.clone() };
        let kept = self.keep(Deed::Reported(ask.clone()), Degraded::Spool, |now| written(effect, now)).await;
        kept.map_err(|refused| not_kept(failure, &refused))?;
        self.keeper.answered(&ask.key.app, Degraded::Spool);
        Ok(Settled::Spooled)
    }

    /// An outcome of what was granted here: the local record decides.
    async fn settle_locally(&self, ask: &Settle, failure: EngineError) -> Result<Settled, EngineError> {
        let held = self.book.held(&ask.key, self.clock.monotonic());
        let (effect, answer) = claim::settle(held.as_ref(), ask);
        if effect != Effect::Keep {
            let kept = self.keep(Deed::Reported(ask.clone()), Degraded::Local, |now| written(effect, now)).await;
            kept.map_err(|refused| not_kept(failure, &refused))?;
        }
        self.keeper.answered(&ask.key.app, Degraded::Local);
        Ok(Settled::Degraded(Degraded::Local, Box::new(answer)))
    }

    /// Answers a renewal that the store did not answer: only of what a policy has granted.
    pub(super) async fn renew_by_policy(&self, ask: &Renew, failure: EngineError) -> Result<Renewed, EngineError> {
        let queue = self.book.queue(&ask.key);
        let attempt = granted_attempt(&queue, &ask.attempt).unwrap_or_else(|| ask.attempt.clone());
        let ask = &Renew { attempt, ..ask.clone() };
        let granted = queue
            .iter()
            .find(|(_, entry)| matches!(&entry.deed, Deed::Granted(granted) if granted.attempt == ask.attempt));
        let Some(policy) = granted.map(|(_, entry)| entry.policy) else { return Err(failure) };
        let held = self.book.held(&ask.key, self.clock.monotonic());
        let (effect, answer) = claim::renew(held.as_ref(), ask);
        if let Effect::Extend(lease) = effect {
            let renewal = Renew { lease: Some(lease), ..ask.clone() };
            let kept = self.keep(Deed::Renewed(renewal), policy, |now| Written::EndsAt(now + lease)).await;
            kept.map_err(|refused| not_kept(failure, &refused))?;
        }
        self.keeper.answered(&ask.key.app, policy);
        Ok(Renewed::Degraded(policy, Box::new(answer)))
    }

    /// Puts a deed into the journal, and then into the local record. A lease counts from when the disk has it: longer than
    /// its holder is told.
    async fn keep(
        &self,
        deed: Deed,
        policy: Degraded,
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
fn on_its_terms(held: Option<Held>, ask: &Settle) -> Option<Held> {
    let mut held = held?;
    let is_renewed_only = held.record.operation.is_none() && held.record.attempt == ask.attempt;
    if let Some(late) = ask.late.as_ref().filter(|_| is_renewed_only) {
        held.record.terms = late.terms;
    }
    Some(held)
}

/// What stands where a claim of this process has ended: an attempt that the store had granted was reported beside it, and
/// the store has to be told.
fn reported_beside(queue: &[(Seq, Arc<Entry>)], wall: Timestamp) -> Option<Held> {
    let (mut granted, mut reported) = (None, None);
    for (_, entry) in queue {
        match &entry.deed {
            // It was not granted beside what stood already.
            Deed::Granted(ask) => (granted, reported) = (Some(&ask.attempt), None),
            // What became of it the local record has.
            Deed::Reported(ask) if granted == Some(&ask.attempt) => {}
            Deed::Reported(ask) if ask.outcome == Outcome::Failure => {
                reported.take_if(|(known, _): &mut (&Settle, _)| known.attempt == ask.attempt);
            }
            Deed::Reported(ask) => reported = Some((ask, entry.at)),
            Deed::Renewed(_) => {}
        }
    }
    let (ask, at) = reported?;
    let record = ask.late_record()?;
    let left = record.settled_retention().duration().map(|lasts| at.plus(lasts).since(wall));
    Held::judge(record, left, None)
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
