//! The claim call of a caller that is willing to wait.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use oncegate_core::call::{Answered, CallContext};
use oncegate_core::claim::{self, ClaimRequest, ClaimResponse};
use oncegate_core::engine::{Channel, EngineError, Subscription};
use oncegate_core::record::{ClaimState, LiveClaim};
use oncegate_core::terms::{ClaimOnOutage, Mode};
use oncegate_telemetry::metrics::app::AppMetrics;
use oncegate_telemetry::metrics::waits::WaitEnd;
use tokio::time::sleep;

use super::{QueueName, Ticket, Verdict, driver};
use crate::claim::{ClaimAnswer, ClaimCall, is_granted};
use crate::tenants::App;
use crate::{Failure, Gateway, within};

/// The answer to a claim call that was willing to wait.
#[derive(Debug)]
pub struct WaitedClaim {
    /// The answer.
    pub answer: Answered<ClaimAnswer>,
    /// Time that it has waited; `None` if it was answered at once.
    pub waited: Option<Duration>,
}

impl WaitedClaim {
    /// Reports whether the claim is granted.
    pub fn is_granted(&self) -> bool {
        matches!(self.answer.answer, ClaimAnswer::Granted(_))
    }
}

/// End of a wait.
enum End {
    Verdict(Verdict),
    /// The claim that blocks the caller is still live.
    Over(LiveClaim, WaitEnd),
}

/// The answer to a call that does not wait, or not any more.
struct Unqueued {
    answer: Result<Answered<ClaimResponse>, EngineError>,
    /// Time at which the store was called.
    asked_at: Duration,
    /// Reason why it may not wait, although a claim in progress blocks it.
    refused: Option<WaitEnd>,
}

/// Returns the end of a wait that the store's answer to its caller's own claim call ends.
fn end_of(answer: &Result<Answered<ClaimResponse>, EngineError>) -> WaitEnd {
    match answer {
        Ok(answered) if is_granted(answered) => WaitEnd::Granted,
        Ok(_) => WaitEnd::Settled,
        Err(_) => WaitEnd::Failed,
    }
}

impl Gateway {
    /// Returns for how long a call may wait that asks for this time; `None` if its app does not wait.
    pub fn wait_granted(&self, app: &App, call: &ClaimCall, wait: Duration) -> Option<Duration> {
        // Observe mode lets a duplicate pass at once.
        let waits = app.terms_of(&call.operation).mode != Mode::Observe && !wait.is_zero();
        waits.then(|| wait.min(self.waiters.time_max))
    }

    /// Claims an operation, and waits up to `time` for a claim in progress to end. `gone` is first polled when the call
    /// begins to wait, and resolves when its caller disconnects.
    ///
    /// # Errors
    /// There is no answer; a duplicate is an answer.
    pub async fn claim_or_wait(
        self: &Arc<Self>,
        app: &Arc<App>,
        call: ClaimCall,
        time: Duration,
        gone: impl Future<Output = ()>,
    ) -> Result<WaitedClaim, Failure> {
        let began_at = self.clock.monotonic();
        let (request, context) = self.prepare(app, call)?;
        let request = Arc::new(request);
        let queue = QueueName { chain: app.chain.as_str().into(), key: request.key.clone() };
        let mut gone = pin!(gone);
        let mut waits = None;
        loop {
            let ticket = match self.waiters.join(&queue, &request, context, began_at) {
                Some(ticket) => ticket,
                None => match self.claim_or_enter(app, &queue, &request, context, began_at).await {
                    Ok(ticket) => ticket,
                    Err(Unqueued { answer, asked_at, refused }) => {
                        // A caller that has waited before asked again itself.
                        if let Some(end) = refused.or_else(|| waits.as_ref().map(|_| end_of(&answer))) {
                            self.count_wait(app, end);
                        }
                        let waited = waits.as_ref().map(|_| self.since(began_at));
                        let answer = self.answer_claim(app, &request, answer, asked_at)?;
                        return Ok(WaitedClaim { answer, waited });
                    }
                },
            };
            waits.get_or_insert_with(|| self.metrics.load().get(&app.key).map(AppMetrics::begin_wait));
            let left = time.saturating_sub(self.since(began_at));
            let (answer, asked_at, end) = match self.wait(ticket, left, gone.as_mut()).await {
                End::Verdict(Verdict::Again) => continue,
                End::Verdict(Verdict::Answered(answer, asked_at)) => {
                    let end = end_of(&answer);
                    (answer, asked_at, end)
                }
                End::Verdict(Verdict::Settled(live, asked_at)) => {
                    let answer = claim::claim(Some(&live), &request, None).1;
                    (Ok(Answered::by_store(answer)), asked_at, WaitEnd::Settled)
                }
                End::Over(live, end) => {
                    let answer = Answered::by_store(ClaimResponse::Duplicate(live));
                    (Ok(answer), self.clock.monotonic(), end)
                }
            };
            self.count_wait(app, end);
            let waited = Some(self.since(began_at));
            return Ok(WaitedClaim { answer: self.answer_claim(app, &request, answer, asked_at)?, waited });
        }
    }

