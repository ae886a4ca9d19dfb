//! The disk engine: claims in a folder that one process has locked. An answer waits for an fsync of the data that it
//! depends on. Many calls share one fsync.
//!
//! Continue with `writer` (the loop), `batch` (transitions), `store` (the database), `row` (its layout), `journals` and `torn` (before it is
//! opened) and `folder` (the folder); `backup` and `restore` are apart from these. Reasons are in `docs/adr/0004-disk-group-commit-and-clock.md`.

mod aging;
mod backup;
mod batch;
mod failure;
mod folder;
mod journals;
mod restore;
mod row;
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
use oncegate_core::claim::{
    self, ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::clock::{Clock, SteadyClock, Timestamp};
use oncegate_core::engine::notification::Hub;
use oncegate_core::engine::{
    Backup, BatchClaim, Capabilities, ChangeResponse, Channel, ClaimSink, Claims, EngineError, Node, OneShard,
    RecordChange, RecordName, RecordView, Records, StoreIdentity, Subscription, claim_each, without_index_of_unknowns,
};
use oncegate_core::operator::{
    self, ListRequest, ListedClaim, LockListRequest, LockPage, ReleaseRequest, ReleaseResponse, UnknownsPage,
    UnknownsRequest,
};
use oncegate_core::record::{Key, LiveClaim};
use oncegate_driver::scheme::{self, Promise, Scheme};
use oncegate_folder::Holder;
use tokio::sync::{Semaphore, oneshot};

use self::aging::Aging;
use self::batch::Batch;
use self::failure::words;
pub use self::folder::DiskOpenError;
use self::folder::Folder;
use self::store::{Fsync, Persist, Store};
use self::writer::{Job, QueuedCall, Stopped, Writer};

/// Time limit of dropping an open engine, which waits for its writer. The writer ends at once unless the disk hangs.
const DROP_TIMEOUT: Duration = Duration::from_secs(10);

/// Memory and timing of a disk engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of the read cache in bytes.
    pub cache_bytes: u64,
    /// Bytes of new rows in memory before they are flushed; a few times as many while the disk is slow. Applies when the
    /// folder is created.
    pub memtable_bytes: u64,
    /// Calls in the queue or in progress at once; more wait for a permit.
    pub queue_max: usize,
    /// Maximum number of calls that share one fsync.
    pub batch_max: usize,
    /// Interval at which an idle engine looks for ended claims.
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
    addresses: scheme::no_servers,
    capabilities: Capabilities { strict_fence: true, durable: true, shared: false, forever: true, lists: true },
    promise: |_| Promise::new("Survives kill -9 and power loss of this machine; serves a single gateway."),
    open: |url, host| {
        let disk = Disk::open(path(url)?, host.clock, Options::default());
        Ok(Arc::new(disk.map_err(scheme::OpenError::new)?))
    },
    restore: Some(|url, backup| restore::restore(path(url)?, backup)),
    inspect: Some(|url| Box::pin(async move { inspect(&url) })),
};

/// Checks the folder of a URL. Does not lock it: a gateway may be using it, or may be about to start.
fn inspect(url: &str) -> scheme::Inspection {
    let mut found = scheme::Inspection::default();
    let folder = match path(url) {
        Ok(folder) => folder,
        Err(error) => {
            found.problems.push(error.to_string());
            return found;
        }
    };
    let shown = folder.display();
    match std::fs::metadata(folder) {
        Ok(there) if there.is_dir() => found
            .facts
            .push(format!("the folder {shown} is there; its content was not opened, since a gateway may be using it")),
        Ok(_) => found.problems.push(format!("{shown} is not a folder; name a folder, such as disk:./claims")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            found.facts.push(format!("the folder {shown} is not there; the first start creates it"));
        }
        Err(error) => found.problems.push(format!(
            "the folder {shown} cannot be read: {error}; give the gateway's user rights to it, or name another folder"
        )),
    }
    found
}

