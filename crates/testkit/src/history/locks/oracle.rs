//! The rules of locks, checked over a history. Each finding is certain: no order of events at the store, and no loss on
//! the way, explains it. The calls of a nonce give the time that its hold certainly covered, and the time that it
//! possibly covered.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use oncegate_core::lock::{HEAD_GRACE, LockMode, TICKET_LEASE};

use super::{Acquire, LockAnswer, LockCall, LockEvent, LockReply};

/// Tolerances of the check.
#[derive(Clone, Copy, Debug)]
pub struct Oracle {
    /// Greatest drift between the clocks of store and callers within a lease.
    pub skew: Duration,
    /// Time after the end of a caller's wait in which its call may still take effect.
    pub late: Duration,
    /// Time for which a lock without a possible holder may be refused, in addition to the seconds for absent heads of
    /// its queue.
    pub slack: Duration,
}

/// A rule of locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// An exclusive hold and a hold of another owner at one time.
    Exclusion,
    /// A fence that does not rise.
    Fence,
    /// A grant before a fair request that had asked earlier, and was there.
    Order,
    /// A wrong number of holds of an owner.
    Holds,
    /// A lock is refused although no caller can hold it.
    Progress,
}

/// A broken rule.
#[derive(Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    why: String,
}

/// All calls of one nonce.
struct Hold<'a> {
    nonce: &'a str,
    owner: Owner<'a>,
    mode: LockMode,
    fair: bool,
    /// Time of its first request.
    asked: Duration,
    grant: Option<Grant>,
    /// Certainly held from the first of these times to the second,
    certain: Option<(Duration, Duration)>,
    /// and certainly not held outside of these.
    possible: Option<(Duration, Duration)>,
    /// Time by which the lock was free after this exclusive hold.
    freed: Option<Duration>,
    events: Vec<&'a LockEvent>,
}

/// The first answer that granted a hold.
#[derive(Clone, Copy)]
struct Grant {
    /// Granted between these times.
    earliest: Duration,
    answered: Duration,
    fence: u64,
    repeated: bool,
}

