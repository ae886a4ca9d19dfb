//! The answers to the claims of a batch, recorded as they come. The first answer of an item counts. Results of duplicates stay
//! as long as there is room for them.

use std::iter;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use oncegate_core::call::Answered;
use oncegate_core::claim::ClaimResponse;
use oncegate_core::engine::EngineError;
use tokio::sync::oneshot;

use super::super::result_memory::{AppMemory, KeptResults};

/// An answer to a claim, with its result if there was room for it.
#[derive(Debug)]
pub(crate) struct FittedAnswer {
    pub(crate) answered: Answered<ClaimResponse>,
    /// The duplicate has a result, which was left out.
    pub(crate) result_omitted: bool,
}

impl FittedAnswer {
    /// Returns whether the store has granted the claim, and not a policy.
    pub(crate) fn is_granted_by_store(&self) -> bool {
        matches!(&self.answered, Answered { answer: ClaimResponse::Granted(_), policy: None })
    }
}

/// The answers so far.
pub(super) struct Answers<'a> {
    state: Mutex<State>,
    memory: &'a AppMemory<'a>,
}

struct State {
    answers: Vec<Option<Result<FittedAnswer, EngineError>>>,
    /// Waiters for the answer to an item. They receive whether it was not answered.
    waiting: HashMap<usize, oneshot::Sender<bool>>,
    /// Bytes left for results.
    results_left: usize,
    kept: KeptResults,
}

impl<'a> Answers<'a> {
    /// Creates a record for a batch of `items` whose results have `results_max` bytes at most.
    pub(super) fn new(items: usize, results_max: usize, memory: &'a AppMemory<'a>) -> Self {
        let answers = iter::repeat_with(|| None).take(items).collect();
        let (waiting, kept) = (HashMap::new(), KeptResults::default());
        Self { state: Mutex::new(State { answers, waiting, results_left: results_max, kept }), memory }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a receiver that is notified if an item was not answered.
    pub(super) fn wait_for(&self, index: usize) -> oneshot::Receiver<bool> {
        let (sender, receiver) = oneshot::channel();
        self.state().waiting.insert(index, sender);
        receiver
    }

    /// Records an answer. Returns false if the item has one.
    pub(super) fn record(&self, index: usize, answer: Result<Answered<ClaimResponse>, EngineError>) -> bool {
        let state = &mut *self.state();
        if state.answers[index].is_some() {
            return false;
        }
        if let Some(waiting) = state.waiting.remove(&index) {
            // Fails if nothing waits for it any more.
            let _ = waiting.send(answer.is_err());
        }
        state.answers[index] = Some(answer.map(|answered| state.fit(answered, self.memory)));
        true
    }

    /// Leaves out the result of a duplicate if there is no room for it.
    pub(super) fn fit(&self, answered: Answered<ClaimResponse>) -> FittedAnswer {
        self.state().fit(answered, self.memory)
    }

    /// Adds the answers of items that followed others on their key, and returns all.
    pub(super) fn finish(
        self,
        later: impl Iterator<Item = (usize, Result<FittedAnswer, EngineError>)>,
    ) -> (Vec<Result<FittedAnswer, EngineError>>, KeptResults) {
        let State { mut answers, kept, .. } = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        later.for_each(|(index, answer)| answers[index] = Some(answer));
        let answers = answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(EngineError::no_answer())));
        (answers.collect(), kept)
    }
}

impl State {
    fn fit(&mut self, mut answered: Answered<ClaimResponse>, memory: &AppMemory<'_>) -> FittedAnswer {
        let Some(result) = stored_result(&mut answered.answer) else {
            return FittedAnswer { answered, result_omitted: false };
        };
        let bytes = result.as_ref().map_or(0, |result| result.len());
        let fits = bytes <= self.results_left && memory.keep(bytes, &mut self.kept);
        if fits {
            self.results_left -= bytes;
        } else {
            *result = None;
        }
        FittedAnswer { answered, result_omitted: !fits }
    }
}

/// Returns the result of a duplicate, if it has one.
fn stored_result(response: &mut ClaimResponse) -> Option<&mut Option<Box<str>>> {
    match response {
        ClaimResponse::Duplicate(claim) => Some(&mut claim.record.result).filter(|result| result.is_some()),
        ClaimResponse::Granted(_) | ClaimResponse::Mismatch(_) => None,
    }
}
