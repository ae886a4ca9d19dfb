//! The layout of the database: two keyspaces, their keys and rows, and the one durable step that changes them.
//!
//! `claims` has a row for each claim, under `<app> 0x00 <global ID>`, and the watermarks and shared records, under keys that no
//! app can have. `ends` has `<instant> <key>` for each of them that ends by itself, so that ended ones are found in order.

use std::path::Path;
use std::sync::Arc;

use fjall::compaction::Leveled;
use fjall::config::FilterPolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use hashbrown::HashMap;
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{EngineError, RecordName, SharedRecord, value};
use oncegate_core::global_id::GlobalId;
use oncegate_core::operator::{LockListRequest, LockPage};
use oncegate_core::record::{Key, LiveClaim, Record};
use oncegate_core::tenant::AppKey;

use super::{Options, torn};

/// Key of the watermarks, before every app key: those begin with a letter or a digit.
const WATERMARKS_KEY: &[u8] = b"\0marks";

/// Prefix of the keys of metadata, before every app key too.
const METADATA_PREFIX: &[u8] = b"\0note:";

/// Prefix of the keys of locks, before every app key too.
const LOCK_PREFIX: &[u8] = b"\0lock:";

/// Bound of the journal. It is replayed at start, so this bounds the start-up time: the smallest that the database accepts.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;

/// Tables of flushed memtables before they are merged with the first level. Keys have no order, so each merge rewrites most of
/// that level: the more tables at once, the less work per row. But every lookup checks the filter of each table, and a merge
/// must be done before four more memtables are full.
const MERGED_AT_ONCE: u8 = 12;

/// Size of a merged table in bytes; the first level has [`MERGED_AT_ONCE`] of them.
const TABLE_BYTES: u64 = 32 << 20;

/// The database of one engine.
pub(super) struct Store {
    pub(super) database: Database,
    pub(super) claims: Keyspace,
    pub(super) ends: Keyspace,
    persist: Box<dyn Persist>,
}

/// The step that makes writes durable; a parameter, so that a test can make it fail.
pub(super) trait Persist: Send {
    /// Makes everything written so far durable.
    fn persist(&mut self, database: &Database) -> fjall::Result<()>;
}

/// The production implementation.
pub(super) struct Fsync;

impl Persist for Fsync {
    fn persist(&mut self, database: &Database) -> fjall::Result<()> {
        database.persist(PersistMode::SyncData)
    }
}

/// State of the engine itself, stored with every batch that changes something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Watermarks {
    /// The newest instant; the clock never starts behind it.
    pub(super) now: Timestamp,
    /// The newest fence; the next one is greater.
    pub(super) fence: u64,
}

/// A stored claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Row {
    /// When the claim's time ends, by the engine's clock; nothing if it does not end by itself.
    pub(super) expires_at: Option<Timestamp>,
    /// The fence of its attempt.
    pub(super) fence: u64,
    pub(super) record: Record,
}

/// The change of a claim in a batch.
pub(super) struct Change<'a> {
    pub(super) key: &'a [u8],
    pub(super) before: Option<&'a Row>,
    pub(super) after: Option<&'a Row>,
}

