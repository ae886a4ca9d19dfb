//! Why a history cannot be explained, for a reader: its shortest beginning that cannot, how far an order of events goes,
//! and what the store would have said then.

use std::fmt;
use std::time::Duration;

use super::check::{Furthest, deeds, search};
use super::record::{Event, Reply};

/// A history that no order of events explains.
pub struct Unexplained {
    /// Its shortest beginning that cannot be explained; what was not yet answered then counts as unknown.
    events: Vec<Event>,
    /// What certainly did not happen, if what was told is true.
    refused: Vec<Event>,
    furthest: Furthest,
}

impl Unexplained {
    /// Finds the shortest beginning, of a history that cannot be explained as a whole.
    pub(crate) fn shortest(events: &[Event], mut refused: Vec<Event>, skew: Duration) -> Box<Self> {
        let mut ends: Vec<Duration> = events.iter().map(|event| event.answered).collect();
        ends.sort_unstable();
        for end in ends {
            let events = beginning(events, end);
            if let Err(furthest) = search(&deeds(&events), skew) {
                refused.retain(|event| event.begun <= end);
                return Box::new(Self { events, refused, furthest: *furthest });
            }
        }
        unreachable!("the whole is one of its beginnings");
    }

    /// How many events its shortest beginning has.
    pub fn event_count(&self) -> usize {
        self.events.len()
    }
}

/// What had begun by an instant, as it was known then.
fn beginning(events: &[Event], end: Duration) -> Vec<Event> {
    let mut events: Vec<Event> = events.iter().filter(|event| event.begun <= end).cloned().collect();
    for event in events.iter_mut().filter(|event| event.answered > end) {
        event.reply = Reply::Unknown;
    }
    events.sort_by_key(|event| (event.begun, event.answered));
    events
}

impl fmt::Display for Unexplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "no order of these {} events explains all answers:", self.events.len())?;
        for (place, event) in self.events.iter().enumerate() {
            let at = self.furthest.order.iter().position(|done| *done == place);
            let at = at.map_or_else(|| "  –".to_owned(), |at| format!("{:3}", at + 1));
            writeln!(f, "  #{place:<3}{at}. {event:?}")?;
        }
        for event in &self.refused {
            writeln!(f, "      none. {event:?}")?;
        }
        let course = &self.furthest.course;
        let stands = match &course.standing {
            None => "nothing".to_owned(),
            Some(standing) => {
                let ends = match standing.ends {
                    Some(ends) => {
                        let [earliest, latest] = [ends.earliest, ends.latest].map(|at| at.as_secs_f64() * 1e3);
                        format!("ends between {earliest:.1} and {latest:.1} ms")
                    }
                    None => "does not end by itself".to_owned(),
                };
                format!("{:?} by {:?}, which {ends}", standing.record.state, standing.record.attempt)
            }
        };
        writeln!(f, "after those with a number, in its order, there stands {stands}; what was told besides:")?;
        for (place, deed) in deeds(&self.events).iter().enumerate() {
            let Some(deed) = deed.as_ref().filter(|deed| deed.told.is_some()) else { continue };
            if !self.furthest.order.contains(&place) {
                let told = deed.told.as_ref().expect("looked at before");
                let word = course.would_say(deed, false);
                writeln!(f, "  #{place}: told {told:?}; the store would have said {word:?}")?;
            }
        }
        Ok(())
    }
}
