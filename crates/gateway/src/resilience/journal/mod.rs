//! The journal: what was answered in a store's place, on this machine's disk before it was answered, until the store has
//! been told. One process holds it; it is bounded, and refuses what it cannot keep.

pub mod entry;
mod folder;
mod form;
mod frame;
mod log;
#[cfg(any(test, feature = "test-util"))]
pub mod memory;
mod open;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use tokio::sync::{mpsc, oneshot};

use self::entry::{Entry, Seq};
pub use self::folder::OpenError;
use self::form::Line;
use self::writer::{Ask, Job};
use crate::domain::clock::Timestamp;
use crate::domain::overlap::Overlap;
use crate::domain::tenant::AppKey;

/// The folder of the journal in the folder of what a gateway must not lose.
pub const FOLDER: &str = "journal";

/// How many overlaps are kept; the oldest go first.
pub const OVERLAPS_MAX: usize = 10_000;

/// How many jobs wait for the writer before callers wait too.
const QUEUE: usize = 4096;

/// How much a journal takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// All entries together, in bytes. No app may have more than it leaves free of them.
    pub bytes: u64,
    /// The entries of one app, in bytes.
    pub app_bytes: u64,
}

/// Why an entry was not taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The app would have more of the journal than it leaves free for others.
    #[error(
        "the app's share of the journal is used up: no app may keep more than it leaves free (limits.journal_bytes)"
    )]
    Full,
    /// The app's entries have reached their own bound.
    #[error("the app's part of the journal is full (limits.journal_app_bytes)")]
    AppFull,
    /// The disk has no room. Nothing was written.
    #[error("the disk has no room for the journal: {0}")]
    NoRoom(String),
    /// The journal cannot be written until the gateway is restarted. Nothing was written.
    #[error("the journal cannot be written until this gateway is restarted: {0}")]
    Broken(String),
    /// Writing failed, and the disk may have it all the same: then the next run of the gateway goes by it.
    #[error(
        "the journal could not be written, and may have been: {0}; nothing more is written until this gateway is restarted"
    )]
    Unsure(String),
}

/// What a journal held when it was opened.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The entries that no store has been told of, oldest first.
    pub entries: Vec<(Seq, Entry)>,
    /// The overlaps, oldest first.
    pub overlaps: Vec<Overlap>,
    /// How many entries were found damaged, which no crash does, and a copy of the file as it was.
    pub damaged: Option<(usize, std::path::PathBuf)>,
}

/// How much waits for stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waiting {
    /// How many entries.
    pub entries: usize,
    /// How many bytes of the journal they take.
    pub bytes: u64,
    /// When the oldest of them was answered for.
    pub oldest: Option<Timestamp>,
}

/// A journal that this process holds.
pub struct Journal {
    bounds: Bounds,
    next: AtomicU64,
    accounts: Arc<Mutex<Accounts>>,
    queue: mpsc::Sender<Ask>,
}

/// What is in the journal, or on its way.
#[derive(Default)]
struct Accounts {
    live: BTreeMap<Seq, Account>,
    bytes: u64,
    by_app: HashMap<AppKey, u64>,
}

struct Account {
    app: AppKey,
    bytes: u64,
    at: Timestamp,
}

impl Journal {
    /// Opens the journal of a folder, which is made if it is not there, and reads it. Blocks.
    ///
    /// # Errors
    /// What is wrong with the folder, and what to do.
    pub fn open(folder: &Path, bounds: Bounds) -> Result<(Self, Recovered), OpenError> {
        open::open(folder, bounds)
    }

    /// Opens the journal on a disk in memory, and reads it.
    ///
    /// # Errors
    /// What is wrong with it.
    #[cfg(any(test, feature = "test-util"))]
    pub fn open_in_memory(disk: &memory::Disk, bounds: Bounds) -> Result<(Self, Recovered), String> {
        disk.open(bounds)
    }

