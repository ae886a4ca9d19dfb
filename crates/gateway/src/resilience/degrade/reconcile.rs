//! The work behind the calls: what waits for the store is told to it as soon as it answers, the oldest keys first, some at
//! once; and what an earlier run had answered is in force again from the start.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hashbrown::HashMap;

use super::super::journal::entry::{Deed, Entry};
use super::Core;
use super::book::{Standing, Written};
use crate::domain::backoff::Backoff;
use crate::domain::claim::{self, Effect};
use crate::domain::clock::Timestamp;
use crate::domain::record::{Key, LiveClaim};
use crate::engine::EngineError;

/// How many keys are delivered at once: few, so that a store that has just come back serves callers first.
const AT_ONCE: usize = 32;

/// After so many silences in a row the store is taken to be out, and the round is over.
const SILENCES: usize = 3;

/// Delay before the next round where the store did not answer.
const PAUSE: Backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_millis(400) };

impl Core {
    /// Takes over what the journal held of this chain.
    pub(super) fn recover(&self) {
        let (now, wall) = (self.clock.monotonic(), self.clock.wall());
        for (seq, entry) in self.keeper.found_of(&self.chain) {
            let effect = self.recovered(&entry, now, wall);
            self.book.add(seq, Arc::new(entry), effect, now);
        }
    }

    /// What an entry of an earlier run comes to. What is left is counted by the wall clock, which is all that two runs share.
    fn recovered(&self, entry: &Entry, now: Duration, wall: Timestamp) -> Written {
        // A wall clock that was set back meanwhile makes nothing last longer than it would have from now on.
        let ends_at = |lasts: Duration| now + entry.at.plus(lasts).since(wall).min(lasts);
        match &entry.deed {
            Deed::Granted(request) => Written::Stands(Box::new(Standing::new(
                request.record(),
                Some(ends_at(request.terms.lease)),
                Some(entry.policy),
            ))),
            Deed::Renewed(request) => request.lease.map_or(Written::AsBefore, |lease| Written::EndsAt(ends_at(lease))),
            Deed::Reported(request) => {
                // As it stood then: its lease may have ended since.
                let own = self.book.last_of(&request.key, &request.attempt);
                let own = own.map(|record| LiveClaim { record, left: Some(Duration::MAX), fence: None });
                // Another that stands yet stood then, too.
                let held = own.or_else(|| self.book.held(&request.key, now));
                match claim::settle(held.as_ref(), request).0 {
                    Effect::Put(record, lasts) => {
                        Written::Stands(Box::new(Standing::new(record, lasts.map(ends_at), None)))
                    }
                    Effect::Delete => Written::Gone,
                    Effect::Keep | Effect::Extend(_) => Written::AsBefore,
                }
            }
        }
    }

    /// Works until it is told to stop.
    pub(super) async fn reconcile(self: &Arc<Self>) {
        let mut failures = HashMap::new();
        let mut quiet_rounds = 0;
        loop {
            if !self.book.has_waiting() {
                failures.clear();
                tokio::select! {
                    // In a fixed order: what is left to chance cannot be replayed.
                    biased;
                    () = self.stop.cancelled() => return,
                    () = self.wake.notified() => {}
                }
            }
            let round = async {
                if self.round(&mut failures).await.is_ok() {
                    quiet_rounds = 0;
                } else {
                    quiet_rounds += 1;
                    tokio::time::sleep(PAUSE.delay(quiet_rounds, self.entropy.bits())).await;
                }
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = round => {}
            }
        }
    }

    /// Tells the store what waits on every key, until it does not answer.
    async fn round(self: &Arc<Self>, failures: &mut HashMap<Key, u32>) -> Result<(), EngineError> {
        let mut keys = self.book.keys_waiting();
        // A key that the store has trouble with does not hold the others up.
        keys.sort_by_key(|key| failures.get(key).copied().unwrap_or(0));
        let mut keys = keys.into_iter();
        let mut working = FuturesUnordered::new();
        let (mut silences, mut last) = (0, Ok(()));
        loop {
            // One alone finds out whether the store answers.
            let room = if silences > 0 { 1 } else { AT_ONCE };
            while silences < SILENCES
                && working.len() < room
                && let Some(key) = keys.next()
            {
                working.push(async move {
                    let _turn = self.locks.alone(&key).await;
                    let told = self.deliver(&key).await;
                    (key.clone(), told)
                });
            }
            let Some((key, told)) = working.next().await else { return last };
            match told {
                Ok(()) => {
                    silences = 0;
                    failures.remove(&key);
                }
                Err(failure) => {
                    if failure.is_unavailable() {
                        silences += 1;
                    } else {
                        tracing::debug!(claim.global_id = %key.global_id, error = %failure, "an entry of the journal waits on");
                    }
                    *failures.entry(key).or_default() += 1;
                    last = Err(failure);
                }
            }
        }
    }

    /// Tells the store all that waits, until nothing does or it has not answered for this long.
    pub(super) async fn deliver_all(self: &Arc<Self>, patience: Duration) -> Result<(), EngineError> {
        let mut failures = HashMap::new();
        let mut since = self.clock.monotonic();
        let mut waiting = self.book.keys_waiting().len();
        loop {
            let Err(failure) = self.round(&mut failures).await else { return Ok(()) };
            let left = self.book.keys_waiting().len();
            if left < waiting {
                (waiting, since) = (left, self.clock.monotonic());
            }
            if self.clock.monotonic().saturating_sub(since) >= patience {
                return Err(failure);
            }
            tokio::time::sleep(PAUSE.first).await;
        }
    }
}