#[derive(PartialEq, Eq)]
enum Owner<'a> {
    Named(&'a str),
    Itself(&'a str),
}

impl Oracle {
    /// Checks the events of one lock.
    ///
    /// # Errors
    /// Returns the first violation.
    pub fn check(&self, events: &[LockEvent]) -> Result<(), Violation> {
        let holds = self.holds(events);
        exclusion(&holds)?;
        fences(&holds)?;
        order(&holds)?;
        numbers(&holds)?;
        self.progress(&holds)
    }

    fn holds<'a>(&self, events: &'a [LockEvent]) -> Vec<Hold<'a>> {
        let mut nonces: BTreeMap<&str, Vec<&LockEvent>> = BTreeMap::new();
        for event in events {
            nonces.entry(nonce(&event.call)).or_default().push(event);
        }
        nonces.into_iter().filter_map(|(nonce, events)| self.hold(nonce, events)).collect()
    }

    fn hold<'a>(&self, nonce: &'a str, events: Vec<&'a LockEvent>) -> Option<Hold<'a>> {
        let asked = events.iter().filter_map(|event| Some((event.started, acquire(event)?)));
        let (asked, request) = asked.min_by_key(|(started, _)| *started)?;
        let owner = request.owner.as_ref().map_or(Owner::Itself(nonce), |owner| Owner::Named(owner.as_str()));
        let mut hold = Hold {
            nonce,
            owner,
            mode: request.mode,
            fair: request.fair,
            asked,
            grant: None,
            certain: None,
            possible: None,
            freed: None,
            events,
        };
        let grants = hold.events.iter().filter_map(|event| match answer(event)? {
            LockAnswer::Granted { fence, repeated, .. } => {
                let earliest = if *repeated { asked } else { earliest(event) };
                Some(Grant { earliest, answered: event.answered, fence: *fence, repeated: *repeated })
            }
            _ => None,
        });
        hold.grant = grants.min_by_key(|grant| grant.answered);
        hold.certain = self.certain(&hold);
        hold.possible = self.possible(&hold);
        let released = hold.events.iter().filter(|event| {
            let is_last = matches!(answer(event), Some(LockAnswer::Released { holds: 0, late: Some(false) }));
            is_last && matches!(event.call, LockCall::Release(_))
        });
        hold.freed = released.map(|event| event.answered).min().filter(|_| hold.mode == LockMode::Exclusive);
        Some(hold)
    }

    fn certain(&self, hold: &Hold<'_>) -> Option<(Duration, Duration)> {
        let from = hold.grant?.answered;
        // A nonce that was sent again after its lease had ended was granted twice. Between the two grants it held nothing.
        let fence = |event: &&LockEvent| match answer(event) {
            Some(LockAnswer::Granted { fence, .. }) => Some(*fence),
            _ => None,
        };
        if hold.events.iter().filter_map(fence).any(|fence| fence != hold.grant.map_or(fence, |grant| grant.fence)) {
            return None;
        }
        let ends = hold.events.iter().filter_map(|event| match answer(event)? {
            LockAnswer::Granted { lease, .. } => Some(earliest(event) + *lease),
            LockAnswer::Renewed { lease } => Some(event.started + *lease),
            _ => None,
        });
        let until = ends.max()?.saturating_sub(self.skew);
        let ended = hold.events.iter().filter(|event| ends_it(event) && event.reply != LockReply::Refused);
        let until = ended.map(|event| event.started).min().map_or(until, |ended| until.min(ended));
        (from < until).then_some((from, until))
    }

    fn possible(&self, hold: &Hold<'_>) -> Option<(Duration, Duration)> {
        let mut lasts = Vec::new();
        let mut is_open = false;
        for event in &hold.events {
            let late = if event.reply == LockReply::Unknown { self.late } else { Duration::ZERO };
            match (&event.call, &event.reply) {
                (LockCall::Acquire(request), LockReply::Unknown | LockReply::Answered(LockAnswer::Granted { .. })) => {
                    is_open |= event.reply == LockReply::Unknown;
                    lasts.push((event.started, event.answered + late + request.lease));
                }
                (LockCall::Renew(_, lease), LockReply::Unknown | LockReply::Answered(LockAnswer::Renewed { .. })) => {
                    lasts.push((event.started, event.answered + late + *lease));
                }
                _ => {}
            }
        }
        let from = lasts.iter().map(|(from, _)| *from).min()?;
        let mut until = lasts.iter().map(|(_, until)| *until).max()? + self.skew;
        let last_asked =
            hold.events.iter().filter(|event| acquire(event).is_some()).map(|event| event.started).max()?;
        if !is_open {
            let ended = hold.events.iter().filter(|event| {
                let is_gone = matches!(answer(event), Some(LockAnswer::Released { .. } | LockAnswer::NotHeld));
                is_gone && event.started >= last_asked
            });
            until = ended.map(|event| event.answered).min().map_or(until, |ended| until.min(ended));
        }
        Some((from, until))
    }

    /// Checks refusals of a lock without a possible holder: absent heads of its queue must explain how long they last.
    fn progress(&self, holds: &[Hold<'_>]) -> Result<(), Violation> {
        for hold in holds {
            let others = || holds.iter().filter(|other| other.nonce != hold.nonce);
            for event in &hold.events {
                let Some(LockAnswer::Held { .. }) = answer(event) else { continue };
                let at = earliest(event);
                let of_others = others().filter(|other| other.owner != hold.owner).filter_map(|other| other.possible);
                let before: Vec<_> = of_others.filter(|(from, _)| *from <= event.answered).collect();
                if before.iter().any(|(_, until)| at <= *until) {
                    continue;
                }
                let since = before.iter().map(|(_, until)| *until).max().unwrap_or_default();
                // All that are absent share one second. A head that has asked since may be absent when it could be
                // granted: it has its own second.
                let asked_since = |other: &&Hold<'_>| {
                    let mut asked = other.events.iter().filter(|own| acquire(own).is_some());
                    let late =
                        |own: &LockEvent| if own.reply == LockReply::Unknown { self.late } else { Duration::ZERO };
                    other.fair && asked.any(|own| own.started <= event.answered && own.answered + late(own) >= since)
                };
                let own = u32::try_from(others().filter(asked_since).count()).unwrap_or(u32::MAX);
                if at.saturating_sub(since) > HEAD_GRACE * (own + 1) + self.slack {
                    let why =
                        format!("no hold can be left since {since:?}, and {own} other requests have queued since then");
                    return broken(Rule::Progress, &why, &[event]);
                }
            }
        }
        Ok(())
    }
}

