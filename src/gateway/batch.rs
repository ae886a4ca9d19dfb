//! Many calls at once: each has its own deadline and its own answer, and those on the same key go one after the other.

use std::iter;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{join, join_all, select};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::{late, within};
use crate::domain::claim::{Claim, Claimed};
use crate::domain::record::Key;
use crate::engine::{Engine, EngineError};

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
    let Turns { first, mut later } = Turns::of(asks.iter().map(|ask| of(ask).0));
    let deadline = |ask: &'a Ask| of(ask).1;
    let of_key = |place| iter::once(place).chain(later.remove(&place).unwrap_or_default());
    let in_turn = |places| in_turn(asks, places, false, &deadline, &came, &call);
    let answers = join_all(first.into_iter().map(of_key).map(in_turn)).await;
    let mut answers: Vec<_> = answers.into_iter().flatten().collect();
    answers.sort_unstable_by_key(|(place, _)| *place);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// The same for claims, whose engine takes those that come first on their keys in one go, and tells of each as it is known. So
/// they have one timer as long as their deadlines are the same.
pub(super) async fn claims(
    engine: &dyn Engine,
    asks: &[&Claim],
    came: impl Fn() -> Duration,
) -> Vec<Result<Claimed, EngineError>> {
    let Turns { first, mut later } = Turns::of(asks.iter().map(|ask| &ask.key));
    let sheet = Sheet::new(asks.len(), first.len());
    let mut rest = Vec::new();
    for place in &first {
        if let Some(places) = later.remove(place) {
            let is_silent = sheet.wait_for(*place);
            let came = &came;
            rest.push(async move {
                // Its answer is put down in any case.
                let silent = is_silent.await.unwrap_or(true);
                in_turn(asks, places, silent, |ask| ask.deadline, came, |ask| engine.claim(ask)).await
            });
        }
    }
    let begun = came();
    let (tried, over): (Vec<_>, Vec<_>) = first.into_iter().partition(|place| asks[*place].deadline > begun);
    for place in over {
        sheet.put(place, Err(too_late()));
    }
    let ends = tried.iter().map(|place| asks[*place].deadline);
    let in_one_go = async {
        let asks: Vec<&Claim> = tried.iter().map(|place| asks[*place]).collect();
        let tell = |number: usize, answer| sheet.put(tried[number], answer);
        // It goes on as long as an item hangs, which may have been late for long.
        let is_full = pin!(sheet.is_full.notified());
        let mut all = select(engine.claim_each(&asks, &tell), is_full);
        for end in soonest_first(ends) {
            if timeout(end.saturating_sub(came()), &mut all).await.is_ok() {
                break;
            }
            for (place, _) in tried.iter().zip(&asks).filter(|(_, ask)| ask.deadline <= end) {
                sheet.put(*place, late());
            }
        }
        // Nobody waits for what will never be told.
        for place in &tried {
            sheet.put(*place, Err(EngineError::unsaid()));
        }
    };
    let ((), rest) = join(in_one_go, join_all(rest)).await;
    sheet.answers(rest.into_iter().flatten())
}

/// The items of a batch by when their turn is: the first of each key at once, in the order in which keys turn up and not in
/// that of a table, so that what is repeated from a seed goes the same way again.
struct Turns {
    first: Vec<usize>,
    /// The others, by the first of their key.
    later: HashMap<usize, Vec<usize>>,
}

impl Turns {
    fn of<'a>(keys: impl ExactSizeIterator<Item = &'a Key>) -> Self {
        let (mut first, mut later) = (Vec::with_capacity(keys.len()), HashMap::new());
        let mut seen = HashMap::with_capacity(keys.len());
        for (place, key) in keys.enumerate() {
            match seen.entry(key) {
                Entry::Vacant(new) => {
                    new.insert(place);
                    first.push(place);
                }
                Entry::Occupied(first) => later.entry(*first.get()).or_insert_with(Vec::new).push(place),
            }
        }
        Self { first, later }
    }
}

