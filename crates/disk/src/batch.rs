//! The transitions of one batch of calls: each applies to the database as the earlier calls of the batch leave it. The writer
//! writes the result, once for all calls.

use hashbrown::HashMap;
use oncegate_core::claim::Effect;
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{ChangeResponse, EngineError, RecordChange, RecordName, RecordView};
use oncegate_core::record::{ClaimState, Key, LiveClaim};

use super::store::{self, Change, RecordSlot, Row, Store, StoredRecord, Watermarks};

/// Fences are JSON integers, and larger ones are not exact as doubles.
const FENCE_END: u64 = 1 << 53;

/// The claims that one batch has read, and the watermarks after it.
pub(super) struct Batch<'a> {
    pub(super) store: &'a Store,
    slots: HashMap<Vec<u8>, Slot>,
    orphans: Vec<fjall::Slice>,
    /// Shared records that the batch has read, by key.
    records: HashMap<Vec<u8>, RecordSlot>,
    watermarks: Watermarks,
    changed: bool,
    /// Claims that a call has ended.
    ended: Vec<Key>,
}

/// A claim as it is in the database, and as the batch leaves it.
struct Slot {
    stored: Option<Row>,
    current: Option<Row>,
    changed: bool,
}

/// The changes of a batch.
pub(super) struct Changes {
    slots: HashMap<Vec<u8>, Slot>,
    /// Entries among the ends without a claim.
    pub(super) orphans: Vec<fjall::Slice>,
    /// Shared records, by key.
    pub(super) records: HashMap<Vec<u8>, RecordSlot>,
    /// The watermarks after the batch.
    pub(super) watermarks: Watermarks,
    /// There is something to write.
    pub(super) changed: bool,
    /// Claims that a call has ended, to be notified.
    pub(super) ended: Vec<Key>,
}

impl<'a> Batch<'a> {
    /// Creates a batch that continues from these watermarks.
    pub(super) fn new(store: &'a Store, watermarks: Watermarks) -> Self {
        let (slots, orphans, records) = (HashMap::new(), Vec::new(), HashMap::new());
        Self { store, slots, orphans, records, watermarks, changed: false, ended: Vec::new() }
    }

