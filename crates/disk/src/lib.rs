//! The disk engine: claims in a directory that one process holds. An answer is given only after an fsync of what it
//! depends on; many calls share one.
//!
//! Read on in `writer` (the loop), `batch` (what calls make of claims), `store` (how claims lie in the database),
//! `torn` (what a power loss leaves of it) and `folder` (the directory). Why it is so: `docs/adr/0004-disk-group-commit-and-clock.md`.

mod aging;
mod batch;
mod folder;
mod store;
#[cfg(test)]
mod tests;
mod torn;
mod writer;

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use oncegate_core as domain;
use oncegate_core::engine;
use oncegate_driver::scheme::{self, Scheme};
use oncegate_folder::Holder;
use tokio::sync::{Semaphore, oneshot};

use self::aging::Aging;
use self::folder::Folder;
pub use self::folder::OpenError;
use self::store::{Fsync, Persist, Store};
use self::writer::{Ask, Job, Reply, Stopped, Writer};
use crate::domain::claim::{
    ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::domain::clock::{Clock, SteadyClock};
use crate::domain::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::domain::record::{Key, LiveClaim};
use crate::engine::{Capabilities, Engine, EngineError, Metadata};

/// How long dropping an engine that was not closed waits for its writer. The writer ends at once unless the disk hangs.
const DROP_PATIENCE: Duration = Duration::from_secs(10);

/// How a disk engine uses memory and time.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the database that are kept in memory for reading.
    pub cache_bytes: u64,
    /// Bytes of new rows that are kept in memory before they are sorted away; a few times as many while the disk is
    /// behind. Taken when the directory is made.
    pub memtable_bytes: u64,
    /// Calls that may wait or be in work at once; more wait outside.
    pub queue_max: usize,
    /// Calls that share one fsync at most.
    pub batch_max: usize,
    /// How often an idle engine looks for claims that have ended.
    pub sweep_every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            memtable_bytes: 16 << 20,
            queue_max: 4096,
            batch_max: 1024,
            sweep_every: Duration::from_millis(500),
        }
    }
}

/// The scheme of the disk engine.
pub static SCHEME: Scheme = Scheme {
    names: &["disk"],
    forms: &["disk:PATH"],
    parse: |url| path(url).map(drop),
    check_files: scheme::no_files,
    capabilities: Capabilities { strict_fence: true, durable: true, shared: false, forever: true, lists: true },
    open: |url, host| {
        let disk = Disk::open(path(url)?, host.clock, Options::default());
        Ok(Arc::new(disk.map_err(scheme::OpenError::new)?))
    },
};

/// Returns the folder of a URL.
fn path(url: &str) -> Result<&Path, scheme::OpenError> {
    let path = url.strip_prefix("disk:").filter(|path| !path.is_empty());
    path.map(Path::new)
        .ok_or_else(|| scheme::OpenError::new("a disk engine is written as disk:PATH, such as disk:./claims"))
}

/// Claims in a directory.
pub struct Disk {
    queue: Sender<Job>,
    places: Arc<Semaphore>,
    stopped: Stopped,
    /// Nothing ever comes here; it ends with the writer.
    writer: Mutex<Receiver<()>>,
}

impl Disk {
    /// Opens the engine in this directory, and makes it if there is none. Blocks while the end of the journal is read,
    /// for a second at most.
    ///
    /// Time goes on from where the engine's own time stood when it last wrote, or from the wall clock if that is later.
    pub fn open(path: &Path, clock: Arc<dyn Clock>, options: Options) -> Result<Self, OpenError> {
        Self::open_with(path, clock, options, Box::new(Fsync))
    }

