//! A lock for each key in use: calls to the store share it; a policy's decision and a delivery to the store take it exclusively.

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use oncegate_core::record::Key;

/// The locks of all keys in use.
#[derive(Default)]
pub(super) struct KeyLocks(Mutex<HashMap<Key, Arc<RwLock<()>>>>);

/// A lock on a key, until it is dropped.
pub(super) struct KeyGuard<'a, Guard> {
    locks: &'a KeyLocks,
    key: &'a Key,
    /// `None` only while this is being dropped.
    guard: Option<Guard>,
}

impl KeyLocks {
    /// Locks a key together with other shared users.
    pub(super) async fn shared<'a>(&'a self, key: &'a Key) -> KeyGuard<'a, OwnedRwLockReadGuard<()>> {
        let guard = self.lock_of(key).read_owned().await;
        KeyGuard { locks: self, key, guard: Some(guard) }
    }

    /// Locks a key exclusively. Later users wait, shared ones too.
    pub(super) async fn exclusive<'a>(&'a self, key: &'a Key) -> KeyGuard<'a, OwnedRwLockWriteGuard<()>> {
        let guard = self.lock_of(key).write_owned().await;
        KeyGuard { locks: self, key, guard: Some(guard) }
    }

    fn lock_of(&self, key: &Key) -> Arc<RwLock<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.entry_ref(key).or_default().clone()
    }
}

impl<Guard> Drop for KeyGuard<'_, Guard> {
    /// Removes the lock if this was its last user, so that there are never more locks than calls in flight.
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
    use oncegate_core::engine::conformance::fresh_claim;

    use super::*;

    #[tokio::test]
    async fn a_key_is_locked_shared_or_exclusively_and_its_lock_is_removed() {
        let (locks, key, other) = (KeyLocks::default(), fresh_claim().key, fresh_claim().key);
        let first = locks.shared(&key).await;
        let second = locks.shared(&key).await;
        let exclusive = locks.exclusive(&key);
        tokio::pin!(exclusive);
        assert!(futures_util::poll!(&mut exclusive).is_pending());
        drop(locks.exclusive(&other).await);
        let late = locks.shared(&key);
        tokio::pin!(late);
        assert!(futures_util::poll!(&mut late).is_pending(), "it waits behind the exclusive user");
        drop((first, second));
        let guard = exclusive.await;
        assert!(futures_util::poll!(&mut late).is_pending());
        drop(guard);
        drop(late.await);
        assert!(locks.0.lock().unwrap().is_empty());
    }
}