    /// Claims, or enters the queue behind the claim that blocks the caller.
    async fn claim_or_enter(
        self: &Arc<Self>,
        app: &Arc<App>,
        queue: &QueueName,
        request: &Arc<ClaimRequest>,
        context: CallContext<ClaimOnOutage>,
        began_at: Duration,
    ) -> Result<Ticket<'_>, Unqueued> {
        let asked_at = self.clock.monotonic();
        let call = async { self.policies(app)?.claim(request, context).await };
        // Boxed: a caller that waits needs no memory for it.
        let answer = Box::pin(within(context.deadline, call)).await;
        let Ok(Answered { answer: ClaimResponse::Duplicate(live), policy: None }) = &answer else {
            return Err(Unqueued { answer, asked_at, refused: None });
        };
        if live.record.state != ClaimState::InProgress {
            return Err(Unqueued { answer, asked_at, refused: None });
        }
        let Some((ticket, is_new)) = self.waiters.enter(queue, request, context, began_at, (live, asked_at)) else {
            let is_draining = self.waiters.draining.is_cancelled();
            let refused = Some(if is_draining { WaitEnd::Draining } else { WaitEnd::Full });
            return Err(Unqueued { answer, asked_at, refused });
        };
        if is_new {
            tokio::spawn(driver::run(self.clone(), app.clone(), queue.clone()));
        }
        Ok(ticket)
    }

    async fn wait(&self, mut ticket: Ticket<'_>, time: Duration, gone: impl Future<Output = ()>) -> End {
        let end = tokio::select! {
            biased;
            verdict = &mut ticket.verdict => return End::Verdict(verdict.unwrap_or(Verdict::Again)),
            () = gone => WaitEnd::CallerGone,
            () = self.waiters.draining.cancelled() => WaitEnd::Draining,
            () = sleep(time) => WaitEnd::TimeOver,
        };
        let now = self.clock.monotonic();
        if let Some(live) = ticket.leave(now) {
            return End::Over(live, end);
        }
        // The store is being asked for it: a grant must reach its caller.
        End::Verdict((&mut ticket.verdict).await.unwrap_or(Verdict::Again))
    }

    /// Subscribes to the end of a claim of an app.
    pub(super) async fn subscribe(&self, app: &App, channel: &Channel) -> Subscription {
        match self.policies(app) {
            Ok(policies) => policies.engine().subscribe(channel).await,
            Err(_) => Subscription::none(),
        }
    }

    /// Answers all callers that wait, and lets no more wait.
    pub fn drain_waiters(&self) {
        self.waiters.drain();
        self.locks.drain();
    }

    fn count_wait(&self, app: &App, end: WaitEnd) {
        if let Some(metrics) = self.metrics.load().get(&app.key) {
            metrics.end_wait(end);
        }
    }
}
