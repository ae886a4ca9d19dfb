//! The layout of the database: keys and rows.
//!
//! `claims` has a row for each claim, under `<namespace> 0x00 <global ID>`, and the watermarks and shared records, under keys that no
//! app can have. `ends` has `<instant> <key>` for each row with an end, so that ended rows are found in order.

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{EngineError, RecordName, SharedRecord, value};
use oncegate_core::record::{Key, LiveClaim, Record};

/// Key of the watermarks, before every app key: those begin with a letter or a digit.
pub(super) const WATERMARKS_KEY: &[u8] = b"\0marks";

/// Key of the mark of a restored store, before every app key too: when its backup was made.
pub(super) const RESTORED_KEY: &[u8] = b"\0restored";

/// Prefix of the keys of metadata, before every app key too.
pub(super) const METADATA_PREFIX: &[u8] = b"\0metadata:";

/// Prefix of the keys of locks, before every app key too.
pub(super) const LOCK_PREFIX: &[u8] = b"\0lock:";

/// Prefix of the keys of degraded grants, before every app key too.
const GRANTS_PREFIX: &[u8] = b"\0grants:";

/// End of a claim without an end.
const NEVER: u64 = u64::MAX;

/// A row of a claim or of a shared record.
pub(super) trait Stored: Clone {
    /// Returns its end, if it has one.
    fn ends_at(&self) -> Option<Timestamp>;

    /// Reads the row of a key. An unreadable row is an error, and does not count as absent.
    fn decode(key: &[u8], bytes: &[u8]) -> Result<Self, EngineError>;

    fn encode(&self) -> Vec<u8>;
}

/// State of the engine itself, stored with every batch that changes something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Watermarks {
    /// The newest instant; the clock never starts behind it.
    pub(super) now: Timestamp,
    /// The newest fence; the next one is greater.
    pub(super) fence: u64,
}

impl Watermarks {
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, EngineError> {
        let (now, fence, _) =
            split_header(bytes).ok_or_else(|| EngineError::incompatible("its watermarks are truncated"))?;
        Ok(Self { now: Timestamp::from_micros(now), fence })
    }

    pub(super) fn encode(self) -> Vec<u8> {
        row(self.now.as_micros(), self.fence, "")
    }
}

/// A stored claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Row {
    /// End of the claim's time by the engine's clock, if it has one.
    pub(super) expires_at: Option<Timestamp>,
    /// The fence of its attempt.
    pub(super) fence: u64,
    pub(super) record: Record,
}

impl Row {
    /// Returns the live claim at this instant, if there is one.
    pub(super) fn live_claim(&self, now: Timestamp) -> Option<LiveClaim> {
        let left = self.expires_at.map(|expires_at| expires_at.since(now));
        LiveClaim::of_stored(self.record.clone(), left, self.expires_at, Some(self.fence))
    }
}

impl Stored for Row {
    fn ends_at(&self) -> Option<Timestamp> {
        self.expires_at.filter(|_| !self.record.outlives_lease())
    }

    fn decode(_: &[u8], bytes: &[u8]) -> Result<Self, EngineError> {
        let (expires_at, fence, text) =
            split_header(bytes).ok_or_else(|| EngineError::incompatible("a record's header is truncated"))?;
        let expires_at = (expires_at != NEVER).then_some(Timestamp::from_micros(expires_at));
        Ok(Self { expires_at, fence, record: value::decode(text)? })
    }

    fn encode(&self) -> Vec<u8> {
        row(self.expires_at.map_or(NEVER, Timestamp::as_micros), self.fence, &value::encode(&self.record))
    }
}

/// A shared record in the database. The row of metadata is its value; the row of any other record has its end before the value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StoredRecord {
    pub(super) record: SharedRecord,
    /// `None` for metadata, which has no end.
    pub(super) ends_at: Option<Timestamp>,
}

impl StoredRecord {
    /// Returns the record, unless it has ended by this instant.
    pub(super) fn live(&self, now: Timestamp) -> Option<&SharedRecord> {
        self.ends_at.is_none_or(|ends_at| ends_at > now).then_some(&self.record)
    }
}

impl Stored for StoredRecord {
    fn ends_at(&self) -> Option<Timestamp> {
        self.ends_at
    }

    fn decode(key: &[u8], bytes: &[u8]) -> Result<Self, EngineError> {
        if !is_ending_record(key) {
            return Ok(Self { record: SharedRecord::from_stored(bytes)?, ends_at: None });
        }
        let truncated = || EngineError::incompatible("a shared record is truncated");
        let (ends_at, stored) = bytes.split_first_chunk().ok_or_else(truncated)?;
        let ends_at = Some(Timestamp::from_micros(u64::from_be_bytes(*ends_at)));
        Ok(Self { record: SharedRecord::from_stored(stored)?, ends_at })
    }

    fn encode(&self) -> Vec<u8> {
        let ends_at = self.ends_at.map(|ends_at| ends_at.as_micros().to_be_bytes());
        [ends_at.as_ref().map_or(&[][..], |ends_at| ends_at), self.record.as_stored()].concat()
    }
}

/// Returns a row: an instant, a fence, and a text.
fn row(instant: u64, fence: u64, text: &str) -> Vec<u8> {
    [&instant.to_be_bytes(), &fence.to_be_bytes(), text.as_bytes()].concat()
}

fn split_header(bytes: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (instant, bytes) = bytes.split_first_chunk()?;
    let (fence, bytes) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*instant), u64::from_be_bytes(*fence), bytes))
}

/// Returns the key of a claim's row.
pub(super) fn row_key(key: &Key) -> Vec<u8> {
    [key.namespace().as_bytes(), &[0], key.global_id.as_bytes()].concat()
}

/// Returns the key of a shared record. No two have the same: an app key holds no zero byte.
pub(super) fn record_key(name: &RecordName) -> Vec<u8> {
    match name {
        RecordName::Metadata(name) => [METADATA_PREFIX, name.as_bytes()].concat(),
        RecordName::Lock(app, name) => [LOCK_PREFIX, app.as_ref().as_bytes(), &[0], name.as_ref().as_bytes()].concat(),
        RecordName::Grants(key) => [GRANTS_PREFIX, &row_key(key)].concat(),
    }
}

/// Returns whether a key is that of a shared record with an end: a lock, or degraded grants.
pub(super) fn is_ending_record(key: &[u8]) -> bool {
    key.starts_with(LOCK_PREFIX) || key.starts_with(GRANTS_PREFIX)
}

/// Returns the entry of a row in `ends`, if it has an end.
pub(super) fn end_key<T: Stored>(key: &[u8], row: Option<&T>) -> Option<Vec<u8>> {
    row?.ends_at().map(|ends_at| [&ends_at.as_micros().to_be_bytes(), key].concat())
}

/// Returns the key of a row from its entry among the ends.
pub(super) fn key_of_end(end_key: &[u8]) -> Option<&[u8]> {
    end_key.split_first_chunk::<8>().map(|(_, key)| key)
}
