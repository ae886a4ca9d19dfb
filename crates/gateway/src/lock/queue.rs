//! The requests of this gateway to one lock. A task applies all waiting requests as one change of the stored record. So contention
//! grows with gateways, not with callers. The task ends when no request is left.

mod reads;
mod turns;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncegate_core::attempt::Entropy;
use oncegate_core::backoff::jittered;
use oncegate_core::clock::Clock;
use oncegate_core::engine::{
    ChangePurpose, ChangeResponse, Channel, EngineError, RecordChange, RecordName, Records as _, SharedRecord,
    Subscription,
};
use oncegate_core::lock::{HEAD_GRACE, LockState, RECORD_GRACE, ShortHash, TICKET_LEASE};
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::turns::Turns;
use super::actions::{Action, LockReply, LockResponse, Pending, Summary, fail};
use super::known::Known;
use crate::resilience::chain::Chain;
use crate::waiting::Calls;

/// Interval of looking while notifications come.
const SLOW_POLL: Duration = Duration::from_millis(800);
/// Interval of looking without notifications.
const POLL: Duration = Duration::from_millis(150);

/// Longest pause after tries in a row.
const SPREAD: Duration = Duration::from_millis(32);

/// Longest age of a known record that may be the base of a change. The store compares its version.
const CACHED_FOR: Duration = Duration::from_secs(10);

/// Longest record that is kept between two rounds, in bytes.
const CACHED_BYTES: usize = 4096;

/// Tries of a round against other gateways before its requests fail.
const TRIES_MAX: u32 = 30;

/// Tries in a row before a pause: another gateway that uses the lock all the time leaves a gap only now and then ([`Turns`]).
const TRIES_IN_A_ROW: u32 = 8;

/// The requests to one lock.
pub(super) struct Queue {
    name: RecordName,
    channel: Channel,
    chain: Arc<Chain>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    /// False if its name is beyond the bound of its app.
    is_counted: bool,
    inbox: Mutex<Inbox>,
    /// Notified when a request arrives, a caller that waits hangs up, or the gateway drains.
    changed: Notify,
    /// Nothing waits any more.
    draining: CancellationToken,
}

#[derive(Default)]
struct Inbox {
    requests: Vec<Pending>,
    is_running: bool,
    /// Time of the last request, by the monotonic clock.
    used_at: Duration,
    /// True once a request could begin a record in the store.
    may_have_record: bool,
    /// End of the longest lease that was requested.
    leased_until: Duration,
    /// The requests that wait.
    waiting: Option<Calls>,
    known: Option<Known>,
    turns: Turns,
}

/// Wakes the task of a lock when a caller that waits goes away.
struct Leaving<'a>(&'a Queue);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.changed.notify_one();
    }
}

impl Queue {
    pub(super) fn new(
        name: RecordName,
        channel: Channel,
        chain: Arc<Chain>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        draining: CancellationToken,
        is_counted: bool,
    ) -> Self {
        Self {
            name,
            channel,
            chain,
            clock,
            entropy,
            is_counted,
            inbox: Mutex::default(),
            changed: Notify::new(),
            draining,
        }
    }

    /// Returns whether it serves this chain.
    pub(super) fn is_on(&self, chain: &Arc<Chain>) -> bool {
        Arc::ptr_eq(&self.chain, chain)
    }

    /// Returns whether its name counts among those of its app.
    pub(super) fn is_counted(&self) -> bool {
        self.is_counted
    }

    /// Notes that a request is coming that can begin its record in the store.
    pub(super) fn expect_record(&self) {
        self.inbox().may_have_record = true;
    }

