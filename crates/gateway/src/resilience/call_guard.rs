//! The call guard in front of every engine: a deadline for each call, a breaker, at most one retry out of a budget, metrics.
//!
//! An uncertain call is retried with the same attempt. So it finds its own effect. An uncertain failure never becomes a
//! certain one.

mod batch;
mod changes;
mod engine;
mod prober;
mod retry;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncegate_core::attempt::Entropy;
use oncegate_core::clock::{Clock, micros};
use oncegate_core::engine::breaker::BreakerState;
use oncegate_core::engine::{Engine, EngineError};
use oncegate_telemetry::metrics::EngineCall;
use oncegate_telemetry::metrics::breaker::BreakerMetrics;
use tokio::sync::Notify;
use tokio::time::{Timeout, timeout};

pub use self::changes::BreakerChange;
use self::changes::Changes;
use super::breaker::{Breaker, CallResult, Pass};
use super::deadline_budget::{GuardBudget, LATE_MIN};
use super::meter::Meter;
use super::per_shard::PerShard;
use super::refusal::Refusal;
use super::retry_budget::RetryBudget;

/// An engine behind its call guard. Each call ends by its deadline, and is retried if that may help. While the store does not
/// answer, calls fail at once.
pub struct CallGuard(Arc<Guard>);

/// State of a call guard, shared with its probers.
struct Guard {
    engine: Arc<dyn Engine>,
    name: String,
    deadline: Duration,
    /// [`Engine::waits_for_replicas`].
    waits_for_replicas: bool,
    shards: PerShard<Shard>,
    opened_at: Duration,
    meter: Meter,
    metrics: BreakerMetrics,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

/// State of one shard of the engine. Each shard has its own breaker, so a dead shard stops no calls to the others.
#[derive(Default)]
struct Shard {
    breaker: Breaker,
    /// Start of the breaker's state, in microseconds of the monotonic clock; 0 at first.
    state_since: AtomicU64,
    /// Notified when the breaker opens.
    opened: Notify,
    has_prober: AtomicBool,
    budget: RetryBudget,
    /// True if its last call was not answered.
    is_down: AtomicBool,
    /// The reason of the first of these calls in a row.
    why_down: Mutex<Option<String>>,
    /// When its breaker opened and closed.
    changes: Changes,
}

impl CallGuard {
    /// Wraps an engine. `name` is its name in the configuration, `deadline` that of calls without their own.
    pub fn new(
        engine: Arc<dyn Engine>,
        name: &str,
        deadline: Duration,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self(Arc::new(Guard {
            waits_for_replicas: engine.waits_for_replicas(),
            engine,
            name: name.to_owned(),
            deadline,
            shards: PerShard::default(),
            opened_at: clock.monotonic(),
            meter: Meter::new(name),
            metrics: BreakerMetrics::new(name),
            clock,
            entropy,
        }))
    }

    /// Returns the worst state of the breakers of its shards, and how long it has lasted.
    pub fn breaker(&self) -> (BreakerState, Duration) {
        let (state, since) = self.0.worst_breaker();
        (state, self.0.clock.monotonic().saturating_sub(since))
    }

    /// Returns when its breakers opened and closed, the newest first.
    pub fn breaker_changes(&self) -> Vec<BreakerChange> {
        changes::newest(self.0.shards.iter().map(|(_, shard)| &shard.changes))
    }

    /// Returns the last call that the store has refused, if that was within the last minute.
    pub fn refusal(&self) -> Option<Refusal> {
        self.0.meter.refusal(self.0.clock.wall())
    }
}

/// A call in progress.
#[derive(Clone, Copy)]
struct Task {
    call: EngineCall,
    shard: u16,
    /// Start of the call, by the monotonic clock.
    started: Duration,
    budget: GuardBudget,
}

impl Guard {
    fn task(&self, call: EngineCall, shard: u16, started: Duration, deadline: Duration) -> Task {
        let budget =
            if self.waits_for_replicas { GuardBudget::of_waiting(deadline) } else { GuardBudget::of(deadline) };
        Task { call, shard, started, budget }
    }

    fn breaker(&self, shard: u16) -> &Breaker {
        &self.shards.get(shard).breaker
    }

    /// Lets a call pass, if the breaker of its shard does.
    fn enter(self: &Arc<Self>, shard: u16, now: Duration) -> Result<Pass<'_>, EngineError> {
        let breaker = self.breaker(shard);
        let pass = breaker.enter(now).or_else(|| {
            // All calls of a ramp may wait for answers that never come; the ramp ends in its time all the same.
            let state = breaker.advance(false, now)?;
            self.breaker_changed(shard, Some(state));
            breaker.enter(now)
        });
        pass.ok_or_else(|| {
            let store = self.label(shard).map(|shard| format!("shard {shard} of ")).unwrap_or_default();
            let why = self.why_down(shard).map(|why| format!(": {why}")).unwrap_or_default();
            EngineError::unavailable(format!(
                "the breaker is open, because {store}the store did not answer{why}; calls are sent again after an answered probe"
            ))
        })
    }

    /// Returns the answer of a try that began at `started`, and records it. Without a pass the breaker has counted the try already.
    async fn timed<Answer>(
        self: &Arc<Self>,
        task: Task,
        pass: Option<Pass<'_>>,
        started: Duration,
        call: Timeout<impl Future<Output = Result<Answer, EngineError>>>,
    ) -> Result<Answer, EngineError> {
        let (answer, least) = match call.await {
            Ok(answer) => (answer, Duration::ZERO),
            // It may still happen. A caller may ask for the impossible, which does not count against the store.
            Err(_) => (timed_out(self.clock.monotonic().saturating_sub(started)), LATE_MIN),
        };
        self.record(task, pass, started, &answer, least);
        answer
    }

