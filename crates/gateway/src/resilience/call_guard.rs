//! The call guard in front of every engine: a deadline for each call, a breaker, at most one retry out of a budget, metrics.
//!
//! An uncertain call is retried with the same attempt, so that it finds its own effect. An uncertain failure never becomes a
//! certain one.

mod batch;
mod engine;
mod prober;
mod retry;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use oncegate_core::attempt::Entropy;
use oncegate_core::clock::{Clock, micros};
use oncegate_core::engine::breaker::BreakerState;
use oncegate_core::engine::{Engine, EngineError};
use oncegate_telemetry::metrics::EngineCall;
use oncegate_telemetry::metrics::breaker::BreakerMetrics;
use tokio::sync::Notify;
use tokio::time::{Timeout, timeout};

use super::breaker::{Breaker, CallResult, Pass};
use super::deadline_budget::{GuardBudget, LATE_MIN};
use super::meter::Meter;
use super::retry_budget::RetryBudget;

/// An engine whose calls end by their deadline, fail at once while the store does not answer, and are retried if that may help.
pub struct CallGuard(Arc<Guard>);

/// State of a call guard, shared with its prober.
struct Guard {
    engine: Arc<dyn Engine>,
    name: String,
    deadline: Duration,
    breaker: Breaker,
    /// Start of the breaker's state, in microseconds of the monotonic clock.
    state_since: AtomicU64,
    /// Notified when the breaker opens.
    opened: Notify,
    has_prober: AtomicBool,
    budget: RetryBudget,
    meter: Meter,
    metrics: BreakerMetrics,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
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
            engine,
            name: name.to_owned(),
            deadline,
            breaker: Breaker::default(),
            state_since: AtomicU64::new(micros(clock.monotonic())),
            opened: Notify::new(),
            has_prober: AtomicBool::new(false),
            budget: RetryBudget::default(),
            meter: Meter::new(name),
            metrics: BreakerMetrics::new(name),
            clock,
            entropy,
        }))
    }
}

/// A call in progress.
#[derive(Clone, Copy)]
struct Task {
    call: EngineCall,
    /// Start of the call, by the monotonic clock.
    started: Duration,
    budget: GuardBudget,
}

impl Task {
    fn new(call: EngineCall, started: Duration, deadline: Duration) -> Self {
        Self { call, started, budget: GuardBudget::of(deadline) }
    }
}

impl Guard {
    /// Lets a call pass, if the breaker does.
    fn enter(self: &Arc<Self>, now: Duration) -> Result<Pass<'_>, EngineError> {
        let pass = self.breaker.enter(now).or_else(|| {
            // All calls of a ramp may wait for answers that never come; the ramp ends in its time all the same.
            let state = self.breaker.advance(false, now)?;
            self.breaker_changed(Some(state));
            self.breaker.enter(now)
        });
        pass.ok_or_else(|| {
            EngineError::unavailable(
                "the breaker is open, because the store did not answer; calls are sent again after an answered probe",
            )
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
        self.meter.called(task.call, answer, took);
        let result = match answer {
            Err(failure) if failure.is_unavailable() => CallResult::Failed,
            _ if took > task.budget.slow => CallResult::Slow,
            _ => CallResult::Answered,
        };
        if let Some(pass) = pass.filter(|_| took >= least) {
            self.breaker_changed(pass.end(result, now));
        }
    }

    /// Records that a try that began at `started` is late, whatever its answer will be.
    fn late(self: &Arc<Self>, pass: Pass<'_>, started: Duration) {
        let now = self.clock.monotonic();
        if now.saturating_sub(started) >= LATE_MIN {
            self.breaker_changed(pass.end(CallResult::Slow, now));
        }
    }

    /// Reports a change of the breaker, and starts the prober if it opened.
    fn breaker_changed(self: &Arc<Self>, state: Option<BreakerState>) {
        let Some(state) = state else { return };
        self.state_since.store(micros(self.clock.monotonic()), Ordering::Relaxed);
        let name = &self.name;
        match state {
            _ if self.meter.is_closed() => {}
            BreakerState::Closed => tracing::info!(engine.name = name, "Breaker closed: calls go to the engine again"),
            BreakerState::HalfOpen => {
                tracing::debug!(engine.name = name, "Breaker half-open: the next call is a trial");
            }
            BreakerState::Open => {
                tracing::warn!(engine.name = name, "Breaker opened: the engine gets no calls until it answers a probe");
            }
        }
        self.metrics.set_state(match state {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        });
        if state == BreakerState::Open {
            self.breaker_opened();
        }
    }

    /// Makes a call that the breaker neither counts nor stops: few are made, and they show nothing about claims.
    async fn uncounted<Answer>(
        &self,
        call: EngineCall,
        limit: Duration,
        answer: impl Future<Output = Result<Answer, EngineError>>,
    ) -> Result<Answer, EngineError> {
        let started = self.clock.monotonic();
        let answer = timeout(limit, answer).await.unwrap_or_else(|_| timed_out(limit));
        self.meter.called(call, &answer, self.clock.monotonic().saturating_sub(started));
        answer
    }
}

/// Returns the failure of a call that took too long. It may still happen, so its result is uncertain.
fn timed_out<Answer>(waited: Duration) -> Result<Answer, EngineError> {
    Err(EngineError::indeterminate(format!("no answer within {} ms", waited.as_millis())))
}
