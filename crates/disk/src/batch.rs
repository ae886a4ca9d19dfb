//! The transitions of one batch of calls: each applies to the database as the earlier calls of the batch leave it. The writer
//! writes the result, once for all calls.

use std::time::Duration;

use fjall::OwnedWriteBatch;
use hashbrown::HashMap;
use hashbrown::hash_map::EntryRef;
use oncegate_core::claim::{Effect, NamesEnd};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{ChangeResponse, EngineError, RecordChange, RecordName, RecordView};
use oncegate_core::record::{ClaimState, Key, LiveClaim};

use super::row::{self, Row, Stored, StoredRecord, Watermarks};
use super::store::Store;

/// Fences are JSON integers, and larger ones are not exact as doubles.
const FENCE_END: u64 = 1 << 53;

/// Records that one batch has read, with their changes.
pub(super) struct Batch<'a> {
    pub(super) store: &'a Store,
    claims: Slots<Row>,
    records: Slots<StoredRecord>,
    /// Entries among the ends without a row.
    orphans: Vec<fjall::Slice>,
    /// The watermarks after the batch.
    pub(super) watermarks: Watermarks,
    /// There is something to write.
    changed: bool,
    /// Claims that a call has ended, to be notified.
    pub(super) ended: Vec<Key>,
}

/// Rows by key.
struct Slots<T>(HashMap<Vec<u8>, Slot<T>>);

/// A row before and after the batch.
struct Slot<T> {
    stored: Option<T>,
    current: Option<T>,
    changed: bool,
}

impl<'a> Batch<'a> {
    /// Creates a batch that continues from these watermarks.
    pub(super) fn new(store: &'a Store, watermarks: Watermarks) -> Self {
        let (claims, records) = (Slots(HashMap::new()), Slots(HashMap::new()));
        Self { store, claims, records, orphans: Vec::new(), watermarks, changed: false, ended: Vec::new() }
    }

    /// Applies one transition to one key. The transition receives the live claim at `now`, and the fence of a new attempt.
    pub(super) fn apply<Response: NamesEnd>(
        &mut self,
        key: &Key,
        now: Timestamp,
        transition: impl FnOnce(Option<&LiveClaim>, u64) -> (Effect, Response),
    ) -> Result<Response, EngineError> {
        let next_fence = next_fence(self.watermarks.fence, now);
        let slot = self.claims.slot(self.store, &row::row_key(key))?;
        let live = slot.current.as_ref().and_then(|row| row.live_claim(now));
        let (effect, answer) = transition(live.as_ref(), next_fence);
        let ends = live.is_some() && effect.ends_claim();
        let expires_at = effect.lasts().map(|lasts| now.plus(lasts));
        let answer = answer.with_end(expires_at);
        match effect {
            Effect::Keep => return Ok(answer),
            Effect::Put(record, _) => {
                // A grant and a late record get the new fence; an outcome keeps the attempt's own.
                let own = live.filter(|_| record.state != ClaimState::InProgress).and_then(|live| live.fence);
                let fence = own.unwrap_or(next_fence);
                slot.put(Some(Row { expires_at, fence, record }));
                self.watermarks.fence = self.watermarks.fence.max(fence);
            }
            Effect::Extend(_) => {
                let extended = slot.current.take().map(|row| Row { expires_at, ..row });
                slot.put(extended);
            }
            Effect::Replace(record) => {
                let replaced = slot.current.take().map(|row| Row { record, ..row });
                slot.put(replaced);
            }
            Effect::Delete => slot.put(None),
        }
        if ends {
            self.ended.push(key.clone());
        }
        self.touch(now);
        Ok(answer)
    }

    /// Returns the live claim at `now`.
    pub(super) fn read(&mut self, key: &Key, now: Timestamp) -> Result<Option<LiveClaim>, EngineError> {
        self.apply(key, now, |live, _| (Effect::Keep, live.cloned()))
    }

    /// Returns the shared record of this name at `now`.
    pub(super) fn get_record(&mut self, name: &RecordName, now: Timestamp) -> Result<RecordView, EngineError> {
        let slot = self.records.slot(self.store, &row::record_key(name))?;
        let record = slot.current.as_ref().and_then(|stored| stored.live(now)).cloned();
        Ok(RecordView { record, now, clock_gain: Duration::ZERO })
    }