/// Returns the folder of a URL.
fn path(url: &str) -> Result<&Path, scheme::OpenError> {
    let path = url.strip_prefix("disk:").filter(|path| !path.is_empty());
    path.map(Path::new)
        .ok_or_else(|| scheme::OpenError::new("a disk engine is written as disk:PATH, such as disk:./claims"))
}

/// Claims in a folder.
pub struct Disk {
    queue: Sender<Job>,
    permits: Arc<Semaphore>,
    stopped: Stopped,
    /// Never receives anything; closed when the writer ends.
    writer: Mutex<Receiver<()>>,
    hub: Arc<Hub>,
    /// The folder was restored from a backup, and this is its first use.
    is_restored: bool,
}

impl Disk {
    /// Opens the engine in this folder, and creates it if there is none. Blocks while the journal is written again and replayed, for
    /// a second at most. After a failed write the engine opens its database again, without a restart.
    ///
    /// The engine's clock continues from its last stored instant, or from the wall clock if that is later.
    pub fn open(path: &Path, clock: Arc<dyn Clock>, options: Options) -> Result<Self, DiskOpenError> {
        Self::open_with(path, clock, options, Box::new(Fsync))
    }

    fn open_with(
        path: &Path,
        clock: Arc<dyn Clock>,
        options: Options,
        persist: Box<dyn Persist>,
    ) -> Result<Self, DiskOpenError> {
        let folder = Folder::open(path)?;
        let damaged = |why: String| DiskOpenError::Damaged(path.to_owned(), why);
        let store = Store::open(&folder.database(), &options, persist).map_err(|error| match error {
            fjall::Error::Io(error) => DiskOpenError::io(path, error),
            fjall::Error::Locked => DiskOpenError::Held(path.to_owned(), Holder::UNKNOWN),
            error => damaged(words(&error)),
        })?;
        let watermarks = store.watermarks().map_err(|error| damaged(error.reason().to_owned()))?;
        let restored_from = store.take_restored(watermarks).map_err(damaged)?;
        if let Some(made_at) = restored_from {
            tracing::warn!(
                engine.path = %path.display(), backup.made_at = %made_at,
                "The store was restored from a backup, and does not know what was done since"
            );
        }
        let permits = Arc::new(Semaphore::new(options.queue_max));
        let hub = Hub::local();
        let writer =
            Writer::new(store, folder, SteadyClock::new(clock, watermarks.now), watermarks, options, hub.clone());
        let stopped = writer.stopped.clone();
        let (queue, jobs) = channel();
        let (alive, ended) = channel();
        let run = move || {
            // Dropped after the writer, also if it panics.
            let _alive = alive;
            writer.run(&jobs);
        };
        let thread = std::thread::Builder::new().name("disk-writer".into()).spawn(run);
        thread.map_err(|error| DiskOpenError::io(path, error))?;
        Ok(Self { queue, permits, stopped, writer: Mutex::new(ended), hub, is_restored: restored_from.is_some() })
    }

    /// Queues a call once there is a permit. Its answer comes when the data that it depends on is durable.
    async fn call<Response: Aging + Send + 'static>(
        &self,
        work: impl FnOnce(&mut Batch<'_>, Timestamp) -> Result<Response, EngineError> + Send + 'static,
    ) -> Result<Response, EngineError> {
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| self.stopped.error())?;
        let (reply, answer) = oneshot::channel();
        // If the writer has ended, dropping the call answers it.
        let _ = self.queue.send(Job::Call(QueuedCall::new(work, reply, permit, self.stopped.clone())));
        let lost = |_| Err(EngineError::indeterminate("the writer ended without an answer; restart the gateway"));
        answer.await.unwrap_or_else(lost)
    }

    /// Asks the writer to end, without a permit: a full queue must not prevent closing.
    fn begin_close(&self) -> oneshot::Receiver<Result<(), EngineError>> {
        let (reply, closed) = oneshot::channel();
        let _ = self.queue.send(Job::Close(reply));
        closed
    }
}