/// Checks the numbers of holds in the answers.
fn numbers(holds: &[Hold<'_>]) -> Result<(), Violation> {
    for hold in holds {
        let others = || holds.iter().filter(|other| other.owner == hold.owner && other.nonce != hold.nonce);
        for event in &hold.events {
            let (found, own) = match answer(event) {
                Some(LockAnswer::Granted { holds, .. }) => (*holds, 1),
                Some(LockAnswer::Released { holds, .. }) => (*holds, 0),
                _ => continue,
            };
            let overlaps = |(from, until): (Duration, Duration)| from <= event.answered && earliest(event) <= until;
            // Events of one instant have no order.
            let covers = |(from, until): (Duration, Duration)| from < event.started && event.answered < until;
            let most = own + others().filter(|other| other.possible.is_some_and(overlaps)).count();
            let is_exact = own == 1 || matches!(event.call, LockCall::Release(_));
            let is_exact = is_exact && !matches!(answer(event), Some(LockAnswer::Released { late: None, .. }));
            let least = own + others().filter(|other| is_exact && other.certain.is_some_and(covers)).count();
            if !(least..=most).contains(&found) {
                let with = others().filter(|other| other.certain.or(other.possible).is_some_and(overlaps));
                let events: Vec<_> =
                    std::iter::once(*event).chain(with.flat_map(|other| other.events.clone())).collect();
                let why = format!("{found} holds, between {least} and {most} are there");
                return broken(Rule::Holds, &why, &events);
            }
        }
    }
    Ok(())
}

fn exclusion(holds: &[Hold<'_>]) -> Result<(), Violation> {
    for (one, other) in pairs(holds) {
        let (Some(first), Some(second)) = (one.certain, other.certain) else { continue };
        if one.excludes(other) && first.0.max(second.0) < first.1.min(second.1) {
            return one.broken_with(other, Rule::Exclusion, "both hold it");
        }
    }
    Ok(())
}

fn fences(holds: &[Hold<'_>]) -> Result<(), Violation> {
    for (one, other) in pairs(holds).flat_map(|(one, other)| [(one, other), (other, one)]) {
        let (Some(before), Some(after)) = (one.grant, other.grant) else { continue };
        if before.fence == after.fence && one.excludes(other) {
            return one.broken_with(other, Rule::Fence, "they exclude each other, and have the same fence");
        }
        let is_later = before.answered < after.earliest;
        let rises = one.excludes(other) || one.freed.is_some_and(|freed| freed < after.earliest);
        if is_later && (after.fence < before.fence || rises && after.fence == before.fence) {
            return one.broken_with(other, Rule::Fence, "the second one is granted later, and its fence is not higher");
        }
    }
    Ok(())
}

/// Checks that no request is granted before a present fair request that had queued earlier.
fn order(holds: &[Hold<'_>]) -> Result<(), Violation> {
    for barger in holds {
        let Some(grant) = barger.grant.filter(|grant| !grant.repeated) else { continue };
        let owns = |other: &&Hold<'_>| other.owner == barger.owner && other.nonce != barger.nonce;
        let reenters = |(from, until): (Duration, Duration)| from <= grant.answered && grant.earliest <= until;
        if holds.iter().filter(owns).any(|own| own.possible.is_some_and(reenters)) {
            continue;
        }
        // A fair request has its place from its first call on.
        let asked = if barger.fair { barger.asked } else { grant.earliest };
        // Fences rise with the grants: a request with a lower one was granted before, perhaps by a call whose reply was lost.
        let is_later = |queued: &&Hold<'_>| queued.grant.is_none_or(|own| own.fence > grant.fence);
        for queued in holds.iter().filter(|queued| queued.nonce != barger.nonce).filter(is_later) {
            let seen = queued.events.iter().find(|event| {
                let is_queued = matches!(answer(event), Some(LockAnswer::Held { position: Some(_), .. }));
                // A ticket is extended when half of its lease is over.
                let lives = grant.answered < earliest(event) + TICKET_LEASE / 2;
                is_queued && event.answered < asked && lives && queued.stays(event, grant.answered)
            });
            let Some(seen) = seen else { continue };
            // A head that could be granted for a second, but is absent, loses its place. It certainly could not be
            // granted while a hold excluded it. While a request waits, the store may have seen it last at the start of
            // its wait; and a repeat in the first quarter of the grace is not written.
            let mut kept = seen.started + HEAD_GRACE * 3 / 4;
            let mut blocking: Vec<_> =
                holds.iter().filter(|own| own.excludes(queued)).filter_map(|own| own.certain).collect();
            blocking.sort_unstable();
            for (from, until) in blocking {
                if from <= kept {
                    kept = kept.max(until + HEAD_GRACE);
                }
            }
            if grant.answered < kept {
                return queued.broken_with(
                    barger,
                    Rule::Order,
                    &format!(
                        "the first one had queued and has its place until {kept:?}, and the second one is granted"
                    ),
                );
            }
        }
    }
    Ok(())
}

impl Hold<'_> {
    fn excludes(&self, other: &Hold<'_>) -> bool {
        self.owner != other.owner && (self.mode == LockMode::Exclusive || other.mode == LockMode::Exclusive)
    }

    /// Returns whether its ticket stays in the queue between this event and that time.
    fn stays(&self, seen: &LockEvent, until: Duration) -> bool {
        let later = self.events.iter().filter(|event| event.answered >= seen.answered && event.started <= until);
        !later.into_iter().any(|event| match (&event.call, &event.reply) {
            // Its caller may have disconnected, and left the queue.
            (LockCall::Acquire(_), LockReply::Unknown) | (LockCall::Withdraw(_), _) => true,
            // One round may grant both.
            (_, LockReply::Answered(LockAnswer::Granted { repeated, .. })) => *repeated || earliest(event) <= until,
            _ => false,
        })
    }

    fn broken_with(&self, other: &Self, rule: Rule, why: &str) -> Result<(), Violation> {
        let events: Vec<_> = self.events.iter().chain(&other.events).copied().collect();
        broken(rule, why, &events)
    }
}

fn pairs<'a, 'b>(holds: &'a [Hold<'b>]) -> impl Iterator<Item = (&'a Hold<'b>, &'a Hold<'b>)> {
    holds.iter().enumerate().flat_map(|(index, one)| holds[index + 1..].iter().map(move |other| (one, other)))
}

/// Returns the earliest time at which the store can have decided an answered call.
fn earliest(event: &LockEvent) -> Duration {
    match answer(event) {
        Some(LockAnswer::Granted { waited, .. } | LockAnswer::Held { waited, .. }) => event.started + *waited,
        _ => event.started,
    }
}

fn answer(event: &LockEvent) -> Option<&LockAnswer> {
    if let LockReply::Answered(answer) = &event.reply { Some(answer) } else { None }
}

fn acquire(event: &LockEvent) -> Option<&Acquire> {
    if let LockCall::Acquire(request) = &event.call { Some(request) } else { None }
}

fn ends_it(event: &LockEvent) -> bool {
    matches!(event.call, LockCall::Release(_) | LockCall::Withdraw(_))
}

fn nonce(call: &LockCall) -> &str {
    let nonce = match call {
        LockCall::Acquire(request) => &request.nonce,
        LockCall::Withdraw(nonce) => nonce,
        LockCall::Release(attempt) | LockCall::Renew(attempt, _) => attempt.nonce(),
    };
    nonce.as_str()
}

fn broken(rule: Rule, why: &str, events: &[&LockEvent]) -> Result<(), Violation> {
    let events: Vec<_> = events.iter().map(|event| format!("{event:?}")).collect();
    Err(Violation { rule, why: format!("{why}:\n  {}", events.join("\n  ")) })
}

impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.why)
    }
}
