//! A journal's disk in memory, for tests and simulations: its steps take simulated time, and a crash may come between any two
//! of them. Keeps the synced bytes, and a chosen part of the rest. It can be full, or fail, on request.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::frame::HEADER;
use super::log::Log;
use super::open::{read, start};
use super::{Bounds, Journal, Recovered};

/// A disk that outlives the processes that use it.
#[derive(Clone)]
pub struct Disk(Arc<Machine>);

/// A permanent flaw of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// Nothing.
    None,
    /// Syncs nothing, and reports success.
    SyncsNothing,
    /// Does not truncate the file, and reports success.
    CutsNothing,
}

/// A temporary fault of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// Nothing.
    None,
    /// Full: writes half of what is appended, and then fails.
    NoRoom,
    /// As above, and truncating fails too.
    Stuck,
    /// Appending works, and syncing fails.
    NoSync,
}

struct Machine {
    /// Returns the time of the next step.
    pace: Box<dyn Fn() -> Duration + Send + Sync>,
    flaw: Flaw,
    file: Mutex<State>,
}

struct State {
    bytes: Vec<u8>,
    /// Bytes that survive every crash.
    synced: usize,
    /// The new file that will replace the old one.
    new: Vec<u8>,
    trouble: Trouble,
    /// The process that holds the journal.
    holder: CancellationToken,
}

impl Disk {
    /// Creates an empty disk. `pace` returns the time of each step.
    pub fn new(pace: impl Fn() -> Duration + Send + Sync + 'static, flaw: Flaw) -> Self {
        let (bytes, synced) = (HEADER.to_vec(), HEADER.len());
        let (new, trouble, holder) = (Vec::new(), Trouble::None, CancellationToken::new());
        let file = Mutex::new(State { bytes, synced, new, trouble, holder });
        Self(Arc::new(Machine { pace: Box::new(pace), flaw, file }))
    }

    /// Sets its fault.
    pub fn turn(&self, trouble: Trouble) {
        self.state().trouble = trouble;
    }

    /// Kills the process that holds the journal. Of the bytes that were not synced, `kept` returns how many survive.
    pub fn crash(&self, kept: impl FnOnce(usize) -> usize) {
        let state = &mut *self.state();
        state.holder.cancel();
        let loose = state.bytes.len() - state.synced;
        state.bytes.truncate(state.synced + kept(loose).min(loose));
    }

    pub(super) fn open(&self, bounds: Bounds) -> Result<(Journal, Recovered), String> {
        let (ground, recovered, damaged) = {
            let state = &mut *self.state();
            let (ground, recovered, damaged) = read(&state.bytes)?;
            state.bytes.truncate(usize::try_from(ground.bytes).unwrap_or(usize::MAX));
            state.synced = state.bytes.len();
            state.holder = CancellationToken::new();
            (ground, recovered, damaged)
        };
        if damaged > 0 {
            return Err(format!("{damaged} frames are damaged, which no crash does"));
        }
        let holder = self.state().holder.clone();
        let (journal, writing) = start(Held { disk: self.clone(), holder: holder.clone() }, ground, bounds);
        tokio::spawn(async move { holder.run_until_cancelled_owned(writing).await });
        Ok((journal, recovered))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The disk, for the process that holds the journal.
struct Held {
    disk: Disk,
    holder: CancellationToken,
}

impl Held {
    /// Never returns if the process is dead: its task may be polled one more time.
    async fn lives(&self) {
        if self.holder.is_cancelled() {
            std::future::pending::<()>().await;
        }
    }

    async fn take_time(&self) {
        let pace = (self.disk.0.pace)();
        if !pace.is_zero() {
            sleep(pace).await;
        }
        self.lives().await;
    }
}

impl Log for Held {
    async fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.lives().await;
        let is_full = {
            let state = &mut *self.disk.state();
            let is_full = matches!(state.trouble, Trouble::NoRoom | Trouble::Stuck);
            state.bytes.extend_from_slice(if is_full { &bytes[..bytes.len() / 2] } else { bytes });
            is_full
        };
        self.take_time().await;
        if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    async fn sync(&mut self) -> io::Result<()> {
        self.take_time().await;
        let state = &mut *self.disk.state();
        if state.trouble == Trouble::NoSync {
            return Err(io::Error::other("the disk does not answer"));
        }
        if self.disk.0.flaw != Flaw::SyncsNothing {
            state.synced = state.bytes.len();
        }
        Ok(())
    }

    async fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.take_time().await;
        let state = &mut *self.disk.state();
        if state.trouble == Trouble::Stuck {
            return Err(io::Error::other("the disk does not answer"));
        }
        if self.disk.0.flaw != Flaw::CutsNothing {
            state.bytes.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        state.synced = state.bytes.len();
        Ok(())
    }

    async fn copy(&mut self, keep: &[Range<u64>]) -> io::Result<()> {
        self.take_time().await;
        let state = &mut *self.disk.state();
        if state.trouble != Trouble::None {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.new = HEADER.to_vec();
        for part in keep {
            let place = |at| usize::try_from(at).unwrap_or(usize::MAX);
            let part = state.bytes.get(place(part.start)..place(part.end));
            state.new.extend_from_slice(part.ok_or_else(|| io::Error::other("it is not so long"))?);
        }
        Ok(())
    }

    async fn swap(&mut self) -> io::Result<()> {
        self.take_time().await;
        let state = &mut *self.disk.state();
        state.bytes = std::mem::take(&mut state.new);
        state.synced = state.bytes.len();
        Ok(())
    }
}
