//! A shard of the memory engine: its claims in a hash table, and their ends in a tree. So a sweep reads only ended
//! claims.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;

use super::super::{EngineError, value};
use crate::clock::Timestamp;
use crate::global_id::GlobalId;
use crate::operator::ListRequest;
use crate::record::{LiveClaim, Realm, Record};

/// Bytes of a claim beyond its stored text, rounded up: a slot in the table (which may have just doubled), an entry of
/// the tree (whose nodes may be half full), and the overhead of the allocator.
const CLAIM_OVERHEAD_BYTES: i64 = 190;

/// Number of an app and realm in this process. It keeps keys small.
pub(super) type NamespaceNumber = u32;

/// Returns the number of an app and realm, by the number of the app.
pub(super) fn namespace_number(app: u32, realm: Realm) -> NamespaceNumber {
    app * 2 + u32::from(realm == Realm::Proxy)
}

/// Key of a claim.
pub(super) type SlotKey = (NamespaceNumber, GlobalId);

/// Stored end of a claim without an end.
pub(super) const NEVER: Timestamp = Timestamp::from_micros(u64::MAX);

/// Claims whose keys hash to the same shard.
#[derive(Default)]
pub(super) struct Shard {
    pub(super) slots: HashMap<SlotKey, Slot>,
    /// The ends of claims, soonest first: one entry for each claim that has an end.
    pub(super) ends: BTreeSet<(Timestamp, SlotKey)>,
}

/// A claim.
pub(super) struct Slot {
    /// [`NEVER`] if it has no end; an `Option` would take 8 bytes more.
    ends_at: Timestamp,
    /// The fence, then the stored text, in one allocation.
    fence_and_text: Box<[u8]>,
}

impl Shard {
    /// Returns the live claim of a key at this instant.
    pub(super) fn live_claim(&self, key: &SlotKey, now: Timestamp) -> Result<Option<LiveClaim>, EngineError> {
        let Some(slot) = self.slots.get(key) else { return Ok(None) };
        let (fence, text) = slot.fence_and_text.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let left = slot.expires_at().map(|expires_at| expires_at.since(now));
        Ok(LiveClaim::of_stored(value::decode(text)?, left, slot.expires_at(), Some(u64::from_be_bytes(*fence))))
    }

    /// Adds the claims of this shard to a list, which keeps the first ones of all shards.
    pub(super) fn collect(
        &self,
        namespace: NamespaceNumber,
        request: &ListRequest,
        now: Timestamp,
        found: &mut BTreeMap<GlobalId, (Timestamp, LiveClaim)>,
    ) -> Result<(), EngineError> {
        let is_listed = |key: &&SlotKey| key.0 == namespace && request.after.is_none_or(|after| key.1 > after);
        for key in self.slots.keys().filter(is_listed) {
            // Decode only claims that would be kept.
            if found.len() >= request.limit && found.last_key_value().is_none_or(|(last, _)| key.1 > *last) {
                continue;
            }
            let live = self.live_claim(key, now)?;
            if let Some(live) = live.filter(|live| request.state.is_none_or(|state| live.record.state == state)) {
                found.insert(key.1, (now, live));
                if found.len() > request.limit {
                    found.pop_last();
                }
            }
        }
        Ok(())
    }

    /// Stores a claim. Returns how many bytes the shard grew.
    pub(super) fn put(&mut self, key: SlotKey, slot: Slot) -> i64 {
        if let Some(expires_at) = slot.expires_at() {
            self.ends.insert((expires_at, key));
        }
        let (expires_at, bytes) = (slot.expires_at(), slot.bytes());
        let old = self.slots.insert(key, slot);
        self.remove_end(key, old.as_ref(), expires_at);
        bytes - old.map_or(0, |old| old.bytes())
    }

    /// Moves the end of a claim. Returns how many bytes the shard grew.
    pub(super) fn extend(&mut self, key: SlotKey, expires_at: Timestamp) -> i64 {
        if let Some(slot) = self.slots.get_mut(&key) {
            if let Some(old) = slot.expires_at() {
                self.ends.remove(&(old, key));
            }
            slot.ends_at = expires_at;
            self.ends.insert((expires_at, key));
        }
        0
    }

    /// Deletes a claim. Returns how many bytes the shard grew.
    pub(super) fn delete(&mut self, key: &SlotKey) -> i64 {
        let old = self.slots.remove(key);
        self.remove_end(*key, old.as_ref(), None);
        -old.map_or(0, |old| old.bytes())
    }

    fn remove_end(&mut self, key: SlotKey, old: Option<&Slot>, new: Option<Timestamp>) {
        if let Some(old) = old.and_then(Slot::expires_at).filter(|old| Some(*old) != new) {
            self.ends.remove(&(old, key));
        }
    }

    /// Deletes up to `max` ended claims. Returns their size in bytes.
    pub(super) fn sweep(&mut self, now: Timestamp, max: usize) -> i64 {
        let mut bytes = 0;
        for _ in 0..max {
            let Some(&(expires_at, key)) = self.ends.first() else { break };
            if expires_at > now {
                break;
            }
            // Checked in the same step: a claim that outlives its lease is removed from the order, not from the table.
            let is_live = !matches!(self.live_claim(&key, now), Ok(None));
            self.ends.pop_first();
            if is_live {
                continue;
            }
            bytes += self.slots.remove(&key).map_or(0, |slot| slot.bytes());
        }
        bytes
    }
}

impl Slot {
    /// Creates a claim that ends at this instant, or [`NEVER`].
    pub(super) fn new(ends_at: Timestamp, fence: u64, record: &Record) -> Self {
        let text = value::encode(record);
        Self { ends_at, fence_and_text: [&fence.to_be_bytes(), text.as_bytes()].concat().into() }
    }

    fn expires_at(&self) -> Option<Timestamp> {
        Some(self.ends_at).filter(|ends_at| *ends_at != NEVER)
    }

    fn bytes(&self) -> i64 {
        CLAIM_OVERHEAD_BYTES.saturating_add_unsigned(self.fence_and_text.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::conformance::fresh_claim;
    use crate::record::ClaimState;

    #[test]
    fn a_shard_grows_by_what_replaces_a_claim() {
        let mut shard = Shard::default();
        let request = fresh_claim();
        let slot = |result: Option<&str>| {
            let (state, result) = (ClaimState::Succeeded, result.map(Into::into));
            Slot::new(Timestamp::from_micros(7), 1, &Record { state, result, ..request.record() })
        };
        let key = (1, request.key.global_id);
        let bytes = slot(None).bytes();
        assert_eq!((shard.put(key, slot(None)), shard.put(key, slot(None))), (bytes, 0));
        assert_eq!(shard.put(key, slot(Some("12345"))), slot(Some("12345")).bytes() - bytes);
        assert_eq!(shard.ends.len(), 1);
        assert_eq!(shard.delete(&key), -slot(Some("12345")).bytes());
        assert!(shard.ends.is_empty() && shard.slots.is_empty());
    }
}
