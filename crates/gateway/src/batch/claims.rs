//! The claims of a batch: the first claim on each key goes to the engine in a chunk, and the others follow one by one.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all, select};
use oncegate_core::engine::EngineError;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::super::late;
use super::super::result_memory::{AppMemory, KeptResults};
use super::answers::{Answers, FittedAnswer};
use super::{Order, in_order, too_late};
use oncegate_outage::{OutagePolicies, PolicyClaim};

/// Makes the claims of a batch, under the rules of [`run`](super::run). Chunks are as large as the results that they may load
/// have room in the app's memory. A result is kept only if all kept ones fit into `results_max` and into that memory;
/// dropping [`KeptResults`] releases it.
pub(crate) async fn run_claims(
    policies: &OutagePolicies,
    requests: &[PolicyClaim<'_>],
    memory: &AppMemory<'_>,
    results_max: usize,
    elapsed: impl Fn() -> Duration,
) -> (Vec<Result<FittedAnswer, EngineError>>, KeptResults) {
    let Order { first, mut later } = Order::of(requests.iter().map(|claim| &claim.request.key));
    let answers = Answers::new(requests.len(), results_max, memory);
    let batch = Claims { policies, requests, memory, answers, elapsed };
    let mut rest = Vec::new();
    for index in &first {
        if let Some(indices) = later.remove(index) {
            let (batch, first_is_unanswered) = (&batch, batch.answers.wait_for(*index));
            rest.push(async move {
                // Every answer is recorded, so the sender is not dropped before it sends.
                let unanswered = first_is_unanswered.await.unwrap_or(true);
                let deadline = |claim: &PolicyClaim<'_>| claim.context.deadline;
                in_order(requests, indices, unanswered, deadline, &batch.elapsed, |claim| batch.claim(claim)).await
            });
        }
    }
    let chunks = first.chunks(memory.chunk()).map(|indices| batch.claim_chunk(indices));
    let (_, rest) = join(join_all(chunks), join_all(rest)).await;
    batch.answers.finish(rest.into_iter().flatten())
}

/// The claims of a batch in progress.
struct Claims<'a, Elapsed> {
    policies: &'a OutagePolicies,
    requests: &'a [PolicyClaim<'a>],
    memory: &'a AppMemory<'a>,
    answers: Answers<'a>,
    elapsed: Elapsed,
}

impl<Elapsed: Fn() -> Duration> Claims<'_, Elapsed> {
    /// Sends the claims at these indices in one call, and records each answer as it comes. Claims with the same deadline share
    /// a timer.
    async fn claim_chunk(&self, indices: &[usize]) {
        let longest = indices.iter().map(|index| self.requests[*index].context.deadline).max().unwrap_or_default();
        let room = timeout(longest.saturating_sub((self.elapsed)()), self.memory.load(indices.len())).await;
        let started = (self.elapsed)();
        let in_time = |index: &usize| room.is_ok() && self.requests[*index].context.deadline > started;
        let (sent, expired): (Vec<_>, Vec<_>) = indices.iter().copied().partition(in_time);
        for index in expired {
            self.answers.record(index, Err(too_late()));
        }
        let requests: Vec<_> = sent.iter().map(|index| self.requests[*index]).collect();
        let (answers, missing, complete) = (&self.answers, AtomicUsize::new(sent.len()), Notify::new());
        let sink = |number: usize, answer| {
            if answers.record(sent[number], answer) && missing.fetch_sub(1, Ordering::AcqRel) == 1 {
                complete.notify_one();
            }
        };
        // The engine's call continues while one of its claims hangs, which may have passed its deadline long ago.
        let complete = pin!(complete.notified());
        let all = pin!(self.policies.claim_batch(&requests, &sink));
        let mut all = select(all, complete);
        for deadline in distinct_deadlines(&requests) {
            if timeout(deadline.saturating_sub((self.elapsed)()), &mut all).await.is_ok() {
                break;
            }
            let passed = requests.iter().enumerate().filter(|(_, claim)| claim.context.deadline <= deadline);
            passed.for_each(|(number, _)| sink(number, late()));
        }
        // The engine returned without these answers.
        (0..sent.len()).for_each(|number| sink(number, Err(EngineError::no_answer())));
    }

    /// Sends one claim.
    async fn claim(&self, claim: &PolicyClaim<'_>) -> Result<FittedAnswer, EngineError> {
        let left = claim.context.deadline.saturating_sub((self.elapsed)());
        let _room = timeout(left, self.memory.load(1)).await.map_err(|_| too_late())?;
        let answered = self.policies.claim(claim.request, claim.context).await?;
        Ok(self.answers.fit(answered))
    }
}

/// Returns the deadlines of claims, the earliest first.
fn distinct_deadlines(claims: &[PolicyClaim<'_>]) -> Vec<Duration> {
    let mut deadlines: Vec<_> = claims.iter().map(|claim| claim.context.deadline).collect();
    deadlines.sort_unstable();
    deadlines.dedup();
    deadlines
}
