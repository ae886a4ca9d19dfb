//! Restores a backup into an empty folder, completely or not at all: the folder gets its format last, and is no engine's without it.
//!
//! A restored store lacks the work that was done after the backup. So it gets no record for the presence of its data.
//! Instead it gets a mark, which the engine finds when it opens the folder for the first time.

use std::io::Read;
use std::path::Path;

use fjall::{OwnedWriteBatch, PersistMode};
use oncegate_core::engine::{EngineError, KEPT_PREFIX};
use oncegate_driver::backup::{Decoder, Summary};
use oncegate_driver::scheme::OpenError;

use super::Options;
use super::backup::ENGINE;
use super::failure::words;
use super::folder::Folder;
use super::row::{self, METADATA_PREFIX, RESTORED_KEY, Row, Stored as _, StoredRecord, WATERMARKS_KEY, Watermarks};
use super::store::{Fsync, Store};

/// Bytes of rows that are written at once.
const BATCH_BYTES: usize = 1 << 20;

/// Restores a backup into this folder, which must be empty or absent. If that fails, the folder stays empty.
pub(super) fn restore(path: &Path, backup: &mut dyn Read) -> Result<Summary, OpenError> {
    let decoder = Decoder::new(backup).map_err(|why| OpenError::new(format_args!("the backup is refused: {why}")))?;
    let engine = &decoder.summary().engine;
    if engine != ENGINE {
        return Err(OpenError::new(format_args!("the backup is one of a {engine} engine, and this is a disk engine")));
    }
    let existed = path.exists();
    let folder = Folder::open_empty(path).map_err(OpenError::new)?;
    let restored = fill(&folder, decoder).and_then(|summary| {
        folder.write_format().map_err(|error| OpenError::new(format_args!("{}: {error}", path.display())))?;
        Ok(summary)
    });
    if restored.is_err() {
        folder.clear();
        if !existed {
            let _ = std::fs::remove_dir(path);
        }
    }
    restored
}

fn fill(folder: &Folder, mut backup: Decoder<&mut dyn Read>) -> Result<Summary, OpenError> {
    let path = folder.path().display();
    let failed = |error: fjall::Error| OpenError::new(format_args!("{path} cannot be written: {}", words(&error)));
    let store = Store::open(&folder.database(), &Options::default(), Box::new(Fsync)).map_err(failed)?;
    let (mut changes, mut bytes) = (store.database.batch(), 0);
    changes.insert(&store.claims, RESTORED_KEY, backup.summary().made_at.as_micros().to_be_bytes());
    while let Some((key, value)) =
        backup.row().map_err(|why| OpenError::new(format_args!("the backup is refused: {why}")))?
    {
        bytes += key.len() + value.len();
        add(&store, &mut changes, key, value)?;
        if bytes >= BATCH_BYTES {
            changes.commit().map_err(failed)?;
            (changes, bytes) = (store.database.batch(), 0);
        }
    }
    changes.commit().map_err(failed)?;
    store.database.persist(PersistMode::SyncAll).map_err(failed)?;
    Ok(backup.summary().clone())
}

/// Adds a row, and its entry among the ends. A row that this release cannot read is refused now, not when a caller needs it.
fn add(store: &Store, changes: &mut OwnedWriteBatch, key: Vec<u8>, value: Vec<u8>) -> Result<(), OpenError> {
    let unreadable =
        |why: EngineError| OpenError::new(format_args!("the backup has a row that cannot be used: {}", why.reason()));
    let end = if key == WATERMARKS_KEY {
        Watermarks::decode(&value).map_err(unreadable)?;
        None
    } else if let Some(name) = key.strip_prefix(METADATA_PREFIX) {
        if name.starts_with(KEPT_PREFIX.as_bytes()) {
            return Ok(());
        }
        None
    } else if row::is_ending_record(&key) {
        row::end_key(&key, Some(&StoredRecord::decode(&key, &value).map_err(unreadable)?))
    } else {
        row::end_key(&key, Some(&Row::decode(&key, &value).map_err(unreadable)?))
    };
    if let Some(end) = end {
        changes.insert(&store.ends, end, "");
    }
    changes.insert(&store.claims, key, value);
    Ok(())
}
