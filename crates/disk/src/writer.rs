//! The only thread that uses the database: takes the queued calls, applies them as one batch, makes the batch durable with one
//! fsync, and then answers. On an idle engine a batch is a single call: no call waits for others to come.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncegate_core::clock::{SteadyClock, Timestamp};
use oncegate_core::engine::EngineError;
use oncegate_core::engine::notification::Hub;
use oncegate_core::global_id::GlobalId;
use oncegate_core::operator::{ListRequest, ListedClaim};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::Options;
use super::aging::Aging;
use super::batch::Batch;
use super::failure::words;
use super::folder::Folder;
use super::row::Watermarks;
use super::store::Store;

/// Maximum number of ended claims that a batch deletes: few enough not to delay its calls.
const SWEPT_PER_BATCH: usize = 256;

/// Maximum number of claims that one step of a list reads: few enough not to delay other calls.
const LISTED_PER_CALL: usize = 256;

/// Pause of the sweep, by the engine's clock, after it has found no more ended claims.
const SWEEP_PAUSE: Duration = Duration::from_millis(50);

/// Sender of an answer. Its caller may have stopped waiting.
pub(super) type Reply<Response> = oneshot::Sender<Result<Response, EngineError>>;

/// Job in the queue of the writer.
pub(super) enum Job {
    Call(QueuedCall),
    /// Answer the queued calls, and release the store.
    Close(Reply<()>),
}

/// A call in the queue. If it is dropped before its start, it answers that it did nothing.
pub(super) struct QueuedCall {
    work: Option<Work>,
    stopped: Stopped,
}

