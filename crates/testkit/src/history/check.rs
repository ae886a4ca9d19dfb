//! Whether any order of events explains a history: a search in the manner of Wing and Gong, which remembers where it has
//! been. Calls with no answer may have happened at any time after they were made, or never.

use std::collections::HashMap;
use std::time::Duration;

use oncegate_core::attempt::Nonce;

use super::explain::Unexplained;
use super::model::{Course, Deed, template};
use super::record::{Answer, Event, Reply, Story};

/// How far a store's clock and the callers' may drift apart within a lease, and how coarsely either may count.
pub const SKEW: Duration = Duration::from_millis(5);

/// How many events a history may have: each is a bit. Short ones are searched fast; past thirty it may take long.
const EVENTS_MAX: usize = 128;

/// How many places a search may come to. A history that needs more is too long for its doubts.
const PLACES_MAX: usize = 1_000_000;

/// How far a search came.
pub(crate) struct Furthest {
    /// The places of the events, in the order in which they would have happened.
    pub(crate) order: Vec<usize>,
    /// How things stood then.
    pub(crate) course: Course,
}

/// Holds what happened to one key against the contract.
///
/// # Errors
/// The shortest beginning of the history that no order of events explains.
pub fn check(events: &[Event], skew: Duration) -> Result<(), Box<Unexplained>> {
    // What certainly did not happen explains nothing, and there may be very much of it.
    let (refused, events): (Vec<Event>, Vec<Event>) =
        events.iter().cloned().partition(|event| event.reply == Reply::Refused);
    if search(&deeds(&events), skew).is_ok() {
        return Ok(());
    }
    Err(Unexplained::shortest(&events, refused, skew))
}

/// Holds what happened to every key against the contract, and panics with all that cannot be explained.
pub fn assert_explained(story: &Story) {
    let echoes = explained_with_echoes(story, Duration::MAX);
    assert_eq!(echoes, 0, "no call took for ever");
}

/// The same, where a call that took so long may have been sent twice, and its second sending, of which nobody was told, may
/// have been taken long after its caller was answered. Returns how many keys need that to be explained.
///
/// Such an echo changes something only if all that its caller was told of is over by then: it finds the key free, and holds it
/// for a lease with nobody there. That is a key blocked for a while, and no double grant.
pub fn explained_with_echoes(story: &Story, sent_twice_after: Duration) -> usize {
    let (mut unexplained, mut echoes) = (Vec::new(), 0);
    for (key, events) in &story.keys() {
        let Err(why) = check(events, SKEW) else { continue };
        let late = events.iter().filter(|event| event.took() >= sent_twice_after && event.reply != Reply::Refused);
        let echo = |event: &Event| Event { reply: Reply::Unknown, ..event.clone() };
        let mut with_echoes = events.clone();
        with_echoes.extend(late.map(echo));
        if with_echoes.len() > events.len() && check(&with_echoes, SKEW).is_ok() {
            echoes += 1;
        } else {
            unexplained.push(format!("{key}: {why}"));
        }
    }
    let shown = unexplained.iter().take(3).map(String::as_str).collect::<Vec<_>>().join("\n\n");
    assert!(unexplained.is_empty(), "no order of events explains {} keys; the first:\n{shown}", unexplained.len());
    echoes
}

/// The events that may have happened.
pub(crate) fn deeds(events: &[Event]) -> Vec<Option<Deed>> {
    assert!(events.len() <= EVENTS_MAX, "{} events of one key: spread the work over more keys", events.len());
    let by_policy: Vec<_> = events.iter().filter_map(granted_by_policy).collect();
    events.iter().enumerate().map(|(place, event)| Deed::of(event, place, template(), &by_policy)).collect()
}

/// The nonce of what a policy granted.
fn granted_by_policy(event: &Event) -> Option<Nonce> {
    let Reply::Degraded(_, Answer::Granted { attempt, .. }) = &event.reply else { return None };
    Some(attempt.nonce().clone())
}

/// Looks for an order in which all that was answered happened.
///
/// # Errors
/// How far it came: the order with the most answers in it.
pub(crate) fn search(deeds: &[Option<Deed>], skew: Duration) -> Result<(), Box<Furthest>> {
    let answered = |place: usize| deeds[place].as_ref().is_some_and(|deed| deed.told.is_some());
    let all: u128 = (0..deeds.len()).filter(|place| answered(*place)).map(|place| 1 << place).sum();
    let mut furthest = Furthest { order: Vec::new(), course: Course::start() };
    let mut furthest_answers = 0;
    let mut been: HashMap<u128, Vec<Course>> = HashMap::new();
    let mut places = 0;
    let mut open = vec![(0_u128, Course::start(), Vec::new())];
    while let Some((done, course, order)) = open.pop() {
        if done & all == all {
            return Ok(());
        }
        let answers = (done & all).count_ones();
        if answers > furthest_answers {
            furthest_answers = answers;
            furthest = Furthest { order: order.clone(), course: course.clone() };
        }
        // What was answered happened before, so nothing that was asked later can come first.
        let left = || deeds.iter().enumerate().filter(|(place, _)| done & (1 << place) == 0);
        let first_end = left().filter_map(|(_, deed)| Some(deed.as_ref()?.ended)).min().unwrap_or(Duration::MAX);
        let mut next: Vec<(Duration, usize, &Deed)> = left()
            .filter_map(|(place, deed)| Some((place, deed.as_ref()?)))
            .filter(|(_, deed)| deed.begun <= first_end)
            .map(|(place, deed)| (deed.ended, place, deed))
            .collect();
        // The last is tried first: what was answered, in the order of the answers, and only then what was not.
        next.sort_unstable_by_key(|(ended, place, _)| std::cmp::Reverse((*ended, *place)));
        for (_, place, deed) in next {
            for ended in [true, false] {
                let Some(after) = course.after(deed, ended, skew) else { continue };
                let done = done | 1 << place;
                let others = deeds.iter().enumerate().filter(|(place, _)| done & (1 << place) == 0);
                if others.filter_map(|(_, deed)| deed.as_ref()).any(|deed| deed.ended < after.now) {
                    continue;
                }
                let seen = been.entry(done).or_default();
                if seen.contains(&after) {
                    continue;
                }
                seen.push(after.clone());
                places += 1;
                assert!(places < PLACES_MAX, "too many ways to look at {} events", deeds.len());
                open.push((done, after, [order.as_slice(), &[place]].concat()));
            }
        }
    }
    Err(Box::new(furthest))
}