/// Makes calls one after the other; none if an earlier one on their key, which is `silent` then, was not answered.
async fn in_turn<'a, Ask, Answer, Call>(
    asks: &'a [Ask],
    places: impl IntoIterator<Item = usize>,
    mut silent: bool,
    deadline: impl Fn(&'a Ask) -> Duration,
    came: impl Fn() -> Duration,
    call: impl Fn(&'a Ask) -> Call,
) -> Vec<(usize, Result<Answer, EngineError>)>
where
    Call: Future<Output = Result<Answer, EngineError>>,
{
    let mut answers = Vec::new();
    for place in places {
        let ask = &asks[place];
        let left = deadline(ask).saturating_sub(came());
        let answer = if silent {
            Err(EngineError::unavailable("an earlier item on the same key was not answered"))
        } else if left.is_zero() {
            Err(too_late())
        } else {
            within(left, call(ask)).await
        };
        silent |= answer.is_err();
        answers.push((place, answer));
    }
    answers
}

fn too_late() -> EngineError {
    EngineError::unavailable("its time was over before it could be asked for")
}

fn soonest_first(ends: impl Iterator<Item = Duration>) -> Vec<Duration> {
    let mut ends: Vec<_> = ends.collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Where answers are put down as they come. What stands there stays: an item that was late has been answered.
struct Sheet {
    lines: Mutex<Lines>,
    /// Told when nothing is missing.
    is_full: Notify,
}

struct Lines {
    answers: Vec<Option<Result<Claimed, EngineError>>>,
    missing: usize,
    /// Who waits for the answer to an item, and hears whether it is none.
    waiting: HashMap<usize, oneshot::Sender<bool>>,
}

impl Sheet {
    /// For a batch of so many items, this many of which are put down by and by.
    fn new(items: usize, missing: usize) -> Self {
        let answers = iter::repeat_with(|| None).take(items).collect();
        Self { lines: Mutex::new(Lines { answers, missing, waiting: HashMap::new() }), is_full: Notify::new() }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, place: usize) -> oneshot::Receiver<bool> {
        let (sender, receiver) = oneshot::channel();
        self.lines().waiting.insert(place, sender);
        receiver
    }

    fn put(&self, place: usize, answer: Result<Claimed, EngineError>) {
        let lines = &mut *self.lines();
        if lines.answers[place].is_some() {
            return;
        }
        if let Some(waiting) = lines.waiting.remove(&place) {
            // An error means that it is not waited for any longer.
            let _ = waiting.send(answer.is_err());
        }
        lines.answers[place] = Some(answer);
        lines.missing -= 1;
        if lines.missing == 0 {
            self.is_full.notify_one();
        }
    }

    /// All of them, with those of items that had to wait for their turn.
    fn answers(
        self,
        later: impl Iterator<Item = (usize, Result<Claimed, EngineError>)>,
    ) -> Vec<Result<Claimed, EngineError>> {
        let mut answers = self.lines.into_inner().unwrap_or_else(PoisonError::into_inner).answers;
        later.for_each(|(place, answer)| answers[place] = Some(answer));
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(EngineError::unsaid()))).collect()
    }
}

