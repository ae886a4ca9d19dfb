//! The thread that polls: takes records, begins work, carries out decisions, and commits. Handles revoked partitions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::OwnedMessage;
use rdkafka::producer::FutureProducer;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::runtime::Handle;

use super::partitions::{Name, Partitions, Started, Ticket};
use super::{handle, passes};
use crate::consumers::recipe::{Recipe, Verdict};
use crate::error::BoxError;

/// Time that a poll waits without records.
const POLL: Duration = Duration::from_millis(100);
/// Time that it waits while there are records, so that they are started when they are due.
const POLL_WITH_RECORDS: Duration = Duration::from_millis(5);
/// Time until a commit that failed is repeated.
const COMMIT_AGAIN: Duration = Duration::from_millis(200);

/// End of one run. An error is that of its copy.
pub(super) struct End {
    ticket: Ticket,
    verdict: Result<Verdict, BoxError>,
}

/// State that the thread and the callback for revoked partitions share. The callback runs in the thread, within a poll.
pub(super) struct Group {
    state: Mutex<State>,
    revoke_within: Duration,
}

struct State {
    partitions: Partitions,
    ends: Receiver<End>,
    /// Unfinished runs, including those of revoked partitions.
    running: usize,
    /// The first error that ends the consumer.
    error: Option<BoxError>,
}

impl Group {
    /// Returns it with the sender of ends.
    pub(super) fn new(revoke_within: Duration) -> (Self, Sender<End>) {
        let (sender, ends) = channel();
        let state = State { partitions: Partitions::default(), ends, running: 0, error: None };
        (Self { state: Mutex::new(state), revoke_within }, sender)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Carries out the end of a run.
    fn carry_out(&mut self, end: End, revoked: Option<&mut Partitions>) {
        self.running -= 1;
        let (verdict, error) = match end.verdict {
            Ok(verdict) => (Some(verdict), None),
            Err(error) => (None, Some(error)),
        };
        if let Some(error) = error {
            self.fail(error);
        }
        let now = Instant::now();
        if !revoked.is_some_and(|revoked| revoked.end(end.ticket, verdict.as_ref(), now)) {
            self.partitions.end(end.ticket, verdict.as_ref(), now);
        }
    }

    fn fail(&mut self, error: BoxError) {
        self.error.get_or_insert(error);
    }
}

impl ClientContext for Group {}

impl ConsumerContext for Group {
    /// Gives running work its time. Records of unfinished work stay uncommitted: the next owner gets a duplicate until
    /// this work has ended.
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Revoke(revoked) = rebalance else { return };
        let mut state = self.state();
        let names: Vec<Name> =
            revoked.elements().iter().map(|each| (each.topic().to_owned(), each.partition())).collect();
        let mut revoked = state.partitions.take_away(&names);
        // They may come back, and are not paused then.
        if let Err(error) = resume(consumer, &revoked.paused()) {
            tracing::warn!("Partitions that are revoked could not be resumed: {error}");
        }
        if consumer.assignment_lost() {
            return;
        }
        let ends = Instant::now() + self.revoke_within;
        while revoked.is_at_work() {
            let Ok(end) = state.ends.recv_timeout(ends.saturating_duration_since(Instant::now())) else { break };
            state.carry_out(end, Some(&mut revoked));
        }
        match commit(consumer, &mut revoked) {
            Err(error) if !passes(&error) => state.fail(error.into()),
            Err(error) => tracing::warn!("Offsets of revoked partitions are not committed: {error}"),
            Ok(()) => {}
        }
    }
}

/// The thread that polls.
pub(super) struct Poll {
    pub(super) consumer: BaseConsumer<Group>,
    pub(super) ends: Sender<End>,
    pub(super) recipe: Recipe<OwnedMessage>,
    pub(super) copies: FutureProducer,
    pub(super) workers: usize,
    pub(super) buffered: usize,
    pub(super) runtime: Handle,
    pub(super) stopping: Arc<AtomicBool>,
}

