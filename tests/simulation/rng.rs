//! Random numbers of a simulated world, from a seed: the same on every machine and in every release.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncegate_core::attempt::Entropy;

/// A stream of numbers from a seed (`SplitMix64`). Implemented here, so that a seed of an old report still replays the
/// same run after a library has changed.
pub(crate) struct Rng(AtomicU64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// Returns 64 random bits.
    pub(crate) fn next_u64(&self) -> u64 {
        let state = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed).wrapping_add(0x9E37_79B9_7F4A_7C15);
        scramble(state)
    }

    /// Returns a number from `low` to `high`, both included.
    pub(crate) fn between(&self, low: u64, high: u64) -> u64 {
        low + self.next_u64() % (high - low + 1)
    }

    /// Returns true with this chance, in percent.
    pub(crate) fn percent(&self, chance: u64) -> bool {
        self.next_u64() % 100 < chance
    }

    /// Returns one of these.
    pub(crate) fn pick<'a, T>(&self, these: &'a [T]) -> &'a T {
        &these[self.index(these.len())]
    }

    /// Returns an index below `count`.
    pub(crate) fn index(&self, count: usize) -> usize {
        usize::try_from(self.next_u64() % count as u64).expect("less than a usize")
    }

    /// Returns whole milliseconds from `low` to `high`, both included.
    pub(crate) fn millis(&self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.between(low, high))
    }
}

impl Entropy for Rng {
    fn bits(&self) -> u64 {
        self.next_u64()
    }
}

/// Spreads the bits of a number over all of another.
pub(crate) fn scramble(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}
