//! The outage journal: holds what policies answered on this machine's disk, from before the answer until the store has it. One
//! process holds the journal. It is bounded, and refuses entries beyond its bounds.

mod folder;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod log;
#[cfg(any(test, feature = "test-util"))]
pub mod memory;
mod open;
mod stored_form;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use oncegate_core::clock::Timestamp;
use oncegate_core::suspect::Suspect;
use oncegate_core::tenant::AppKey;
use tokio::sync::{mpsc, oneshot};

pub use self::folder::JournalOpenError;
use self::stored_form::FrameContent;
use self::writer::{Job, WriterRequest};
use oncegate_core::outage::entry::{Entry, Seq};

/// Name of the journal's folder in the data folder.
pub const FOLDER: &str = "journal";

/// Jobs that wait for the writer before callers wait too.
const QUEUE: usize = 4096;

/// Bounds of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Bytes of all entries. No app may use more than it leaves free.
    pub bytes: u64,
    /// Bytes of the entries of one app.
    pub app_bytes: u64,
}

/// A failure to write an entry.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JournalError {
    /// The app would use more of the journal than it leaves free for others.
    #[error(
        "the app's share of the journal is used up: no app may keep more than it leaves free (limits.journal_bytes)"
    )]
    ShareFull,
    /// The app's entries have reached their own bound.
    #[error("the app's part of the journal is full (limits.journal_app_bytes)")]
    AppFull,
    /// The disk has no room. Nothing was written.
    #[error("the disk has no room for the journal: {0}")]
    DiskFull(String),
    /// The journal cannot be written until the gateway is restarted. Nothing was written.
    #[error("the journal cannot be written until this gateway is restarted: {0}")]
    Broken(String),
    /// Writing failed, and the entry may be on the disk: then the next run of the gateway finds it.
    #[error(
        "writing the journal failed, and the entry may be on the disk: {0}; nothing more is written until this gateway is restarted"
    )]
    Uncertain(String),
}

/// The contents of a journal when it was opened.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The entries that are not delivered, oldest first.
    pub entries: Vec<(Seq, Entry)>,
    /// The suspects, oldest first.
    pub suspects: Vec<Suspect>,
    /// The number of damaged entries, which no crash causes, and a copy of the file.
    pub damaged: Option<(usize, std::path::PathBuf)>,
}

/// Entries that wait for stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waiting {
    /// Number of entries.
    pub entries: usize,
    /// Their bytes in the journal.
    pub bytes: u64,
    /// Instant of the oldest of them.
    pub oldest: Option<Timestamp>,
}

/// A journal that this process holds.
pub struct Journal {
    bounds: Bounds,
    next: AtomicU64,
    usage: Arc<Mutex<Usage>>,
    queue: mpsc::Sender<WriterRequest>,
}

/// Entries that are in the journal, or being written.
#[derive(Default)]
struct Usage {
    live: BTreeMap<Seq, EntryUsage>,
    bytes: u64,
    by_app: HashMap<AppKey, u64>,
}

struct EntryUsage {
    app: AppKey,
    bytes: u64,
    at: Timestamp,
}

impl Journal {
    /// Opens the journal of a folder, creates the folder if it does not exist, and reads it. Blocks.
    ///
    /// # Errors
    /// The folder cannot be used; the error says why, and what to do.
    pub fn open(folder: &Path, bounds: Bounds) -> Result<(Self, Recovered), JournalOpenError> {
        open::open(folder, bounds)
    }

    /// Opens the journal on a disk in memory, and reads it.
    ///
    /// # Errors
    /// It cannot be read.
    #[cfg(any(test, feature = "test-util"))]
    pub fn open_in_memory(disk: &memory::Disk, bounds: Bounds) -> Result<(Self, Recovered), String> {
        disk.open(bounds)
    }

    /// Appends an entry. Once this returns, it is on the disk.
    ///
    /// # Errors
    /// It was not written, or may not have been.
    pub async fn append(&self, entry: &Entry) -> Result<Seq, JournalError> {
        let seq = self.next.fetch_add(1, Ordering::Relaxed);
        let frame = frame_of(&FrameContent::Entry(seq, Box::new(entry.clone())));
        let bytes = frame.len() as u64;
        self.usage().add(seq, entry.app(), bytes, entry.at, self.bounds)?;
        let usage = self.usage.clone();
        let written = self.write(vec![(Some(seq), frame)], Vec::new(), true).await;
        if written.is_err() {
            lock(&usage).remove(seq);
        }
        written.map(|()| seq)
    }

