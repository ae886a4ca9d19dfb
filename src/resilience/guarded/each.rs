//! The claims of a batch, guarded each as if it came alone: its own pass of the breaker, its own repeat out of the budget. What
//! they have in common is one way to the engine, and one timer, for as long as all is well.

use std::mem::replace;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{Either, join_all, select};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::calls::is_granted;
use super::{Guard, Task};
use crate::domain::claim::ClaimResponse;
use crate::engine::{BatchClaim, ClaimSink, EngineError};
use crate::resilience::breaker::Pass;
use crate::telemetry::metrics::EngineCall;

/// How the first try of a claim stands.
enum First<'a> {
    /// On its way.
    Asked(Pass<'a>),
    /// It has failed, and there is to be a second one.
    Failed(EngineError),
    /// Not answered soon: who goes on with it hears of the answer there.
    Late(oneshot::Sender<Result<ClaimResponse, EngineError>>),
    /// Told, or gone on with.
    Over,
}

impl Guard {
    /// Every claim that the breaker lets through is tried once with all others. What has failed by then, or is late, goes
    /// on by itself.
    pub(super) async fn claim_batch(self: &Arc<Self>, claims: &[BatchClaim<'_>], tell: ClaimSink<'_>) {
        let begun = self.clock.monotonic();
        let task = |claim: &BatchClaim<'_>| Task::new(EngineCall::Claim, begun, claim.deadline);
        let mut firsts = Vec::with_capacity(claims.len());
        for place in 0..claims.len() {
            match self.enter(begun) {
                Ok(pass) => {
                    self.budget.deposit();
                    firsts.push(First::Asked(pass));
                }
                // What stands behind it would be refused as well.
                Err(failure) => {
                    (place..claims.len()).for_each(|place| tell(place, Err(failure.clone())));
                    break;
                }
            }
        }
        let tried = &claims[..firsts.len()];
        let firsts = Mutex::new(firsts);
        let step =
            |place: usize, next| replace(&mut firsts.lock().unwrap_or_else(PoisonError::into_inner)[place], next);
        let heard = |place: usize, answer| match step(place, First::Over) {
            First::Asked(pass) => match self.judged(task(&tried[place]), pass, answer) {
                ControlFlow::Break(answer) => tell(place, answer),
                ControlFlow::Continue(failure) => drop(step(place, First::Failed(failure))),
            },
            // An error means that it is not waited for any longer.
            First::Late(waits) => drop(waits.send(answer)),
            First::Failed(_) | First::Over => {}
        };
        let mut first = pin!(self.engine.claim_batch(tried, &heard));
        let soon = tried.iter().map(|claim| task(claim).budget.undisturbed).min().unwrap_or_default();
        let is_over = timeout(soon, &mut first).await.is_ok();

        let mut rest = Vec::new();
        for (place, claim) in tried.iter().enumerate() {
            let (task, again) = (task(claim), || self.engine.claim(claim.request, claim.deadline));
            let answer = match step(place, First::Over) {
                First::Asked(pass) => {
                    let (waits, answer) = oneshot::channel();
                    drop(step(place, First::Late(waits)));
                    Either::Left(async move {
                        let first = pin!(async { answer.await.unwrap_or_else(|_| Err(EngineError::unsaid())) });
                        self.goes_on(task, pass, soon, first, again, |answer| answer, is_granted).await
                    })
                }
                First::Failed(failure) => Either::Right(self.repeated(task, failure, again, |answer| answer)),
                First::Late(_) | First::Over => continue,
            };
            // Large, and not to be moved whenever one more is added.
            rest.push(Box::pin(async move { tell(place, answer.await) }));
        }
        let rest = pin!(join_all(rest));
        if is_over {
            rest.await;
        } else if let Either::Left(((), rest)) = select(first, rest).await {
            rest.await;
        }
    }
}