impl Poll {
    /// Polls until it is asked to stop or has an error, and then until the running work has ended.
    pub(super) fn run(self) -> Result<(), BoxError> {
        let mut commit_due = Instant::now();
        loop {
            let (is_stopping, running, has_records) = {
                let state = self.group();
                let is_stopping = self.stopping.load(Ordering::Relaxed) || state.error.is_some();
                (is_stopping, state.running > 0, state.partitions.has_records())
            };
            if is_stopping && !running {
                break;
            }
            let wait = match (running, has_records) {
                (true, _) => Duration::ZERO,
                (false, true) => POLL_WITH_RECORDS,
                (false, false) => POLL,
            };
            self.poll(wait, is_stopping);
            let mut state = self.group();
            while let Ok(end) = state.ends.try_recv() {
                state.carry_out(end, None);
            }
            if Instant::now() >= commit_due && self.commit(&mut state) {
                commit_due = Instant::now() + COMMIT_AGAIN;
            }
            if !is_stopping {
                self.begin(&mut state);
            }
        }
        let mut state = self.group();
        self.commit(&mut state);
        state.error.take().map_or(Ok(()), Err)
    }

    fn group(&self) -> MutexGuard<'_, State> {
        self.consumer.context().state()
    }

    /// Polls once, without the lock: revoked partitions are handled within. While work is running, waits for its end instead.
    fn poll(&self, wait: Duration, is_stopping: bool) {
        let polled = self.consumer.poll(wait);
        let mut state = self.group();
        match polled {
            // No more work is started, and records that are not committed are delivered again.
            Some(Ok(_)) if is_stopping => {}
            Some(Ok(record)) => {
                if let Some(full) = state.partitions.take(record.detach(), self.buffered)
                    && let Err(error) = self.consumer.pause(&list(&[full]))
                {
                    state.fail(error.into());
                }
            }
            Some(Err(error)) if passes(&error) => tracing::warn!("Kafka: {error}"),
            Some(Err(error)) => state.fail(error.into()),
            None if wait.is_zero() => {
                if let Ok(end) = state.ends.recv_timeout(POLL_WITH_RECORDS) {
                    state.carry_out(end, None);
                }
            }
            None => {}
        }
    }

    /// Starts records that are due, and resumes partitions that have room.
    fn begin(&self, state: &mut State) {
        let free = self.workers.saturating_sub(state.running);
        for Started { ticket, record, failures } in state.partitions.begin(Instant::now(), free) {
            state.running += 1;
            let mut reply = Reply { ends: self.ends.clone(), ticket, verdict: None };
            let (recipe, copies) = (self.recipe.clone(), self.copies.clone());
            self.runtime.spawn(async move {
                reply.end(handle(recipe, copies, record, failures).await);
            });
        }
        if let Err(error) = resume(&self.consumer, &state.partitions.take_resumable(self.buffered)) {
            state.fail(error.into());
        }
    }

    /// Commits due offsets. Returns true if that failed and is repeated; a later offset of the partition may replace
    /// it.
    fn commit(&self, state: &mut State) -> bool {
        match commit(&self.consumer, &mut state.partitions) {
            Ok(()) => return false,
            Err(error) if passes(&error) => {
                tracing::warn!("Offsets are not committed, and will be committed later: {error}");
            }
            Err(error) => state.fail(error.into()),
        }
        true
    }
}

/// Sends the end of a run, also if its task is dropped with the runtime.
struct Reply {
    ends: Sender<End>,
    ticket: Ticket,
    verdict: Option<Result<Verdict, BoxError>>,
}

impl Reply {
    fn end(&mut self, verdict: Result<Verdict, BoxError>) {
        self.verdict = Some(verdict);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let verdict = self.verdict.take().unwrap_or_else(|| Err("the runtime has ended".into()));
        drop(self.ends.send(End { ticket: self.ticket, verdict }));
    }
}

fn commit(consumer: &BaseConsumer<Group>, partitions: &mut Partitions) -> KafkaResult<()> {
    let due = partitions.to_commit();
    if due.is_empty() {
        return Ok(());
    }
    let mut offsets = TopicPartitionList::with_capacity(due.len());
    for ((topic, partition), offset) in &due {
        offsets.add_partition_offset(topic, *partition, Offset::Offset(*offset))?;
    }
    consumer.commit(&offsets, CommitMode::Sync)?;
    partitions.committed();
    Ok(())
}

fn resume(consumer: &BaseConsumer<Group>, names: &[Name]) -> Result<(), KafkaError> {
    if names.is_empty() { Ok(()) } else { consumer.resume(&list(names)) }
}

fn list(names: &[Name]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(names.len());
    for (topic, partition) in names {
        list.add_partition(topic, *partition);
    }
    list
}