    /// Keeps an entry. Once this returns, it is on the disk.
    ///
    /// # Errors
    /// Why it was not taken.
    pub async fn keep(&self, entry: &Entry) -> Result<Seq, Refused> {
        let seq = self.next.fetch_add(1, Ordering::Relaxed);
        let frame = frame_of(&Line::Entry(seq, Box::new(entry.clone())));
        let bytes = frame.len() as u64;
        self.accounts().add(seq, entry.app(), bytes, entry.at, self.bounds)?;
        let accounts = self.accounts.clone();
        let written = self.write(vec![(Some(seq), frame)], Vec::new(), true).await;
        if written.is_err() {
            lock(&accounts).remove(seq);
        }
        written.map(|()| seq)
    }

    /// Forgets entries that the store has been told of, and keeps what overlaps that has brought to light. Once this
    /// returns, no end of this process undoes it; a power failure may, unless there were overlaps.
    ///
    /// # Errors
    /// Why it was not written. The entries are forgotten here all the same. Where there was no room it is written with what
    /// comes next; after a restart before that they are told again.
    pub async fn delivered(&self, seqs: Vec<Seq>, overlaps: Vec<Overlap>, outdated: Vec<u64>) -> Result<(), Refused> {
        let durable = !overlaps.is_empty();
        // Before what is dead: a crash between the two notices them again, and does not lose them.
        let overlap = |overlap: Overlap| (Some(overlap.id), frame_of(&Line::Overlap(overlap)));
        let mut frames: Vec<_> = overlaps.into_iter().map(overlap).collect();
        frames.push((None, frame_of(&Line::Delivered(seqs.clone()))));
        if !outdated.is_empty() {
            frames.push((None, frame_of(&Line::Delivered(outdated.clone()))));
        }
        {
            let mut accounts = self.accounts();
            for seq in &seqs {
                accounts.remove(*seq);
            }
        }
        let buried = seqs.into_iter().chain(outdated).collect();
        self.write(frames, buried, durable).await
    }

    /// A number for an overlap, greater than all before.
    pub fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// How much waits for stores.
    pub fn waiting(&self) -> Waiting {
        let accounts = self.accounts();
        let oldest = accounts.live.first_key_value().map(|(_, account)| account.at);
        Waiting { entries: accounts.live.len(), bytes: accounts.bytes, oldest }
    }

    /// Writes what is on its way, and lets go of the folder. What comes later is refused.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.queue.send(Ask::Close(done)).await.is_ok() {
            drop(closed.await);
        }
    }

    async fn write(&self, frames: Vec<(Option<Seq>, Vec<u8>)>, buried: Vec<Seq>, durable: bool) -> Result<(), Refused> {
        let (done, written) = oneshot::channel();
        let job = Ask::Write(Job { frames, buried, durable, done: Some(done) });
        self.queue.send(job).await.map_err(|_| Refused::Broken("it is closed".to_owned()))?;
        written.await.unwrap_or_else(|_| Err(Refused::Unsure("it was closed meanwhile".to_owned())))
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        lock(&self.accounts)
    }
}

/// Poisoned: some call panicked, in code that leaves the accounts whole at every step.
fn lock(accounts: &Mutex<Accounts>) -> MutexGuard<'_, Accounts> {
    accounts.lock().unwrap_or_else(PoisonError::into_inner)
}

fn frame_of(line: &Line) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::write(&mut bytes, &line.write());
    bytes
}

impl Accounts {
    fn add(&mut self, seq: Seq, app: &AppKey, bytes: u64, at: Timestamp, bounds: Bounds) -> Result<(), Refused> {
        let of_app = self.by_app.get(app).copied().unwrap_or(0) + bytes;
        if of_app > bounds.app_bytes {
            return Err(Refused::AppFull);
        }
        // As much as it leaves free for others: whatever some apps keep here, another one always finds room.
        if of_app > bounds.bytes.saturating_sub(self.bytes + bytes) {
            return Err(Refused::Full);
        }
        self.enter(seq, app, bytes, at);
        Ok(())
    }

    fn enter(&mut self, seq: Seq, app: &AppKey, bytes: u64, at: Timestamp) {
        self.bytes += bytes;
        *self.by_app.entry(app.clone()).or_default() += bytes;
        self.live.insert(seq, Account { app: app.clone(), bytes, at });
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
    /// How long the oldest entry has waited by now.
    pub fn oldest_age(&self, now: Timestamp) -> Duration {
        self.oldest.map_or(Duration::ZERO, |oldest| now.since(oldest))
    }
}
