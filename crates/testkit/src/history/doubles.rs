//! Double grants: two tries that were both told to hold one key at one instant, or one that was told so after another had
//! reported its success. What is counted is certain; who ran late is not in it. A nonce is one try, wherever it was sent.

use std::time::Duration;

use oncegate_core::attempt::Attempt;
use oncegate_core::claim::Outcome;
use oncegate_core::record::ClaimState;

use super::record::{Answer, Call, Event, Reply};

/// Two grants of one key that nothing allows.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Double {
    /// The timestamps of the two attempts, in microseconds, the smaller first.
    pub attempts: (u64, u64),
}

/// What one attempt was told.
struct Hold {
    attempt: Attempt,
    /// When it was first told that it holds the key.
    from: Duration,
    /// Until when it was told so at least: the end of its lease, of its retention, or its own word that it is done.
    until: Duration,
    /// How long its success is kept, unless it says otherwise.
    kept: Duration,
}

/// The certain double grants among all grants of one key, whoever gave them.
pub fn doubles(events: &[Event]) -> Vec<Double> {
    let holds = holds(events);
    let mut doubles = Vec::new();
    for (place, one) in holds.iter().enumerate() {
        for other in &holds[place + 1..] {
            if one.from.max(other.from) < one.until.min(other.until) {
                let [one, other] = [one, other].map(|hold| hold.attempt.timestamp().as_micros());
                doubles.push(Double { attempts: (one.min(other), one.max(other)) });
            }
        }
    }
    doubles.sort();
    doubles
}

/// What a service granted in the store's place, and did not tell the store before the store, through the same service, granted
/// the key to another one: the timestamps of these attempts.
pub fn forgotten(events: &[Event]) -> Vec<u64> {
    let mut forgotten = Vec::new();
    for event in events {
        let Reply::Degraded(_, Answer::Granted { attempt, lease, .. }) = &event.reply else { continue };
        let is_own = |other: &&Event| match &other.call {
            Call::Claim { .. } => false,
            Call::Settle { attempt: own, .. } | Call::Renew { attempt: own, .. } => own.nonce() == attempt.nonce(),
        };
        let mut until = event.begun + *lease;
        for own in events.iter().filter(is_own) {
            if let Reply::Degraded(_, Answer::Renewed { lease }) = &own.reply
                && own.service == event.service
            {
                until = until.max(own.begun + *lease);
            }
        }
        let reported = events.iter().filter(is_own).filter(|own| matches!(own.call, Call::Settle { .. }));
        let until = reported.map(|own| own.begun).min().map_or(until, |done| until.min(done));
        let is_granted = events.iter().any(|other| {
            let Reply::Told(Answer::Granted { attempt: theirs, .. }) = &other.reply else { return false };
            let is_other = theirs.nonce() != attempt.nonce() && other.service == event.service;
            is_other && other.begun >= event.answered && other.answered < until
        });
        if is_granted {
            forgotten.push(attempt.timestamp().as_micros());
        }
    }
    forgotten
}

fn holds(events: &[Event]) -> Vec<Hold> {
    let mut holds: Vec<Hold> = Vec::new();
    for event in events {
        let (Reply::Told(answer) | Reply::Degraded(_, answer)) = &event.reply else { continue };
        let Answer::Granted { attempt, lease, .. } = answer else { continue };
        let Call::Claim { terms, .. } = &event.call else { continue };
        let (until, kept) = (event.begun + *lease, terms.retention.duration().unwrap_or(Duration::MAX));
        match holds.iter_mut().find(|hold| hold.attempt.nonce() == attempt.nonce()) {
            Some(hold) => {
                hold.from = hold.from.min(event.answered);
                hold.until = hold.until.max(until);
            }
            None => holds.push(Hold { attempt: attempt.clone(), from: event.answered, until, kept }),
        }
    }
    for hold in &mut holds {
        let own = |event: &&Event| matches!(&event.call, Call::Settle { attempt, .. } if attempt.nonce() == hold.attempt.nonce());
        // Whatever it reports first is its own word that it no longer runs.
        if let Some(done) = events.iter().filter(own).map(|event| event.begun).min() {
            hold.until = hold.until.min(done);
        }
        // A success that was taken blocks others for as long as it is kept. Of several the first counts, whichever that was.
        let mut kept_until: Option<Duration> = None;
        for event in events.iter().filter(own) {
            let Call::Settle { outcome: Outcome::Success { retention, .. }, .. } = &event.call else { continue };
            let taken = match &event.reply {
                Reply::Told(Answer::Done { state, .. }) => *state == Some(ClaimState::Succeeded),
                Reply::Degraded(_, Answer::Done { .. }) => true,
                _ => false,
            };
            if taken && hold.until >= event.begun {
                let own = retention.map(|own| own.duration().unwrap_or(Duration::MAX));
                let until = event.begun.saturating_add(own.unwrap_or(hold.kept));
                kept_until = Some(kept_until.map_or(until, |sooner| sooner.min(until)));
            }
        }
        hold.until = hold.until.max(kept_until.unwrap_or_default());
    }
    holds
}
