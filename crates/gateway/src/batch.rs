//! The calls of a batch: each has its own deadline and its own answer; those on the same key run one after the other.

mod answers;
mod claims;
#[cfg(test)]
mod tests;

use std::iter;
use std::time::Duration;

use futures_util::future::join_all;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use oncegate_core::engine::EngineError;
use oncegate_core::record::Key;

pub(super) use self::answers::FittedAnswer;
pub(super) use self::claims::run_claims;
use super::within;

/// Makes the calls of a batch: those on the same key one after the other, in their order, all others at once. Answers are in
/// the order of the requests.
///
/// Each call has its own deadline, counted from the start of the batch, so a call that hangs delays no other answer. After a
/// call that the store did not answer, the later calls on its key are not made: they would not be answered either.
///
/// `parts` returns the key and the deadline of a request; `elapsed`, the time since the start of the batch.
pub(super) async fn run<'a, Request, Answer, Call>(
    requests: &'a [Request],
    parts: impl Fn(&Request) -> (&Key, Duration),
    elapsed: impl Fn() -> Duration,
    call: impl Fn(&'a Request) -> Call,
) -> Vec<Result<Answer, EngineError>>
where
    Call: Future<Output = Result<Answer, EngineError>>,
{
    let Order { first, mut later } = Order::of(requests.iter().map(|request| parts(request).0));
    let deadline = |request: &'a Request| parts(request).1;
    let of_key = |index| iter::once(index).chain(later.remove(&index).unwrap_or_default());
    let in_order = |indices| in_order(requests, indices, false, &deadline, &elapsed, &call);
    let answers = join_all(first.into_iter().map(of_key).map(in_order)).await;
    let mut answers: Vec<_> = answers.into_iter().flatten().collect();
    answers.sort_unstable_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Returns the answers of a batch whose calls cannot be made.
pub(super) fn fail<Answer>(count: usize, error: &EngineError) -> Vec<Result<Answer, EngineError>> {
    (0..count).map(|_| Err(error.clone())).collect()
}

/// The order of a batch: the first request of each key at once, the others after it. Keys keep their order, so that one
/// seed of the simulation always gives the same run of a batch.
struct Order {
    first: Vec<usize>,
    /// The other requests, by the first one of their key.
    later: HashMap<usize, Vec<usize>>,
}

impl Order {
    fn of<'a>(keys: impl ExactSizeIterator<Item = &'a Key>) -> Self {
        let (mut first, mut later) = (Vec::with_capacity(keys.len()), HashMap::new());
        let mut seen = HashMap::with_capacity(keys.len());
        for (index, key) in keys.enumerate() {
            match seen.entry(key) {
                Entry::Vacant(new) => {
                    new.insert(index);
                    first.push(index);
                }
                Entry::Occupied(first) => later.entry(*first.get()).or_insert_with(Vec::new).push(index),
            }
        }
        Self { first, later }
    }
}

/// Makes calls one after the other, until a call has no answer. `unanswered`: an earlier call on their key had none.
async fn in_order<'a, Request, Answer, Call>(
    requests: &'a [Request],
    indices: impl IntoIterator<Item = usize>,
    mut unanswered: bool,
    deadline: impl Fn(&'a Request) -> Duration,
    elapsed: impl Fn() -> Duration,
    call: impl Fn(&'a Request) -> Call,
) -> Vec<(usize, Result<Answer, EngineError>)>
where
    Call: Future<Output = Result<Answer, EngineError>>,
{
    let mut answers = Vec::new();
    for index in indices {
        if unanswered {
            answers.push((index, Err(EngineError::unavailable("an earlier item on the same key was not answered"))));
            continue;
        }
        let request = &requests[index];
        let left = deadline(request).saturating_sub(elapsed());
        let answer = if left.is_zero() { Err(too_late()) } else { within(left, call(request)).await };
        unanswered = answer.is_err();
        answers.push((index, answer));
    }
    answers
}

fn too_late() -> EngineError {
    EngineError::unavailable("the deadline of the item passed before it was sent to the store")
}