    /// Removes delivered entries, and adds the suspects that their delivery found. Once this returns, the end of this process does
    /// not undo it; a power failure may, unless there are suspects.
    ///
    /// # Errors
    /// It was not written. The entries are still removed here. If the disk was full, it is written before the next entry;
    /// after an earlier restart they are delivered again.
    pub async fn remove_delivered(
        &self,
        seqs: Vec<Seq>,
        suspects: Vec<Suspect>,
        outdated: Vec<u64>,
    ) -> Result<(), JournalError> {
        let durable = !suspects.is_empty();
        // Before the removals: after a crash between the two they are found again, and not lost.
        let suspect = |suspect: Suspect| (Some(suspect.id), frame_of(&FrameContent::Suspect(suspect)));
        let mut frames: Vec<_> = suspects.into_iter().map(suspect).collect();
        {
            let mut usage = self.usage();
            for seq in &seqs {
                usage.remove(*seq);
            }
        }
        let removed: Vec<_> = seqs.into_iter().chain(outdated).collect();
        if !removed.is_empty() {
            frames.push((None, frame_of(&FrameContent::Delivered(removed.clone()))));
        }
        self.write(frames, removed, durable).await
    }

    /// Returns a number for a suspect, greater than all earlier ones.
    pub fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the entries that wait for stores, in numbers.
    pub fn waiting(&self) -> Waiting {
        let usage = self.usage();
        let oldest = usage.live.first_key_value().map(|(_, account)| account.at);
        Waiting { entries: usage.live.len(), bytes: usage.bytes, oldest }
    }

    /// Writes the queued entries, and unlocks the folder. Later entries are refused.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.queue.send(WriterRequest::Close(done)).await.is_ok() {
            drop(closed.await);
        }
    }

    async fn write(
        &self,
        frames: Vec<(Option<Seq>, Vec<u8>)>,
        removed: Vec<Seq>,
        durable: bool,
    ) -> Result<(), JournalError> {
        let (done, written) = oneshot::channel();
        let job = WriterRequest::Write(Job { frames, removed, durable, done: Some(done) });
        self.queue.send(job).await.map_err(|_| JournalError::Broken("it is closed".to_owned()))?;
        written.await.unwrap_or_else(|_| Err(JournalError::Uncertain("it was closed before the write".to_owned())))
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        lock(&self.usage)
    }
}

/// Ignores poisoning: the state is consistent at every step, also where a call panics.
fn lock(usage: &Mutex<Usage>) -> MutexGuard<'_, Usage> {
    usage.lock().unwrap_or_else(PoisonError::into_inner)
}

fn frame_of(line: &FrameContent) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::write(&mut bytes, &line.write());
    bytes
}

impl Usage {
    fn add(&mut self, seq: Seq, app: &AppKey, bytes: u64, at: Timestamp, bounds: Bounds) -> Result<(), JournalError> {
        let of_app = self.by_app.get(app).copied().unwrap_or(0) + bytes;
        if of_app > bounds.app_bytes {
            return Err(JournalError::AppFull);
        }
        // No more than it leaves free: so another app always finds room.
        if of_app > bounds.bytes.saturating_sub(self.bytes + bytes) {
            return Err(JournalError::ShareFull);
        }
        self.enter(seq, app, bytes, at);
        Ok(())
    }

    fn enter(&mut self, seq: Seq, app: &AppKey, bytes: u64, at: Timestamp) {
        self.bytes += bytes;
        *self.by_app.entry(app.clone()).or_default() += bytes;
        self.live.insert(seq, EntryUsage { app: app.clone(), bytes, at });
    }

    fn remove(&mut self, seq: Seq) {
        let Some(account) = self.live.remove(&seq) else { return };
        self.bytes -= account.bytes;
        if let Some(of_app) = self.by_app.get_mut(&account.app) {
            *of_app -= account.bytes;
            if *of_app == 0 {
                self.by_app.remove(&account.app);
            }
        }
    }
}

impl Waiting {
    /// Returns the age of the oldest entry.
    pub fn oldest_age(&self, now: Timestamp) -> Duration {
        self.oldest.map_or(Duration::ZERO, |oldest| now.since(oldest))
    }
}
