//! Callers that wait for a claim in progress: a queue for each key, first come, first served, and bounds over all of them. One
//! task for each key asks the store (`driver`); a caller waits for its turn, its time or the drain (`call`).

mod call;
mod driver;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use oncegate_core::call::{Answered, CallContext};
use oncegate_core::claim::{self, ClaimRequest, ClaimResponse, Effect, Grant};
use oncegate_core::engine::EngineError;
use oncegate_core::limits::Limits;
use oncegate_core::record::{ClaimState, Key, LiveClaim, Record};
use oncegate_core::tenant::Operation;
use oncegate_core::terms::ClaimOnOutage;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub use self::call::WaitedClaim;
use super::wait_permits::{WaitPermit, WaitPermits};
use super::waiting::Calls;

/// The callers that wait.
pub(super) struct Waiters {
    state: Mutex<State>,
    permits: WaitPermits,
    /// Longest wait.
    time_max: Duration,
    /// Cancelled when the gateway drains.
    draining: CancellationToken,
}

/// Name of a queue: a key, in the chain of its app. An app that moves to another chain leaves its claims behind, so calls from
/// before and after do not wait for the same claim.
#[derive(Clone, PartialEq, Eq, Hash)]
struct QueueName {
    chain: Arc<str>,
    key: Key,
}

#[derive(Default)]
struct State {
    queues: HashMap<QueueName, Queue>,
    /// Number of the next caller.
    next: u64,
}

/// The callers that wait for one key of a chain. It exists for as long as its driver.
struct Queue {
    entries: VecDeque<Entry>,
    /// The claim that blocks the callers, as of the last answer of the store.
    live: LiveClaim,
    /// Time at which it was found.
    found_at: Duration,
}

/// A caller that waits.
struct Entry {
    number: u64,
    /// Start of its call.
    since: Duration,
    request: Arc<ClaimRequest>,
    context: CallContext<ClaimOnOutage>,
    verdict: oneshot::Sender<Verdict>,
    /// Its time is over, while the store is being asked for it. Changed under the lock of the queues.
    is_leaving: Arc<AtomicBool>,
}

/// Reason for the end of a caller's wait.
#[expect(clippy::large_enum_variant, reason = "one for each caller that stops waiting, and not kept")]
enum Verdict {
    /// The answer to its own claim call, which began at this time.
    Answered(Result<Answered<ClaimResponse>, EngineError>, Duration),
    /// The claim is settled. Shared, since a result may be large and many may wait for it.
    Settled(Arc<LiveClaim>, Duration),
    /// Must call the store itself.
    Again,
}

/// The place of a caller in its queue. Dropped, it leaves.
struct Ticket<'a> {
    waiters: &'a Waiters,
    queue: QueueName,
    number: u64,
    verdict: oneshot::Receiver<Verdict>,
    is_leaving: Arc<AtomicBool>,
    _permit: WaitPermit<'a>,
}

