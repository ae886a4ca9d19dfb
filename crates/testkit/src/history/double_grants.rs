//! Double grants: two attempts that both held one key at one time by their answers, or a grant after another attempt had
//! reported success. Counts certain cases only, none that a slow caller explains. A nonce is one attempt at all gateways.

use std::time::Duration;

use oncegate_core::attempt::Attempt;
use oncegate_core::claim::Outcome;
use oncegate_core::record::ClaimState;

use super::record::{Answer, Call, Event, Reply};

/// Two grants of one key that the contract does not allow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DoubleGrant {
    /// The two attempts, the older first. Two gateways may issue them in one microsecond, so their timestamps may be equal.
    pub attempts: (Attempt, Attempt),
    /// Time for which both certainly held the key.
    pub lasted: Duration,
}

/// Period in which an attempt held a key by its answers.
struct Holding {
    attempt: Attempt,
    /// Time of the first answer that granted the key.
    from: Duration,
    /// Certain end: of the lease, of the retention, or the attempt's own report.
    until: Duration,
    /// Retention of its success, unless the outcome call sets another.
    kept: Duration,
}

/// Returns the certain double grants of one key, by any gateway.
pub fn double_grants(events: &[Event]) -> Vec<DoubleGrant> {
    let holdings = holdings(events);
    let mut found = Vec::new();
    for (index, one) in holdings.iter().enumerate() {
        for other in &holdings[index + 1..] {
            let lasted = one.until.min(other.until).saturating_sub(one.from.max(other.from));
            if !lasted.is_zero() {
                let [one, other] = [one, other].map(|holding| holding.attempt.clone());
                let attempts = if one.timestamp() <= other.timestamp() { (one, other) } else { (other, one) };
                found.push(DoubleGrant { attempts, lasted });
            }
        }
    }
    found.sort_by_key(|double| [&double.attempts.0, &double.attempts.1].map(Attempt::timestamp));
    found
}

/// Returns attempts that a service granted instead of the store, and had not delivered when the store granted the key
/// to another attempt through the same service.
pub fn undelivered_grants(events: &[Event]) -> Vec<Attempt> {
    let mut undelivered = Vec::new();
    for event in events {
        let Reply::Degraded(_, Answer::Granted { attempt, lease, .. }) = &event.reply else { continue };
        let is_own = |other: &&Event| match &other.call {
            Call::Claim { .. } => false,
            Call::Settle { attempt: own, .. } | Call::Renew { attempt: own, .. } => own.nonce() == attempt.nonce(),
        };
        let mut until = event.started + *lease;
        for own in events.iter().filter(is_own) {
            if let Reply::Degraded(_, Answer::Renewed { lease }) = &own.reply
                && own.service == event.service
            {
                until = until.max(own.started + *lease);
            }
        }
        let reported = events.iter().filter(is_own).filter(|own| matches!(own.call, Call::Settle { .. }));
        let until = reported.map(|own| own.started).min().map_or(until, |done| until.min(done));
        let is_granted = events.iter().any(|other| {
            let Reply::Answered(Answer::Granted { attempt: theirs, .. }) = &other.reply else { return false };
            let is_other = theirs.nonce() != attempt.nonce() && other.service == event.service;
            is_other && other.started >= event.answered && other.answered < until
        });
        if is_granted {
            undelivered.push(attempt.clone());
        }
    }
    undelivered
}

fn holdings(events: &[Event]) -> Vec<Holding> {
    let mut holdings: Vec<Holding> = Vec::new();
    for event in events {
        let (Reply::Answered(answer) | Reply::Degraded(_, answer)) = &event.reply else { continue };
        let Answer::Granted { attempt, lease, .. } = answer else { continue };
        let Call::Claim { terms, .. } = &event.call else { continue };
        let (until, kept) = (event.started + *lease, terms.retention.duration().unwrap_or(Duration::MAX));
        match holdings.iter_mut().find(|holding| holding.attempt.nonce() == attempt.nonce()) {
            Some(holding) => {
                holding.from = holding.from.min(event.answered);
                holding.until = holding.until.max(until);
            }
            None => holdings.push(Holding { attempt: attempt.clone(), from: event.answered, until, kept }),
        }
    }
    for holding in &mut holdings {
        let own = |event: &&Event| matches!(&event.call, Call::Settle { attempt, .. } if attempt.nonce() == holding.attempt.nonce());
        // Its first report says that it no longer runs.
        if let Some(done) = events.iter().filter(own).map(|event| event.started).min() {
            holding.until = holding.until.min(done);
        }
        // An accepted success blocks others until its retention ends. Of several, the first counts; the earliest end is certain.
        let mut kept_until: Option<Duration> = None;
        for event in events.iter().filter(own) {
            let Call::Settle { outcome: Outcome::Success { retention, .. }, .. } = &event.call else { continue };
            let taken = match &event.reply {
                Reply::Answered(Answer::Done { state, .. }) => *state == Some(ClaimState::Succeeded),
                Reply::Degraded(_, Answer::Done { .. }) => true,
                _ => false,
            };
            if taken && holding.until >= event.started {
                let own = retention.map(|own| own.duration().unwrap_or(Duration::MAX));
                let until = event.started.saturating_add(own.unwrap_or(holding.kept));
                kept_until = Some(kept_until.map_or(until, |sooner| sooner.min(until)));
            }
        }
        holding.until = holding.until.max(kept_until.unwrap_or_default());
    }
    holdings
}
