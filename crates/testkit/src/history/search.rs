//! Search for an order of events that explains a history, after Wing and Gong, with memory of the visited states. A call
//! without an answer may have taken effect at any time after it was made, or never.

use std::collections::HashMap;
use std::time::Duration;

use oncegate_core::attempt::Nonce;

use super::model::{ModelState, Step, template};
use super::record::{Answer, Event, Reply};

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
