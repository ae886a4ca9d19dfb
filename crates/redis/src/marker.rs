//! Markers: a value that shows whether a server still has its data. One for each primary, in a slot that it answers for.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use oncegate_core::attempt::{Entropy, SystemEntropy};

/// The key of a server's marker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Marker {
    pub(super) key: String,
    /// Slot and shard, in a cluster.
    pub(super) place: Option<(u16, u16)>,
}

impl Marker {
    /// Returns a value for a marker that is missing: another one each time, so that the value that is found identifies the
    /// data that it is part of.
    pub(super) fn value() -> String {
        format!("{:016x}", SystemEntropy.bits())
    }
}

/// The markers that were found in the slots of a cluster, and in which shard each was.
#[derive(Default)]
pub(super) struct Markers(Mutex<HashMap<u16, Found>>);

/// Shard, and the marker if there was one.
type Found = (u16, Option<Vec<u8>>);

impl Markers {
    /// Records what was found; returns whether data is lost. A slot that has moved brings its marker with it or not,
    /// depending on how it was moved, so only within one shard is another marker a loss.
    pub(super) fn is_lost(&self, (slot, shard): (u16, u16), found: Option<&[u8]>) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = seen.insert(slot, (shard, found.map(<[u8]>::to_vec)));
        before.is_some_and(|(of, marker)| of == shard && marker.is_some() && marker.as_deref() != found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_marker_is_a_loss_unless_its_slot_has_moved() {
        let markers = Markers::default();
        let found = |slot, shard, marker: Option<&str>| markers.is_lost((slot, shard), marker.map(str::as_bytes));
        assert!(!found(5, 0, Some("a")));
        assert!(!found(5, 0, Some("a")));
        assert!(!found(6, 0, Some("b")), "another slot");
        assert!(!found(5, 1, Some("c")), "the slot has moved");
        assert!(found(5, 1, Some("d")));
        assert!(found(5, 1, None));
        assert!(!found(5, 1, Some("e")), "counted once");
    }
}
