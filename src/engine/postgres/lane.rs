//! A lane: a queue of calls and the task that owns one connection and answers them. What gathers in the queue while a
//! statement runs goes out together as the next one; nothing waits in order to gather.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hashbrown::HashMap;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::call::{Ask, Call, Job, Reply, Told};
use super::failure::{Failure, reading};
use super::queue::Queue;
use super::routes::{Place, Readiness};
use super::session::{self, Shared};
use super::work::{self, Done, Link};
use crate::domain::attempt::{Entropy, SystemEntropy};
use crate::domain::operator::{ListRequest, ListedClaim};
use crate::engine::{Determinate, EngineError, Metadata};

/// Calls that may wait in a lane; further callers wait for room.
const QUEUE: usize = 1024;
/// How long a statement may take before other lanes are taken instead of its own.
const SLOW: Duration = Duration::from_millis(25);
/// How long a statement that was left to itself may go on before its connection is closed.
const LEFT_ALONE: Duration = Duration::from_mins(1);

/// Statements that were left to themselves and hold a connection each, at most, in all lanes. A server that answers nobody,
/// because it waits for its own standby, would else be filled with connections that wait.
pub(super) const LEFT_ALONE_MAX: usize = 6;

/// The callers' end of a lane.
pub(super) struct Lane {
    jobs: mpsc::Sender<Job>,
}

impl Lane {
    /// Starts a lane on a core; it ends when `closing` is cancelled.
    pub(super) fn start(
        shared: Arc<Shared>,
        readiness: Readiness,
        left_alone: Arc<Semaphore>,
        closing: CancellationToken,
        tasks: &TaskTracker,
        core: &Handle,
    ) -> Self {
        let (sender, jobs) = mpsc::channel(QUEUE);
        let queue = Queue::default();
        tasks.spawn_on(Driver { shared, readiness, left_alone, closing, jobs, queue, failures: 0 }.run(), core);
        Self { jobs: sender }
    }

    /// Asks and waits for the answer. May be dropped at any time; what was sent by then still happens.
    pub(super) async fn call(&self, ask: Ask, place: Place) -> Result<Told, EngineError> {
        self.job(|reply| Job::Call(Box::new(Call::new(ask, reply, place)))).await
    }

    pub(super) async fn probe(&self) -> Result<(), EngineError> {
        self.job(Job::Probe).await
    }

    pub(super) async fn list(&self, ask: ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        self.job(|reply| Job::List(ask, reply)).await
    }

    pub(super) async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        self.job(|reply| Job::Metadata(name.to_owned(), reply)).await
    }

    pub(super) async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        self.job(|reply| Job::SwapNote(name.to_owned(), expected.cloned(), new.clone(), reply)).await
    }

    async fn job<Answer>(&self, job: impl FnOnce(Reply<Answer>) -> Job) -> Result<Answer, EngineError> {
        let (reply, answer) = oneshot::channel();
        if self.jobs.send(job(reply)).await.is_err() {
            return Err(closed().into());
        }
        // The lane answers all that it did not send.
        let lost = |_| Err(EngineError::indeterminate("the connection to the PostgreSQL server was given up"));
        answer.await.unwrap_or_else(lost)
    }
}

fn closed() -> Determinate {
    Determinate::Unavailable("the engine is closed".into())
}

/// The lane's end of a lane.
struct Driver {
    shared: Arc<Shared>,
    readiness: Readiness,
    left_alone: Arc<Semaphore>,
    closing: CancellationToken,
    jobs: mpsc::Receiver<Job>,
    queue: Queue,
    /// Failures since the last statement that was answered.
    failures: u32,
}

/// A statement on its way, which gives its connection back.
type Exchange = BoxFuture<'static, (Link, Done)>;

impl Driver {
    async fn run(mut self) {
        while let Some(link) = self.connect().await {
            self.shared.status.connected();
            self.readiness.set(true);
            // Lest a server that lets us in only to hang up be called without a pause.
            self.failures += 1;
            let why = self.serve(link).await;
            self.readiness.set(false);
            if self.closing.is_cancelled() {
                self.shared.status.closed();
            } else {
                self.shared.status.lost(&why);
            }
        }
        self.jobs.close();
        self.refuse_waiting(&closed());
        while let Some(job) = self.jobs.recv().await {
            refuse(job, &closed());
        }
    }

    /// Tries until there is a connection; nothing if the lane is to end. Calls wait for the first try; after it has failed
    /// they are told so at once.
    async fn connect(&mut self) -> Option<Link> {
        let mut refusal = None;
        loop {
            if self.failures > 0 {
                self.attend(sleep(pause(self.failures)), refusal.as_ref()).await?;
            }
            let shared = self.shared.clone();
            match self.attend(async move { session::open(&shared).await }, refusal.as_ref()).await? {
                Ok(link) => return Some(link),
                Err(why) => {
                    self.shared.status.unavailable(&why);
                    self.failures = self.failures.saturating_add(1);
                    self.refuse_waiting(&why);
                    refusal = Some(why);
                }
            }
        }
    }

    /// Waits for `event`, refusing calls meanwhile if there is a reason to. Nothing if the lane is to end.
    async fn attend<T>(&mut self, event: impl Future<Output = T>, refusal: Option<&Determinate>) -> Option<T> {
        let mut event = pin!(event);
        loop {
            tokio::select! {
                () = self.closing.cancelled() => return None,
                output = &mut event => return Some(output),
                Some(job) = self.jobs.recv(), if refusal.is_some() => {
                    if let Some(why) = refusal { refuse(job, why) }
                }
            }
        }
    }

    fn refuse_waiting(&mut self, why: &Determinate) {
        for call in self.queue.drain() {
            call.tell(Err(why.clone().into()));
        }
    }

