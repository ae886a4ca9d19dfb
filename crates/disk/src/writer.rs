//! The one thread that touches the database: it takes what has queued up, judges it as one batch, makes the batch
//! durable with one fsync, and only then answers. A batch on an idle engine is a single call, so nothing ever waits for
//! company.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::Options;
use super::aging::Aging;
use super::batch::Batch;
use super::folder::Folder;
use super::store::{Marks, Store};
use crate::domain::claim::{
    self, ClaimRequest, ClaimResponse, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use crate::domain::clock::{SteadyClock, Timestamp};
use crate::domain::global_id::GlobalId;
use crate::domain::operator::{self, ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::domain::record::{Key, LiveClaim};
use crate::engine::{EngineError, Metadata};

/// How many ended claims one batch takes away at most: few enough that the calls in it do not notice.
const SWEPT_PER_BATCH: usize = 256;

/// How many claims one call of a list looks at: few enough that the calls beside it do not notice.
const LISTED_PER_CALL: usize = 256;

/// How long the sweeper rests, in the engine's own time, once it has found nothing more; there may be calls all along.
const SWEEP_REST: Duration = Duration::from_millis(50);

/// Where an answer goes. Its caller may have gone away.
pub(super) type Reply<Answer> = oneshot::Sender<Result<Answer, EngineError>>;

/// One call in the queue. Dropped before it was begun, it answers that it did not happen.
pub(super) struct Job {
    ask: Option<Ask>,
    /// Given back when the call has been answered.
    place: Option<OwnedSemaphorePermit>,
    stopped: Stopped,
}

/// What is asked, and where the answer goes.
pub(super) enum Ask {
    Claim(Box<ClaimRequest>, Reply<ClaimResponse>),
    Settle(Box<OutcomeRequest>, Reply<OutcomeResponse>),
    Renew(RenewalRequest, Reply<RenewalResponse>),
    Read(Key, Reply<Option<LiveClaim>>),
    Release(ReleaseRequest, Reply<ReleaseResponse>),
    List(ListRequest, Reply<Page>),
    Metadata(String, Reply<Option<Metadata>>),
    /// The name, what is expected, and the new one.
    SwapNote(String, Option<Metadata>, Metadata, Reply<bool>),
    Probe(Reply<()>),
    /// Answer what has queued up, and let go of the store.
    Close(Reply<()>),
}

/// One step through a list of claims.
pub(super) struct Page {
    pub(super) listed: Vec<ListedClaim>,
    /// As of when.
    pub(super) at: Timestamp,
    /// Where to go on; nothing at the end of the list.
    pub(super) next: Option<GlobalId>,
}

impl Aging for Page {
    fn aged(self, by: Duration) -> Self {
        Self { listed: self.listed.aged(by), ..self }
    }
}

/// Why the engine answers nothing any more, once it does not.
#[derive(Clone, Default)]
pub(super) struct Stopped(Arc<OnceLock<String>>);

impl Stopped {
    /// Refuses, if the engine has stopped.
    pub(super) fn check(&self) -> Result<(), EngineError> {
        self.0.get().map_or(Ok(()), |_| Err(self.refusal()))
    }

    /// What a call is told that was not begun.
    pub(super) fn refusal(&self) -> EngineError {
        EngineError::unavailable(self.0.get().map_or("its writer is gone; restart the gateway", String::as_str))
    }

    fn because(&self, why: String) {
        // The first reason stays.
        let _ = self.0.set(why);
    }
}

/// The writer's own state.
pub(super) struct Writer {
    store: Store,
    folder: Folder,
    clock: SteadyClock,
    marks: Marks,
    options: Options,
    stopped: Stopped,
    /// Where among the ends to sweep on. Nothing is ever put before it: it has gone by, and ends lie in the future.
    /// Without it, each sweep would walk over what the earlier ones left of the rows they deleted.
    sweep_from: Vec<u8>,
    sweep_at: Timestamp,
}

/// The second half of a call: told at which instant the batch is durable, or why that is not known, it answers.
type Answer = Box<dyn FnOnce(Result<Timestamp, EngineError>) + Send>;

impl Writer {
    pub(super) fn new(store: Store, folder: Folder, clock: SteadyClock, marks: Marks, options: Options) -> Self {
        let stopped = Stopped::default();
        Self { store, folder, clock, marks, options, stopped, sweep_from: Vec::new(), sweep_at: Timestamp::default() }
    }

    /// Where the reason can be read once the engine has stopped.
    pub(super) fn stopped(&self) -> Stopped {
        self.stopped.clone()
    }

    /// Answers calls until it is told to close, nobody is left to call, or the store fails.
    pub(super) fn run(mut self, queue: &Receiver<Job>) {
        let mut closing = None;
        let mut behind = false;
        while closing.is_none() {
            let wait = if behind { Duration::ZERO } else { self.options.sweep_every };
            let first = match queue.recv_timeout(wait) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match self.round(first, queue, &mut closing) {
                Ok(full) => behind = full,
                Err(why) => return self.fail(why),
            }
        }
        self.close(closing, queue);
    }

    /// One batch: judge, write, make durable, answer. Tells whether there is more to sweep.
    fn round(
        &mut self,
        first: Option<Job>,
        queue: &Receiver<Job>,
        closing: &mut Option<Reply<()>>,
    ) -> Result<bool, String> {
        let idle = first.is_none();
        let mut batch = Batch::new(&self.store, self.marks);
        let mut answers = Vec::new();
        let mut next = first;
        while let Some((ask, place)) = next.and_then(Job::begin) {
            // Read for each call: one that came while the batch was being judged began after its first.
            let now = self.clock.now();
            let answer = match ask {
                Ask::Claim(ask, reply) => {
                    let judged = batch.apply(&ask.key, now, |held, fence| claim::claim(held, &ask, Some(fence)));
                    later(now, judged, reply, place)
                }
                Ask::Settle(ask, reply) => {
                    later(now, batch.apply(&ask.key, now, |held, _| claim::settle(held, &ask)), reply, place)
                }
                Ask::Renew(ask, reply) => {
                    later(now, batch.apply(&ask.key, now, |held, _| claim::renew(held, &ask)), reply, place)
                }
                Ask::Read(key, reply) => later(now, batch.read(&key, now), reply, place),
                Ask::Release(ask, reply) => {
                    later(now, batch.apply(&ask.key, now, |held, _| operator::release(held, &ask)), reply, place)
                }
                // What the same batch has changed is not in it yet, nor has its caller been told so.
                Ask::List(ask, reply) => later(now, list(&self.store, &ask, now), reply, place),
                Ask::Metadata(name, reply) => later(now, batch.get_metadata(&name), reply, place),
                Ask::SwapNote(name, expected, new, reply) => {
                    later(now, batch.compare_and_set_metadata(&name, expected.as_ref(), new, now), reply, place)
                }
                Ask::Probe(reply) => later(now, Ok(()), reply, place),
                Ask::Close(reply) => {
                    *closing = Some(reply);
                    break;
                }
            };
            answers.push(answer);
            next = if answers.len() < self.options.batch_max { queue.try_recv().ok() } else { None };
        }
        let now = self.clock.now();
        let behind = if idle || now >= self.sweep_at {
            let full = sweep(&self.store, &mut batch, &mut self.sweep_from, now);
            self.sweep_at = if full { now } else { now.plus(SWEEP_REST) };
            full
        } else {
            false
        };
        let outcome = batch.finish();
        // With nothing to write there is nothing to wait for: all earlier batches are durable.
        if outcome.changed
            && let Err(error) = self.store.commit(outcome.changes(), &outcome.notes, &outcome.orphans, outcome.marks)
        {
            let why = format!("a write failed, and nobody knows what of it is on the disk: {error}");
            for answer in answers {
                answer(Err(EngineError::indeterminate(&why)));
            }
            return Err(why);
        }
        self.marks = outcome.marks;
        let durable_at = self.clock.now();
        for answer in answers {
            answer(Ok(durable_at));
        }
        Ok(behind)
    }

    /// Stops for good: what the disk holds now can only be told by reading it anew.
    fn fail(self, why: String) {
        tracing::error!(engine.path = %self.folder.path().display(), "the disk engine stops: {why}");
        self.stopped.because(why + "; restart the gateway");
    }

    /// Answers what has queued up behind the call to close, and lets go.
    fn close(mut self, mut closing: Option<Reply<()>>, queue: &Receiver<Job>) {
        while let Ok(job) = queue.try_recv() {
            let mut again = None;
            if let Err(why) = self.round(Some(job), queue, &mut again) {
                return self.fail(why);
            }
            closing = again.or(closing);
        }
        self.stopped.because("it has been closed".into());
        let Self { store, folder, .. } = self;
        // In this order: nobody may open the directory while the database's own threads still run.
        drop(store);
        drop(folder);
        if let Some(reply) = closing {
            let _ = reply.send(Ok(()));
        }
    }
}

/// Lets the batch take away some of the claims that have ended by `now`, from `from` on. Tells whether there may be more.
fn sweep(store: &Store, batch: &mut Batch<'_>, from: &mut Vec<u8>, now: Timestamp) -> bool {
    // What cannot be read now is left to a later sweep; claims that need it will say so themselves.
    let ended = store.ended(from, now, SWEPT_PER_BATCH).unwrap_or_default();
    for end_key in &ended {
        batch.sweep(end_key, now);
    }
    if let Some(last) = ended.last() {
        // The least key after it.
        *from = [last, &[0][..]].concat();
    }
    ended.len() == SWEPT_PER_BATCH
}

/// Looks through the next claims of an app for those that a list asks for.
fn list(store: &Store, ask: &ListRequest, at: Timestamp) -> Result<Page, EngineError> {
    let rows = store.rows(&ask.app, ask.after, LISTED_PER_CALL)?;
    let mut next = rows.last().map(|(global_id, _)| *global_id).filter(|_| rows.len() == LISTED_PER_CALL);
    let mut listed = Vec::new();
    for (global_id, row) in rows {
        if listed.len() == ask.limit {
            next = listed.last().map(|last: &ListedClaim| last.global_id);
            break;
        }
        let held = row.held(at).filter(|held| ask.state.is_none_or(|state| held.record.state == state));
        listed.extend(held.map(|claim| ListedClaim { global_id, claim }));
    }
    Ok(Page { listed, at, next })
}

impl Job {
    pub(super) fn new(ask: Ask, place: Option<OwnedSemaphorePermit>, stopped: Stopped) -> Self {
        Self { ask: Some(ask), place, stopped }
    }

    fn begin(mut self) -> Option<(Ask, Option<OwnedSemaphorePermit>)> {
        self.ask.take().map(|ask| (ask, self.place.take()))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        fn refuse<Told>(reply: Reply<Told>, stopped: &Stopped) {
            let _ = reply.send(Err(stopped.refusal()));
        }
        match self.ask.take() {
            None => {}
            Some(Ask::Claim(_, reply)) => refuse(reply, &self.stopped),
            Some(Ask::Settle(_, reply)) => refuse(reply, &self.stopped),
            Some(Ask::Renew(_, reply)) => refuse(reply, &self.stopped),
            Some(Ask::Read(_, reply)) => refuse(reply, &self.stopped),
            Some(Ask::Release(_, reply)) => refuse(reply, &self.stopped),
            Some(Ask::List(_, reply)) => refuse(reply, &self.stopped),
            Some(Ask::Metadata(_, reply)) => refuse(reply, &self.stopped),
            Some(Ask::SwapNote(.., reply)) => refuse(reply, &self.stopped),
            Some(Ask::Probe(reply) | Ask::Close(reply)) => refuse(reply, &self.stopped),
        }
    }
}

/// Keeps an answer until its batch is durable.
fn later<Told: Aging + Send + 'static>(
    judged_at: Timestamp,
    judged: Result<Told, EngineError>,
    reply: Reply<Told>,
    place: Option<OwnedSemaphorePermit>,
) -> Answer {
    Box::new(move |durable_at| {
        // What was refused has changed nothing, whatever became of the batch.
        let answer = judged.and_then(|told| durable_at.map(|at| told.aged(at.since(judged_at))));
        // First, so that who has its answer finds a place.
        drop(place);
        let _ = reply.send(answer);
    })
}