/// The first half of a call: applies it to a batch at an instant, or answers with the reason why it is not done.
type Work = Box<dyn FnOnce(Result<(&mut Batch<'_>, Timestamp), EngineError>) -> Option<Completion> + Send>;

/// One step through a list of claims.
pub(super) struct Page {
    pub(super) listed: Vec<ListedClaim>,
    /// Time of the read.
    pub(super) at: Timestamp,
    /// Last claim that was read; nothing at the end of the list.
    pub(super) next: Option<GlobalId>,
}

impl Aging for Page {
    fn aged(self, by: Duration) -> Self {
        Self { listed: self.listed.aged(by), ..self }
    }
}

/// Pause between two attempts to open the database again.
const REOPEN_PAUSE: Duration = Duration::from_millis(100);

/// Reason why the engine answers nothing now, if so.
#[derive(Clone, Default)]
pub(super) struct Stopped(Arc<Mutex<Option<String>>>);

impl Stopped {
    /// Returns the answer to a call that has not started.
    pub(super) fn error(&self) -> EngineError {
        let why = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        EngineError::unavailable(why.unwrap_or_else(|| "its writer has ended; restart the gateway".into()))
    }

    fn set(&self, why: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

/// The writer's own state.
pub(super) struct Writer {
    store: Store,
    folder: Folder,
    clock: SteadyClock,
    watermarks: Watermarks,
    options: Options,
    pub(super) stopped: Stopped,
    /// Start of the next sweep among the ends. Nothing is inserted before it, since it has passed and ends are in the
    /// future. Without it, each sweep would read over the deleted rows of earlier ones.
    sweep_from: Vec<u8>,
    sweep_at: Timestamp,
    hub: Arc<Hub>,
}

/// The second half of a call: answers once the batch is durable, or with the reason why that is unknown.
type Completion = Box<dyn FnOnce(Result<Timestamp, EngineError>) + Send>;

impl Writer {
    pub(super) fn new(
        store: Store,
        folder: Folder,
        clock: SteadyClock,
        watermarks: Watermarks,
        options: Options,
        hub: Arc<Hub>,
    ) -> Self {
        let (stopped, sweep_from, sweep_at) = (Stopped::default(), Vec::new(), Timestamp::default());
        Self { store, folder, clock, watermarks, options, stopped, sweep_from, sweep_at, hub }
    }

    /// Answers calls until a call closes the engine, or the engine is dropped. After a failed write it opens the database again.
    pub(super) fn run(mut self, queue: &Receiver<Job>) {
        loop {
            let mut closing = None;
            let failed = match self.serve(queue, &mut closing) {
                Ok(()) => match self.finish(queue, &mut closing) {
                    Ok(()) => return self.close(closing),
                    Err(why) => why,
                },
                Err(why) => why,
            };
            match self.recover(&failed, queue, closing) {
                Some(opened) => self = opened,
                None => return,
            }
        }
    }

    /// Answers calls until a call closes the engine, the engine is dropped, or the store fails.
    fn serve(&mut self, queue: &Receiver<Job>, closing: &mut Option<Reply<()>>) -> Result<(), String> {
        let mut behind = false;
        while closing.is_none() {
            let wait = if behind { Duration::ZERO } else { self.options.sweep_every };
            let first = match queue.recv_timeout(wait) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            behind = self.round(first, queue, closing)?;
        }
        Ok(())
    }

    /// Runs one batch: apply, write, make durable, answer. Returns whether there is more to sweep.
    fn round(
        &mut self,
        first: Option<Job>,
        queue: &Receiver<Job>,
        closing: &mut Option<Reply<()>>,
    ) -> Result<bool, String> {
        let idle = first.is_none();
        let mut batch = Batch::new(&self.store, self.watermarks);
        let mut answers = Vec::new();
        let mut next = first;
        while let Some(job) = next {
            let call = match job {
                Job::Call(call) => call,
                Job::Close(reply) => {
                    *closing = Some(reply);
                    break;
                }
            };
            // Read for each call: a later call of the batch began after the first one.
            answers.extend(call.begin(&mut batch, self.clock.now()));
            next = if answers.len() < self.options.batch_max { queue.try_recv().ok() } else { None };
        }
        let now = self.clock.now();
        let behind = if idle || now >= self.sweep_at {
            let more = sweep(&self.store, &mut batch, &mut self.sweep_from, now);
            self.sweep_at = if more { now } else { now.plus(SWEEP_PAUSE) };
            more
        } else {
            false
        };
        if let Err(error) = batch.commit() {
            let why = format!("a write failed, and it is not known what of it is on the disk: {}", words(&error));
            for answer in answers {
                answer(Err(EngineError::indeterminate(&why)));
            }
            return Err(why);
        }
        self.watermarks = batch.watermarks;
        let durable_at = self.clock.now();
        for answer in answers {
            answer(Ok(durable_at));
        }
        batch.ended.iter().for_each(|key| self.hub.notify_claim(key));
        Ok(behind)
    }

    /// Answers the calls that are queued behind the one to close.
    fn finish(&mut self, queue: &Receiver<Job>, closing: &mut Option<Reply<()>>) -> Result<(), String> {
        while let Ok(job) = queue.try_recv() {
            let mut closed_again = None;
            self.round(Some(job), queue, &mut closed_again)?;
            if closed_again.is_some() {
                *closing = closed_again;
            }
        }
        Ok(())
    }

    /// Releases the store and the folder.
    fn close(self, closing: Option<Reply<()>>) {
        self.stopped.set(Some("it has been closed".into()));
        let Self { store, folder, .. } = self;
        // In this order: the folder must stay locked while threads of the database run.
        drop(store);
        drop(folder);
        if let Some(reply) = closing {
            let _ = reply.send(Ok(()));
        }
    }

    /// Opens the database again after a failed write, as soon as it can be written, and refuses calls until then. Nothing if the
    /// engine is closed instead.
    fn recover(self, why: &str, queue: &Receiver<Job>, mut closing: Option<Reply<()>>) -> Option<Self> {
        let Self { store, folder, clock, watermarks, options, stopped, hub, .. } = self;
        let path = folder.path().display();
        tracing::error!(engine.path = %path, "The disk engine answers nothing until it can be written again: {why}");
        stopped.set(Some(format!("{why}; it is opened again as soon as it can be written")));
        let mut persist = store.close();
        while closing.is_none() {
            match refuse(queue) {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(None) => return None,
                ControlFlow::Break(reply) => closing = reply,
            }
            match Store::reopen(&folder.database(), &options, persist, watermarks) {
                Ok((store, watermarks)) => {
                    tracing::info!(engine.path = %path, "The disk engine can be written again, and answers calls");
                    stopped.set(None);
                    let mut opened = Self::new(store, folder, clock, watermarks, options, hub);
                    opened.stopped = stopped;
                    return Some(opened);
                }
                Err((returned, why)) => {
                    persist = returned;
                    stopped.set(Some(format!("it cannot be written: {why}; this is tried again")));
                }
            }
        }
        stopped.set(Some("it has been closed".into()));
        drop(folder);
        let _ = closing?.send(Ok(()));
        None
    }
}

/// Waits for a pause, and refuses the calls that have come. Breaks if the engine is closed, with the reply to that call, or dropped.
fn refuse(queue: &Receiver<Job>) -> ControlFlow<Option<Reply<()>>> {
    std::thread::sleep(REOPEN_PAUSE);
    loop {
        match queue.try_recv() {
            // Dropped, it answers why.
            Ok(Job::Call(call)) => drop(call),
            Ok(Job::Close(reply)) => return ControlFlow::Break(Some(reply)),
            Err(TryRecvError::Empty) => return ControlFlow::Continue(()),
            Err(TryRecvError::Disconnected) => return ControlFlow::Break(None),
        }
    }
}

/// Lets the batch delete some of the claims that ended by `now`, beginning at `from`. Returns whether there may be more.
fn sweep(store: &Store, batch: &mut Batch<'_>, from: &mut Vec<u8>, now: Timestamp) -> bool {
    // A later sweep tries unreadable records again; calls that need such a record fail with the reason.
    let ended = store.ended(from, now, SWEPT_PER_BATCH).unwrap_or_default();
    for end_key in &ended {
        batch.sweep(end_key, now);
    }
    if let Some(last) = ended.last() {
        // The smallest key after it.
        *from = [last, &[0][..]].concat();
    }
    ended.len() == SWEPT_PER_BATCH
}

/// Reads the next claims of an app, and returns those of the list. The changes of the same batch are not among them: their
/// callers have no answer yet.
pub(super) fn list(store: &Store, request: &ListRequest, at: Timestamp) -> Result<Page, EngineError> {
    let rows = store.rows(&request.realm.namespace(&request.app), request.after, LISTED_PER_CALL)?;
    let mut next = rows.last().map(|(global_id, _)| *global_id).filter(|_| rows.len() == LISTED_PER_CALL);
    let mut listed = Vec::new();
    for (global_id, row) in rows {
        if listed.len() == request.limit {
            next = listed.last().map(|last: &ListedClaim| last.global_id);
            break;
        }
        let live = row.live_claim(at).filter(|live| request.state.is_none_or(|state| live.record.state == state));
        listed.extend(live.map(|claim| ListedClaim { global_id, claim }));
    }
    Ok(Page { listed, at, next })
}

impl QueuedCall {
    /// Creates a call. `permit` is released when it has been answered.
    pub(super) fn new<Response: Aging + Send + 'static>(
        work: impl FnOnce(&mut Batch<'_>, Timestamp) -> Result<Response, EngineError> + Send + 'static,
        reply: Reply<Response>,
        permit: OwnedSemaphorePermit,
        stopped: Stopped,
    ) -> Self {
        let work = move |turn: Result<(&mut Batch<'_>, Timestamp), EngineError>| match turn {
            Ok((batch, now)) => Some(later(now, work(batch, now), reply, permit)),
            Err(why) => {
                let _ = reply.send(Err(why));
                None
            }
        };
        Self { work: Some(Box::new(work)), stopped }
    }

    fn begin(mut self, batch: &mut Batch<'_>, now: Timestamp) -> Option<Completion> {
        self.work.take().and_then(|work| work(Ok((batch, now))))
    }
}

impl Drop for QueuedCall {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            work(Err(self.stopped.error()));
        }
    }
}

/// Returns the second half of a call: it sends the answer once the batch is durable.
fn later<Response: Aging + Send + 'static>(
    read_at: Timestamp,
    response: Result<Response, EngineError>,
    reply: Reply<Response>,
    permit: OwnedSemaphorePermit,
) -> Completion {
    Box::new(move |durable_at| {
        // A failed call has changed nothing, whether or not the batch is durable.
        let answer = response.and_then(|response| durable_at.map(|at| response.aged(at.since(read_at))));
        // Released before the answer is sent, so that its caller finds a permit.
        drop(permit);
        let _ = reply.send(answer);
    })
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    #[test]
    fn a_call_that_is_dropped_before_it_has_started_did_certainly_nothing() {
        let (permits, stopped) = (Arc::new(Semaphore::new(1)), Stopped::default());
        let call = || {
            let (reply, answer) = oneshot::channel();
            let permit = permits.clone().try_acquire_owned().unwrap();
            (QueuedCall::new(|_, _| Ok(()), reply, permit, stopped.clone()), answer)
        };
        for why in ["its writer has ended", "the disk is full"] {
            let (call, mut answer) = call();
            drop(call);
            let refused = answer.try_recv().unwrap().unwrap_err();
            assert!(!refused.is_uncertain() && refused.to_string().contains(why), "{refused}");
            assert_eq!(permits.available_permits(), 1);
            stopped.set(Some("the disk is full".into()));
        }
    }
}
