//! A journal's disk in memory, for simulations: what it does takes of the runtime's time, and a crash may come between any two
//! steps. It keeps what was synced, and of the rest as much as is wanted. For tests only.

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

/// A disk, which outlives the processes that use it.
#[derive(Clone)]
pub struct Disk(Arc<Machine>);

struct Machine {
    /// How long the next thing takes.
    pace: Box<dyn Fn() -> Duration + Send + Sync>,
    /// Whether it says that it has synced, and has not.
    lies: bool,
    file: Mutex<State>,
}

struct State {
    bytes: Vec<u8>,
    /// So many of them outlive whatever happens.
    synced: usize,
    /// What has been made to take the file's place.
    new: Vec<u8>,
    /// The process that holds it.
    holder: CancellationToken,
}

impl Disk {
    /// An empty disk, and how long each thing takes that is done with it. One that lies syncs nothing, and says so to nobody.
    pub fn new(pace: impl Fn() -> Duration + Send + Sync + 'static, lies: bool) -> Self {
        let (bytes, synced) = (HEADER.to_vec(), HEADER.len());
        let file = Mutex::new(State { bytes, synced, new: Vec::new(), holder: CancellationToken::new() });
        Self(Arc::new(Machine { pace: Box::new(pace), lies, file }))
    }

    /// The process that holds the journal dies where it stands. Of what it has written and not synced, `kept` says of how
    /// many bytes how many are found later.
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
        let (journal, writing) = start(self.clone(), ground, bounds);
        tokio::spawn(async move { holder.run_until_cancelled_owned(writing).await });
        Ok((journal, recovered))
    }

    async fn take_time(&self) {
        let pace = (self.0.pace)();
        if !pace.is_zero() {
            sleep(pace).await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log for Disk {
    async fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.state().bytes.extend_from_slice(bytes);
        self.take_time().await;
        Ok(())
    }

    async fn sync(&mut self) -> io::Result<()> {
        self.take_time().await;
        let state = &mut *self.state();
        if !self.0.lies {
            state.synced = state.bytes.len();
        }
        Ok(())
    }

    async fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.take_time().await;
        let state = &mut *self.state();
        state.bytes.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        state.synced = state.bytes.len();
        Ok(())
    }

    async fn copy(&mut self, keep: &[Range<u64>]) -> io::Result<()> {
        self.take_time().await;
        let state = &mut *self.state();
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
        let state = &mut *self.state();
        state.bytes = std::mem::take(&mut state.new);
        state.synced = state.bytes.len();
        Ok(())
    }
}
