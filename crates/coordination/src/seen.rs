//! Values that this gateway has written and is likely to change again: a change of one needs no read before it.
//! Bounded: a forgotten record is read.

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use hashbrown::HashMap;

use super::value::Found;

/// Most values that are remembered.
const VALUES_MAX: usize = 16_384;

/// Largest value that is remembered.
const VALUE_BYTES_MAX: usize = 2048;

/// The remembered values, by key.
#[derive(Default)]
pub struct Seen(Mutex<Generations>);

/// Two generations. When the young one reaches half of the limit, it becomes the old one, and the former old one is
/// dropped.
#[derive(Default)]
struct Generations {
    young: HashMap<Bytes, Found>,
    old: HashMap<Bytes, Found>,
}

impl Seen {
    /// Remembers a written record.
    pub fn remember(&self, key: &Bytes, found: Found) {
        if found.value.len() > VALUE_BYTES_MAX {
            return self.forget(key);
        }
        let mut generations = self.generations();
        if generations.young.len() >= VALUES_MAX / 2 {
            let full = mem::take(&mut generations.young);
            generations.old = full;
        }
        generations.young.insert(key.clone(), found);
    }

    /// Returns the last written record, as far as is known.
    pub fn get(&self, key: &Bytes) -> Option<Found> {
        let generations = self.generations();
        generations.young.get(key).or_else(|| generations.old.get(key)).cloned()
    }

    /// Forgets a key.
    pub fn forget(&self, key: &Bytes) {
        let mut generations = self.generations();
        generations.young.remove(key);
        generations.old.remove(key);
    }

    /// Forgets all.
    pub fn clear(&self) {
        *self.generations() = Generations::default();
    }

    fn generations(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Mark;

    fn key(number: usize) -> Bytes {
        number.to_string().into()
    }

    fn found(bytes: usize) -> Found {
        Found { value: vec![0; bytes].into(), revision: 1, mark: Mark::default() }
    }

    #[test]
    fn the_newest_values_are_remembered_and_no_more_than_the_bound() {
        let seen = Seen::default();
        for number in 0..VALUES_MAX * 2 {
            seen.remember(&key(number), found(1));
        }
        let remembered = (0..VALUES_MAX * 2).filter(|number| seen.get(&key(*number)).is_some()).count();
        assert!((VALUES_MAX / 2..=VALUES_MAX).contains(&remembered), "{remembered}");
        assert!(seen.get(&key(VALUES_MAX * 2 - 1)).is_some());
        seen.clear();
        assert_eq!(seen.get(&key(VALUES_MAX * 2 - 1)), None);
    }

    #[test]
    fn a_large_value_is_not_remembered_and_takes_the_place_of_an_older_one() {
        let seen = Seen::default();
        seen.remember(&key(1), found(1));
        seen.remember(&key(1), found(VALUE_BYTES_MAX + 1));
        assert_eq!(seen.get(&key(1)), None);
        seen.remember(&key(1), found(2));
        seen.forget(&key(1));
        assert_eq!(seen.get(&key(1)), None);
    }

    #[test]
    fn a_value_is_forgotten_also_among_the_older_ones() {
        let seen = Seen::default();
        for number in 0..=VALUES_MAX / 2 {
            seen.remember(&key(number), found(1));
        }
        assert!(seen.get(&key(0)).is_some(), "it is older than the newest, and remembered");
        seen.forget(&key(0));
        assert_eq!(seen.get(&key(0)), None);
    }
}