impl Store {
    /// Opens the database in this folder, which the caller has locked, and creates it if there is none.
    pub(super) fn open(path: &Path, options: &Options, persist: Box<dyn Persist>) -> fjall::Result<Self> {
        let open = || {
            Database::builder(path)
                .cache_size(options.cache_bytes)
                .max_journaling_size(JOURNAL_BYTES_MAX)
                // `commit` flushes once, instead of each batch.
                .manual_journal_persist(true)
                // With more than one, one spins while another compacts.
                .worker_threads(1)
                .open()
        };
        let database = match open() {
            Err(fjall::Error::JournalRecovery(_)) if torn::cut_torn_batch(path)? => {
                tracing::warn!(
                    "Removed the last write, which a power loss had torn; none of its calls had been answered"
                );
                open()?
            }
            opened => opened?,
        };
        let options_of = |memtable_bytes| {
            let merging = Leveled::default().with_l0_threshold(MERGED_AT_ONCE).with_table_target_size(TABLE_BYTES);
            KeyspaceCreateOptions::default().max_memtable_size(memtable_bytes).compaction_strategy(Arc::new(merging))
        };
        // A folder keeps the options of its creation.
        let claims = database.keyspace("claims", || options_of(options.memtable_bytes))?;
        // Never read by key, so a filter would be useless.
        let ends = || options_of(options.memtable_bytes / 2).filter_policy(FilterPolicy::disabled());
        let ends = database.keyspace("ends", ends)?;
        Ok(Self { database, claims, ends, persist })
    }

    /// Returns the watermarks; the default if nothing was ever stored.
    pub(super) fn watermarks(&self) -> Result<Watermarks, EngineError> {
        let Some(bytes) = self.claims.get(WATERMARKS_KEY).map_err(|error| unreadable(&error))? else {
            return Ok(Watermarks::default());
        };
        let (now, fence, _) =
            split_header(&bytes).ok_or_else(|| EngineError::incompatible("its watermarks are truncated"))?;
        Ok(Watermarks { now: Timestamp::from_micros(now), fence })
    }

