//! What stands before every engine: the deadline of each call, a breaker, one repeat out of a budget, and measuring.
//!
//! An uncertain call is repeated with the same attempt, so that it recognises itself, and an uncertain failure never
//! becomes a certain one.

mod guard;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{sleep, timeout};

use self::guard::{Guard, Task, Times, late};
use super::breaker::State;
use super::meter::is_silence;
use crate::domain::attempt::Entropy;
use crate::domain::claim::{Claim, Claimed, Outcome, Renew, Renewed, Settle, Settled};
use crate::domain::clock::Clock;
use crate::domain::operator::{List, Listed, Release, Released};
use crate::domain::record::{Held, Key};
use crate::engine::{Capabilities, Engine, EngineError, Note};
use crate::telemetry::metrics::EngineCall;
use crate::telemetry::metrics::breaker::RetryResult;

/// For a list, which looks at many claims for somebody who can wait.
const FOR_LISTS: Duration = Duration::from_secs(5);
/// For a note, a repeat included: who asks for one asks again.
const FOR_NOTES: Duration = Duration::from_millis(600);
/// The longest wait before a repeat.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// An engine that is not waited for beyond the deadline, not asked while it does not answer, and not asked in vain if a
/// second try may help.
pub struct Guarded(Arc<Guard>);

impl Guarded {
    /// Stands before an engine. `name` is its name in the configuration, `deadline` that of calls that bring none.
    pub fn new(
        engine: Arc<dyn Engine>,
        name: &str,
        deadline: Duration,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Self {
        Self(Arc::new(Guard::new(engine, name, deadline, clock, entropy)))
    }
}

impl Guard {
    /// A try, and another one if the first one failed, or is late, and the budget has one. `second` sees the second one's
    /// answer if the first one's is not known. An answer that `is_last` holds whatever else is out; another one, such as that
    /// somebody else holds the key, may be overtaken by the other try.
    async fn ask<Answer, Call>(
        self: &Arc<Self>,
        call: EngineCall,
        deadline: Duration,
        ask: impl Fn() -> Call,
        second: impl FnOnce(Answer) -> Answer,
        is_last: impl Fn(&Answer) -> bool,
    ) -> Result<Answer, EngineError>
    where
        Call: Future<Output = Result<Answer, EngineError>>,
    {
        let begun = self.clock.monotonic();
        let task = Task { call, times: Times::new(begun, deadline) };
        let Times { first: early, rest, .. } = task.times;
        let pass = self.enter(begun)?;
        self.budget.deposit();
        let mut first = pin!(ask());
        let (failure, again) = match timeout(early, &mut first).await {
            Ok(answer) => {
                self.answered(task, pass, begun, &answer);
                match answer {
                    Err(failure) if is_silence(&failure) && self.may_repeat(task) => {
                        (failure, self.second(task, ask).await)
                    }
                    answer => return answer,
                }
            }
            // Late. The second try goes out beside the first one, whose answer is as good if it comes.
            Err(_late) if pass.is_plain() && self.budget.withdraw(self.clock.monotonic()) => {
                self.is_late(pass, begun);
                let is_sent = AtomicBool::new(false);
                let ask = || {
                    is_sent.store(true, Ordering::Relaxed);
                    ask()
                };
                let first = async { self.timed(task, None, begun, timeout(rest, first)).await };
                let (mut first, mut again) = (pin!(first), pin!(self.second(task, ask)));
                tokio::select! {
                    // In an order of its own it could not be replayed from a seed.
                    biased;
                    // The second try is on its way, and may be what happened: one failure is not the whole answer, and what
                    // the first one found may be the second one's doing.
                    answer = &mut first => match answer {
                        Err(failure) if is_silence(&failure) || is_sent.load(Ordering::Relaxed) => (failure, again.await),
                        Ok(answer) if !is_sent.load(Ordering::Relaxed) => return Ok(answer),
                        Ok(answer) if is_last(&answer) => return Ok(second(answer)),
                        Ok(answer) => return Ok(second(again.await.and_then(Result::ok).unwrap_or(answer))),
                        failure => return failure,
                    },
                    answer = &mut again => match answer {
                        Some(Ok(answer)) if is_last(&answer) => return Ok(second(answer)),
                        Some(Ok(answer)) => return Ok(second(first.await.unwrap_or(answer))),
                        answer => match first.await {
                            Err(failure) => (failure, answer),
                            Ok(found) if is_sent.load(Ordering::Relaxed) => return Ok(second(found)),
                            answer => return answer,
                        },
                    },
                }
            }
            // There is no second one, so the first one may take all the time.
            Err(_late) => return self.timed(task, Some(pass), begun, timeout(rest, first)).await,
        };
        match again {
            Some(Ok(answer)) if is_uncertain(&failure) => Ok(second(answer)),
            // That the second try did not happen says nothing of the first.
            None => Err(failure),
            Some(Err(EngineError::Determinate(_))) if is_uncertain(&failure) => Err(failure),
            Some(answer) => answer,
        }
    }