impl Waiters {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            state: Mutex::default(),
            permits: WaitPermits::new(limits.waiting),
            time_max: limits.wait_max.0,
            draining: CancellationToken::new(),
        }
    }

    /// Joins the queue of a key, if there is one and the store would answer with the claim that blocks it.
    fn join(
        &self,
        name: &QueueName,
        request: &Arc<ClaimRequest>,
        context: CallContext<ClaimOnOutage>,
        since: Duration,
    ) -> Option<Ticket<'_>> {
        let mut state = self.state();
        let queue = state.queues.get(name)?;
        let decided = claim::claim(Some(&queue.live), request, None);
        matches!(decided, (Effect::Keep, ClaimResponse::Duplicate(_))).then_some(())?;
        self.add(&mut state, name, request, context, since)
    }

    /// Enters the queue of a key behind this claim. Returns whether the caller must start its driver. `None`: no more
    /// callers may wait.
    fn enter(
        &self,
        name: &QueueName,
        request: &Arc<ClaimRequest>,
        context: CallContext<ClaimOnOutage>,
        since: Duration,
        (live, found_at): (&LiveClaim, Duration),
    ) -> Option<(Ticket<'_>, bool)> {
        let mut state = self.state();
        let is_new = !state.queues.contains_key(name);
        if is_new {
            let queue = Queue { entries: VecDeque::new(), live: live.clone(), found_at };
            state.queues.insert(name.clone(), queue);
        }
        let ticket = self.add(&mut state, name, request, context, since);
        if ticket.is_none() && is_new {
            state.queues.remove(name);
        }
        Some((ticket?, is_new))
    }

    /// Adds a caller, if one more may wait.
    fn add(
        &self,
        state: &mut State,
        name: &QueueName,
        request: &Arc<ClaimRequest>,
        context: CallContext<ClaimOnOutage>,
        since: Duration,
    ) -> Option<Ticket<'_>> {
        if self.draining.is_cancelled() {
            return None;
        }
        let permit = self.permits.take(&request.key.app)?;
        let queue = state.queues.get_mut(name)?;
        let (sender, verdict) = oneshot::channel();
        let (number, is_leaving) = (state.next, Arc::new(AtomicBool::new(false)));
        let entry =
            Entry { number, since, request: request.clone(), context, verdict: sender, is_leaving: is_leaving.clone() };
        queue.entries.push_back(entry);
        state.next += 1;
        Some(Ticket { waiters: self, queue: name.clone(), number, verdict, is_leaving, _permit: permit })
    }

    /// Returns the claims that are waited for, each with the calls that wait.
    pub(super) fn waited_for(&self) -> Vec<(Key, Operation, Calls)> {
        let state = self.state();
        let waited_for = |(name, queue): (&QueueName, &Queue)| {
            let calls = Calls::of(queue.entries.iter().map(|entry| (entry.since, entry.request.caller.as_ref())))?;
            let operation = queue.entries.front()?.request.operation.clone();
            Some((name.key.clone(), operation, calls))
        };
        state.queues.iter().filter_map(waited_for).collect()
    }

    /// Takes the first caller out of a queue. Ends the queue if there is none.
    fn take_first(&self, name: &QueueName) -> Option<Entry> {
        let mut state = self.state();
        let queue = state.queues.get_mut(name)?;
        while let Some(entry) = queue.entries.pop_front() {
            if !entry.verdict.is_closed() {
                return Some(entry);
            }
        }
        state.queues.remove(name);
        None
    }

    /// Answers the callers of a queue from the store's answer to the first one. Returns the time until the end of the
    /// claim that blocks them, or `None` if there is no reason to wait.
    fn answered(
        &self,
        name: &QueueName,
        first: Entry,
        answer: Result<Answered<ClaimResponse>, EngineError>,
        asked_at: Duration,
    ) -> Option<Duration> {
        let mut state = self.state();
        let queue = state.queues.get_mut(name)?;
        let live = match &answer {
            Ok(Answered { policy: Some(_), .. }) => {
                // The outage policy answers each of the others, too.
                queue.entries.drain(..).for_each(|entry| entry.end(Verdict::Again));
                first.end(Verdict::Answered(answer, asked_at));
                return None;
            }
            Err(failure) => {
                // Nothing was sent for the others.
                let others = EngineError::from(failure.clone().without_effect());
                let answer_other = |entry: Entry| entry.end(Verdict::Answered(Err(others.clone()), asked_at));
                queue.entries.drain(..).for_each(answer_other);
                first.end(Verdict::Answered(answer, asked_at));
                return None;
            }
            Ok(Answered { answer: ClaimResponse::Mismatch(_), .. }) => {
                first.end(Verdict::Answered(answer, asked_at));
                return None;
            }
            Ok(Answered { answer: ClaimResponse::Granted(grant), .. }) => granted(&first.request, grant),
            Ok(Answered { answer: ClaimResponse::Duplicate(live), .. }) => live.clone(),
        };
        if live.record.state != ClaimState::InProgress {
            let live = Arc::new(live);
            queue.entries.push_front(first);
            queue.entries.drain(..).for_each(|entry| {
                let takes_over = entry.request.take_over && live.record.state == ClaimState::Unknown;
                entry.end(if takes_over { Verdict::Again } else { Verdict::Settled(live.clone(), asked_at) });
            });
            return None;
        }
        let is_granted = matches!(&answer, Ok(Answered { answer: ClaimResponse::Granted(_), .. }));
        if is_granted || first.is_leaving.load(Ordering::Relaxed) {
            first.end(Verdict::Answered(answer, asked_at));
        } else {
            queue.entries.push_front(first);
        }
        let is_other = queue.live.record.attempt != live.record.attempt;
        let left = live.left.unwrap_or(Duration::MAX);
        (queue.live, queue.found_at) = (live, asked_at);
        if is_other {
            queue.recheck(asked_at);
        }
        Some(left)
    }

    /// Ends a queue whose driver has failed. Its callers ask again.
    fn abandon(&self, name: &QueueName) {
        self.state().queues.remove(name);
    }

    /// Answers all callers, and lets no more wait.
    pub(super) fn drain(&self) {
        self.draining.cancel();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Checks each caller against the present claim. A mismatch is answered at once; a caller with the nonce of that
    /// claim must call the store.
    fn recheck(&mut self, at: Duration) {
        for entry in std::mem::take(&mut self.entries) {
            match claim::claim(Some(&self.live), &entry.request, None) {
                (Effect::Keep, ClaimResponse::Duplicate(_)) => self.entries.push_back(entry),
                (Effect::Keep, mismatch @ ClaimResponse::Mismatch(_)) => {
                    entry.end(Verdict::Answered(Ok(Answered::by_store(mismatch)), at));
                }
                // Its own claim: another connection waits with the same nonce.
                _ => entry.end(Verdict::Again),
            }
        }
    }

    /// Removes a caller. They are in the order of their numbers.
    fn remove(&mut self, number: u64) -> Option<Entry> {
        let at = self.entries.binary_search_by_key(&number, |entry| entry.number).ok()?;
        self.entries.remove(at)
    }

    /// Returns the present state of the claim that blocks the callers, as far as is known.
    fn live(&self, now: Duration) -> LiveClaim {
        let left = self.live.left.map(|left| left.saturating_sub(now.saturating_sub(self.found_at)));
        LiveClaim { left, ..self.live.clone() }
    }
}

impl Entry {
    /// Ends the wait. If the caller has disconnected, its grant ends with its lease, or goes to the same nonce.
    fn end(self, verdict: Verdict) {
        let _ = self.verdict.send(verdict);
    }
}

/// Returns the claim that was just granted.
fn granted(request: &ClaimRequest, grant: &Grant) -> LiveClaim {
    let record = Record { attempt: grant.attempt.clone(), ..request.record() };
    LiveClaim {
        record,
        left: Some(grant.lease_left.unwrap_or(request.terms.lease)),
        ends_at: grant.lease_ends_at,
        fence: grant.fence,
    }
}

impl Ticket<'_> {
    /// Leaves the queue, and returns the claim that blocks it. Returns `None` if a call to the store for this caller is
    /// in progress or answered: then the verdict arrives, at the latest by the deadline of the call.
    fn leave(&self, now: Duration) -> Option<LiveClaim> {
        let mut state = self.waiters.state();
        self.is_leaving.store(true, Ordering::Relaxed);
        let queue = state.queues.get_mut(&self.queue)?;
        queue.remove(self.number)?;
        Some(queue.live(now))
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if let Some(queue) = self.waiters.state().queues.get_mut(&self.queue) {
            queue.remove(self.number);
        }
    }
}
