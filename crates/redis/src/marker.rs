//! Markers: values that show whether a server still has its data. One for each primary, in a slot that it answers for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use oncegate_core::attempt::{Entropy, SystemEntropy};
use oncegate_core::engine::SHARDS_MAX;

/// The key of a server's marker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Marker {
    pub(super) key: String,
    /// Slot and shard, in a cluster.
    pub(super) place: Option<(u16, u16)>,
}

impl Marker {
    /// Returns a value for a missing marker. Each call returns another value, so a stored value identifies the data
    /// around it.
    pub(super) fn value() -> String {
        format!("{:016x}", SystemEntropy.bits())
    }
}

/// The markers that were found in the slots of a cluster, with the shard of each; and the data losses of the shards.
#[derive(Default)]
pub(super) struct Markers {
    found: Mutex<HashMap<u16, Found>>,
    /// Shards that came back without their data.
    data_losses: AtomicU64,
    /// By shard: the same, and replicas that took over and may have lacked the newest data.
    losses: OnceLock<Box<[AtomicU64]>>,
}

/// Shard, and the marker if there was one.
type Found = (u16, Option<Vec<u8>>);

impl Markers {
    /// Records the markers that were found. Returns whether data is lost. A moved slot may or may not bring its marker
    /// along, depending on the kind of move. So another marker is a loss only within one shard.
    pub(super) fn is_lost(&self, (slot, shard): (u16, u16), found: Option<&[u8]>) -> bool {
        let mut seen = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let before = seen.insert(slot, (shard, found.map(<[u8]>::to_vec)));
        let is_lost = before.is_some_and(|(of, marker)| of == shard && marker.is_some() && marker.as_deref() != found);
        if is_lost {
            self.data_losses.fetch_add(1, Ordering::AcqRel);
            self.lost(shard);
        }
        is_lost
    }

    /// Counts a loss of a shard.
    pub(super) fn lost(&self, shard: u16) {
        let losses = self.losses.get_or_init(|| (0..SHARDS_MAX).map(|_| AtomicU64::new(0)).collect());
        losses[usize::from(shard % SHARDS_MAX)].fetch_add(1, Ordering::AcqRel);
    }

    /// Returns how often a primary came back without its data.
    pub(super) fn data_losses(&self) -> u64 {
        self.data_losses.load(Ordering::Acquire)
    }

    /// Returns the losses of a shard.
    pub(super) fn losses(&self, shard: u16) -> u64 {
        let losses = self.losses.get();
        losses.map_or(0, |losses| losses[usize::from(shard % SHARDS_MAX)].load(Ordering::Acquire))
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
        markers.lost(2);
        assert_eq!((markers.data_losses(), [0, 1, 2].map(|shard| markers.losses(shard))), (2, [0, 2, 1]));
    }
}