    /// Whether a call that failed is to be repeated; takes that out of the budget.
    fn may_repeat(&self, task: Task) -> bool {
        let now = self.clock.monotonic();
        if self.breaker.state() != State::Closed || now.saturating_sub(task.times.begun) > task.times.all * 2 / 3 {
            return false;
        }
        let may = self.budget.withdraw(now);
        if !may {
            self.metrics.retried(RetryResult::OverBudget);
        }
        may
    }

    /// The second try, after a random wait, for what is left of the time. Nothing if it was not made.
    async fn second<Answer, Call>(
        self: &Arc<Self>,
        task: Task,
        ask: impl Fn() -> Call,
    ) -> Option<Result<Answer, EngineError>>
    where
        Call: Future<Output = Result<Answer, EngineError>>,
    {
        sleep(self.random(WAIT_MAX.min(task.times.all / 10))).await;
        let begun = self.clock.monotonic();
        let pass = self.enter(begun).ok()?;
        let left = task.times.all.saturating_sub(begun.saturating_sub(task.times.begun));
        let answer = self.timed(task, Some(pass), begun, timeout(left, ask())).await;
        let failed = answer.as_ref().is_err_and(is_silence);
        self.metrics.retried(if failed { RetryResult::Failed } else { RetryResult::Answered });
        Some(answer)
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
}

fn is_uncertain(failure: &EngineError) -> bool {
    matches!(failure, EngineError::Indeterminate(_))
}

/// Two tries have one attempt: what is granted to one is granted to both.
fn is_granted(answer: &Claimed) -> bool {
    matches!(answer, Claimed::Granted(_))
}

/// What a failure's second try is told if the first one's answer was lost. Absent may mean "deleted by the first try",
/// and another attempt may have claimed since: either way the caller's claim is gone, and whether it was late cannot be
/// told.
fn after_lost_reply(ask: &Settle, answer: Settled) -> Settled {
    match (&ask.outcome, answer) {
        (Outcome::Failure, Settled::Done { state: None, .. } | Settled::Superseded { .. }) => {
            Settled::Done { state: None, left: None, late: None }
        }
        (_, answer) => answer,
    }
}

#[async_trait]
impl Engine for Guarded {
    async fn claim(&self, ask: &Claim) -> Result<Claimed, EngineError> {
        let engine = &self.0.engine;
        self.0.ask(EngineCall::Claim, ask.deadline, || engine.claim(ask), |answer| answer, is_granted).await
    }

    async fn settle(&self, ask: &Settle) -> Result<Settled, EngineError> {
        let engine = &self.0.engine;
        let second = |answer| after_lost_reply(ask, answer);
        self.0.ask(EngineCall::Settle, ask.deadline, || engine.settle(ask), second, |_| true).await
    }

    async fn renew(&self, ask: &Renew) -> Result<Renewed, EngineError> {
        let engine = &self.0.engine;
        self.0.ask(EngineCall::Renew, ask.deadline, || engine.renew(ask), |answer| answer, |_| true).await
    }

    async fn read(&self, key: &Key) -> Result<Option<Held>, EngineError> {
        let engine = &self.0.engine;
        self.0.ask(EngineCall::Read, self.0.deadline, || engine.read(key), |answer| answer, |_| true).await
    }

    async fn release(&self, ask: &Release) -> Result<Released, EngineError> {
        let engine = &self.0.engine;
        // Absent may mean "released by the first try": either way it is gone, as was asked.
        let second = |answer| if answer == Released::Absent { Released::Done } else { answer };
        self.0.ask(EngineCall::Release, self.0.deadline, || engine.release(ask), second, |_| true).await
    }

    /// Lists are long, and some engines have none: they say nothing about the store.
    async fn list(&self, ask: &List) -> Result<Vec<Listed>, EngineError> {
        let guard = &self.0;
        let begun = guard.clock.monotonic();
        let answer = timeout(FOR_LISTS, guard.engine.list(ask)).await.unwrap_or_else(|_| late(FOR_LISTS));
        guard.meter.called(EngineCall::List, &answer, guard.clock.monotonic().saturating_sub(begun));
        answer
    }

    async fn note(&self, name: &str) -> Result<Option<Note>, EngineError> {
        self.0.noted(self.0.engine.note(name)).await
    }

    async fn swap_note(&self, name: &str, expected: Option<&Note>, new: &Note) -> Result<bool, EngineError> {
        let swap = || self.0.engine.swap_note(name, expected, new);
        let resolved = async {
            match swap().await {
                Err(EngineError::Indeterminate(first)) => match swap().await {
                    Ok(true) => Ok(true),
                    // The first may have put it, and somebody else another one since.
                    Ok(false) | Err(EngineError::Determinate(_)) => Err(first.into()),
                    Err(uncertain) => Err(uncertain),
                },
                certain => certain,
            }
        };
        self.0.noted(resolved).await
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.0.probe().await
    }

    fn capabilities(&self) -> Capabilities {
        self.0.engine.capabilities()
    }

    fn data_lost(&self) -> u64 {
        self.0.engine.data_lost()
    }

    async fn close(&self) {
        self.0.engine.close().await;
    }
}

#[cfg(test)]
mod tests;
