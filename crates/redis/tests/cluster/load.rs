//! Callers that claim and report without a pause during a fault, and the comparison of their answers with the store
//! afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use oncegate_core::claim::{ClaimRequest, ClaimResponse, OutcomeResponse};
use oncegate_core::engine::conformance::fresh_claim;
use oncegate_core::engine::{Engine, EngineError};
use oncegate_core::record::{ClaimState, LiveClaim};
use oncegate_testkit::redis_cluster::slot_of;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{DEADLINE, again, name, now, settle, success};

/// Shards of the clusters here.
pub(crate) const SHARDS: u16 = 3;

/// Lookups that are made at a time.
const LOOKUPS: usize = 32;

/// The answers of callers.
#[derive(Default)]
pub(crate) struct Ledger {
    /// Claims that were granted, and whether their success was recorded.
    pub(crate) granted: Vec<(ClaimRequest, bool)>,
    /// Claims of a second attempt that were granted as well.
    pub(crate) doubled: usize,
    pub(crate) calls: Vec<Call>,
}

/// A call that has ended.
pub(crate) struct Call {
    pub(crate) shard: u16,
    pub(crate) started: Duration,
    pub(crate) ended: Duration,
    pub(crate) end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Answered,
    /// Certainly did not happen.
    Refused,
    /// May have happened, or lacked replicas.
    Unknown,
}

/// Acknowledged writes that are gone.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Lost {
    /// Claims without an outcome.
    pub(crate) claims: usize,
    pub(crate) outcomes: usize,
}

pub(crate) const NOTHING: Lost = Lost { claims: 0, outcomes: 0 };

impl Ledger {
    /// Returns how many calls were not answered clearly.
    pub(crate) fn failed(&self) -> usize {
        self.calls.iter().filter(|call| call.end != End::Answered).count()
    }

    /// Returns the longest wait of a call that was answered.
    pub(crate) fn slowest(&self) -> Duration {
        let answered = self.calls.iter().filter(|call| call.end == End::Answered);
        answered.map(Call::took).max().unwrap_or_default()
    }
}

impl Call {
    pub(crate) fn took(&self) -> Duration {
        self.ended.saturating_sub(self.started)
    }
}

/// Callers under way.
pub(crate) struct Load {
    book: Arc<Book>,
    callers: JoinSet<()>,
}

struct Book {
    /// Longest time of a call.
    deadline: Duration,
    ledger: Mutex<Ledger>,
    stop: AtomicBool,
}

impl Load {
    /// Starts callers. Each makes one call after the other, for keys of one shard.
    pub(crate) fn start<E: Engine>(engine: &Arc<E>, callers: u16) -> Self {
        Self::start_with(engine, callers, DEADLINE)
    }

    /// Starts callers whose calls have this deadline.
    pub(crate) fn start_with<E: Engine>(engine: &Arc<E>, callers: u16, deadline: Duration) -> Self {
        let book = Book { deadline, ledger: Mutex::default(), stop: AtomicBool::default() };
        let mut load = Self { book: Arc::new(book), callers: JoinSet::new() };
        for caller in 0..callers {
            let (engine, book) = (engine.clone(), load.book.clone());
            load.callers.spawn(async move {
                while !book.stop.load(Ordering::Relaxed) {
                    operation(&*engine, caller % SHARDS, &book).await;
                    sleep(Duration::from_millis(1)).await;
                }
            });
        }
        load
    }

    /// Waits until a call for this shard has been answered after this instant.
    pub(crate) async fn answered_since(&self, from: Duration, shard: u16) {
        let is_one = |call: &Call| call.shard == shard && call.started >= from && call.end == End::Answered;
        let has_one = async || self.book.ledger.lock().unwrap().calls.iter().rev().any(is_one);
        oncegate_testkit::wait::until("the shard is back", Duration::from_secs(20), has_one).await;
    }

    /// Stops the callers, and returns their answers.
    pub(crate) async fn stop(mut self) -> Ledger {
        self.book.stop.store(true, Ordering::Relaxed);
        while self.callers.join_next().await.is_some() {}
        std::mem::take(&mut *self.book.ledger.lock().unwrap())
    }
}

/// Shard of a claim in a cluster that is laid out as at its start.
fn shard_of(ask: &ClaimRequest) -> u16 {
    slot_of(&name(ask)) / (16384 / SHARDS + 1)
}

/// One operation: a claim, a second attempt, a success. A call with an unknown outcome is repeated unchanged.
async fn operation(engine: &dyn Engine, shard: u16, book: &Book) {
    let mut ask = fresh_claim();
    while shard_of(&ask) != shard {
        ask = fresh_claim();
    }
    // Longer than any run, so that no lease ends.
    ask.terms.lease = Duration::from_hours(1);
    let Some(ClaimResponse::Granted(_)) = book.resolved(shard, || engine.claim(&ask, book.deadline)).await else {
        return;
    };
    let at = {
        let mut ledger = book.ledger.lock().unwrap();
        ledger.granted.push((ask.clone(), false));
        ledger.granted.len() - 1
    };
    let second = again(&ask);
    if let Some(ClaimResponse::Granted(_)) = book.resolved(shard, || engine.claim(&second, book.deadline)).await {
        book.ledger.lock().unwrap().doubled += 1;
        return;
    }
    let outcome = settle(&ask, success("1"));
    if let Some(OutcomeResponse::Done { .. }) = book.resolved(shard, || engine.settle(&outcome, book.deadline)).await {
        book.ledger.lock().unwrap().granted[at].1 = true;
    }
}

impl Book {
    /// Repeats a call until its outcome is known, or the load is over.
    async fn resolved<T, F: Future<Output = Result<T, EngineError>>>(
        &self,
        shard: u16,
        call: impl Fn() -> F,
    ) -> Option<T> {
        loop {
            let started = now();
            let answer = timeout(self.deadline, call()).await;
            let end = match &answer {
                Ok(Ok(_)) => End::Answered,
                Ok(Err(failure)) if !failure.is_uncertain() => End::Refused,
                _ => End::Unknown,
            };
            self.ledger.lock().unwrap().calls.push(Call { shard, started, ended: now(), end });
            if let Ok(Ok(answer)) = answer {
                return Some(answer);
            }
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Counts the acknowledged writes that are gone.
pub(crate) async fn lost(engine: &dyn Engine, ledger: &Ledger) -> Lost {
    let lookups = stream::iter(&ledger.granted).map(|(ask, is_done)| async move {
        let stands = read(engine, ask).await.is_some_and(|found| {
            found.record.attempt == ask.attempt && (!is_done || found.record.state == ClaimState::Succeeded)
        });
        (stands, *is_done)
    });
    let found: Vec<_> = lookups.buffer_unordered(LOOKUPS).collect().await;
    let count = |wanted: bool| found.iter().filter(|(stands, is_done)| !stands && *is_done == wanted).count();
    Lost { claims: count(false), outcomes: count(true) }
}

/// The answer to a lookup, repeated until there is one.
async fn read(engine: &dyn Engine, ask: &ClaimRequest) -> Option<LiveClaim> {
    for _ in 0..2000 {
        if let Ok(found) = engine.read(&ask.key).await {
            return found;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("the store does not come back");
}
