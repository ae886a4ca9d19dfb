//! The tries of one call: the first one, and what becomes of the call where that fails or is late. What goes before a call, and
//! what is told to the breaker after it, is in the parent.

use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{sleep, timeout};
use tracing::field::Empty;

use super::{Guard, Task};
use crate::engine::EngineError;
use crate::engine::breaker::BreakerState;
use crate::resilience::breaker::Pass;
use crate::resilience::deadline_budget::GuardBudget;
use crate::resilience::meter::engine_result;
use crate::telemetry::metrics::EngineCall;
use crate::telemetry::metrics::breaker::RetryResult;
use crate::telemetry::traces;

impl Guard {
    /// A try, and another one if the first one failed, or is late, and the budget has one. `second` sees the second one's
    /// answer if the first one's is not known. An answer that `is_last` holds whatever else is out; another one, such as that
    /// somebody else holds the key, may be overtaken by the other try.
    pub(super) async fn request<Answer, Call>(
        self: &Arc<Self>,
        call: EngineCall,
        deadline: Duration,
        request: impl Fn() -> Call,
        second: impl FnOnce(Answer) -> Answer,
        is_last: impl Fn(&Answer) -> bool,
    ) -> Result<Answer, EngineError>
    where
        Call: Future<Output = Result<Answer, EngineError>>,
    {
        let begun = self.clock.monotonic();
        let task = Task::new(call, begun, deadline);
        let pass = self.enter(begun)?;
        self.budget.deposit();
        let first = pin!(request());
        let span = traces::child!(
            "store",
            otel.kind = "client",
            oncegate.engine = self.name,
            oncegate.call = call.label(),
            oncegate.result = Empty,
        );
        let answer = traces::in_span!(span, self.goes_on(task, pass, Duration::ZERO, first, request, second, is_last));
        if !span.is_none() {
            span.record("oncegate.result", engine_result(&answer).label());
        }
        answer
    }

    /// Goes on with a call whose first try is on its way, and has been waited for this long already.
    #[expect(clippy::too_many_arguments, reason = "a call in the middle of its way")]
    pub(super) async fn goes_on<Answer, Call>(
        self: &Arc<Self>,
        task: Task,
        pass: Pass<'_>,
        waited: Duration,
        mut first: Pin<&mut impl Future<Output = Result<Answer, EngineError>>>,
        request: impl Fn() -> Call,
        second: impl FnOnce(Answer) -> Answer,
        is_last: impl Fn(&Answer) -> bool,
    ) -> Result<Answer, EngineError>
    where
        Call: Future<Output = Result<Answer, EngineError>>,
    {
        match timeout(task.budget.undisturbed.saturating_sub(waited), first.as_mut()).await {
            Ok(answer) => self.answered_first(task, pass, answer, request, second).await,
            // Kept out of what every call takes memory for.
            Err(_not_soon) => Box::pin(self.not_soon(task, pass, first, request, second, is_last)).await,
        }
    }

    /// Goes on with a call whose first try has been answered.
    async fn answered_first<Answer, Call>(
        self: &Arc<Self>,
        task: Task,
        pass: Pass<'_>,
        answer: Result<Answer, EngineError>,
        request: impl Fn() -> Call,
        second: impl FnOnce(Answer) -> Answer,
    ) -> Result<Answer, EngineError>
    where
        Call: Future<Output = Result<Answer, EngineError>>,
    {
        match self.judged(task, pass, answer) {
            ControlFlow::Break(answer) => answer,
            ControlFlow::Continue(failure) => self.repeated(task, failure, request, second).await,
        }
    }

    /// What the answer to the first try of a call makes of it: it is over, or there is to be a second one after this failure.
    pub(super) fn judged<Answer>(
        self: &Arc<Self>,
        task: Task,
        pass: Pass<'_>,
        answer: Result<Answer, EngineError>,
    ) -> ControlFlow<Result<Answer, EngineError>, EngineError> {
        self.answered(task, pass, task.begun, &answer);
        match answer {
            Err(failure) if failure.is_unavailable() && self.may_repeat(task) => ControlFlow::Continue(failure),
            answer => ControlFlow::Break(answer),
        }
    }

