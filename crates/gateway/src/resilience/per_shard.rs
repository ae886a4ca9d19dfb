//! One value for each shard of an engine, made when it is first needed. The first one costs nothing more: most stores have no
//! other.

use std::sync::OnceLock;

use oncegate_core::engine::SHARDS_MAX;

/// A value for each shard.
#[derive(Debug, Default)]
pub struct PerShard<T> {
    first: T,
    others: OnceLock<Box<[OnceLock<Box<T>>]>>,
}

impl<T: Default> PerShard<T> {
    /// Returns the value of a shard.
    pub fn get(&self, shard: u16) -> &T {
        if shard == 0 {
            return &self.first;
        }
        let others = self.others.get_or_init(|| (1..SHARDS_MAX).map(|_| OnceLock::new()).collect());
        others[(usize::from(shard) - 1) % others.len()].get_or_init(Box::default)
    }

    /// Returns whether no shard but the first was used.
    pub fn is_one(&self) -> bool {
        self.others.get().is_none()
    }

    /// Returns the values that were used, with the numbers of their shards.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &T)> {
        let others = self.others.get().into_iter().flat_map(|others| others.iter());
        let others = (1..).zip(others).filter_map(|(shard, value)| Some((shard, &**value.get()?)));
        std::iter::once((0, &self.first)).chain(others)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, Ordering};

    use super::*;

    #[test]
    fn each_shard_has_a_value_of_its_own_and_any_number_is_accepted() {
        let values = PerShard::<AtomicU16>::default();
        values.get(0).store(1, Ordering::Relaxed);
        assert!(values.is_one());
        values.get(2).store(2, Ordering::Relaxed);
        values.get(1023).store(3, Ordering::Relaxed);
        values.get(u16::MAX).fetch_add(0, Ordering::Relaxed);
        let seen: Vec<_> = values.iter().map(|(shard, value)| (shard, value.load(Ordering::Relaxed))).collect();
        assert_eq!(seen[..2], [(0, 1), (2, 2)]);
        assert!(seen.contains(&(1023, 3)) && !values.is_one());
        assert!(seen.len() <= usize::from(SHARDS_MAX));
    }
}
