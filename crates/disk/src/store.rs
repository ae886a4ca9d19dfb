//! How claims lie in the database: two keyspaces, their keys and rows, and the one durable step that changes them.
//!
//! `claims` holds a row for each claim, under `<app> 0x00 <global ID>`, and the marks and notes, under keys that no app
//! can have. `ends` holds `<instant> <key>` for each claim that ends by itself, so that ended ones are found in order.

use std::path::Path;
use std::sync::Arc;

use fjall::compaction::Leveled;
use fjall::config::FilterPolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use hashbrown::HashMap;

use super::{Options, torn};
use crate::domain::clock::Timestamp;
use crate::domain::global_id::GlobalId;
use crate::domain::record::{Key, LiveClaim, Record};
use crate::domain::tenant::AppKey;
use crate::engine::{EngineError, Metadata, value};

/// Below every app key, which begins with a letter or a digit.
const MARKS_KEY: &[u8] = b"\0marks";

/// What the keys of notes begin with, below every app key too.
const NOTE_KEY: &[u8] = b"\0note:";

/// The journal is replayed at the start, so its bound is a bound on the start-up time: the smallest the database takes.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;

/// Tables of a memtable's rows that come together before they are merged with what stands. Keys come in no order, so each merge
/// writes most of what stands on the first level anew, whatever it brings: the more at once, the less for each row. Each of
/// them has a filter that every look at a key asks, and one merge must be done before four more memtables are full.
const MERGED_AT_ONCE: u8 = 12;

/// Bytes of a table that comes of a merge; [`MERGED_AT_ONCE`] of them are the first level.
const TABLE_BYTES: u64 = 32 << 20;

/// The database of one engine.
pub(super) struct Store {
    pub(super) database: Database,
    pub(super) claims: Keyspace,
    pub(super) ends: Keyspace,
    persist: Box<dyn Persist>,
}

/// The step that makes durable what has been written; a parameter, so that a test can break it.
pub(super) trait Persist: Send {
    /// Returns once everything written so far would survive a power loss.
    fn persist(&mut self, database: &Database) -> fjall::Result<()>;
}

/// The real step.
pub(super) struct Fsync;

impl Persist for Fsync {
    fn persist(&mut self, database: &Database) -> fjall::Result<()> {
        database.persist(PersistMode::SyncData)
    }
}

/// What is kept of the engine itself, with every batch that changes something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Marks {
    /// The newest instant used; the clock never starts behind it.
    pub(super) now: Timestamp,
    /// The newest fence given; the next one is greater.
    pub(super) fence: u64,
}

/// A claim as it is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Row {
    /// When the claim's time ends, in the engine's own time; nothing if only somebody's deed ends it.
    pub(super) expires_at: Option<Timestamp>,
    /// The fence of its attempt.
    pub(super) fence: u64,
    /// The record.
    pub(super) record: Record,
}

/// One claim's part in a batch.
pub(super) struct Change<'a> {
    pub(super) key: &'a [u8],
    pub(super) before: Option<&'a Row>,
    pub(super) after: Option<&'a Row>,
}

impl Store {
    /// Opens the database in this directory, which the caller holds, and makes it if there is none.
    pub(super) fn open(path: &Path, options: &Options, persist: Box<dyn Persist>) -> fjall::Result<Self> {
        let open = || {
            Database::builder(path)
                .cache_size(options.cache_bytes)
                .max_journaling_size(JOURNAL_BYTES_MAX)
                // Nothing reaches the operating system batch by batch: `commit` asks for it, once.
                .manual_journal_persist(true)
                // With more than one, the first spins while another compacts.
                .worker_threads(1)
                .open()
        };
        let database = match open() {
            Err(fjall::Error::JournalRecovery(_)) if torn::cut_torn_batch(path)? => {
                tracing::warn!(
                    "a power loss cut the last write short; nobody was answered from it, and it was taken off"
                );
                open()?
            }
            opened => opened?,
        };
        let options_of = |memtable_bytes| {
            let merging = Leveled::default().with_l0_threshold(MERGED_AT_ONCE).with_table_target_size(TABLE_BYTES);
            KeyspaceCreateOptions::default().max_memtable_size(memtable_bytes).compaction_strategy(Arc::new(merging))
        };
        // A folder keeps the options that it was made with.
        let claims = database.keyspace("claims", || options_of(options.memtable_bytes))?;
        // Never looked into for one key, so a filter would be of no use.
        let ends = || options_of(options.memtable_bytes / 2).filter_policy(FilterPolicy::disabled());
        let ends = database.keyspace("ends", ends)?;
        Ok(Self { database, claims, ends, persist })
    }

    /// The marks; the default if nothing was ever changed.
    pub(super) fn marks(&self) -> Result<Marks, EngineError> {
        let Some(bytes) = self.claims.get(MARKS_KEY).map_err(|error| unreadable(&error))? else {
            return Ok(Marks::default());
        };
        let (now, fence, _) = split_header(&bytes).ok_or_else(|| EngineError::incompatible("its marks are cut off"))?;
        Ok(Marks { now: Timestamp::from_micros(now), fence })
    }