    /// Applies a change of a shared record at `now`.
    pub(super) fn change_record(
        &mut self,
        change: RecordChange,
        now: Timestamp,
    ) -> Result<ChangeResponse, EngineError> {
        let slot = self.records.slot(self.store, &row::record_key(&change.name))?;
        if let Some(answer) = change.decide(slot.current.as_ref().and_then(|stored| stored.live(now)), now) {
            return Ok(answer);
        }
        let ends_at = change.lasts.map(|lasts| now.plus(lasts));
        slot.put(Some(StoredRecord { record: change.new, ends_at }));
        self.touch(now);
        Ok(ChangeResponse::Stored(now))
    }

    /// Deletes the row of an entry among the ends, which has ended by `now`. The entry alone is only a hint: if it is not that of
    /// the row, only the entry is deleted.
    pub(super) fn sweep(&mut self, end_key: &fjall::Slice, now: Timestamp) {
        let Some(key) = row::key_of_end(end_key) else { return };
        let swept = if row::is_ending_record(key) {
            self.records.sweep(self.store, key, end_key)
        } else {
            self.claims.sweep(self.store, key, end_key)
        };
        match swept {
            Ok(true) => {}
            Ok(false) => self.orphans.push(end_key.clone()),
            // A row that cannot be read is never overwritten, and so not deleted either.
            Err(_) => return,
        }
        self.touch(now);
    }

    /// Writes the changes, and makes them durable. Without any, no fsync is needed: all earlier batches are durable.
    pub(super) fn commit(&self) -> fjall::Result<()> {
        if !self.changed {
            return Ok(());
        }
        let mut changes = self.store.database.batch();
        self.claims.write(self.store, &mut changes);
        self.records.write(self.store, &mut changes);
        for orphan in &self.orphans {
            changes.remove(&self.store.ends, orphan.clone());
        }
        self.store.commit(changes, self.watermarks)
    }

    fn touch(&mut self, now: Timestamp) {
        self.changed = true;
        self.watermarks.now = self.watermarks.now.max(now);
    }
}

impl<T: Stored> Slots<T> {
    fn slot(&mut self, store: &Store, key: &[u8]) -> Result<&mut Slot<T>, EngineError> {
        match self.0.entry_ref(key) {
            EntryRef::Occupied(slot) => Ok(slot.into_mut()),
            EntryRef::Vacant(vacant) => {
                let stored: Option<T> = store.get(key)?;
                let current = stored.clone();
                Ok(vacant.insert(Slot { stored, current, changed: false }))
            }
        }
    }

    /// Deletes a row if this entry among the ends is its own. Returns whether it is.
    fn sweep(&mut self, store: &Store, key: &[u8], end_key: &[u8]) -> Result<bool, EngineError> {
        let slot = self.slot(store, key)?;
        let is_own = row::end_key(key, slot.current.as_ref()).is_some_and(|own| own == end_key);
        if is_own {
            slot.put(None);
        }
        Ok(is_own)
    }

    /// Adds the changed rows, and their entries among the ends.
    fn write(&self, store: &Store, changes: &mut OwnedWriteBatch) {
        for (key, Slot { stored, current, .. }) in self.0.iter().filter(|(_, slot)| slot.changed) {
            let (ended, ends) = (row::end_key(key, stored.as_ref()), row::end_key(key, current.as_ref()));
            // A batch has one sequence number: of two writes of a key, either may remain.
            if ended != ends {
                if let Some(end) = ended {
                    changes.remove(&store.ends, end);
                }
                if let Some(end) = ends {
                    changes.insert(&store.ends, end, "");
                }
            }
            match current {
                Some(row) => changes.insert(&store.claims, &key[..], row.encode()),
                None => changes.remove(&store.claims, &key[..]),
            }
        }
    }
}

impl<T> Slot<T> {
    fn put(&mut self, row: Option<T>) {
        self.current = row;
        self.changed = true;
    }
}

/// Returns a fence greater than `last` and close to the time in microseconds, so that fences keep rising after a store was
/// lost and created again.
fn next_fence(last: u64, now: Timestamp) -> u64 {
    let now = if now.as_micros() < FENCE_END { now.as_micros() } else { 0 };
    now.max(last.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_the_time_or_one_more_than_the_last() {
        let next = |last, now| next_fence(last, Timestamp::from_micros(now));
        assert_eq!([next(5, 100), next(100, 100), next(200, 100)], [100, 101, 201]);
        assert_eq!([next(5, FENCE_END - 1), next(5, FENCE_END), next(5, FENCE_END + 1)], [FENCE_END - 1, 6, 6]);
    }
}