    /// Answers calls over a connection for as long as it is good; tells why it no longer is.
    async fn serve(&mut self, mut link: Link) -> String {
        let closing = self.closing.clone();
        loop {
            if closing.is_cancelled() {
                self.refuse_waiting(&closed());
                return "the engine is closing".into();
            }
            if self.queue.len() == 0 {
                let job = tokio::select! {
                    () = closing.cancelled() => continue,
                    job = self.jobs.recv() => job,
                    // Nobody waits for this answer. That there is one, in time, is all that matters.
                    () = sleep(self.shared.options.heartbeat_interval) => Some(Job::Probe(oneshot::channel().0)),
                };
                let Some(job) = job else { return "the engine is gone".into() };
                match self.take(link, job).await {
                    Ok(same) => link = same,
                    Err(why) => return why,
                }
            }
            // All that has come while the last statement ran. What is no call is done in between.
            while self.queue.len() < QUEUE {
                let Ok(job) = self.jobs.try_recv() else { break };
                match self.take(link, job).await {
                    Ok(same) => link = same,
                    Err(why) => return why,
                }
            }
            let calls = self.queue.gather();
            if calls.is_empty() {
                continue;
            }
            let exchange = async move {
                let done = work::answer(&mut link, calls).await;
                (link, done)
            };
            match self.exchange(exchange.boxed()).await {
                Ok((same, done)) => {
                    self.queue.answer(&done.found);
                    if let Some(why) = done.broken {
                        return why;
                    }
                    self.failures = 0;
                    link = same;
                }
                Err(why) => return why,
            }
        }
    }

    /// Puts a call into the queue, and does everything else at once.
    async fn take(&mut self, mut link: Link, job: Job) -> Result<Link, String> {
        let shared = self.shared.clone();
        let exchange: Exchange = match job {
            Job::Call(call) => {
                self.queue.push(*call);
                return Ok(link);
            }
            Job::Probe(reply) => Box::pin(async move {
                let answer = session::probe(&mut link, &shared).await;
                // Also one that says that the database is not for this gateway: the next connection is refused for it.
                let broken = answer.as_ref().err().map(ToString::to_string);
                let _ = reply.send(answer);
                (link, Done { broken, found: HashMap::default() })
            }),
            Job::List(ask, reply) => Box::pin(async move {
                let answer = session::list(&mut link, &ask).await.map_err(|error| reading(Failure::from(&error).told));
                told(link, answer, reply)
            }),
            Job::Metadata(name, reply) => Box::pin(async move {
                let answer = session::note(&mut link, name).await.map_err(|error| reading(Failure::from(&error).told));
                told(link, answer.and_then(|note| note), reply)
            }),
            Job::SwapNote(name, expected, new, reply) => Box::pin(async move {
                let swapped = session::compare_and_set_metadata(&mut link, name, expected, &new).await;
                told(link, swapped.map_err(|error| Failure::from(&error).told), reply)
            }),
        };
        match self.exchange(exchange).await {
            Ok((_, Done { broken: Some(why), .. })) | Err(why) => Err(why),
            Ok((link, _)) => Ok(link),
        }
    }

    /// Waits for a statement. One that takes too long is not cancelled, since the server goes on with it in any case: it is
    /// left to itself with its connection, while this lane makes another.
    async fn exchange(&mut self, mut exchange: Exchange) -> Result<(Link, Done), String> {
        let limit = self.shared.options.response_timeout;
        let slow = SLOW.min(limit);
        if let Ok(answered) = timeout(slow, &mut exchange).await {
            return Ok(answered);
        }
        // Whoever comes now need not wait with those that have come.
        self.readiness.set(false);
        if let Ok(answered) = timeout(limit.saturating_sub(slow), &mut exchange).await {
            self.readiness.set(true);
            return Ok(answered);
        }
        let why = format!("the PostgreSQL server did not answer within {limit:?}");
        if let Ok(place) = self.left_alone.clone().try_acquire_owned() {
            tokio::spawn(async move {
                drop(timeout(LEFT_ALONE, exchange).await);
                drop(place);
            });
            return Err(why);
        }
        // Too many wait already. Then this lane waits, too, and takes no calls.
        let refusal = Determinate::Unavailable(why.clone());
        self.refuse_waiting(&refusal);
        let waited = self.attend(timeout(LEFT_ALONE, exchange), Some(&refusal)).await;
        waited.and_then(Result::ok).ok_or(why)
    }
}

/// Gives an answer, and says whether the connection is still good.
fn told<Answer>(link: Link, answer: Result<Answer, EngineError>, reply: Reply<Answer>) -> (Link, Done) {
    // A statement that was refused for what is not there, such as a table of a later schema, has broken nothing.
    let broken = match &answer {
        Ok(_) | Err(EngineError::Determinate(Determinate::Incompatible(_))) => None,
        Err(failure) => Some(failure.to_string()),
    };
    let _ = reply.send(answer);
    (link, Done { broken, found: HashMap::default() })
}

fn refuse(job: Job, why: &Determinate) {
    let why = why.clone().into();
    match job {
        Job::Call(call) => call.tell(Err(why)),
        Job::Probe(reply) => drop(reply.send(Err(why))),
        Job::List(_, reply) => drop(reply.send(Err(why))),
        Job::Metadata(_, reply) => drop(reply.send(Err(why))),
        Job::SwapNote(.., reply) => drop(reply.send(Err(why))),
    }
}

/// How long to wait before the next try: up to a sixth of a second, so that a store that is back is found well within
/// a second; each lane and gateway for a different time, so that they do not all come at once.
pub(super) fn pause(failures: u32) -> Duration {
    let longest_ms = 10_u64 << failures.min(4);
    Duration::from_millis(longest_ms / 2 + SystemEntropy.bits() % (longest_ms / 2 + 1))
}
