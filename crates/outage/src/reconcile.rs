//! The background task. It delivers waiting entries as soon as the store answers, the oldest keys first, several at
//! once. It also recovers the entries of an earlier run.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use hashbrown::HashMap;
use oncegate_core::backoff::Backoff;
use oncegate_core::claim::{self, Effect};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::EngineError;
use oncegate_core::outage::entry::{Entry, JournaledOperation};
use oncegate_core::record::{Key, LiveClaim};

use super::Core;
use super::local_claims::LocalEffect;

/// Number of keys that are delivered at once where one shard has all. It is small, so that a store that has just
/// recovered serves callers first.
const KEYS_AT_ONCE: usize = 32;

/// Unanswered deliveries in a row that end the round of a shard.
const UNANSWERED_MAX: usize = 3;

/// Delay before the next round where the store did not answer.
const PAUSE: Backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_millis(400) };

/// Longest description of a failure that is kept.
const FAILURE_CHARS_MAX: usize = 500;

/// Failed deliveries of a claim since its last successful one.
#[derive(Default)]
pub(super) struct Failed {
    count: u32,
    /// Reason of the last failure.
    pub(super) last: Box<str>,
}

impl Core {
    /// Returns the claims whose last delivery failed.
    pub(super) fn failures(&self) -> MutexGuard<'_, HashMap<Key, Failed>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the recovered entries of this chain into the local claims.
    pub(super) fn recover(&self) {
        let (now, wall) = (self.clock.monotonic(), self.clock.wall());
        for (seq, entry) in self.journal.take_entries_of(&self.chain) {
            let effect = self.recovered(&entry, now, wall);
            self.local_claims.add(seq, Arc::new(entry), effect, now);
        }
    }

    /// Returns the effect of an entry of an earlier run. Leases are counted by the wall clock, the only clock that two
    /// runs share.
    fn recovered(&self, entry: &Entry, now: Duration, wall: Timestamp) -> LocalEffect {
        // If the wall clock was set back since then, nothing lasts longer than its full time from now on.
        let ends_at = |lifetime: Duration| now + entry.at.plus(lifetime).since(wall).min(lifetime);
        match &entry.journaled {
            JournaledOperation::Granted(request) => {
                let effect = Effect::Put(request.record(), Some(request.terms.lease));
                LocalEffect::of(effect, Some(entry.policy), ends_at)
            }
            JournaledOperation::Renewed(request) => {
                LocalEffect::of(request.lease.map_or(Effect::Keep, Effect::Extend), None, ends_at)
            }
            JournaledOperation::Reported(request) => {
                // The claim at the time of the report: its lease may have ended in the meantime.
                let own = self.local_claims.record_of(&request.key, &request.attempt);
                let own = own.map(|record| LiveClaim { record, left: Some(Duration::MAX), ends_at: None, fence: None });
                // Another claim that is live now was live then.
                let held = own.or_else(|| self.local_claims.live_claim(&request.key, now));
                LocalEffect::of(claim::settle(held.as_ref(), request).0, None, ends_at)
            }
        }
    }

    /// Runs until the policies are closed.
    pub(super) async fn reconcile(self: &Arc<Self>) {
        let mut failed_rounds = 0;
        loop {
            if !self.local_claims.has_waiting() {
                self.failures().clear();
                tokio::select! {
                    // In a fixed order, so that simulations can be replayed.
                    biased;
                    () = self.stop.cancelled() => return,
                    () = self.wake.notified() => {}
                }
            }
            let round = async {
                if self.round().await.is_ok() {
                    failed_rounds = 0;
                } else {
                    failed_rounds += 1;
                    tokio::time::sleep(PAUSE.delay(failed_rounds, self.entropy.bits())).await;
                }
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = round => {}
            }
        }
    }

    /// Delivers the entries of every key, until the store does not answer. Keys of different shards are delivered at the same time.
    async fn round(self: &Arc<Self>) -> Result<(), EngineError> {
        let mut groups: BTreeMap<_, Vec<Key>> = BTreeMap::new();
        for key in self.local_claims.keys_waiting() {
            groups.entry(self.engine.shard_of(&key)).or_default().push(key);
        }
        let at_once = KEYS_AT_ONCE.div_ceil(groups.len().max(1));
        let deliver = |keys| self.deliver_group(keys, at_once);
        let delivered = join_all(groups.into_values().map(deliver)).await;
        let mut last = Ok(());
        let mut failures = self.failures();
        for (key, result) in delivered.into_iter().flatten() {
            match result {
                Ok(()) => drop(failures.remove(&key)),
                Err(failure) => {
                    let failed = failures.entry(key).or_default();
                    failed.count += 1;
                    failed.last = failure.to_string().chars().take(FAILURE_CHARS_MAX).collect();
                    last = Err(failure);
                }
            }
        }
        last
    }

    /// Delivers the entries of some keys, until the store does not answer. Returns the result for each key that was tried.
    async fn deliver_group(
        self: &Arc<Self>,
        mut keys: Vec<Key>,
        at_once: usize,
    ) -> Vec<(Key, Result<(), EngineError>)> {
        // A key whose delivery fails does not delay the others.
        {
            let failures = self.failures();
            keys.sort_by_key(|key| failures.get(key).map_or(0, |failed| failed.count));
        }
        let mut keys = keys.into_iter();
        let mut working = FuturesUnordered::new();
        let (mut unanswered, mut results) = (0, Vec::new());
        loop {
            // After a failure, one key at a time.
            let room = if unanswered > 0 { 1 } else { at_once };
            while unanswered < UNANSWERED_MAX
                && working.len() < room
                && let Some(key) = keys.next()
            {
                working.push(async move {
                    let _guard = self.locks.exclusive(&key).await;
                    let result = self.deliver(&key).await;
                    (key.clone(), result)
                });
            }
            let Some((key, result)) = working.next().await else { return results };
            match &result {
                Ok(()) => unanswered = 0,
                Err(failure) if failure.is_unavailable() => unanswered += 1,
                Err(failure) => {
                    tracing::debug!(claim.global_id = %key.global_id, error = %failure, "A journal entry could not be delivered and still waits");
                }
            }
            results.push((key, result));
        }
    }

    /// Delivers all entries, until none waits or the store has not answered for this long.
    pub(super) async fn deliver_all(self: &Arc<Self>, timeout: Duration) -> Result<(), EngineError> {
        let mut since = self.clock.monotonic();
        let mut waiting = self.local_claims.keys_waiting().len();
        loop {
            let Err(failure) = self.round().await else { return Ok(()) };
            let left = self.local_claims.keys_waiting().len();
            if left < waiting {
                (waiting, since) = (left, self.clock.monotonic());
            }
            if self.clock.monotonic().saturating_sub(since) >= timeout {
                return Err(failure);
            }
            tokio::time::sleep(PAUSE.first).await;
        }
    }
}
