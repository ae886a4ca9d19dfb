//! The identity of a store: its marker, which all members of one cluster show. A URL may name members of two clusters by mistake,
//! and each of them would grant the same claims. Reasons: `docs/adr/0214-two-clusters-in-one-url.md`.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oncegate_core::engine::Determinate;

/// Time for which a marker that was read is taken to be shown by a member still. Every session reads it more often.
const CONFIRMED: Duration = Duration::from_secs(2);

/// Time after which a second marker that no member shows any more is forgotten.
const DIVIDED: Duration = Duration::from_mins(1);

/// The markers that members have shown.
#[derive(Default)]
pub(crate) struct Identity {
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// The marker of the store in use.
    current: Option<Shown>,
    /// Another marker.
    other: Option<Shown>,
    /// Members have shown one after the other, then the first again: there are two stores.
    are_two: bool,
}

struct Shown {
    marker: Vec<u8>,
    /// When a member has last shown it.
    at: Duration,
}

impl Identity {
    /// Checks a marker that a member has shown, in a read that was sent and answered at these monotonic times. `None`: the store is
    /// empty.
    ///
    /// # Errors
    /// Another member shows another marker, or has shown it just now: the member must not be used.
    pub(crate) fn check(&self, marker: Option<&[u8]>, sent_at: Duration, now: Duration) -> Result<(), Determinate> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).check(marker, sent_at, now)
    }
}

impl Seen {
    fn check(&mut self, marker: Option<&[u8]>, sent_at: Duration, now: Duration) -> Result<(), Determinate> {
        let Some(marker) = marker else {
            *self = Self::default();
            return Ok(());
        };
        let shown = || Shown { marker: marker.to_vec(), at: now };
        let is_young = |shown: &Shown, limit| now.saturating_sub(shown.at) <= limit;
        let Some(current) = self.current.as_mut().filter(|current| is_young(current, DIVIDED)) else {
            *self = Self { current: Some(shown()), ..Self::default() };
            return Ok(());
        };
        if current.marker == marker {
            current.at = now;
            self.other = self.other.take().filter(|other| is_young(other, DIVIDED));
            // An answer that was under way when the other marker appeared proves nothing.
            self.are_two = self.other.as_ref().is_some_and(|other| self.are_two || sent_at >= other.at);
            return if self.are_two { Err(two_stores()) } else { Ok(()) };
        }
        if self.are_two {
            self.other = Some(shown());
            return Err(two_stores());
        }
        if is_young(current, CONFIRMED) {
            self.other = Some(shown());
            return Err(Determinate::Unavailable(
                "this member has other data than the members before; waiting whether they still have theirs".into(),
            ));
        }
        // The data of the store were lost.
        *self = Self { current: Some(shown()), ..Self::default() };
        Ok(())
    }
}

/// Returns the refusal of members that have different data.
pub(crate) fn two_stores() -> Determinate {
    Determinate::Incompatible(
        "the members in use have different data, as those of two clusters: name the members of one cluster in the URL (oncegate config \
         check --connect shows which belong together)"
            .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Shows these markers one after another, every 500 ms. Returns the answers: `g`ood, `w`ait, or `t`wo.
    fn answers(markers: &str) -> String {
        let mut seen = Seen::default();
        let answer = |(at, marker): (u32, char)| {
            let now = MS * 500 * at;
            let marker = (marker != '-').then(|| marker.to_string());
            match seen.check(marker.as_deref().map(str::as_bytes), now, now) {
                Ok(()) => 'g',
                Err(Determinate::Unavailable(_)) => 'w',
                Err(_) => 't',
            }
        };
        (0..).zip(markers.chars()).map(answer).collect()
    }

    #[test]
    fn members_of_two_stores_are_not_used() {
        assert_eq!(answers("aaaa"), "gggg");
        assert_eq!(answers("abab"), "gwtt", "neither");
        assert_eq!(answers("aabbaa"), "ggwwtt");
        // The second one is not shown for a minute.
        assert_eq!(answers(&format!("aba{}", "a".repeat(121))), format!("gwt{}gg", "t".repeat(119)));
        // Or the first one is, and what it had is lost.
        assert_eq!(answers(&format!("abab{}", "b".repeat(121))), format!("gwtt{}gg", "t".repeat(119)));
    }

    #[test]
    fn a_store_that_has_lost_its_data_is_used_again() {
        assert_eq!(answers("aa-bbb"), "gggggg", "it was seen empty");
        assert_eq!(answers("aabbbbbb"), "ggwwwwgg", "no member shows the old data any more");
    }

    #[test]
    fn an_answer_that_was_late_proves_nothing() {
        let mut seen = Seen::default();
        assert_eq!(seen.check(Some(b"a"), MS, 2 * MS), Ok(()));
        assert!(seen.check(Some(b"b"), 3 * MS, 5 * MS).is_err());
        assert_eq!(seen.check(Some(b"a"), 4 * MS, 6 * MS), Ok(()), "it was sent before");
        assert!(matches!(seen.check(Some(b"a"), 5 * MS, 7 * MS), Err(Determinate::Incompatible(_))));
    }
}