    /// The row under a key. One that cannot be read is an error, never absent.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Row>, EngineError> {
        let bytes = self.claims.get(key).map_err(|error| unreadable(&error))?;
        bytes.map(|bytes| Row::decode(&bytes)).transpose()
    }

    /// The note of this name. One that cannot be read is an error, never absent.
    pub(super) fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        let Some(bytes) = self.claims.get(note_key(name)).map_err(|error| unreadable(&error))? else {
            return Ok(None);
        };
        let note = std::str::from_utf8(&bytes).ok().and_then(|text| Metadata::new(text).ok());
        note.map(Some).ok_or_else(|| EngineError::incompatible("a note cannot be read by this release"))
    }

    /// The rows of an app's claims in the order of their global IDs, after this one, at most `count`.
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
            let global_id = key.last_chunk().ok_or_else(|| EngineError::incompatible("a key is cut off"))?;
            Ok((GlobalId::from_bytes(*global_id), Row::decode(&row)?))
        };
        self.claims.range(from..to).take(count).map(row).collect()
    }

    /// The entries of claims whose time ended by `until`, soonest first, at most `count`, from `from` on.
    pub(super) fn ended(&self, from: &[u8], until: Timestamp, count: usize) -> fjall::Result<Vec<fjall::Slice>> {
        // What ends exactly now has ended: its left time is zero.
        let to = until.as_micros().saturating_add(1).to_be_bytes();
        if from >= &to[..] {
            return Ok(Vec::new());
        }
        self.ends.range(from..&to[..]).take(count).map(fjall::Guard::key).collect()
    }

    /// Writes changes, notes, the marks and the removal of `orphans` (entries of claims that do not exist) as one, and makes
    /// them durable. An error means that nobody knows whether it happened; the store must not be used any more.
    pub(super) fn commit<'a>(
        &mut self,
        changes: impl Iterator<Item = Change<'a>>,
        notes: &HashMap<String, Metadata>,
        orphans: &[fjall::Slice],
        marks: Marks,
    ) -> fjall::Result<()> {
        let mut batch = self.database.batch();
        for Change { key, before, after } in changes {
            let (ended, ends) = (before.and_then(|row| row.end_key(key)), after.and_then(|row| row.end_key(key)));
            // All of a batch has one sequence number: writing a key of it twice would leave either.
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
        for (name, note) in notes {
            batch.insert(&self.claims, note_key(name), note.as_str());
        }
        for orphan in orphans {
            batch.remove(&self.ends, orphan.clone());
        }
        batch.insert(&self.claims, MARKS_KEY, header(marks.now.as_micros(), marks.fence));
        batch.commit()?;
        self.persist.persist(&self.database)
    }
}

impl Row {
    /// The claim that stands at this instant, if one does.
    pub(super) fn held(&self, now: Timestamp) -> Option<LiveClaim> {
        let left = self.expires_at.map(|expires_at| expires_at.since(now));
        LiveClaim::judge(self.record.clone(), left, Some(self.fence))
    }

    /// Whether the claim has gone by itself by this instant.
    pub(super) fn has_ended(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now) && !self.record.outlives_lease()
    }

    /// Its entry among the ends; nothing if it never goes by itself.
    pub(super) fn end_key(&self, key: &[u8]) -> Option<Vec<u8>> {
        let expires_at = self.expires_at.filter(|_| !self.record.outlives_lease())?;
        Some([&expires_at.as_micros().to_be_bytes(), key].concat())
    }

    fn decode(bytes: &[u8]) -> Result<Self, EngineError> {
        let (expires_at, fence, text) =
            split_header(bytes).ok_or_else(|| EngineError::incompatible("a record's header is cut off"))?;
        let expires_at = (expires_at != NEVER).then_some(Timestamp::from_micros(expires_at));
        Ok(Self { expires_at, fence, record: value::decode(text)? })
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = header(self.expires_at.map_or(NEVER, Timestamp::as_micros), self.fence).to_vec();
        bytes.extend_from_slice(value::encode(&self.record).as_bytes());
        bytes
    }
}

/// The instant of what never ends.
const NEVER: u64 = u64::MAX;

/// The fixed start of a row: an instant and a fence.
fn header(instant: u64, fence: u64) -> [u8; 16] {
    (u128::from(instant) << 64 | u128::from(fence)).to_be_bytes()
}

fn split_header(bytes: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (instant, bytes) = bytes.split_first_chunk()?;
    let (fence, bytes) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*instant), u64::from_be_bytes(*fence), bytes))
}

/// The key of a claim's row.
pub(super) fn row_key(key: &Key) -> Vec<u8> {
    [key.app.as_ref().as_bytes(), &[0], key.global_id.as_bytes()].concat()
}

fn note_key(name: &str) -> Vec<u8> {
    [NOTE_KEY, name.as_bytes()].concat()
}

/// The key of the claim whose entry among the ends this is, and its instant.
pub(super) fn split_end_key(end_key: &[u8]) -> Option<(Timestamp, &[u8])> {
    let (instant, key) = end_key.split_first_chunk()?;
    Some((Timestamp::from_micros(u64::from_be_bytes(*instant)), key))
}

fn unreadable(error: &fjall::Error) -> EngineError {
    EngineError::unavailable(format!("a read failed: {error}"))
}
