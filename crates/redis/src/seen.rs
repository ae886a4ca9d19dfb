//! Keys that this gateway has lately seen taken. A claim of one of them is most likely a repeat: it reads the other claim in the
//! same step.
//!
//! This is only a guess: a key that is not remembered, or that is free again, is claimed correctly, but more slowly. So
//! keys may be forgotten, or confused with others.

use std::sync::atomic::{AtomicU32, Ordering};

use oncegate_core::global_id::GlobalId;

/// As many keys as 60 000 claims a second take in two seconds; half a MiB.
pub(super) const KEYS: usize = 1 << 17;

/// One place for each group of keys, with the tag of the last seen key.
pub(super) struct Seen(Box<[AtomicU32]>);

impl Seen {
    /// Remembers up to this many keys; none if it is 0.
    pub(super) fn new(keys: usize) -> Self {
        Self((0..keys).map(|_| AtomicU32::new(0)).collect())
    }

    /// Remembers that a key is taken.
    pub(super) fn add(&self, id: &GlobalId) {
        let (tag, place) = self.place(id);
        if let Some(place) = place {
            place.store(tag, Ordering::Relaxed);
        }
    }

    /// Returns whether a key is probably taken.
    pub(super) fn has(&self, id: &GlobalId) -> bool {
        let (tag, place) = self.place(id);
        place.is_some_and(|place| place.load(Ordering::Relaxed) == tag)
    }

    /// A global ID is a digest, so any of its bits are as good as others. An empty place has the tag 0.
    fn place(&self, id: &GlobalId) -> (u32, Option<&AtomicU32>) {
        let mut words = id.as_bytes().as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
        let [tag, at] = [(); 2].map(|()| words.next().unwrap_or_default());
        let at = usize::try_from(at).unwrap_or_default().checked_rem(self.0.len());
        (tag | 1, at.and_then(|at| self.0.get(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_key_of_each_place_is_remembered() {
        let ids: Vec<_> = (0..100u8).map(|number| GlobalId::from_bytes([number.wrapping_mul(37); 16])).collect();
        let seen = Seen::new(KEYS);
        assert!(ids.iter().all(|id| !seen.has(id)));
        for id in &ids {
            seen.add(id);
        }
        let remembered = ids.iter().filter(|id| seen.has(id)).count();
        assert!(remembered > 90, "{remembered}");
        let one = Seen::new(1);
        one.add(&ids[1]);
        assert!(one.has(&ids[1]) && !one.has(&ids[2]));
        one.add(&ids[2]);
        assert!(!one.has(&ids[1]) && one.has(&ids[2]));
    }

    #[test]
    fn without_places_nothing_is_remembered() {
        let (seen, id) = (Seen::new(0), GlobalId::from_bytes([7; 16]));
        seen.add(&id);
        assert!(!seen.has(&id));
    }
}
