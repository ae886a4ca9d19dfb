//! The claims of a batch. Each is guarded as if it came alone, with its own pass of the breaker and its own retry. Together they
//! need one call of the engine and one timer, unless something goes wrong.

use std::mem::replace;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{Either, join_all, select};
use oncegate_core::claim::ClaimResponse;
use oncegate_core::engine::{BatchClaim, ClaimSink, EngineError};
use oncegate_telemetry::metrics::EngineCall;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::Guard;
use super::engine::is_granted;
use super::retry::GuardedCall;
use crate::resilience::batch_part::BatchPart;
use crate::resilience::breaker::Pass;

/// State of a claim's first try.
enum FirstTry<'a> {
    InFlight(Pass<'a>),
    /// The try failed, and a second one follows.
    Failed(EngineError),
    /// The try is late. Its answer goes to the future that continues the call.
    Late(oneshot::Sender<Result<ClaimResponse, EngineError>>),
    /// The call was answered, or is continued elsewhere.
    Done,
}

impl Guard {
    /// Tries every claim that the breaker lets pass once, all together. Claims that have failed by then, or are late, continue
    /// alone.
    pub(super) async fn claim_batch(self: &Arc<Self>, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        let started = self.clock.monotonic();
        let (mut tasks, mut first_tries) = (Vec::with_capacity(claims.len()), Vec::with_capacity(claims.len()));
        let mut refused = Vec::new();
        for (position, claim) in claims.iter().enumerate() {
            let task = self.task(EngineCall::Claim, self.engine.shard_of(&claim.request.key), started, claim.deadline);
            match self.enter(task.shard, started) {
                Ok(pass) => {
                    self.shards.get(task.shard).budget.deposit();
                    tasks.push(task);
                    first_tries.push(FirstTry::InFlight(pass));
                }
                Err(failure) => {
                    refused.push(position);
                    sink(position, Err(failure));
                }
            }
        }
        let part = BatchPart::without(claims, &refused);
        let tried = part.claims();
        let sink = |at: usize, answer| sink(part.position(at), answer);
        let first_tries = Mutex::new(first_tries);
        let set = |position: usize, next| {
            replace(&mut first_tries.lock().unwrap_or_else(PoisonError::into_inner)[position], next)
        };
        let receive = |position: usize, answer| match set(position, FirstTry::Done) {
            FirstTry::InFlight(pass) => match self.first_try_ended(tasks[position], pass, answer) {
                ControlFlow::Break(answer) => sink(position, answer),
                ControlFlow::Continue(failure) => drop(set(position, FirstTry::Failed(failure))),
            },
            // Fails if the call has ended.
            FirstTry::Late(waiting) => drop(waiting.send(answer)),
            FirstTry::Failed(_) | FirstTry::Done => {}
        };
        let mut together = pin!(self.engine.claim_batch(tried, &receive));
        let undisturbed = tasks.iter().map(|task| task.budget.undisturbed).min().unwrap_or_default();
        let is_over = timeout(undisturbed, &mut together).await.is_ok();

        let mut rest = Vec::new();
        for (position, claim) in tried.iter().enumerate() {
            let (task, sink, send) = (tasks[position], &sink, || self.engine.claim(claim.request, claim.deadline));
            let call = GuardedCall { guard: self, task, send, amend: |answer| answer, is_final: is_granted };
            let answer = match set(position, FirstTry::Done) {
                FirstTry::InFlight(pass) => {
                    let (waiting, answer) = oneshot::channel();
                    drop(set(position, FirstTry::Late(waiting)));
                    Either::Left(async move {
                        let first = pin!(async { answer.await.unwrap_or_else(|_| Err(EngineError::no_answer())) });
                        call.continued(pass, undisturbed, first).await
                    })
                }
                FirstTry::Failed(failure) => Either::Right(async move { call.retried(failure).await }),
                FirstTry::Late(_) | FirstTry::Done => continue,
            };
            // Large, and not to be moved whenever one more is added.
            rest.push(Box::pin(async move { sink(position, answer.await) }));
        }
        let rest = pin!(join_all(rest));
        if is_over {
            rest.await;
        } else if let Either::Left(((), rest)) = select(together, rest).await {
            rest.await;
        }
    }
}
