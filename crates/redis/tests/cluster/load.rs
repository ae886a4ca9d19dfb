//! Callers that claim and report without pause while something is broken, and what is left of it afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::claim::{ClaimRequest, ClaimResponse, OutcomeResponse};
use oncegate_core::engine::conformance::fresh_claim;
use oncegate_core::engine::{Engine, EngineError};
use oncegate_core::record::{ClaimState, LiveClaim};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{DEADLINE, again, now, settle, since, success};

/// What callers were answered.
#[derive(Default)]
pub(crate) struct Ledger {
    /// Claims that were granted, and whether their success was recorded.
    pub(crate) granted: Vec<(ClaimRequest, bool)>,
    /// Claims of a second attempt that were granted as well.
    pub(crate) doubled: usize,
    /// Calls that failed for certain.
    pub(crate) refused: usize,
    /// Calls whose outcome was not known, or lacked replicas.
    pub(crate) unknown: usize,
    /// The longest wait of a call that was answered.
    pub(crate) slowest: Duration,
}

/// Callers under way.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    ledger: Arc<Mutex<Ledger>>,
    callers: JoinSet<()>,
}

impl Load {
    /// Starts callers, each of which makes one call after the other.
    pub(crate) fn start<E: Engine>(engine: &Arc<E>, callers: usize) -> Self {
        let mut load = Self { stop: Arc::default(), ledger: Arc::default(), callers: JoinSet::new() };
        for _ in 0..callers {
            let (engine, stop, ledger) = (engine.clone(), load.stop.clone(), load.ledger.clone());
            load.callers.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    operation(&*engine, &ledger, &stop).await;
                    sleep(Duration::from_millis(1)).await;
                }
            });
        }
        load
    }

    /// Stops the callers, and returns what they were answered.
    pub(crate) async fn stop(mut self) -> Ledger {
        self.stop.store(true, Ordering::Relaxed);
        while self.callers.join_next().await.is_some() {}
        std::mem::take(&mut *self.ledger.lock().unwrap())
    }
}

/// One operation: a claim, a second attempt, a success. A call whose outcome is not known is repeated as it is.
async fn operation(engine: &dyn Engine, ledger: &Mutex<Ledger>, stop: &AtomicBool) {
    let ask = fresh_claim();
    let Some(Ok(ClaimResponse::Granted(_))) = resolved(ledger, stop, || engine.claim(&ask, DEADLINE)).await else {
        return;
    };
    let at = {
        let mut ledger = ledger.lock().unwrap();
        ledger.granted.push((ask.clone(), false));
        ledger.granted.len() - 1
    };
    let second = again(&ask);
    if let Some(Ok(ClaimResponse::Granted(_))) = resolved(ledger, stop, || engine.claim(&second, DEADLINE)).await {
        ledger.lock().unwrap().doubled += 1;
        return;
    }
    let outcome = settle(&ask, success("1"));
    if let Some(Ok(OutcomeResponse::Done { .. })) = resolved(ledger, stop, || engine.settle(&outcome, DEADLINE)).await {
        ledger.lock().unwrap().granted[at].1 = true;
    }
}

/// Repeats a call until its outcome is known, or the load is over.
async fn resolved<T, F: Future<Output = Result<T, EngineError>>>(
    ledger: &Mutex<Ledger>,
    stop: &AtomicBool,
    call: impl Fn() -> F,
) -> Option<Result<T, EngineError>> {
    loop {
        let started = now();
        let answer = timeout(DEADLINE, call()).await;
        {
            let mut ledger = ledger.lock().unwrap();
            match answer {
                Ok(Ok(answer)) => {
                    ledger.slowest = ledger.slowest.max(since(started));
                    return Some(Ok(answer));
                }
                Ok(Err(failure)) if !failure.is_uncertain() => ledger.refused += 1,
                _ => ledger.unknown += 1,
            }
        }
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Returns how many of the acknowledged claims and successes are gone.
pub(crate) async fn lost(engine: &dyn Engine, ledger: &Ledger) -> usize {
    let mut lost = 0;
    for (ask, is_done) in &ledger.granted {
        let found = read(engine, ask).await;
        let stands = found.is_some_and(|found| {
            found.record.attempt == ask.attempt && (!is_done || found.record.state == ClaimState::Succeeded)
        });
        lost += usize::from(!stands);
    }
    lost
}

/// The answer to a lookup, however often it has to be repeated.
async fn read(engine: &dyn Engine, ask: &ClaimRequest) -> Option<LiveClaim> {
    for _ in 0..2000 {
        if let Ok(found) = engine.read(&ask.key).await {
            return found;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("the store does not come back");
}