    /// Returns the row of a key. A row that cannot be read is an error, not absent.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Row>, EngineError> {
        let bytes = self.claims.get(key).map_err(|error| unreadable(&error))?;
        bytes.map(|bytes| Row::decode(&bytes)).transpose()
    }

    /// Returns the shared record of a key. One that cannot be read is an error, not absent.
    pub(super) fn record(&self, key: &[u8]) -> Result<Option<StoredRecord>, EngineError> {
        let bytes = self.claims.get(key).map_err(|error| unreadable(&error))?;
        bytes.map(|bytes| StoredRecord::decode(key, &bytes)).transpose()
    }

    /// Lists the records of an app's locks that have not ended.
    pub(super) fn list_locks(&self, request: &LockListRequest, now: Timestamp) -> Result<LockPage, EngineError> {
        let prefix = [LOCK_PREFIX, request.app.as_ref().as_bytes(), &[0]].concat();
        let from = match &request.after {
            Some(after) => [&prefix[..], after.as_ref().as_bytes(), &[0]].concat(),
            None => prefix.clone(),
        };
        let to = [LOCK_PREFIX, request.app.as_ref().as_bytes(), &[1]].concat();
        let mut records = Vec::new();
        for entry in self.claims.range(from..to) {
            let (key, bytes) = entry.into_inner().map_err(|error| unreadable(&error))?;
            let stored = StoredRecord::decode(&key, &bytes)?;
            let name = std::str::from_utf8(&key[prefix.len()..]).ok().and_then(|name| name.parse().ok());
            let name = name.ok_or_else(|| EngineError::incompatible("the name of a lock cannot be read"))?;
            records.extend((!stored.has_ended(now)).then_some((name, stored.record)));
            if records.len() >= request.limit {
                break;
            }
        }
        Ok(LockPage { records, now })
    }

    /// Returns up to `count` rows of an app's claims after this global ID, in order.
    pub(super) fn rows(
        &self,
        app: &AppKey,
        after: Option<GlobalId>,
        count: usize,
    ) -> Result<Vec<(GlobalId, Row)>, EngineError> {
        let app = app.as_ref().as_bytes();
        let from = match after {
            Some(after) => [app, &[0], after.as_bytes(), &[0]].concat(),
            None => [app, &[0]].concat(),
        };
        let to = [app, &[1]].concat();
        let row = |entry: fjall::Guard| {
            let (key, row) = entry.into_inner().map_err(|error| unreadable(&error))?;
            let global_id = key.last_chunk().ok_or_else(|| EngineError::incompatible("a key is truncated"))?;
            Ok((GlobalId::from_bytes(*global_id), Row::decode(&row)?))
        };
        self.claims.range(from..to).take(count).map(row).collect()
    }

    /// Returns up to `count` entries of claims whose time ended by `until`, the oldest first, beginning at `from`.
    pub(super) fn ended(&self, from: &[u8], until: Timestamp, count: usize) -> fjall::Result<Vec<fjall::Slice>> {
        // A claim that ends exactly now has ended: nothing is left of it.
        let to = until.as_micros().saturating_add(1).to_be_bytes();
        if from >= &to[..] {
            return Ok(Vec::new());
        }
        self.ends.range(from..&to[..]).take(count).map(fjall::Guard::key).collect()
    }

    /// Writes changes, records, the watermarks and the removal of `orphans` (entries without a claim) atomically, and makes them
    /// durable. After an error it is unknown whether they were written, and the store must not be used again.
    pub(super) fn commit<'a>(
        &mut self,
        changes: impl Iterator<Item = Change<'a>>,
        records: &HashMap<Vec<u8>, RecordSlot>,
        orphans: &[fjall::Slice],
        watermarks: Watermarks,
    ) -> fjall::Result<()> {
        let mut batch = self.database.batch();
        for Change { key, before, after } in changes {
            let (ended, ends) = (before.and_then(|row| row.end_key(key)), after.and_then(|row| row.end_key(key)));
            // A batch has one sequence number: of two writes of a key, either may remain.
            if ended != ends {
                if let Some(end) = ended {
                    batch.remove(&self.ends, end);
                }
                if let Some(end) = ends {
                    batch.insert(&self.ends, end, "");
                }
            }
            match after {
                Some(row) => batch.insert(&self.claims, key, row.encode()),
                None if before.is_some() => batch.remove(&self.claims, key),
                None => {}
            }
        }
        for (key, RecordSlot { stored, current, .. }) in records.iter().filter(|(_, slot)| slot.changed) {
            let end_key = |record: &Option<StoredRecord>| record.as_ref().and_then(|record| record.end_key(key));
            let (ended, ends) = (end_key(stored), end_key(current));
            if ended != ends {
                if let Some(end) = ended {
                    batch.remove(&self.ends, end);
                }
                if let Some(end) = ends {
                    batch.insert(&self.ends, end, "");
                }
            }
            match current {
                Some(record) => batch.insert(&self.claims, &key[..], record.encode()),
                None if stored.is_some() => batch.remove(&self.claims, &key[..]),
                None => {}
            }
        }
        for orphan in orphans {
            batch.remove(&self.ends, orphan.clone());
        }
        batch.insert(&self.claims, WATERMARKS_KEY, header(watermarks.now.as_micros(), watermarks.fence));
        batch.commit()?;
        self.persist.persist(&self.database)
    }
}

/// A shared record in the database. Metadata is stored as it is, as releases before locks did; a lock after its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StoredRecord {
    pub(super) record: SharedRecord,
    /// `None` for metadata, which does not end by itself.
    pub(super) ends_at: Option<Timestamp>,
}

/// A shared record as it is in the database, and as a batch leaves it.
pub(super) struct RecordSlot {
    pub(super) stored: Option<StoredRecord>,
    pub(super) current: Option<StoredRecord>,
    pub(super) changed: bool,
}

impl StoredRecord {
    /// Returns whether it has ended by this instant.
    pub(super) fn has_ended(&self, now: Timestamp) -> bool {
        self.ends_at.is_some_and(|ends_at| ends_at <= now)
    }

    /// Returns its entry among the ends; nothing if it does not end by itself.
    pub(super) fn end_key(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.ends_at.map(|ends_at| [&ends_at.as_micros().to_be_bytes(), key].concat())
    }