/// The answers of a batch of which nothing can be asked for.
pub(super) fn fail<Answer>(count: usize, failure: &EngineError) -> Vec<Result<Answer, EngineError>> {
    (0..count).map(|_| Err(failure.clone())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::domain::claim::{Renew, Renewed, Settle, Settled};
    use crate::domain::clock::{ManualClock, Timestamp};
    use crate::domain::operator::{List, Listed, Release, Released};
    use crate::domain::record::Held;
    use crate::engine::conformance::fresh_claim;
    use crate::engine::memory::{BYTES_MAX_DEFAULT, Memory};
    use crate::engine::{Capabilities, Note};

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

    /// An engine whose claims take as long as a test says of their keys.
    struct Slow {
        inner: Memory,
        takes: HashMap<Key, Duration>,
    }

    #[async_trait]
    impl Engine for Slow {
        async fn claim(&self, ask: &Claim) -> Result<Claimed, EngineError> {
            sleep(self.takes.get(&ask.key).copied().unwrap_or_default()).await;
            self.inner.claim(ask).await
        }

        async fn settle(&self, _: &Settle) -> Result<Settled, EngineError> {
            unimplemented!()
        }

        async fn renew(&self, _: &Renew) -> Result<Renewed, EngineError> {
            unimplemented!()
        }

        async fn read(&self, _: &Key) -> Result<Option<Held>, EngineError> {
            unimplemented!()
        }

        async fn release(&self, _: &Release) -> Result<Released, EngineError> {
            unimplemented!()
        }

        async fn list(&self, _: &List) -> Result<Vec<Listed>, EngineError> {
            unimplemented!()
        }

        async fn note(&self, _: &str) -> Result<Option<Note>, EngineError> {
            unimplemented!()
        }

        async fn swap_note(&self, _: &str, _: Option<&Note>, _: &Note) -> Result<bool, EngineError> {
            unimplemented!()
        }

        async fn probe(&self) -> Result<(), EngineError> {
            unimplemented!()
        }

        fn capabilities(&self) -> Capabilities {
            self.inner.capabilities()
        }
    }

    fn claim(deadline: Duration) -> Claim {
        Claim { deadline, ..fresh_claim() }
    }

    /// What each claim was answered, by how long its key takes, and how long the whole did.
    #[expect(clippy::disallowed_methods, reason = "it is the test's own clock")]
    async fn claimed(asks: &[(Claim, Duration)]) -> (Vec<Result<Claimed, EngineError>>, Duration) {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
        let takes = asks.iter().map(|(ask, takes)| (ask.key.clone(), *takes)).collect();
        let engine = Slow { inner: Memory::new(clock, BYTES_MAX_DEFAULT), takes };
        let begun = Instant::now();
        let asks: Vec<_> = asks.iter().map(|(ask, _)| ask).collect();
        (claims(&engine, &asks, || begun.elapsed()).await, begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_told_stands_at_its_own_item_also_behind_those_that_came_too_late() {
        let asks = [Duration::ZERO, SECOND, Duration::ZERO, SECOND].map(|deadline| (claim(deadline), Duration::ZERO));
        let (answers, _) = claimed(&asks).await;
        for (place, (ask, _)) in asks.iter().enumerate() {
            match &answers[place] {
                Ok(Claimed::Granted(grant)) => assert_eq!((grant.attempt == ask.attempt, place % 2), (true, 1)),
                other => assert_eq!((matches!(other, Err(EngineError::Determinate(_))), place % 2), (true, 0)),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_hangs_takes_nobody_elses_answer_away() {
        let (answers, took) = claimed(&[
            (claim(SECOND), Duration::MAX),
            (claim(SECOND), Duration::ZERO),
            (claim(SECOND * 3), SECOND * 2),
            (claim(SECOND / 10), SECOND / 2),
            (claim(Duration::ZERO), Duration::ZERO),
        ])
        .await;
        let [hung, quick, slow, late, over] = &answers[..] else { panic!("{answers:?}") };
        for granted in [quick, slow] {
            assert!(matches!(granted, Ok(Claimed::Granted(_))), "{granted:?}");
        }
        for unknown in [hung, late] {
            assert!(matches!(unknown, Err(EngineError::Indeterminate(_))), "{unknown:?}");
        }
        assert!(matches!(over, Err(EngineError::Determinate(_))), "it was not tried: {over:?}");
        assert!(took < SECOND * 2 + SECOND / 10, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn claims_of_one_key_wait_for_each_other_and_for_nobody_else() {
        let (hangs, quick) = (claim(SECOND), claim(SECOND));
        let again = |ask: &Claim| Claim { attempt: fresh_claim().attempt, ..ask.clone() };
        let (asks, took) = ([&hangs, &quick, &quick, &quick, &hangs], SECOND * 2);
        let takes = |ask: &Claim| if ask.key == hangs.key { took } else { SECOND / 10 };
        let (answers, took) = claimed(&asks.map(|ask| (again(ask), takes(ask)))).await;
        assert!(matches!(answers[1], Ok(Claimed::Granted(_))), "{answers:?}");
        for later in &answers[2..4] {
            assert!(matches!(later, Ok(Claimed::Duplicate(_))), "{answers:?}");
        }
        assert!(matches!(answers[0], Err(EngineError::Indeterminate(_))), "{answers:?}");
        assert!(matches!(answers[4], Err(EngineError::Determinate(_))), "it was not tried: {answers:?}");
        assert!(took < SECOND + SECOND / 10, "{took:?}");
    }
}