    /// Returns whether it has no record in the store, or that may have ended. Then its name no longer counts.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        let inbox = self.inbox();
        !inbox.is_running && (!inbox.may_have_record || inbox.used_at.max(inbox.leased_until) + RECORD_GRACE < now)
    }

    /// Returns the requests that wait; `None` if none does.
    pub(super) fn waiting(&self) -> Option<Calls> {
        self.inbox().waiting.clone()
    }

    /// Makes a request. It is answered after this wait, or before. Notifies `begins` when the wait begins.
    pub(super) async fn request(
        self: &Arc<Self>,
        action: Action,
        wait: Duration,
        deadline: Duration,
        begins: Option<oneshot::Sender<()>>,
    ) -> Result<LockReply, EngineError> {
        let (reply, answer) = oneshot::channel();
        let now = self.clock.monotonic();
        {
            let mut inbox = self.inbox();
            inbox.used_at = now;
            inbox.may_have_record |= action.can_begin_record();
            inbox.leased_until = inbox.leased_until.max(now + action.lease());
            let (waits_until, polls) = (now + wait, wait.is_zero());
            inbox.requests.push(Pending {
                action,
                since: now,
                waits_until,
                polls,
                deadline,
                is_uncertain: false,
                begins,
                reply,
            });
            if !inbox.is_running {
                inbox.is_running = true;
                // In another task: a caller that goes away must not stop the requests of others.
                tokio::spawn(self.clone().run());
            }
        }
        self.changed.notify_one();
        let _leaving = Leaving(self);
        answer.await.unwrap_or_else(|_| Err(EngineError::no_answer()))
    }

    async fn run(self: Arc<Self>) {
        let mut waiting: Vec<Pending> = Vec::new();
        let mut subscription: Option<Subscription> = None;
        loop {
            // If the store is unavailable, their tickets end after their lease.
            let gone: Vec<_> = waiting
                .extract_if(.., |pending| pending.reply.is_closed())
                .filter_map(|pending| pending.ticket())
                .collect();
            {
                let mut inbox = self.inbox();
                waiting.append(&mut inbox.requests);
                if waiting.is_empty() && gone.is_empty() {
                    (inbox.is_running, inbox.waiting) = (false, None);
                    return;
                }
            }
            let pause;
            (waiting, pause) = self.round(waiting, &gone).await;
            let calls = Calls::of(waiting.iter().map(|pending| (pending.since, pending.action.caller())));
            self.inbox().waiting = calls;
            if waiting.is_empty() {
                continue;
            }
            // The subscription begins before the next read, so that no release can happen between the two.
            if subscription.as_ref().is_none_or(|subscription| !subscription.is_live()) {
                let is_first = subscription.is_none();
                subscription = Some(self.chain.subscribe(&self.channel).await);
                if is_first && subscription.as_ref().is_some_and(Subscription::is_live) {
                    continue;
                }
            }
            self.wait(&waiting, pause, &mut subscription).await;
        }
    }

    /// Waits until there is reason to look again.
    async fn wait(&self, waiting: &[Pending], again_in: Option<Duration>, subscription: &mut Option<Subscription>) {
        let now = self.clock.monotonic();
        let first = waiting.iter().map(|pending| pending.waits_until.saturating_sub(now)).min().unwrap_or_default();
        let is_live = subscription.as_ref().is_some_and(Subscription::is_live);
        let poll = if is_live { SLOW_POLL } else { POLL };
        let poll = jittered(poll * 3 / 4, poll / 2, self.entropy.bits()).min(HEAD_GRACE * 9 / 10);
        // A little after the end of a lease or a grace, by the store's clock.
        let again_in = again_in.map_or(poll, |again_in| again_in + Duration::from_millis(1));
        let notified = async {
            match subscription {
                Some(subscription) if is_live => subscription.notified().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.changed.notified() => {}
            () = self.draining.cancelled() => {}
            () = notified => {}
            () = sleep(poll.min(first).min(again_in)) => {}
        }
    }

    /// Applies the requests as one change. Returns those that continue to wait, and the time until they read the lock again.
    async fn round(&self, mut batch: Vec<Pending>, gone: &[ShortHash]) -> (Vec<Pending>, Option<Duration>) {
        let mut known = self.take_known();
        let deadline = batch.iter().map(|pending| pending.deadline).max().unwrap_or(POLL);
        let started = self.clock.monotonic();
        self.give_way(known.as_ref(), &batch).await;
        for tries in 0..TRIES_MAX {
            if tries > 0 && tries.is_multiple_of(TRIES_IN_A_ROW) {
                sleep(jittered(Duration::ZERO, SPREAD, self.entropy.bits())).await;
                // The other gateway has changed the lock again: a change of the old state would be refused, and the next one too.
                known = None;
            }
            let base = match known.take() {
                Some(base) => base,
                None => match self.read(deadline).await {
                    Ok(base) => base,
                    Err(why) => return (fail(batch, &why), None),
                },
            };
            let mut lock = base.state(self.clock.monotonic());
            let responses = self.apply(&mut lock, &batch, gone);
            let (now, summary) = (lock.now(), Summary::of(&lock));
            if !base.may_repeat_grants && responses.iter().any(LockResponse::repeats_grant) {
                known = Some(self.read_for_repeats(base, &mut batch, &responses, deadline).await);
                if batch.is_empty() && gone.is_empty() {
                    return (batch, None);
                }
                continue;
            }
            let Some(change) = lock.into_change() else {
                if !base.is_fresh {
                    continue;
                }
                let (sent_at, clock_gain) = (base.sent_at, base.clock_gain);
                self.keep(base);
                let answer = LockReply::of_lock(now, clock_gain, sent_at, summary);
                return (self.answer(batch, responses, answer), summary.ask_again_in);
            };
            let grants = responses.iter().any(LockResponse::grants);
            let new = match SharedRecord::versioned(self.entropy.bits(), &change.record.encode()) {
                Ok(new) => new,
                Err(why) => return (fail(batch, &EngineError::incompatible(why.to_string())), None),
            };
            let request = RecordChange {
                name: self.name.clone(),
                expected: base.stored.clone(),
                new: new.clone(),
                lasts: Some(change.lasts),
                from: now,
                before: change.before,
                purpose: if grants { ChangePurpose::Grant } else { ChangePurpose::Keep },
                lease_max: batch.iter().map(|pending| pending.action.lease()).max().unwrap_or_default(),
                notifies: change.notifies,
            };
            let sent_at = self.clock.monotonic();
            match self.chain.change_record(&request, deadline).await {
                Ok(ChangeResponse::Stored(stored_at)) => {
                    let at = self.clock.monotonic();
                    let (record, stored) = (change.record, Some(new));
                    let clock_gain = base.clock_gain;
                    let (is_fresh, may_repeat_grants) = (false, false);
                    self.inbox().turns.stored(&record, sent_at, at);
                    self.keep(Known {
                        record,
                        stored,
                        now: stored_at,
                        clock_gain,
                        at,
                        sent_at,
                        is_fresh,
                        may_repeat_grants,
                    });
                    let answer = LockReply::of_lock(stored_at, clock_gain, sent_at, summary);
                    return (self.answer(batch, responses, answer), summary.ask_again_in);
                }
                Ok(ChangeResponse::Refused { view, maybe_stored }) => {
                    for pending in &mut batch {
                        pending.is_uncertain |= maybe_stored;
                    }
                    self.inbox().turns.refused(self.clock.monotonic());
                    known = match self.known_of(view, sent_at) {
                        Ok(known) => Some(known),
                        Err(why) => return (fail(batch, &why), None),
                    };
                }
                // Requests that end or extend holds are accepted although nothing is granted.
                Err(why @ EngineError::Determinate(_)) if grants => {
                    let acquisitions = batch.extract_if(.., |pending| pending.action.is_acquisition()).collect();
                    fail(acquisitions, &why);
                    if batch.is_empty() && gone.is_empty() {
                        return (batch, None);
                    }
                    known = Some(base);
                }
                Err(why) => return (fail(batch, &why), None),
            }
        }
        // Requests whose wait was not over at the start of this round get another one. If others hold the lock then, that is their answer.
        let is_over = |pending: &mut Pending| started >= pending.waits_until || self.draining.is_cancelled();
        let over = batch.extract_if(.., is_over).collect();
        let why = EngineError::unavailable("too many gateways change this lock at once");
        fail(over, &why);
        (batch, Some(jittered(POLL / 2, POLL / 2, self.entropy.bits())))
    }

    /// Applies first the requests that end or extend holds, then the acquisitions in the order of their arrival.
    fn apply(&self, lock: &mut LockState, batch: &[Pending], gone: &[ShortHash]) -> Vec<LockResponse> {
        for nonce in gone {
            lock.leave(*nonce);
        }
        let mut responses: Vec<Option<LockResponse>> = batch.iter().map(|_| None).collect();
        for acquisitions in [false, true] {
            for (pending, response) in batch.iter().zip(&mut responses) {
                if pending.action.is_acquisition() == acquisitions {
                    *response = Some(pending.action.apply(lock));
                }
            }
        }
        let now = self.clock.monotonic();
        let responses: Vec<_> = responses.into_iter().flatten().collect();
        for (pending, response) in batch.iter().zip(&responses).filter(|(_, response)| response.is_held()) {
            let waits = self.waits(pending, response, now);
            if waits {
                lock.watch();
            }
            if let Some(nonce) = pending.ticket() {
                let rest = if waits { pending.waits_until.saturating_sub(now) } else { Duration::ZERO };
                lock.wait(nonce, if pending.polls { TICKET_LEASE } else { rest });
            }
        }
        responses
    }

    /// Answers all requests except those that wait and still have time.
    fn answer(
        &self,
        batch: Vec<Pending>,
        responses: Vec<LockResponse>,
        answer: impl Fn(LockResponse, bool) -> LockReply,
    ) -> Vec<Pending> {
        let now = self.clock.monotonic();
        let mut waiting = Vec::new();
        for (mut pending, response) in batch.into_iter().zip(responses) {
            if self.waits(&pending, &response, now) {
                pending.begins.take().map(|begins| begins.send(()));
                waiting.push(pending);
                continue;
            }
            // If the caller has hung up, the lease ends, or a repeat with the same nonce gets the hold.
            let _ = pending.reply.send(Ok(answer(response, pending.is_uncertain)));
        }
        waiting
    }

    fn waits(&self, pending: &Pending, response: &LockResponse, now: Duration) -> bool {
        response.is_held() && now < pending.waits_until && !self.draining.is_cancelled()
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