#[async_trait]
impl Claims for Disk {
    async fn claim(&self, request: &ClaimRequest, _: Duration) -> Result<ClaimResponse, EngineError> {
        let request = request.clone();
        self.call(move |batch, now| {
            batch.apply(&request.key, now, |live, fence| claim::claim(live, &request, Some(fence)))
        })
        .await
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        claim_each(self, claims, sink).await;
    }

    async fn settle(&self, request: &OutcomeRequest, _: Duration) -> Result<OutcomeResponse, EngineError> {
        let request = request.clone();
        self.call(move |batch, now| batch.apply(&request.key, now, |live, _| claim::settle(live, &request))).await
    }

    async fn renew(&self, request: &RenewalRequest, _: Duration) -> Result<RenewalResponse, EngineError> {
        let request = request.clone();
        self.call(move |batch, now| batch.apply(&request.key, now, |live, _| claim::renew(live, &request))).await
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        let key = key.clone();
        self.call(move |batch, now| batch.read(&key, now)).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        let request = request.clone();
        self.call(move |batch, now| batch.apply(&request.key, now, |live, _| operator::release(live, &request))).await
    }

    async fn list(&self, request: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        let (mut listed, mut last) = (Vec::new(), None);
        let mut step = request.clone();
        // Reads in steps, so that other calls run in between: the filter may match few of many claims.
        while step.limit > 0 {
            let asked = step.clone();
            let page = self.call(move |batch, now| writer::list(batch.store, &asked, now)).await?;
            listed = listed.aged(last.map_or(Duration::ZERO, |last| page.at.since(last)));
            last = Some(page.at);
            listed.extend(page.listed);
            step.limit = request.limit - listed.len();
            step.after = page.next;
            if page.next.is_none() {
                break;
            }
        }
        Ok(listed)
    }

    async fn unknowns(&self, _: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        Err(without_index_of_unknowns())
    }
}

#[async_trait]
impl Records for Disk {
    async fn get_record(&self, name: &RecordName, _: Duration) -> Result<RecordView, EngineError> {
        let name = name.clone();
        self.call(move |batch, now| batch.get_record(&name, now)).await
    }

    async fn change_record(&self, change: &RecordChange, _: Duration) -> Result<ChangeResponse, EngineError> {
        let own = change.clone();
        let answer = self.call(move |batch, now| batch.change_record(own, now)).await?;
        if change.notifies && matches!(answer, ChangeResponse::Stored(_)) {
            self.hub.notify_record(&change.name);
        }
        Ok(answer)
    }

    async fn list_records(&self, request: &LockListRequest) -> Result<LockPage, EngineError> {
        let request = request.clone();
        self.call(move |batch, now| batch.store.list_locks(&request, now)).await
    }

    async fn subscribe(&self, channel: &Channel) -> Subscription {
        self.hub.subscribe(channel)
    }
}

#[async_trait]
impl OneShard for Disk {
    fn capabilities(&self) -> Capabilities {
        SCHEME.capabilities
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.call(|_, _| Ok(())).await
    }

    fn data_lost(&self) -> u64 {
        u64::from(self.is_restored)
    }

    fn nodes(&self) -> Vec<Node> {
        Vec::new()
    }

    fn identity(&self) -> Option<StoreIdentity> {
        None
    }

    async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        // Runs between two batches, so the backup has everything that was answered, and nothing that is not durable
        // yet.
        self.call(|batch, now| batch.store.begin_backup(now).map(Started)).await.map(|Started(backup)| Some(backup))
    }

    async fn close(&self) {
        let _ = self.begin_close().await;
    }
}

/// A started backup. Its age changes nothing.
struct Started(Backup);

impl Aging for Started {
    fn aged(self, _: Duration) -> Self {
        self
    }
}

impl Drop for Disk {
    /// Waits for the writer, so that the folder can be opened again at once.
    fn drop(&mut self) {
        drop(self.begin_close());
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = writer.recv_timeout(DROP_TIMEOUT);
    }
}
