//! The state of a chain that gateways agree on: the metadata record `chain.<name>` of every engine, and the order of
//! two states.

use oncegate_core::engine::{EngineError, Metadata};
use serde::{Deserialize, Serialize};

use super::status::{Phase, SwitchCause};

/// Format of the record. Raised only when an older release could not read what a newer one writes.
const FORMAT: u32 = 1;

/// The active engine, and the last switch.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub(super) struct ChainState {
    format: u32,
    /// Number of switches so far.
    pub(super) epoch: u64,
    /// Random name of the last switch, so that two switches at the same time write different records.
    #[serde(rename = "by")]
    switch: String,
    pub(super) phase: Phase,
    /// The engine that is active once the phase is open.
    pub(super) active: String,
    /// The engine before it, which gets the calls until then.
    #[serde(rename = "was")]
    pub(super) previous: String,
    /// Length of the grant freeze on the new engine after an automatic switch, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) freeze_ms: Option<u64>,
    /// Origin of the last switch of a chain with a witness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<SwitchNote>,
}

/// Origin of a switch.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub(super) struct SwitchNote {
    pub(super) cause: SwitchCause,
    /// Random name of the gateway that made it.
    pub(super) gateway: String,
    /// Start of the switch, in microseconds by that gateway's clock.
    pub(super) at: u64,
    /// Reason of the switch: one line.
    pub(super) reason: String,
}

impl ChainState {
    /// Returns the state before the first switch. It is not stored.
    pub(super) fn never_switched(first: &str) -> Self {
        let (active, previous) = (first.to_owned(), first.to_owned());
        let (freeze_ms, note) = (None, None);
        Self { format: FORMAT, epoch: 0, switch: String::new(), phase: Phase::Open, active, previous, freeze_ms, note }
    }

    /// Returns the state of a switch to an engine that has started. `bits` are random.
    pub(super) fn closing(before: &Self, to: &str, bits: u64) -> Self {
        Self {
            format: FORMAT,
            epoch: before.epoch + 1,
            switch: format!("{bits:016x}"),
            phase: Phase::Closing,
            active: to.to_owned(),
            previous: before.serving().to_owned(),
            freeze_ms: None,
            note: None,
        }
    }

    /// Returns the state of the same switch when it is complete.
    pub(super) fn opened(&self) -> Self {
        Self { phase: Phase::Open, ..self.clone() }
    }

    /// Returns the state with its origin, and the length of the grant freeze that follows.
    pub(super) fn noted(self, note: SwitchNote, freeze_ms: Option<u64>) -> Self {
        Self { freeze_ms, note: Some(note), ..self }
    }

    /// Returns the engine that gets the calls.
    pub(super) fn serving(&self) -> &str {
        match self.phase {
            Phase::Open => &self.active,
            Phase::Closing => &self.previous,
        }
    }

    /// Returns the version: gateways follow the greatest. Of two switches at the same time either wins, the same everywhere.
    pub(super) fn version(&self) -> (u64, &str, Phase) {
        (self.epoch, &self.switch, self.phase)
    }

    /// Returns the metadata record.
    pub(super) fn to_metadata(&self) -> Result<Metadata, EngineError> {
        let text = serde_json::to_string(self).map_err(|error| EngineError::incompatible(error.to_string()))?;
        Metadata::new(text).map_err(|error| EngineError::incompatible(error.to_string()))
    }

    /// Reads a metadata record. An unreadable record does not count as absent, and is not overwritten.
    pub(super) fn read(record: &Metadata) -> Result<Self, EngineError> {
        serde_json::from_str(record.as_str())
            .ok()
            .filter(|state: &Self| state.format == FORMAT)
            .ok_or_else(|| EngineError::incompatible("its chain state cannot be read by this release"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_other_formats_are_refused() {
        let closing = ChainState::closing(&ChainState::never_switched("a"), "b", 7);
        assert_eq!(ChainState::read(&closing.to_metadata().unwrap()), Ok(closing.clone()));
        assert_eq!((closing.serving(), closing.opened().serving()), ("a", "b"));
        let newer = closing.to_metadata().unwrap().as_str().replace("\"format\":1", "\"format\":2");
        for unreadable in ["", "{}", &newer] {
            assert!(ChainState::read(&Metadata::new(unreadable).unwrap()).is_err(), "{unreadable}");
        }
    }

    #[test]
    fn a_later_switch_is_newer_and_so_is_open_after_closing() {
        let never = ChainState::never_switched("a");
        let (one, other) = (ChainState::closing(&never, "b", 1), ChainState::closing(&never, "c", 2));
        let next = ChainState::closing(&one.opened(), "a", 0);
        let order = [never, one.clone(), one.opened(), other.clone(), other.opened(), next.clone(), next.opened()];
        assert!(order.windows(2).all(|pair| pair[0].version() < pair[1].version()), "{order:?}");
    }
}
