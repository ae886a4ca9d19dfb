//! The tries of one call: the first one, a retry if that fails, and a hedged request if it is late.

use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use oncegate_core::engine::EngineError;
use oncegate_core::engine::breaker::BreakerState;
use oncegate_core::record::Key;
use oncegate_telemetry::metrics::EngineCall;
use oncegate_telemetry::metrics::breaker::RetryResult;
use oncegate_telemetry::traces;
use tokio::time::{sleep, timeout};
use tracing::field::Empty;

use super::{Guard, Shard, Task};
use crate::resilience::breaker::Pass;
use crate::resilience::deadline_budget::GuardBudget;
use crate::resilience::meter::engine_result;
use crate::resilience::retry::RetryRule;

/// A call that may be tried twice.
pub(super) struct GuardedCall<'a, SendTry, Amend, IsFinal> {
    pub(super) guard: &'a Arc<Guard>,
    pub(super) task: Task,
    /// Makes a try.
    pub(super) send: SendTry,
    /// Changes the answer of the second try if that of the first is unknown.
    pub(super) amend: Amend,
    /// True for an answer that is valid even while another try is in progress. That try may outdate any other answer,
    /// such as a duplicate.
    pub(super) is_final: IsFinal,
}

impl Guard {
    /// Makes a call, and a second try if the first one fails or is late, and the budget has one. `amend` and `is_final` are as in
    /// [`GuardedCall`].
    pub(super) async fn request<Answer, Try>(
        self: &Arc<Self>,
        call: EngineCall,
        key: &Key,
        deadline: Duration,
        send: impl Fn() -> Try,
        amend: impl Fn(Answer) -> Answer,
        is_final: impl Fn(&Answer) -> bool,
    ) -> Result<Answer, EngineError>
    where
        Try: Future<Output = Result<Answer, EngineError>>,
    {
        self.request_on(self.engine.shard_of(key), call, deadline, send, amend, is_final).await
    }

    /// Makes a call on a shard, as [`Self::request`] does.
    pub(super) async fn request_on<Answer, Try>(
        self: &Arc<Self>,
        shard: u16,
        call: EngineCall,
        deadline: Duration,
        send: impl Fn() -> Try,
        amend: impl Fn(Answer) -> Answer,
        is_final: impl Fn(&Answer) -> bool,
    ) -> Result<Answer, EngineError>
    where
        Try: Future<Output = Result<Answer, EngineError>>,
    {
        let started = self.clock.monotonic();
        let task = self.task(call, shard, started, deadline);
        let pass = self.enter(task.shard, started)?;
        self.shards.get(task.shard).budget.deposit();
        let first = pin!(send());
        let span = traces::child!(
            "store",
            otel.kind = "client",
            oncegate.engine = self.name,
            oncegate.call = call.label(),
            oncegate.result = Empty,
        );
        let call = GuardedCall { guard: self, task, send, amend, is_final };
        let answer = traces::in_span!(span, call.continued(pass, Duration::ZERO, first));
        if !span.is_none() {
            span.record("oncegate.result", engine_result(&answer).label());
        }
        answer
    }

    /// Records the answer of a first try. Returns it if the call ends with it, or the failure if a retry follows.
    pub(super) fn first_try_ended<Answer>(
        self: &Arc<Self>,
        task: Task,
        pass: Pass<'_>,
        answer: Result<Answer, EngineError>,
    ) -> ControlFlow<Result<Answer, EngineError>, EngineError> {
        self.record(task, Some(pass), task.started, &answer, Duration::ZERO);
        match answer {
            Err(failure) if self.may_retry(task, &failure) => ControlFlow::Continue(failure),
            answer => ControlFlow::Break(answer),
        }
    }

    /// Returns whether a call whose first try failed is retried. Takes the retry out of the budget.
    fn may_retry(&self, task: Task, failure: &EngineError) -> bool {
        let now = self.clock.monotonic();
        let elapsed = now.saturating_sub(task.started);
        let Shard { breaker, budget, .. } = self.shards.get(task.shard);
        if breaker.state() != BreakerState::Closed || !RetryRule::of_call(&task.budget).allows(failure, elapsed) {
            return false;
        }
        let may = budget.withdraw(now);
        if !may {
            self.metrics.retried(RetryResult::OverBudget);
        }
        may
    }
}

