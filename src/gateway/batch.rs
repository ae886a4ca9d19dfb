//! Many calls at once: each has its own deadline and its own answer, and those on the same key go one after the other.

use std::time::Duration;

use hashbrown::HashMap;

use super::within;
use crate::domain::record::Key;
use crate::engine::EngineError;

/// Makes the calls of a batch: those on the same key one after the other, in their order, all others at
/// once. Answers are in the order of the items.
///
/// Each is bounded by itself and from the beginning of the batch, so that no item that hangs takes another's answer away. Where
/// a store does not answer for a key, the later calls on that key are not tried: they would find the same.
///
/// `of` tells an item's key and its deadline, `came` how long ago the batch came.
pub(super) async fn each<'a, Ask, Answer, Call>(
    asks: &'a [Ask],
    of: impl Fn(&Ask) -> (&Key, Duration),
    came: impl Fn() -> Duration,
    call: impl Fn(&'a Ask) -> Call,
) -> Vec<Result<Answer, EngineError>>
where
    Call: Future<Output = Result<Answer, EngineError>>,
{
    // In the order in which keys turn up, not in that of a table: what is repeated from a seed goes the same way again.
    let mut of_keys: Vec<Vec<usize>> = Vec::with_capacity(asks.len());
    let mut numbers: HashMap<&Key, usize> = HashMap::with_capacity(asks.len());
    for (place, ask) in asks.iter().enumerate() {
        let number = *numbers.entry(of(ask).0).or_insert(of_keys.len());
        if number == of_keys.len() {
            of_keys.push(Vec::new());
        }
        of_keys[number].push(place);
    }
    let (of, came, call) = (&of, &came, &call);
    let in_order = |places: Vec<usize>| async move {
        let mut answers = Vec::with_capacity(places.len());
        let mut silent = false;
        for place in places {
            let ask = &asks[place];
            let left = of(ask).1.saturating_sub(came());
            let answer = if silent {
                Err(EngineError::unavailable("an earlier item on the same key was not answered"))
            } else if left.is_zero() {
                Err(EngineError::unavailable("its time was over before it could be asked for"))
            } else {
                within(left, call(ask)).await
            };
            silent |= answer.is_err();
            answers.push((place, answer));
        }
        answers
    };
    let answers = futures_util::future::join_all(of_keys.into_iter().map(in_order)).await;
    let mut answers: Vec<_> = answers.into_iter().flatten().collect();
    answers.sort_unstable_by_key(|(place, _)| *place);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// The answers of a batch of which nothing can be asked for.
pub(super) fn fail<Answer>(count: usize, failure: &EngineError) -> Vec<Result<Answer, EngineError>> {
    (0..count).map(|_| Err(failure.clone())).collect()
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::engine::conformance::fresh_claim;

    const SECOND: Duration = Duration::from_secs(1);

    /// A call that takes this long, if it is answered at all.
    struct Ask {
        key: Key,
        deadline: Duration,
        takes: Duration,
    }

    impl Ask {
        fn new(deadline: Duration, takes: Duration) -> Self {
            Self { key: fresh_claim().key, deadline, takes }
        }
    }

    /// What each was answered, by how long it took, and how long the whole did.
    #[expect(clippy::disallowed_methods, reason = "it is the test's own clock")]
    async fn answered(asks: &[Ask]) -> (Vec<Result<Duration, EngineError>>, Duration) {
        let begun = Instant::now();
        let call = |ask: &Ask| {
            let takes = ask.takes;
            async move {
                sleep(takes).await;
                Ok(takes)
            }
        };
        (each(asks, |ask| (&ask.key, ask.deadline), || begun.elapsed(), call).await, begun.elapsed())
    }

    fn is_unknown(answer: &Result<Duration, EngineError>) -> bool {
        matches!(answer, Err(EngineError::Indeterminate(_)))
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_that_hangs_takes_nobody_elses_answer_away() {
        let asks = [
            Ask::new(SECOND, Duration::MAX),
            Ask::new(SECOND, Duration::ZERO),
            Ask::new(SECOND * 3, SECOND * 2),
            Ask::new(SECOND / 10, SECOND / 2),
        ];
        let (answers, took) = answered(&asks).await;
        assert!(is_unknown(&answers[0]) && is_unknown(&answers[3]), "{answers:?}");
        assert_eq!(answers[1..3], [Ok(Duration::ZERO), Ok(SECOND * 2)]);
        assert!(took < SECOND * 2 + SECOND / 10, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_an_item_that_waits_for_its_turn_goes_by() {
        let slow = Ask::new(SECOND, SECOND * 6 / 10);
        let of_the_same = || Ask { key: slow.key.clone(), deadline: SECOND, takes: SECOND * 6 / 10 };
        let asks = [of_the_same(), of_the_same(), of_the_same()];
        let (answers, took) = answered(&asks).await;
        assert!(answers[0].is_ok() && is_unknown(&answers[1]), "{answers:?}");
        assert!(matches!(answers[2], Err(EngineError::Determinate(_))), "it was not tried: {answers:?}");
        assert!(took < SECOND + SECOND / 10, "{took:?}");
    }
}
