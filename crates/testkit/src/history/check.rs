//! Search for an order of events that explains a history, after Wing and Gong, with memory of the visited states. A call
//! without an answer may have taken effect at any time after it was made, or never.

use std::collections::HashMap;
use std::time::Duration;

use oncegate_core::attempt::Nonce;

use super::explain::Unexplained;
use super::model::{ModelState, Step, template};
use super::record::{Answer, Event, History, Reply};

/// Greatest drift between the clocks of store and callers within a lease, with the resolution of both.
pub const SKEW: Duration = Duration::from_millis(5);

/// Largest number of events: each is a bit. Up to thirty are searched fast; more may take long.
const EVENTS_MAX: usize = 128;

/// Largest number of states that a search visits. A history that needs more has too many uncertain events.
const STATES_MAX: usize = 1_000_000;

/// The longest order that a search found.
pub(crate) struct Furthest {
    /// Indexes of the events, in that order.
    pub(crate) order: Vec<usize>,
    /// State after them.
    pub(crate) state: ModelState,
}

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
/// Such an echo has an effect only if the caller's claim has ended by then: it claims the free key for a lease, without
/// an owner. That blocks the key for a while, and is no double grant. A grant or an outcome by a policy always has an
/// echo, even if it was fast: the store may have executed the call before the policy answered it, and its delivery
/// sends it again.
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
        _ => (event.took() >= sent_twice_after).then(|| Event { reply: Reply::Unknown, ..event.clone() }),
    };
    events.iter().cloned().chain(events.iter().filter_map(echo)).collect()
}

/// Returns a step for each event, `None` for those that took no effect.
pub(crate) fn steps(events: &[Event]) -> Vec<Option<Step>> {
    assert!(events.len() <= EVENTS_MAX, "{} events of one key: spread the work over more keys", events.len());
    let by_policy: Vec<_> = events.iter().filter_map(granted_by_policy).collect();
    events.iter().enumerate().map(|(index, event)| Step::of(event, index, template(), &by_policy)).collect()
}

/// Returns the nonce of a grant by a policy.
fn granted_by_policy(event: &Event) -> Option<Nonce> {
    let Reply::Degraded(_, Answer::Granted { attempt, .. }) = &event.reply else { return None };
    Some(attempt.nonce().clone())
}

/// Searches for an order that contains all answered calls.
///
/// # Errors
/// Returns the order with the most answers in it.
pub(crate) fn search(steps: &[Option<Step>], skew: Duration) -> Result<(), Box<Furthest>> {
    let answered = |index: usize| steps[index].as_ref().is_some_and(|step| step.answer.is_some());
    let all: u128 = (0..steps.len()).filter(|index| answered(*index)).map(|index| 1 << index).sum();
    let mut furthest = Furthest { order: Vec::new(), state: ModelState::start() };
    let mut furthest_answers = 0;
    let mut visited: HashMap<u128, Vec<ModelState>> = HashMap::new();
    let mut states = 0;
    let mut open = vec![(0_u128, ModelState::start(), Vec::new())];
    while let Some((done, state, order)) = open.pop() {
        if done & all == all {
            return Ok(());
        }
        let answers = (done & all).count_ones();
        if answers > furthest_answers {
            furthest_answers = answers;
            furthest = Furthest { order: order.clone(), state: state.clone() };
        }
        // An answered call took effect before its answer, so no call that was made later can come first.
        let left = || steps.iter().enumerate().filter(|(index, _)| done & (1 << index) == 0);
        let first_end = left().filter_map(|(_, step)| Some(step.as_ref()?.ended)).min().unwrap_or(Duration::MAX);
        let mut next: Vec<(Duration, usize, &Step)> = left()
            .filter_map(|(index, step)| Some((index, step.as_ref()?)))
            .filter(|(_, step)| step.started <= first_end)
            .map(|(index, step)| (step.ended, index, step))
            .collect();
        // The last one is tried first: answered calls in the order of their answers, then the others.
        next.sort_unstable_by_key(|(ended, index, _)| std::cmp::Reverse((*ended, *index)));
        for (_, index, step) in next {
            for ended in [true, false] {
                let Some(after) = state.after(step, ended, skew) else { continue };
                let done = done | 1 << index;
                let others = steps.iter().enumerate().filter(|(index, _)| done & (1 << index) == 0);
                if others.filter_map(|(_, step)| step.as_ref()).any(|step| step.ended < after.now) {
                    continue;
                }
                let seen = visited.entry(done).or_default();
                if seen.contains(&after) {
                    continue;
                }
                seen.push(after.clone());
                states += 1;
                assert!(states < STATES_MAX, "too many states for {} events", steps.len());
                open.push((done, after, [order.as_slice(), &[index]].concat()));
            }
        }
    }
    Err(Box::new(furthest))
}
