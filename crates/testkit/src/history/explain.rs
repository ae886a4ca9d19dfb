//! Report of a history that cannot be explained: its shortest unexplained beginning, the longest order of events that
//! holds, and the answers that the store would have given after it.

use std::fmt;
use std::time::Duration;

use super::record::{Event, Reply};
use super::search::{Furthest, search, steps};

/// A history that no order of events explains.
pub struct Unexplained {
    /// Its shortest beginning that cannot be explained. Calls without an answer by then count as unknown.
    events: Vec<Event>,
    /// Calls that were refused, and so took no effect.
    refused: Vec<Event>,
    furthest: Furthest,
}

impl Unexplained {
    /// Finds the shortest beginning of a history that cannot be explained as a whole.
    pub(crate) fn shortest(events: &[Event], mut refused: Vec<Event>, skew: Duration) -> Box<Self> {
        let mut ends: Vec<Duration> = events.iter().map(|event| event.answered).collect();
        ends.sort_unstable();
        for end in ends {
            let events = beginning(events, end);
            if let Err(furthest) = search(&steps(&events), skew) {
                refused.retain(|event| event.started <= end);
                return Box::new(Self { events, refused, furthest: *furthest });
            }
        }
        unreachable!("the whole is one of its beginnings");
    }

    /// Returns the number of events of its shortest beginning.
    pub fn event_count(&self) -> usize {
        self.events.len()
    }
}

/// Returns the events that had started by this time, as they were known then.
fn beginning(events: &[Event], end: Duration) -> Vec<Event> {
    let mut events: Vec<Event> = events.iter().filter(|event| event.started <= end).cloned().collect();
    for event in events.iter_mut().filter(|event| event.answered > end) {
        event.reply = Reply::Unknown;
    }
    events.sort_by_key(|event| (event.started, event.answered));
    events
}

impl fmt::Display for Unexplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "no order of these {} events explains all answers:", self.events.len())?;
        for (index, event) in self.events.iter().enumerate() {
            let at = self.furthest.order.iter().position(|done| *done == index);
            let at = at.map_or_else(|| "  –".to_owned(), |at| format!("{:3}", at + 1));
            writeln!(f, "  #{index:<3}{at}. {event:?}")?;
        }
        for event in &self.refused {
            writeln!(f, "      none. {event:?}")?;
        }
        let state = &self.furthest.state;
        let stored = match &state.stored {
            None => "nothing".to_owned(),
            Some(stored) => {
                let ends = match stored.ends {
                    Some(ends) => {
                        let [earliest, latest] = [ends.earliest, ends.latest].map(|at| at.as_secs_f64() * 1e3);
                        format!("ends between {earliest:.1} and {latest:.1} ms")
                    }
                    None => "has no end".to_owned(),
                };
                format!("{:?} by {:?}, which {ends}", stored.record.state, stored.record.attempt)
            }
        };
        writeln!(f, "after the numbered events, in that order, the store has {stored}; answers that do not fit:")?;
        for (index, step) in steps(&self.events).iter().enumerate() {
            let Some(step) = step.as_ref().filter(|step| step.answer.is_some()) else { continue };
            if !self.furthest.order.contains(&index) {
                let answered = step.answer.as_ref().expect("checked before");
                let expected = state.expected_answer(step, false);
                writeln!(f, "  #{index}: answered {answered:?}; the store would have answered {expected:?}")?;
            }
        }
        Ok(())
    }
}
