//! Turns on keys: many calls on a key may go to the store at once, and whoever decides in the store's place, or tells it what
//! was decided, does so alone.

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use crate::domain::record::Key;

/// The keys on which it is somebody's turn.
#[derive(Default)]
pub(super) struct Locks(Mutex<HashMap<Key, Arc<RwLock<()>>>>);

/// A turn, until it is dropped.
pub(super) struct Turn<'a, Guard> {
    locks: &'a Locks,
    key: &'a Key,
    /// Nothing only while it is being dropped.
    guard: Option<Guard>,
}

impl Locks {
    /// A turn that others of its kind share.
    pub(super) async fn shared<'a>(&'a self, key: &'a Key) -> Turn<'a, OwnedRwLockReadGuard<()>> {
        let guard = self.lock_of(key).read_owned().await;
        Turn { locks: self, key, guard: Some(guard) }
    }

    /// A turn that nobody shares. Those who come later wait, also those who would share.
    pub(super) async fn alone<'a>(&'a self, key: &'a Key) -> Turn<'a, OwnedRwLockWriteGuard<()>> {
        let guard = self.lock_of(key).write_owned().await;
        Turn { locks: self, key, guard: Some(guard) }
    }

    fn lock_of(&self, key: &Key) -> Arc<RwLock<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.entry_ref(key).or_default().clone()
    }
}

impl<Guard> Drop for Turn<'_, Guard> {
    /// The last one takes the lock away, so that there are never more than calls in flight. A caller that gives up while
    /// it waits leaves that to whoever it waited for.
    fn drop(&mut self) {
        self.guard = None;
        let mut locks = self.locks.0.lock().unwrap_or_else(PoisonError::into_inner);
        if locks.get(self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::conformance::fresh_claim;

    #[tokio::test]
    async fn a_key_is_shared_or_alone_and_leaves_nothing_behind() {
        let (locks, key, other) = (Locks::default(), fresh_claim().key, fresh_claim().key);
        let first = locks.shared(&key).await;
        let second = locks.shared(&key).await;
        let alone = locks.alone(&key);
        tokio::pin!(alone);
        assert!(futures_util::poll!(&mut alone).is_pending());
        drop(locks.alone(&other).await);
        let late = locks.shared(&key);
        tokio::pin!(late);
        assert!(futures_util::poll!(&mut late).is_pending(), "it waits behind who wants to be alone");
        drop((first, second));
        let turn = alone.await;
        assert!(futures_util::poll!(&mut late).is_pending());
        drop(turn);
        drop(late.await);
        assert!(locks.0.lock().unwrap().is_empty());
    }
}
