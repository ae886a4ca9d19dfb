//! What the calls of one batch make of the claims: each is judged against the database as the earlier calls of the same
//! batch leave it. Nothing is written here; the writer does that once for all of them.

use hashbrown::HashMap;

use super::store::{self, Change, Marks, Row, Store};
use crate::domain::claim::Effect;
use crate::domain::clock::Timestamp;
use crate::domain::record::{ClaimState, Key, LiveClaim};
use crate::engine::{EngineError, Metadata};

/// Fences are JSON integers, and beyond this not every double is one.
const FENCE_END: u64 = 1 << 53;

/// The claims that one batch has looked at, and the marks as it moves them on.
pub(super) struct Batch<'a> {
    store: &'a Store,
    slots: HashMap<Vec<u8>, Slot>,
    orphans: Vec<fjall::Slice>,
    /// Notes that the batch has put, by name.
    notes: HashMap<String, Metadata>,
    marks: Marks,
    changed: bool,
}

/// One claim: as it lies in the database, and as the batch leaves it.
struct Slot {
    stored: Option<Row>,
    current: Option<Row>,
    changed: bool,
}

/// What a batch came to.
pub(super) struct Outcome {
    slots: HashMap<Vec<u8>, Slot>,
    /// Entries among the ends that belong to no claim.
    pub(super) orphans: Vec<fjall::Slice>,
    /// Notes that it has put, by name.
    pub(super) notes: HashMap<String, Metadata>,
    /// The marks after it.
    pub(super) marks: Marks,
    /// Whether there is anything to write.
    pub(super) changed: bool,
}

impl<'a> Batch<'a> {
    /// A batch that goes on from these marks.
    pub(super) fn new(store: &'a Store, marks: Marks) -> Self {
        Self { store, slots: HashMap::new(), orphans: Vec::new(), notes: HashMap::new(), marks, changed: false }
    }

    /// Applies one transition to one key. It is given the claim that stands at `now`, and the fence that a new attempt
    /// would get.
    pub(super) fn apply<Answer>(
        &mut self,
        key: &Key,
        now: Timestamp,
        transition: impl FnOnce(Option<&LiveClaim>, u64) -> (Effect, Answer),
    ) -> Result<Answer, EngineError> {
        let next_fence = next_fence(self.marks.fence, now);
        let slot = self.slot(&store::row_key(key))?;
        let held = slot.current.as_ref().and_then(|row| row.held(now));
        let (effect, answer) = transition(held.as_ref(), next_fence);
        match effect {
            Effect::Keep => return Ok(answer),
            Effect::Put(record, lasts) => {
                // A grant gets the new fence, and so does what is recorded late; an outcome leaves the attempt its own.
                let own = held.filter(|_| record.state != ClaimState::InProgress).and_then(|held| held.fence);
                let fence = own.unwrap_or(next_fence);
                slot.put(Some(Row { expires_at: lasts.map(|lasts| now.plus(lasts)), fence, record }));
                self.marks.fence = self.marks.fence.max(fence);
            }
            Effect::Extend(lasts) => {
                let extended = slot.current.take().map(|row| Row { expires_at: Some(now.plus(lasts)), ..row });
                slot.put(extended);
            }
            Effect::Delete => slot.put(None),
        }
        self.touch(now);
        Ok(answer)
    }

    /// The claim that stands at `now`.
    pub(super) fn read(&mut self, key: &Key, now: Timestamp) -> Result<Option<LiveClaim>, EngineError> {
        self.apply(key, now, |held, _| (Effect::Keep, held.cloned()))
    }

    /// The note of this name.
    pub(super) fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        match self.notes.get(name) {
            Some(note) => Ok(Some(note.clone())),
            None => self.store.get_metadata(name),
        }
    }

    /// Puts a note where `expected` stands; tells whether it stands now.
    pub(super) fn compare_and_set_metadata(
        &mut self,
        name: &str,
        expected: Option<&Metadata>,
        new: Metadata,
        now: Timestamp,
    ) -> Result<bool, EngineError> {
        let stands = self.get_metadata(name)?;
        if stands.as_ref() == Some(&new) {
            return Ok(true);
        }
        if stands.as_ref() != expected {
            return Ok(false);
        }
        self.notes.insert(name.to_owned(), new);
        self.touch(now);
        Ok(true)
    }

    /// Takes away the claim of an entry among the ends, if it is still found to have gone by itself.
    ///
    /// What the entry says is a hint only; the row decides.
    pub(super) fn sweep(&mut self, end_key: &fjall::Slice, now: Timestamp) {
        let Some((_, key)) = store::split_end_key(end_key) else { return };
        // A row that cannot be read is never overwritten, so not swept either.
        let Ok(slot) = self.slot(key) else { return };
        let of = |row: &Option<Row>| row.as_ref().and_then(|row| row.end_key(key));
        let is_end_of = |row: &Option<Row>| of(row).is_some_and(|own| own[..] == end_key[..]);
        if is_end_of(&slot.current) && slot.current.as_ref().is_some_and(|row| row.has_ended(now)) {
            slot.put(None);
        } else if !is_end_of(&slot.stored) && !is_end_of(&slot.current) {
            self.orphans.push(end_key.clone());
        } else {
            // The batch has moved this claim's end already.
            return;
        }
        self.touch(now);
    }

    /// Ends the batch.
    pub(super) fn finish(self) -> Outcome {
        let Self { slots, orphans, notes, marks, changed, .. } = self;
        Outcome { slots, orphans, notes, marks, changed }
    }

    fn touch(&mut self, now: Timestamp) {
        self.changed = true;
        self.marks.now = self.marks.now.max(now);
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
}

impl Slot {
    fn put(&mut self, row: Option<Row>) {
        self.current = row;
        self.changed = true;
    }
}

impl Outcome {
    /// What is to be written of the claims, each once.
    pub(super) fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        self.slots.iter().filter(|(_, slot)| slot.changed).map(|(key, slot)| Change {
            key,
            before: slot.stored.as_ref(),
            after: slot.current.as_ref(),
        })
    }
}

/// A fence greater than `last`, and close to the time in microseconds: so it goes on rising over a store that was lost
/// and begun anew.
fn next_fence(last: u64, now: Timestamp) -> u64 {
    let now = if now.as_micros() < FENCE_END { now.as_micros() } else { 0 };
    now.max(last.saturating_add(1))
}