    /// Records the answer of a try that began at `started`. The breaker counts it if it took `least` or longer.
    fn record<Answer>(
        self: &Arc<Self>,
        task: Task,
        pass: Option<Pass<'_>>,
        started: Duration,
        answer: &Result<Answer, EngineError>,
        least: Duration,
    ) {
        let now = self.clock.monotonic();
        let took = now.saturating_sub(started);
        self.meter.called(task.call, answer, took, || self.clock.wall());
        self.set_up(task.shard, answer.as_ref().err());
        let result = match answer {
            Err(failure) if failure.is_unavailable() => CallResult::Failed,
            _ if took > task.budget.slow => CallResult::Slow,
            _ => CallResult::Answered,
        };
        if let Some(pass) = pass.filter(|_| took >= least) {
            self.breaker_changed(task.shard, pass.end(result, now));
        }
    }

    /// Records that a try that began at `started` is late. Its answer does not matter.
    fn late(self: &Arc<Self>, shard: u16, pass: Pass<'_>, started: Duration) {
        let now = self.clock.monotonic();
        if now.saturating_sub(started) >= LATE_MIN {
            self.breaker_changed(shard, pass.end(CallResult::Slow, now));
        }
    }

    /// Returns the reason of the first of the calls in a row that the shard did not answer.
    fn why_down(&self, shard: u16) -> Option<String> {
        self.shards.get(shard).why_down.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reports a change of a breaker, and starts the prober if it opened.
    fn breaker_changed(self: &Arc<Self>, shard: u16, state: Option<BreakerState>) {
        let Some(state) = state else { return };
        self.shards.get(shard).state_since.store(micros(self.clock.monotonic()), Ordering::Relaxed);
        let (name, number) = (&self.name, self.label(shard));
        match state {
            _ if self.meter.is_closed() => {}
            BreakerState::Closed => {
                tracing::info!(
                    engine.name = name,
                    engine.shard = number,
                    "Breaker closed: calls go to the engine again"
                );
            }
            BreakerState::HalfOpen => {
                tracing::debug!(
                    engine.name = name,
                    engine.shard = number,
                    "Breaker half-open: the next call is a trial"
                );
            }
            BreakerState::Open => {
                tracing::warn!(
                    engine.name = name,
                    engine.shard = number,
                    "Breaker opened: the engine gets no calls until it answers a probe"
                );
            }
        }
        let reason = (state == BreakerState::Open).then(|| self.why_down(shard)).flatten();
        self.shards.get(shard).changes.add(BreakerChange { at: self.clock.wall(), shard: number, state, reason });
        self.meter.breaker(shard, state);
        self.metrics.set_state(self.worst_breaker().0 as u8);
        if state == BreakerState::Open {
            self.breaker_opened(shard);
        }
    }

    /// Returns the worst state of the breakers, and since when it lasts.
    fn worst_breaker(&self) -> (BreakerState, Duration) {
        let state = |shard: &Shard| {
            let since = Duration::from_micros(shard.state_since.load(Ordering::Relaxed));
            (shard.breaker.state(), since.max(self.opened_at))
        };
        let states = self.shards.iter().map(|(_, shard)| state(shard));
        // Among breakers in the same state, the one that has been in it for the longest time.
        states.max_by_key(|(state, since)| (*state, Reverse(*since))).unwrap_or((BreakerState::Closed, self.opened_at))
    }

    /// Returns the number of a shard for the log, if there are several.
    fn label(&self, shard: u16) -> Option<u16> {
        (!self.shards.is_one()).then_some(shard)
    }

    /// Records whether a shard has answered, and logs once when that changes.
    fn set_up(&self, shard: u16, failure: Option<&EngineError>) {
        let failure = failure.filter(|failure| failure.is_unavailable());
        let is_down = &self.shards.get(shard).is_down;
        // The common case writes nothing that other threads read.
        if is_down.load(Ordering::Relaxed) == failure.is_some()
            || is_down.swap(failure.is_some(), Ordering::Relaxed) == failure.is_some()
        {
            return;
        }
        let why = failure.map(|failure| failure.reason().to_owned());
        *self.shards.get(shard).why_down.lock().unwrap_or_else(PoisonError::into_inner) = why;
        self.meter.changed(self.label(shard), failure);
        self.update_up();
    }

    /// Updates the state of the engine: it is up if any of its shards answers.
    fn update_up(&self) {
        let mut shards = self.engine.shards();
        if shards.is_empty() {
            shards.push(0);
        }
        self.meter.set_up(shards.iter().any(|shard| !self.shards.get(*shard).is_down.load(Ordering::Relaxed)));
    }

    /// Makes a call that the breaker neither counts nor stops. Such calls are rare, and show nothing about claims.
    /// `shard` is that of the call, if it is known.
    async fn uncounted<Answer>(
        &self,
        call: EngineCall,
        shard: Option<u16>,
        limit: Duration,
        answer: impl Future<Output = Result<Answer, EngineError>>,
    ) -> Result<Answer, EngineError> {
        let started = self.clock.monotonic();
        let answer = timeout(limit, answer).await.unwrap_or_else(|_| timed_out(limit));
        let took = self.clock.monotonic().saturating_sub(started);
        self.meter.called(call, &answer, took, || self.clock.wall());
        if let Some(shard) = shard.or_else(|| self.shards.is_one().then_some(0)) {
            self.set_up(shard, answer.as_ref().err());
        }
        answer
    }
}

/// Returns the failure of a call that took too long. It may still happen, so its result is uncertain.
fn timed_out<Answer>(waited: Duration) -> Result<Answer, EngineError> {
    Err(EngineError::indeterminate(format!("no answer within {} ms", waited.as_millis())))
}