    /// The second try of a call whose first one failed like this.
    pub(super) async fn repeated<Answer, Call>(
        self: &Arc<Self>,
        task: Task,
        failure: EngineError,
        request: impl Fn() -> Call,
        second: impl FnOnce(Answer) -> Answer,
    ) -> Result<Answer, EngineError>
    where
        Call: Future<Output = Result<Answer, EngineError>>,
    {
        let again = self.second(task, request).await;
        resolved(failure, again, second)
    }

    /// Goes on with a call whose first try was not answered soon. Only such a call pays for hearing of the breaker.
    async fn not_soon<Answer, Call>(
        self: &Arc<Self>,
        task: Task,
        pass: Pass<'_>,
        mut first: Pin<&mut impl Future<Output = Result<Answer, EngineError>>>,
        request: impl Fn() -> Call,
        second: impl FnOnce(Answer) -> Answer,
        is_last: impl Fn(&Answer) -> bool,
    ) -> Result<Answer, EngineError>
    where
        Call: Future<Output = Result<Answer, EngineError>>,
    {
        let begun = task.begun;
        let GuardBudget { undisturbed, first_try, overtime, .. } = task.budget;
        let (failure, again) = match timeout(first_try.saturating_sub(undisturbed), self.unless_opened(first.as_mut()))
            .await
        {
            Ok(answer) => return self.answered_first(task, pass, answer, request, second).await,
            // Late. The second try goes out beside the first one, whose answer is as good if it comes.
            Err(_late) if pass.is_plain() && self.budget.withdraw(self.clock.monotonic()) => {
                self.is_late(pass, begun);
                let is_sent = AtomicBool::new(false);
                let request = || {
                    is_sent.store(true, Ordering::Relaxed);
                    request()
                };
                let first = async { self.timed(task, None, begun, timeout(overtime, self.unless_opened(first))).await };
                let (mut first, mut again) = (pin!(first), pin!(self.second(task, request)));
                tokio::select! {
                    // In an order of its own it could not be replayed from a seed.
                    biased;
                    // The second try is on its way, and may be what happened: one failure is not the whole answer, and what
                    // the first one found may be the second one's doing.
                    answer = &mut first => match answer {
                        Err(failure) if failure.is_unavailable() || is_sent.load(Ordering::Relaxed) => (failure, again.await),
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
                            // What the first one found may be the doing of a second one of which nothing is known.
                            Ok(found) if matches!(&answer, Some(Err(failure)) if failure.is_uncertain()) => {
                                return Ok(second(found));
                            }
                            found => return found,
                        },
                    },
                }
            }
            // There is no second one, so the first one may take all the time.
            Err(_late) => {
                return self.timed(task, Some(pass), begun, timeout(overtime, self.unless_opened(first))).await;
            }
        };
        resolved(failure, again, second)
    }

    /// Whether a call that failed is to be repeated; takes that out of the budget.
    fn may_repeat(&self, task: Task) -> bool {
        let now = self.clock.monotonic();
        if self.breaker.state() != BreakerState::Closed || now.saturating_sub(task.begun) > task.budget.retry_until() {
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
        request: impl Fn() -> Call,
    ) -> Option<Result<Answer, EngineError>>
    where
        Call: Future<Output = Result<Answer, EngineError>>,
    {
        let pause = sleep(self.random(task.budget.retry_pause()));
        self.unless_opened(pause.map(Ok)).await.ok()?;
        let begun = self.clock.monotonic();
        let pass = self.enter(begun).ok()?;
        let left = task.budget.all_tries.saturating_sub(begun.saturating_sub(task.begun));
        let answer = self.timed(task, Some(pass), begun, timeout(left, self.unless_opened(request()))).await;
        let failed = answer.as_ref().is_err_and(EngineError::is_unavailable);
        self.metrics.retried(if failed { RetryResult::Failed } else { RetryResult::Answered });
        Some(answer)
    }
}

/// What a call comes to whose first try failed, and whose second one came to this, if it was made.
fn resolved<Answer>(
    failure: EngineError,
    again: Option<Result<Answer, EngineError>>,
    second: impl FnOnce(Answer) -> Answer,
) -> Result<Answer, EngineError> {
    match again {
        Some(Ok(answer)) if failure.is_uncertain() => Ok(second(answer)),
        // That the second try did not happen says nothing of the first.
        None => Err(failure),
        Some(Err(EngineError::Determinate(_))) if failure.is_uncertain() => Err(failure),
        Some(answer) => answer,
    }
}
