//! What stands before every engine: the deadline of each call, a breaker, one repeat out of a budget, and measuring.
//!
//! An uncertain call is repeated with the same attempt, so that it recognises itself, and an uncertain failure never
//! becomes a certain one.

mod calls;
mod each;
mod opening;
#[cfg(test)]
mod tests;
mod tries;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Timeout, timeout};

use super::breaker::{Breaker, Entry, Pass, Verdict};
use super::budget::Budget;
use super::deadline_budget::{GuardBudget, LATE_MIN};
use super::meter::Meter;
use crate::domain::attempt::Entropy;
use crate::domain::clock::{Clock, micros};
use crate::engine::breaker::BreakerState;
use crate::engine::{Engine, EngineError};
use crate::telemetry::metrics::EngineCall;
use crate::telemetry::metrics::breaker::BreakerMetrics;

/// For a list, which looks at many claims for somebody who can wait.
const FOR_LISTS: Duration = Duration::from_secs(5);
/// For a note, a repeat included: who asks for one asks again.
const FOR_NOTES: Duration = Duration::from_millis(600);
/// For a probe: what takes longer does not answer.
const FOR_PROBES: Duration = Duration::from_millis(500);

/// An engine that is not waited for beyond the deadline, not asked while it does not answer, and not asked in vain if a
/// second try may help.
pub struct Guarded(Arc<Guard>);

/// What a prober holds on to as well.
struct Guard {
    engine: Arc<dyn Engine>,
    name: String,
    deadline: Duration,
    breaker: Breaker,
    /// When it came to how it stands, in microseconds of the monotonic clock.
    stands_since: AtomicU64,
    /// Told when the breaker opens.
    opened: Notify,
    is_probed: AtomicBool,
    budget: Budget,
    meter: Meter,
    metrics: BreakerMetrics,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

impl Guarded {
    /// Stands before an engine. `name` is its name in the configuration, `deadline` that of calls that bring none.
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
            breaker: Breaker::closed(),
            stands_since: AtomicU64::new(micros(clock.monotonic())),
            opened: Notify::new(),
            is_probed: AtomicBool::new(false),
            budget: Budget::default(),
            meter: Meter::new(name),
            metrics: BreakerMetrics::new(name),
            clock,
            entropy,
        }))
    }
}

/// A call under way.
#[derive(Clone, Copy)]
struct Task {
    call: EngineCall,
    /// Start of the call, by the monotonic clock.
    begun: Duration,
    budget: GuardBudget,
}

impl Task {
    fn new(call: EngineCall, begun: Duration, deadline: Duration) -> Self {
        Self { call, begun, budget: GuardBudget::of(deadline) }
    }
}

