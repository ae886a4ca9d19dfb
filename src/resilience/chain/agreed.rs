//! What the gateways of a chain agree on, as it stands in the note `chain.<name>` of every engine, and which of two goes.

use serde::{Deserialize, Serialize};

use crate::engine::{EngineError, Metadata};
use crate::resilience::chain::Phase;

/// The form of the note. Raised only when an older release could not read what a newer one writes.
const FORMAT: u32 = 1;

/// Which engine is in use, or is about to be.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub(super) struct Agreed {
    format: u32,
    /// How often the chain was switched.
    pub(super) epoch: u64,
    /// Whose switch it is: random, so that no two write the same note, and both know whose was taken.
    pub(super) by: String,
    /// Whether the engine is in use yet.
    pub(super) phase: Phase,
    /// The engine that is in use once it is open.
    pub(super) active: String,
    /// The engine before it, to which outcomes go until then.
    pub(super) was: String,
}

impl Agreed {
    /// A chain that was never switched. Stands in no note.
    pub(super) fn never_switched(first: &str) -> Self {
        let (active, was) = (first.to_owned(), first.to_owned());
        Self { format: FORMAT, epoch: 0, by: String::new(), phase: Phase::Open, active, was }
    }

    /// A switch to this engine, begun.
    pub(super) fn closing(before: &Self, to: &str, by: u64) -> Self {
        Self {
            format: FORMAT,
            epoch: before.epoch + 1,
            by: format!("{by:016x}"),
            phase: Phase::Closing,
            active: to.to_owned(),
            was: before.serving().to_owned(),
        }
    }

    /// The same switch, done.
    pub(super) fn opened(&self) -> Self {
        Self { phase: Phase::Open, ..self.clone() }
    }

    /// The engine that calls go to.
    pub(super) fn serving(&self) -> &str {
        match self.phase {
            Phase::Open => &self.active,
            Phase::Closing => &self.was,
        }
    }

    /// Of two, the greater one goes: the later switch; of two at the same time, either, but the same for everybody.
    pub(super) fn rank(&self) -> (u64, &str, Phase) {
        (self.epoch, &self.by, self.phase)
    }

    /// As a note.
    pub(super) fn note(&self) -> Result<Metadata, EngineError> {
        let text = serde_json::to_string(self).map_err(|error| EngineError::incompatible(error.to_string()))?;
        Metadata::new(text).map_err(|error| EngineError::incompatible(error.to_string()))
    }

    /// Reads a note. One that cannot be read is neither absent nor to be overwritten.
    pub(super) fn read(note: &Metadata) -> Result<Self, EngineError> {
        serde_json::from_str(note.as_str())
            .ok()
            .filter(|agreed: &Self| agreed.format == FORMAT)
            .ok_or_else(|| EngineError::incompatible("its note of the chain cannot be read by this release"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written_and_no_other_is() {
        let closing = Agreed::closing(&Agreed::never_switched("a"), "b", 7);
        assert_eq!(Agreed::read(&closing.note().unwrap()), Ok(closing.clone()));
        assert_eq!((closing.serving(), closing.opened().serving()), ("a", "b"));
        let newer = closing.note().unwrap().as_str().replace("\"format\":1", "\"format\":2");
        for unreadable in ["", "{}", &newer] {
            assert!(Agreed::read(&Metadata::new(unreadable).unwrap()).is_err(), "{unreadable}");
        }
    }

    #[test]
    fn the_later_switch_goes_and_open_after_closing() {
        let never = Agreed::never_switched("a");
        let (one, other) = (Agreed::closing(&never, "b", 1), Agreed::closing(&never, "c", 2));
        let next = Agreed::closing(&one.opened(), "a", 0);
        let order = [never, one.clone(), one.opened(), other.clone(), other.opened(), next.clone(), next.opened()];
        assert!(order.windows(2).all(|pair| pair[0].rank() < pair[1].rank()), "{order:?}");
    }
}
