//! The database: how it is opened and read, and the one durable step that changes it. Its keys and rows are in `row`.

use std::path::Path;
use std::sync::Arc;

use fjall::compaction::Leveled;
use fjall::config::FilterPolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{Backup, EngineError};
use oncegate_core::global_id::GlobalId;
use oncegate_core::operator::{LockListRequest, LockPage};

use super::backup::BackupSlot;
use super::failure::{unreadable, words};
use super::row::{LOCK_PREFIX, RESTORED_KEY, Row, Stored, StoredRecord, WATERMARKS_KEY, Watermarks};
use super::{Options, journals, torn};

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
    backup: BackupSlot,
}

/// The step that makes writes durable. It is a parameter, so that a test can make it fail.
pub(super) trait Persist: Send {
    /// Makes everything written so far durable.
    fn persist(&self, database: &Database) -> fjall::Result<()>;
}

/// The production implementation.
pub(super) struct Fsync;

impl Persist for Fsync {
    fn persist(&self, database: &Database) -> fjall::Result<()> {
        database.persist(PersistMode::SyncData)
    }
}

impl Store {
    /// Opens the database in this folder, which the caller has locked, and creates it if there is none.
    pub(super) fn open(path: &Path, options: &Options, persist: Box<dyn Persist>) -> fjall::Result<Self> {
        let (database, claims, ends) = open(path, options)?;
        Ok(Self { database, claims, ends, persist, backup: BackupSlot::default() })
    }

    /// Opens the database again after a failed write, and makes sure that it can be written. Reads everything from the
    /// disk, and uses nothing that was in memory. Returns the stored watermarks, or those that were known before if
    /// they are later.
    pub(super) fn reopen(
        path: &Path,
        options: &Options,
        persist: Box<dyn Persist>,
        known: Watermarks,
    ) -> Result<(Self, Watermarks), (Box<dyn Persist>, String)> {
        let (database, claims, ends) = match open(path, options) {
            Ok(opened) => opened,
            Err(why) => return Err((persist, words(&why))),
        };
        let store = Self { database, claims, ends, persist, backup: BackupSlot::default() };
        let written = store.watermarks().map_err(|why| why.reason().to_owned()).and_then(|stored| {
            let watermarks = Watermarks { now: stored.now.max(known.now), fence: stored.fence.max(known.fence) };
            let written = store.commit(store.database.batch(), watermarks);
            written.map(|()| watermarks).map_err(|why| words(&why))
        });
        match written {
            Ok(watermarks) => Ok((store, watermarks)),
            Err(why) => Err((store.close(), why)),
        }
    }

    /// Closes the database.
    pub(super) fn close(self) -> Box<dyn Persist> {
        self.persist
    }

    /// Returns the watermarks; the default if nothing was ever stored.
    pub(super) fn watermarks(&self) -> Result<Watermarks, EngineError> {
        let bytes = self.claims.get(WATERMARKS_KEY).map_err(|error| unreadable(&error))?;
        bytes.map_or_else(|| Ok(Watermarks::default()), |bytes| Watermarks::decode(&bytes))
    }

    /// Begins a backup of the present data.
    pub(super) fn begin_backup(&self, now: Timestamp) -> Result<Backup, EngineError> {
        self.backup.begin(&self.database, &self.claims, now)
    }

    /// Removes the mark of a restored store, durably. Returns when its backup was made, if there was a mark.
    pub(super) fn take_restored(&self, watermarks: Watermarks) -> Result<Option<Timestamp>, String> {
        let Some(made_at) = self.claims.get(RESTORED_KEY).map_err(|error| words(&error))? else { return Ok(None) };
        let made_at = made_at.first_chunk().map_or(0, |micros| u64::from_be_bytes(*micros));
        let mut changes = self.database.batch();
        changes.remove(&self.claims, RESTORED_KEY);
        self.commit(changes, watermarks).map_err(|error| words(&error))?;
        Ok(Some(Timestamp::from_micros(made_at)))
    }

    /// Returns the row of a key. A row that cannot be read is an error, not absent.
    pub(super) fn get<T: Stored>(&self, key: &[u8]) -> Result<Option<T>, EngineError> {
        let bytes = self.claims.get(key).map_err(|error| unreadable(&error))?;
        bytes.map(|bytes| T::decode(key, &bytes)).transpose()
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
            records.extend(stored.live(now).map(|record| (name, record.clone())));
            if records.len() >= request.limit {
                break;
            }
        }
        Ok(LockPage { records, now })
    }

    /// Returns up to `count` rows of a namespace's claims after this global ID, in order.
    pub(super) fn rows(
        &self,
        namespace: &str,
        after: Option<GlobalId>,
        count: usize,
    ) -> Result<Vec<(GlobalId, Row)>, EngineError> {
        let namespace = namespace.as_bytes();
        let from = match after {
            Some(after) => [namespace, &[0], after.as_bytes(), &[0]].concat(),
            None => [namespace, &[0]].concat(),
        };
        let to = [namespace, &[1]].concat();
        let row = |entry: fjall::Guard| {
            let (key, row) = entry.into_inner().map_err(|error| unreadable(&error))?;
            let global_id = key.last_chunk().ok_or_else(|| EngineError::incompatible("a key is truncated"))?;
            Ok((GlobalId::from_bytes(*global_id), Row::decode(&key, &row)?))
        };
        self.claims.range(from..to).take(count).map(row).collect()
    }

    /// Returns up to `count` entries of claims whose time ended by `until`, the oldest first, beginning at `from`.
    pub(super) fn ended(&self, from: &[u8], until: Timestamp, count: usize) -> fjall::Result<Vec<fjall::Slice>> {
        // A claim that ends exactly now has ended.
        let to = until.as_micros().saturating_add(1).to_be_bytes();
        if from >= &to[..] {
            return Ok(Vec::new());
        }
        self.ends.range(from..&to[..]).take(count).map(fjall::Guard::key).collect()
    }

    /// Writes the changes of a batch and its watermarks atomically, and makes them durable. After an error it is unknown whether
    /// they were written, and the store must not be used again.
    pub(super) fn commit(&self, mut changes: OwnedWriteBatch, watermarks: Watermarks) -> fjall::Result<()> {
        changes.insert(&self.claims, WATERMARKS_KEY, watermarks.encode());
        changes.commit()?;
        self.persist.persist(&self.database)
    }
}

/// Opens the database in this folder and its two keyspaces.
fn open(path: &Path, options: &Options) -> fjall::Result<(Database, Keyspace, Keyspace)> {
    journals::rewrite(path)?;
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
            tracing::warn!("Removed the last write, which a power loss had torn; none of its calls had been answered");
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
    Ok((database, claims, ends))
}
