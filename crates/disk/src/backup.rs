//! Backups of a running engine: all rows of one instant, read in pieces by a separate thread. The writer continues.

use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use fjall::{Database, Keyspace, Readable as _, Snapshot, UserKey, UserValue};
use futures_util::stream::unfold;
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{Backup, EngineError};
use oncegate_driver::backup::Encoder;
use tokio::sync::mpsc;

use super::failure::unreadable;

/// Bytes of a piece, which are read at once. A longer row makes a longer piece.
const PIECE_BYTES: usize = 256 << 10;

/// Pieces that wait for their reader.
const PIECES_WAITING: usize = 2;

/// Pause between two pieces. It limits the reads of a backup to 64 MiB a second.
const PAUSE: Duration = Duration::from_millis(4);

/// Name of the scheme in a backup.
pub(super) const ENGINE: &str = "disk";

/// The rows of one instant; nothing once the database is closed. Closing must not wait for a backup.
type Source = Mutex<Option<Rows>>;

struct Rows {
    snapshot: Snapshot,
    claims: Keyspace,
}

/// The backup of a database that is in progress, if one is. Dropped with the database, it ends the backup.
#[derive(Default)]
pub(super) struct BackupSlot(Mutex<Weak<Source>>);

impl BackupSlot {
    /// Begins a backup of the present data.
    pub(super) fn begin(
        &self,
        database: &Database,
        claims: &Keyspace,
        made_at: Timestamp,
    ) -> Result<Backup, EngineError> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.strong_count() > 0 {
            return Err(EngineError::unavailable("another backup of it is in progress; wait until that has ended"));
        }
        let rows = Rows { snapshot: database.snapshot(), claims: claims.clone() };
        let source = Arc::new(Mutex::new(Some(rows)));
        *slot = Arc::downgrade(&source);
        let (pieces, received) = mpsc::channel(PIECES_WAITING);
        let run = move || read(&source, Encoder::new(ENGINE, made_at), &pieces);
        let thread = thread::Builder::new().name("disk-backup".into()).spawn(run);
        thread.map_err(|error| EngineError::unavailable(format!("a backup cannot be started: {error}")))?;
        let next = |mut received: mpsc::Receiver<_>| async move { Some((received.recv().await?, received)) };
        Ok(Box::pin(unfold(received, next)))
    }
}

impl Drop for BackupSlot {
    fn drop(&mut self) {
        let slot = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = slot.upgrade() {
            source.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}

/// Sends all rows. Stops when the receiver is dropped or the database is closed.
fn read(source: &Source, mut encoder: Encoder, pieces: &mpsc::Sender<Result<Vec<u8>, EngineError>>) {
    let mut after = None;
    loop {
        let rows = {
            let source = source.lock().unwrap_or_else(PoisonError::into_inner);
            let closed = || EngineError::unavailable("the engine was closed during the backup, which is incomplete");
            source.as_ref().ok_or_else(closed).and_then(|rows| rows.piece(after.as_ref()))
        };
        let rows = match rows {
            Ok(rows) => rows,
            Err(why) => {
                let _ = pieces.blocking_send(Err(why));
                return;
            }
        };
        for (key, value) in &rows {
            encoder.row(key, value);
        }
        let Some((last, _)) = rows.last() else {
            let _ = pieces.blocking_send(Ok(encoder.end()));
            return;
        };
        after = Some(last.clone());
        if pieces.blocking_send(Ok(encoder.take())).is_err() {
            return;
        }
        thread::sleep(PAUSE);
    }
}

impl Rows {
    /// Reads the next rows; none at the end.
    fn piece(&self, after: Option<&UserKey>) -> Result<Vec<(UserKey, UserValue)>, EngineError> {
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.clone()));
        let (mut rows, mut bytes) = (Vec::new(), 0);
        for row in self.snapshot.range::<UserKey, _>(&self.claims, (from, Bound::Unbounded)) {
            let (key, value) = row.into_inner().map_err(|error| unreadable(&error))?;
            bytes += key.len() + value.len();
            rows.push((key, value));
            if bytes >= PIECE_BYTES {
                break;
            }
        }
        Ok(rows)
    }
}
