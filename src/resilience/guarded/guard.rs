//! What all calls of an engine have in common: its breaker and who probes it, its budget and its meter. Each try enters
//! here and is told here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Timeout, sleep, timeout};

use super::super::breaker::{Breaker, Entry, Pass, State, Verdict};
use super::super::budget::Budget;
use super::super::meter::{Meter, is_silence};
use crate::domain::attempt::Entropy;
use crate::domain::clock::Clock;
use crate::engine::{Engine, EngineError};
use crate::telemetry::metrics::EngineCall;
use crate::telemetry::metrics::breaker::BreakerMetrics;

/// For a probe: what takes longer does not answer.
const FOR_PROBES: Duration = Duration::from_millis(500);
/// How long a call lasts at least before its being late is held against the store: a caller may ask for the impossible.
const LATE_MIN: Duration = Duration::from_millis(100);
/// Between two probes of an engine whose breaker is open. Each lasts for a random time up to twice as long at most, so that
/// gateways do not all come at once.
const PROBE_EVERY: Duration = Duration::from_millis(75);

/// What a prober holds on to as well.
pub(super) struct Guard {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) name: String,
    pub(super) deadline: Duration,
    pub(super) breaker: Breaker,
    pub(super) is_probed: AtomicBool,
    pub(super) budget: Budget,
    pub(super) meter: Meter,
    pub(super) metrics: BreakerMetrics,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
}

/// How the time of a call is divided, counted from its begin.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) begun: Duration,
    /// How long the first try has before a second one is begun: more than an engine waits for its own connection, so that
    /// the second one does not go down the same drain.
    pub(super) first: Duration,
    /// How long it is waited for beyond that.
    pub(super) rest: Duration,
    /// How long all is waited for: something is left to answer with.
    pub(super) all: Duration,
    /// How long an answer may take before it counts as slow.
    pub(super) slow: Duration,
}

impl Times {
    pub(super) fn new(begun: Duration, deadline: Duration) -> Self {
        Self {
            begun,
            first: deadline * 11 / 20,
            rest: deadline * 7 / 20,
            all: deadline * 9 / 10,
            slow: (deadline * 3 / 4).max(LATE_MIN),
        }
    }
}

/// A call under way: what kind it is, and how its time is divided.
#[derive(Clone, Copy)]
pub(super) struct Task {
    pub(super) call: EngineCall,
    pub(super) times: Times,
}

impl Guard {
    pub(super) fn new(
        engine: Arc<dyn Engine>,
        name: &str,
        deadline: Duration,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self {
            engine,
            name: name.to_owned(),
            deadline,
            breaker: Breaker::closed(),
            is_probed: AtomicBool::new(false),
            budget: Budget::default(),
            meter: Meter::new(name),
            metrics: BreakerMetrics::new(name),
            clock,
            entropy,
        }
    }

    /// Lets a call through, if the breaker does.
    pub(super) fn enter(self: &Arc<Self>, now: Duration) -> Result<Pass<'_>, EngineError> {
        let entry = match self.breaker.enter(now) {
            // All calls of a ramp may wait for answers that never come; it ends in its time all the same.
            Entry::Refused(_) if let Some(closed) = self.breaker.settle(now) => {
                self.changed(Some(closed));
                self.breaker.enter(now)
            }
            entry => entry,
        };
        match entry {
            Entry::Passes(pass) => Ok(pass),
            Entry::Refused(changed) => {
                self.changed(changed);
                Err(EngineError::unavailable("it has not been answering, and is asked again once it answers a probe"))
            }
        }
    }

    /// The answer of a try that was begun then, or that it is not known. Without a pass the breaker has been told already.
    pub(super) async fn timed<Answer>(
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
    pub(super) fn answered<Answer>(
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
            Err(failure) if is_silence(failure) => Verdict::Failed,
            _ if took > task.times.slow => Verdict::Slow,
            _ => Verdict::Answered,
        };
        self.changed(pass.end(verdict, now));
    }

    /// A try that was begun then is late, whatever becomes of it.
    pub(super) fn is_late(self: &Arc<Self>, pass: Pass<'_>, begun: Duration) {
        let now = self.clock.monotonic();
        if now.saturating_sub(begun) >= LATE_MIN {
            self.changed(pass.end(Verdict::Slow, now));
        }
    }

    /// Tells that the breaker has changed, and sees to it that an open one is probed.
    fn changed(self: &Arc<Self>, state: Option<State>) {
        let Some(state) = state else { return };
        let name = &self.name;
        match state {
            State::Closed => tracing::info!(engine.name = name, "the breaker closed: the engine is asked again"),
            State::HalfOpen => tracing::debug!(engine.name = name, "the breaker is half open: a call is tried"),
            State::Open => {
                tracing::warn!(
                    engine.name = name,
                    "the breaker opened: the engine is not asked until it answers a probe"
                );
            }
        }
        self.metrics.set_state(match state {
            State::Closed => 0,
            State::HalfOpen => 1,
            State::Open => 2,
        });
        if state == State::Open && !self.is_probed.swap(true, Ordering::SeqCst) {
            let pause = self.probe_pause();
            tokio::spawn(probe_until_answered(Arc::downgrade(self), pause));
        }
    }

    fn probe_pause(&self) -> Duration {
        PROBE_EVERY + self.random(PROBE_EVERY)
    }

    pub(super) async fn probe(self: &Arc<Self>) -> Result<(), EngineError> {
        let begun = self.clock.monotonic();
        let answer = timeout(FOR_PROBES, self.engine.probe()).await.unwrap_or_else(|_| late(FOR_PROBES));
        let now = self.clock.monotonic();
        self.meter.called(EngineCall::Probe, &answer, now.saturating_sub(begun));
        self.meter.lost_data(self.engine.data_lost());
        if !answer.as_ref().is_err_and(is_silence) {
            self.changed(self.breaker.probed(now));
        }
        self.changed(self.breaker.settle(now));
        answer
    }

    /// From nothing up to this much, each as likely.
    pub(super) fn random(&self, most: Duration) -> Duration {
        let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.entropy.bits() % (micros + 1))
    }
}

/// Asks an engine whose breaker is open how it is, until it answers or is gone.
async fn probe_until_answered(guard: Weak<Guard>, mut pause: Duration) {
    loop {
        // Not held while it waits: an engine that nobody uses any more is let go of.
        sleep(pause).await;
        let Some(guard) = guard.upgrade() else { return };
        if guard.breaker.state() == State::Open {
            // What it says is seen to there.
            let _answer = guard.probe().await;
        }
        if guard.breaker.state() != State::Open {
            guard.is_probed.store(false, Ordering::SeqCst);
            // It may have opened again just before, and then there was a prober still.
            if guard.breaker.state() != State::Open || guard.is_probed.swap(true, Ordering::SeqCst) {
                return;
            }
        }
        pause = guard.probe_pause();
    }
}

/// What took too long may still happen: its answer is not known.
pub(super) fn late<Answer>(waited: Duration) -> Result<Answer, EngineError> {
    Err(EngineError::indeterminate(format!("no answer within {} ms", waited.as_millis())))
}