impl Guard {
    /// Lets a call through, if the breaker does.
    fn enter(self: &Arc<Self>, now: Duration) -> Result<Pass<'_>, EngineError> {
        let entry = match self.breaker.enter(now) {
            // All calls of a ramp may wait for answers that never come; it ends in its time all the same.
            Entry::Refused if let Some(state) = self.breaker.settle(now) => {
                self.changed(Some(state));
                self.breaker.enter(now)
            }
            entry => entry,
        };
        match entry {
            Entry::Passes(pass) => Ok(pass),
            Entry::Refused => {
                Err(EngineError::unavailable("it has not been answering, and is asked again once it answers a probe"))
            }
        }
    }

    /// The answer of a try that was begun then, or that it is not known. Without a pass the breaker has been told already.
    async fn timed<Answer>(
        self: &Arc<Self>,
        task: Task,
        pass: Option<Pass<'_>>,
        begun: Duration,
        call: Timeout<impl Future<Output = Result<Answer, EngineError>>>,
    ) -> Result<Answer, EngineError> {
        let answer = call.await;
        let now = self.clock.monotonic();
        let took = now.saturating_sub(begun);
        match (answer, pass) {
            (Ok(answer), Some(pass)) => {
                self.answered(task, pass, begun, &answer);
                answer
            }
            (answer, pass) => {
                // What took too long may still happen.
                let answer = answer.unwrap_or_else(|_| late(took));
                self.meter.called(task.call, &answer, took);
                // A caller may ask for the impossible: that is not held against the store.
                if let Some(pass) = pass.filter(|_| took >= LATE_MIN) {
                    self.changed(pass.end(Verdict::Failed, now));
                }
                answer
            }
        }
    }

    /// A try that was begun then has been answered.
    fn answered<Answer>(
        self: &Arc<Self>,
        task: Task,
        pass: Pass<'_>,
        begun: Duration,
        answer: &Result<Answer, EngineError>,
    ) {
        let now = self.clock.monotonic();
        let took = now.saturating_sub(begun);
        self.meter.called(task.call, answer, took);
        let verdict = match answer {
            Err(failure) if failure.is_unavailable() => Verdict::Failed,
            _ if took > task.budget.slow => Verdict::Slow,
            _ => Verdict::Answered,
        };
        self.changed(pass.end(verdict, now));
    }

    /// A try that was begun then is late, whatever becomes of it.
    fn is_late(self: &Arc<Self>, pass: Pass<'_>, begun: Duration) {
        let now = self.clock.monotonic();
        if now.saturating_sub(begun) >= LATE_MIN {
            self.changed(pass.end(Verdict::Slow, now));
        }
    }

    /// Tells that the breaker has changed, and sees to it that an open one is probed.
    fn changed(self: &Arc<Self>, state: Option<BreakerState>) {
        let Some(state) = state else { return };
        self.stands_since.store(micros(self.clock.monotonic()), Ordering::Relaxed);
        let name = &self.name;
        match state {
            _ if self.meter.is_closed() => {}
            BreakerState::Closed => tracing::info!(engine.name = name, "the breaker closed: the engine is asked again"),
            BreakerState::HalfOpen => tracing::debug!(engine.name = name, "the breaker is half open: a call is tried"),
            BreakerState::Open => {
                tracing::warn!(
                    engine.name = name,
                    "the breaker opened: the engine is not asked until it answers a probe"
                );
            }
        }
        self.metrics.set_state(match state {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        });
        if state == BreakerState::Open {
            self.has_opened();
        }
    }

    /// Notes are few, and are looked for while the engine is out, too: they say nothing about it, and no breaker stops them.
    async fn noted<Answer>(
        &self,
        call: impl Future<Output = Result<Answer, EngineError>>,
    ) -> Result<Answer, EngineError> {
        let begun = self.clock.monotonic();
        let answer = timeout(FOR_NOTES, call).await.unwrap_or_else(|_| late(FOR_NOTES));
        self.meter.called(EngineCall::Note, &answer, self.clock.monotonic().saturating_sub(begun));
        answer
    }

    async fn probe(self: &Arc<Self>) -> Result<(), EngineError> {
        let begun = self.clock.monotonic();
        let answer = timeout(FOR_PROBES, self.engine.probe()).await.unwrap_or_else(|_| late(FOR_PROBES));
        let now = self.clock.monotonic();
        self.meter.called(EngineCall::Probe, &answer, now.saturating_sub(begun));
        self.meter.lost_data(self.engine.data_lost());
        if !answer.as_ref().is_err_and(EngineError::is_unavailable) {
            self.changed(self.breaker.probed(now));
        }
        self.changed(self.breaker.settle(now));
        answer
    }

    /// From nothing up to this much, each as likely.
    fn random(&self, most: Duration) -> Duration {
        Duration::from_micros(self.entropy.bits() % (micros(most) + 1))
    }
}

/// What took too long may still happen: its answer is not known.
fn late<Answer>(waited: Duration) -> Result<Answer, EngineError> {
    Err(EngineError::indeterminate(format!("no answer within {} ms", waited.as_millis())))
}