    fn decode(key: &[u8], bytes: &[u8]) -> Result<Self, EngineError> {
        if !is_lock(key) {
            return Ok(Self { record: SharedRecord::from_stored(bytes)?, ends_at: None });
        }
        let truncated = || EngineError::incompatible("a lock's record is truncated");
        let (ends_at, stored) = bytes.split_first_chunk().ok_or_else(truncated)?;
        let ends_at = Some(Timestamp::from_micros(u64::from_be_bytes(*ends_at)));
        Ok(Self { record: SharedRecord::from_stored(stored)?, ends_at })
    }

    fn encode(&self) -> Vec<u8> {
        let ends_at = self.ends_at.map(|ends_at| ends_at.as_micros().to_be_bytes());
        [ends_at.as_ref().map_or(&[][..], |ends_at| ends_at), self.record.as_stored()].concat()
    }
}

impl Row {
    /// Returns the live claim at this instant, if there is one.
    pub(super) fn live_claim(&self, now: Timestamp) -> Option<LiveClaim> {
        let left = self.expires_at.map(|expires_at| expires_at.since(now));
        LiveClaim::judge(self.record.clone(), left, Some(self.fence))
    }

    /// Returns whether the claim has ended by itself by this instant.
    pub(super) fn has_ended(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now) && !self.record.outlives_lease()
    }

    /// Returns its entry among the ends; nothing if it does not end by itself.
    pub(super) fn end_key(&self, key: &[u8]) -> Option<Vec<u8>> {
        let expires_at = self.expires_at.filter(|_| !self.record.outlives_lease())?;
        Some([&expires_at.as_micros().to_be_bytes(), key].concat())
    }

    fn decode(bytes: &[u8]) -> Result<Self, EngineError> {
        let (expires_at, fence, text) =
            split_header(bytes).ok_or_else(|| EngineError::incompatible("a record's header is truncated"))?;
        let expires_at = (expires_at != NEVER).then_some(Timestamp::from_micros(expires_at));
        Ok(Self { expires_at, fence, record: value::decode(text)? })
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = header(self.expires_at.map_or(NEVER, Timestamp::as_micros), self.fence).to_vec();
        bytes.extend_from_slice(value::encode(&self.record).as_bytes());
        bytes
    }
}

/// End of a claim that does not end by itself.
const NEVER: u64 = u64::MAX;

/// Returns the fixed start of a row: an instant and a fence.
fn header(instant: u64, fence: u64) -> [u8; 16] {
    (u128::from(instant) << 64 | u128::from(fence)).to_be_bytes()
}

fn split_header(bytes: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (instant, bytes) = bytes.split_first_chunk()?;
    let (fence, bytes) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*instant), u64::from_be_bytes(*fence), bytes))
}

/// Returns the key of a claim's row.
pub(super) fn row_key(key: &Key) -> Vec<u8> {
    [key.app.as_ref().as_bytes(), &[0], key.global_id.as_bytes()].concat()
}

/// Returns the key of a shared record. No two have the same: an app key holds no zero byte.
pub(super) fn record_key(name: &RecordName) -> Vec<u8> {
    match name {
        RecordName::Metadata(name) => [METADATA_PREFIX, name.as_bytes()].concat(),
        RecordName::Lock(app, name) => [LOCK_PREFIX, app.as_ref().as_bytes(), &[0], name.as_ref().as_bytes()].concat(),
    }
}

/// Returns whether a key is that of a lock.
pub(super) fn is_lock(key: &[u8]) -> bool {
    key.starts_with(LOCK_PREFIX)
}

/// Returns the instant and the key of a claim from its entry among the ends.
pub(super) fn split_end_key(end_key: &[u8]) -> Option<(Timestamp, &[u8])> {
    let (instant, key) = end_key.split_first_chunk()?;
    Some((Timestamp::from_micros(u64::from_be_bytes(*instant)), key))
}

fn unreadable(error: &fjall::Error) -> EngineError {
    EngineError::unavailable(format!("a read failed: {error}"))
}