impl<Answer, Try, SendTry, Amend, IsFinal> GuardedCall<'_, SendTry, Amend, IsFinal>
where
    Try: Future<Output = Result<Answer, EngineError>>,
    SendTry: Fn() -> Try,
    Amend: Fn(Answer) -> Answer,
    IsFinal: Fn(&Answer) -> bool,
{
    /// Continues a call whose first try is in flight, and was waited for this long already.
    pub(super) async fn continued(
        &self,
        pass: Pass<'_>,
        waited: Duration,
        mut first: Pin<&mut impl Future<Output = Result<Answer, EngineError>>>,
    ) -> Result<Answer, EngineError> {
        match timeout(self.task.budget.undisturbed.saturating_sub(waited), first.as_mut()).await {
            Ok(answer) => self.first_answered(pass, answer).await,
            // Boxed, so that every other call takes less memory.
            Err(_late) => Box::pin(self.late(pass, first)).await,
        }
    }

    /// Continues a call whose first try was answered.
    async fn first_answered(&self, pass: Pass<'_>, answer: Result<Answer, EngineError>) -> Result<Answer, EngineError> {
        match self.guard.first_try_ended(self.task, pass, answer) {
            ControlFlow::Break(answer) => answer,
            ControlFlow::Continue(failure) => self.retried(failure).await,
        }
    }

    /// Retries a call whose first try failed.
    pub(super) async fn retried(&self, failure: EngineError) -> Result<Answer, EngineError> {
        let second = self.second_try(&AtomicBool::new(false)).await;
        resolved(failure, second, &self.amend)
    }

    /// Continues a call whose first try is late. Only such a call pays for the notification of the breaker.
    async fn late(
        &self,
        pass: Pass<'_>,
        mut first: Pin<&mut impl Future<Output = Result<Answer, EngineError>>>,
    ) -> Result<Answer, EngineError> {
        let Self { guard, task, amend, is_final, .. } = self;
        let Task { started, shard, .. } = *task;
        let withdraw = || guard.shards.get(shard).budget.withdraw(guard.clock.monotonic());
        let GuardBudget { undisturbed, first_try, overtime, .. } = task.budget;
        match timeout(first_try.saturating_sub(undisturbed), guard.unless_opened(shard, first.as_mut())).await {
            Ok(answer) => return self.first_answered(pass, answer).await,
            Err(_late) if !overtime.is_zero() && pass.was_closed() && withdraw() => guard.late(shard, pass, started),
            // Without a hedged request, the first try may take all the time.
            Err(_late) => {
                let first = timeout(overtime, guard.unless_opened(shard, first));
                return guard.timed(*task, Some(pass), started, first).await;
            }
        }
        let is_sent = AtomicBool::new(false);
        let first =
            async { guard.timed(*task, None, started, timeout(overtime, guard.unless_opened(shard, first))).await };
        let (mut first, mut second) = (pin!(first), pin!(self.second_try(&is_sent)));
        let (failure, second) = tokio::select! {
            // In a random order it could not be replayed from a seed.
            biased;
            // Once the second try was sent, either try may have taken effect. So a failure of the first one is not the
            // whole answer, and the state that the first one found may be the effect of the second.
            answer = &mut first => match answer {
                Err(failure) if failure.is_unavailable() || is_sent.load(Ordering::Relaxed) => (failure, second.await),
                Ok(answer) if !is_sent.load(Ordering::Relaxed) => return Ok(answer),
                Ok(answer) if is_final(&answer) => return Ok(amend(answer)),
                Ok(answer) => return Ok(amend(second.await.and_then(Result::ok).unwrap_or(answer))),
                failure => return failure,
            },
            answer = &mut second => match answer {
                Some(Ok(answer)) if is_final(&answer) => return Ok(amend(answer)),
                Some(Ok(answer)) => return Ok(amend(first.await.unwrap_or(answer))),
                answer => match first.await {
                    Err(failure) => (failure, answer),
                    // The state that the first one found may be the effect of the second one, and the result of that
                    // one is unknown.
                    Ok(found) if matches!(&answer, Some(Err(failure)) if failure.is_uncertain()) => {
                        return Ok(amend(found));
                    }
                    found => return found,
                },
            },
        };
        resolved(failure, second, amend)
    }

    /// Makes the second try, after a random pause, within the time that is left. `None` if it was not made; sets `is_sent` if it
    /// was.
    async fn second_try(&self, is_sent: &AtomicBool) -> Option<Result<Answer, EngineError>> {
        let Self { guard, task, .. } = self;
        let pause = sleep(RetryRule::of_call(&task.budget).pause(guard.entropy.bits()));
        guard.unless_opened(task.shard, pause.map(Ok)).await.ok()?;
        let started = guard.clock.monotonic();
        // A silence begins with the call. From its second try on, hedged calls would open the breaker half a deadline late.
        let pass = guard.enter(task.shard, started).ok()?.unanswered_since(task.started);
        let left = task.budget.all_tries.saturating_sub(started.saturating_sub(task.started));
        is_sent.store(true, Ordering::Relaxed);
        let second = timeout(left, guard.unless_opened(task.shard, (self.send)()));
        let answer = guard.timed(*task, Some(pass), started, second).await;
        let failed = answer.as_ref().is_err_and(EngineError::is_unavailable);
        guard.metrics.retried(if failed { RetryResult::Failed } else { RetryResult::Answered });
        Some(answer)
    }
}

/// Returns the answer of a call whose first try failed, given that of the second try, if it was made.
fn resolved<Answer>(
    failure: EngineError,
    second: Option<Result<Answer, EngineError>>,
    amend: impl Fn(Answer) -> Answer,
) -> Result<Answer, EngineError> {
    match second {
        Some(Ok(answer)) if failure.is_uncertain() => Ok(amend(answer)),
        // Without a second try, nothing more is known about the first.
        None => Err(failure),
        Some(Err(EngineError::Determinate(_))) if failure.is_uncertain() => Err(failure),
        Some(answer) => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_try_answers_for_an_uncertain_first_one_only_with_an_answer() {
        let (certain, uncertain) = (|| EngineError::unavailable("out"), || EngineError::indeterminate("lost"));
        let amended = |failure, second| resolved(failure, second, |answer: i32| answer + 1);
        assert_eq!(amended(uncertain(), Some(Ok(1))), Ok(2), "it may have found its own effect");
        assert_eq!(amended(certain(), Some(Ok(1))), Ok(1));
        assert_eq!(amended(uncertain(), None), Err(uncertain()));
        assert_eq!(amended(uncertain(), Some(Err(certain()))), Err(uncertain()));
        assert_eq!(
            amended(certain(), Some(Err(EngineError::incompatible("no")))),
            Err(EngineError::incompatible("no"))
        );
    }
}