    /// Applies one transition to one key. The transition receives the live claim at `now`, and the fence of a new attempt.
    pub(super) fn apply<Answer>(
        &mut self,
        key: &Key,
        now: Timestamp,
        transition: impl FnOnce(Option<&LiveClaim>, u64) -> (Effect, Answer),
    ) -> Result<Answer, EngineError> {
        let next_fence = next_fence(self.watermarks.fence, now);
        let slot = self.slot(&store::row_key(key))?;
        let live = slot.current.as_ref().and_then(|row| row.live_claim(now));
        let (effect, answer) = transition(live.as_ref(), next_fence);
        let ends = live.is_some() && effect.ends_claim();
        match effect {
            Effect::Keep => return Ok(answer),
            Effect::Put(record, lifetime) => {
                // A grant and a late record get the new fence; an outcome keeps the attempt's own.
                let own = live.filter(|_| record.state != ClaimState::InProgress).and_then(|live| live.fence);
                let fence = own.unwrap_or(next_fence);
                slot.put(Some(Row { expires_at: lifetime.map(|lifetime| now.plus(lifetime)), fence, record }));
                self.watermarks.fence = self.watermarks.fence.max(fence);
            }
            Effect::Extend(lifetime) => {
                let extended = slot.current.take().map(|row| Row { expires_at: Some(now.plus(lifetime)), ..row });
                slot.put(extended);
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
        let slot = self.record_slot(&store::record_key(name))?;
        Ok(RecordView { record: slot.live(now).map(|stored| stored.record.clone()), now })
    }

    /// Applies a change of a shared record at `now`.
    pub(super) fn change_record(
        &mut self,
        change: RecordChange,
        now: Timestamp,
    ) -> Result<ChangeResponse, EngineError> {
        let slot = self.record_slot(&store::record_key(&change.name))?;
        if let Some(answer) = change.decide(slot.live(now).map(|stored| &stored.record), now) {
            return Ok(answer);
        }
        let ends_at = change.lasts.map(|lasts| now.plus(lasts));
        slot.put(Some(StoredRecord { record: change.new, ends_at }));
        self.touch(now);
        Ok(ChangeResponse::Stored(now))
    }

    /// Deletes the claim of an entry among the ends, if its row says that it has ended: the entry is only a hint.
    pub(super) fn sweep(&mut self, end_key: &fjall::Slice, now: Timestamp) {
        let Some((_, key)) = store::split_end_key(end_key) else { return };
        if store::is_lock(key) {
            return self.sweep_lock(end_key, key, now);
        }
        // A row that cannot be read is never overwritten, and so not deleted either.
        let Ok(slot) = self.slot(key) else { return };
        let end_of = |row: &Option<Row>| row.as_ref().and_then(|row| row.end_key(key));
        let is_end_of = |row: &Option<Row>| end_of(row).is_some_and(|own| own[..] == end_key[..]);
        if is_end_of(&slot.current) && slot.current.as_ref().is_some_and(|row| row.has_ended(now)) {
            slot.put(None);
        } else if !is_end_of(&slot.stored) && !is_end_of(&slot.current) {
            self.orphans.push(end_key.clone());
        } else {
            // The batch has already moved the claim's end.
            return;
        }
        self.touch(now);
    }

    fn sweep_lock(&mut self, end_key: &fjall::Slice, key: &[u8], now: Timestamp) {
        let Ok(slot) = self.record_slot(key) else { return };
        let is_end_of = |record: &Option<StoredRecord>| {
            record.as_ref().and_then(|record| record.end_key(key)).is_some_and(|own| own[..] == end_key[..])
        };
        if is_end_of(&slot.current) && slot.current.as_ref().is_some_and(|record| record.has_ended(now)) {
            slot.put(None);
        } else if !is_end_of(&slot.stored) && !is_end_of(&slot.current) {
            self.orphans.push(end_key.clone());
        } else {
            return;
        }
        self.touch(now);
    }

    /// Returns the changes of the batch.
    pub(super) fn finish(self) -> Changes {
        let Self { slots, orphans, records, watermarks, changed, ended, .. } = self;
        Changes { slots, orphans, records, watermarks, changed, ended }
    }

    fn touch(&mut self, now: Timestamp) {
        self.changed = true;
        self.watermarks.now = self.watermarks.now.max(now);
    }

    fn slot(&mut self, key: &[u8]) -> Result<&mut Slot, EngineError> {
        match self.slots.entry_ref(key) {
            hashbrown::hash_map::EntryRef::Occupied(slot) => Ok(slot.into_mut()),
            hashbrown::hash_map::EntryRef::Vacant(vacant) => {
                let stored = self.store.get(key)?;
                let current = stored.clone();
                Ok(vacant.insert(Slot { stored, current, changed: false }))
            }
        }
    }

    fn record_slot(&mut self, key: &[u8]) -> Result<&mut RecordSlot, EngineError> {
        match self.records.entry_ref(key) {
            hashbrown::hash_map::EntryRef::Occupied(slot) => Ok(slot.into_mut()),
            hashbrown::hash_map::EntryRef::Vacant(vacant) => {
                let stored = self.store.record(key)?;
                let current = stored.clone();
                Ok(vacant.insert(RecordSlot { stored, current, changed: false }))
            }
        }
    }
}

impl RecordSlot {
    fn live(&self, now: Timestamp) -> Option<&StoredRecord> {
        self.current.as_ref().filter(|record| !record.has_ended(now))
    }

    fn put(&mut self, record: Option<StoredRecord>) {
        self.current = record;
        self.changed = true;
    }
}

impl Slot {
    fn put(&mut self, row: Option<Row>) {
        self.current = row;
        self.changed = true;
    }
}

impl Changes {
    /// Returns the changed claims, each once.
    pub(super) fn claims(&self) -> impl Iterator<Item = Change<'_>> {
        self.slots.iter().filter(|(_, slot)| slot.changed).map(|(key, slot)| Change {
            key,
            before: slot.stored.as_ref(),
            after: slot.current.as_ref(),
        })
    }
}

/// Returns a fence greater than `last` and close to the time in microseconds, so that fences go on rising after a store was
/// lost and created anew.
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
