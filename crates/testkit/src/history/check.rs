//! Checks histories against the contract: each key alone, first without and then with echoes.

use std::time::Duration;

use super::explain::Unexplained;
use super::record::{Answer, Event, History, Reply};
use super::search::{search, steps};

/// Greatest drift between the clocks of store and callers within a lease, with the resolution of both.
pub const SKEW: Duration = Duration::from_millis(5);

/// Checks the events of one key against the contract.
///
/// # Errors
/// Returns the shortest beginning of the history that no order of events explains.
pub fn check(events: &[Event], skew: Duration) -> Result<(), Box<Unexplained>> {
    // Calls that certainly took no effect explain nothing, and may be numerous.
    let (refused, events): (Vec<Event>, Vec<Event>) =
        events.iter().cloned().partition(|event| event.reply == Reply::Refused);
    if search(&steps(&events), skew).is_ok() {
        return Ok(());
    }
    Err(Unexplained::shortest(&events, refused, skew))
}

/// Checks the events of every key against the contract. Panics with those that cannot be explained.
///
/// A call that took this long may have been sent twice. The store may have received the second one long after the
/// caller was answered, and no caller read the answer to it. Returns the number of keys that need this to be explained.
///
/// Such an echo has an effect only if the caller's claim has ended by then: it claims the free key for a lease, for an
/// attempt that is over. That blocks the key for a while, and is no double grant. A further outcome of the attempt finds it.
///
/// A grant or an outcome by a policy always has an echo, even if it was fast: the store may have executed the call before
/// the policy answered it, and its delivery sends it again.
pub fn explained_with_echoes(history: &History, sent_twice_after: Duration) -> usize {
    explained_within(history, sent_twice_after, SKEW)
}

/// The same, for a store whose clock drifts this far from those of callers.
pub fn explained_within(history: &History, sent_twice_after: Duration, skew: Duration) -> usize {
    let (mut unexplained, mut echoes) = (Vec::new(), 0);
    for (key, events) in &history.keys() {
        let Err(why) = check(events, skew) else { continue };
        let with_echoes = with_echoes(events, sent_twice_after);
        if with_echoes.len() > events.len() && check(&with_echoes, skew).is_ok() {
            echoes += 1;
        } else {
            unexplained.push(format!("{key}: {why}"));
        }
    }
    let shown = unexplained.iter().take(3).map(String::as_str).collect::<Vec<_>>().join("\n\n");
    assert!(unexplained.is_empty(), "no order of events explains {} keys; the first:\n{shown}", unexplained.len());
    echoes
}

/// Returns the events, and a second copy of those that the store may have received twice.
pub(crate) fn with_echoes(events: &[Event], sent_twice_after: Duration) -> Vec<Event> {
    let echo = |event: &Event| match &event.reply {
        Reply::Degraded(_, Answer::Granted { repeated: false, .. } | Answer::Done { .. }) => Some(event.clone()),
        Reply::Refused => None,
        reply => (event.took() >= sent_twice_after).then(|| {
            let reply = match reply {
                Reply::Answered(Answer::Granted { attempt, repeated: false, .. }) => Reply::Echo(attempt.clone()),
                _ => Reply::Unknown,
            };
            Event { reply, ..event.clone() }
        }),
    };
    events.iter().cloned().chain(events.iter().filter_map(echo)).collect()
}