    fn open_with(
        path: &Path,
        clock: Arc<dyn Clock>,
        options: Options,
        persist: Box<dyn Persist>,
    ) -> Result<Self, OpenError> {
        let folder = Folder::take(path)?;
        let damaged = |why: String| OpenError::Damaged { path: path.to_owned(), why };
        let store = Store::open(&folder.database(), &options, persist).map_err(|error| match error {
            fjall::Error::Io(error) => OpenError::io(path, error),
            fjall::Error::Locked => OpenError::Held { path: path.to_owned(), holder: Holder::UNKNOWN },
            error => damaged(error.to_string()),
        })?;
        let marks = store.marks().map_err(|error| damaged(error.to_string()))?;
        let places = Arc::new(Semaphore::new(options.queue_max));
        let writer = Writer::new(store, folder, SteadyClock::new(clock, marks.now), marks, options);
        let stopped = writer.stopped();
        let (queue, jobs) = channel();
        let (alive, ended) = channel();
        let end = WriterEnd { places: places.clone(), _alive: alive };
        let run = move || {
            // Dropped last, also if the writer panics.
            let _end = end;
            writer.run(&jobs);
        };
        let thread = std::thread::Builder::new().name("disk-writer".into()).spawn(run);
        thread.map_err(|error| OpenError::io(path, error))?;
        Ok(Self { queue, places, stopped, writer: Mutex::new(ended) })
    }

    /// Puts a call into the queue, once there is a place. Its answer comes when what it depends on is durable.
    async fn call<Answer>(&self, ask: impl FnOnce(Reply<Answer>) -> Ask) -> Result<Answer, EngineError> {
        let place = self.places.clone().acquire_owned().await.map_err(|_| self.stopped.refusal())?;
        self.stopped.check()?;
        let (reply, answer) = oneshot::channel();
        // Sent too late, the call answers for itself.
        let _ = self.queue.send(Job::new(ask(reply), Some(place), self.stopped.clone()));
        let lost = |_| Err(EngineError::indeterminate("the writer ended without an answer; restart the gateway"));
        answer.await.unwrap_or_else(lost)
    }

    /// Tells the writer to end. Not through a place: a full queue is no reason not to close.
    fn begin_close(&self) -> oneshot::Receiver<Result<(), EngineError>> {
        let (reply, closed) = oneshot::channel();
        let _ = self.queue.send(Job::new(Ask::Close(reply), None, self.stopped.clone()));
        closed
    }
}

/// What happens when the writer's thread ends, however it ends: nobody waits for a place any more.
struct WriterEnd {
    places: Arc<Semaphore>,
    _alive: Sender<()>,
}

impl Drop for WriterEnd {
    fn drop(&mut self) {
        self.places.close();
    }
}

#[async_trait]
impl Engine for Disk {
    async fn claim(&self, ask: &ClaimRequest, _: Duration) -> Result<ClaimResponse, EngineError> {
        self.call(|reply| Ask::Claim(Box::new(ask.clone()), reply)).await
    }

    async fn settle(&self, ask: &OutcomeRequest, _: Duration) -> Result<OutcomeResponse, EngineError> {
        self.call(|reply| Ask::Settle(Box::new(ask.clone()), reply)).await
    }

    async fn renew(&self, ask: &RenewalRequest, _: Duration) -> Result<RenewalResponse, EngineError> {
        self.call(|reply| Ask::Renew(ask.clone(), reply)).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        self.call(|reply| Ask::Read(key.clone(), reply)).await
    }

    async fn release(&self, ask: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        self.call(|reply| Ask::Release(ask.clone(), reply)).await
    }

    async fn list(&self, ask: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        let (mut listed, mut last) = (Vec::new(), None);
        let mut step = ask.clone();
        // In steps, so that other calls get their turn: few claims of many may be asked for.
        while step.limit > 0 {
            let page = self.call(|reply| Ask::List(step.clone(), reply)).await?;
            listed = listed.aged(last.map_or(Duration::ZERO, |last| page.at.since(last)));
            last = Some(page.at);
            listed.extend(page.listed);
            step.limit = ask.limit - listed.len();
            step.after = page.next;
            if page.next.is_none() {
                break;
            }
        }
        Ok(listed)
    }

    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        self.call(|reply| Ask::Metadata(name.to_owned(), reply)).await
    }

    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        self.call(|reply| Ask::SwapNote(name.to_owned(), expected.cloned(), new.clone(), reply)).await
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.call(Ask::Probe).await
    }

    fn capabilities(&self) -> Capabilities {
        SCHEME.capabilities
    }

    async fn close(&self) {
        let _ = self.begin_close().await;
    }
}

impl Drop for Disk {
    /// Waits for the writer, so that the directory can be opened again at once.
    fn drop(&mut self) {
        drop(self.begin_close());
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = writer.recv_timeout(DROP_PATIENCE);
    }
}
