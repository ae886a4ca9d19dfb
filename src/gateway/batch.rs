//! Many calls at once: each has its own deadline and its own answer, and those on the same key go one after the other.

use std::iter;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{join, join_all, select};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::loads::{Kept, Share};
use super::{late, within};
use crate::domain::call::Answered;
use crate::domain::claim::ClaimResponse;
use crate::domain::record::Key;
use crate::engine::EngineError;
use crate::resilience::degrade::{OutagePolicies, PolicyClaim};

/// Makes the calls of a batch: those on the same key one after the other, in their order, all others at
/// once. Answers are in the order of the items.
///
/// Each is bounded by itself and from the beginning of the batch, so that no item that hangs takes another's answer away. Where
/// a store does not answer for a key, the later calls on that key are not tried: they would find the same.
///
/// `of` tells an item's key and its deadline, `came` how long ago the batch came.
pub(super) async fn each<'a, Ask, Answer, Call>(
    requests: &'a [Ask],
    of: impl Fn(&Ask) -> (&Key, Duration),
    came: impl Fn() -> Duration,
    call: impl Fn(&'a Ask) -> Call,
) -> Vec<Result<Answer, EngineError>>
where
    Call: Future<Output = Result<Answer, EngineError>>,
{
    let Turns { first, mut later } = Turns::of(requests.iter().map(|request| of(request).0));
    let deadline = |request: &'a Ask| of(request).1;
    let of_key = |place| iter::once(place).chain(later.remove(&place).unwrap_or_default());
    let in_turn = |places| in_turn(requests, places, false, &deadline, &came, &call);
    let answers = join_all(first.into_iter().map(of_key).map(in_turn)).await;
    let mut answers: Vec<_> = answers.into_iter().flatten().collect();
    answers.sort_unstable_by_key(|(place, _)| *place);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// A claim of a batch as it was answered, with its result if there was room for it.
#[derive(Debug)]
pub(super) struct Fitted {
    pub(super) claimed: Answered<ClaimResponse>,
    /// A duplicate has a result, which was left out.
    pub(super) result_omitted: bool,
}

/// The same for claims. Those that come first on their keys go to the engine in chunks, as the app's share has room for what
/// they may load. A result stays in memory while all that stay fit into `results_max` and into the share; another one is
/// dropped as soon as it is there. The room of those that stay is given back with [`Kept`].
pub(super) async fn claims(
    policies: &OutagePolicies,
    requests: &[PolicyClaim<'_>],
    share: &Share<'_>,
    results_max: usize,
    came: impl Fn() -> Duration,
) -> (Vec<Result<Fitted, EngineError>>, Kept) {
    let Turns { first, mut later } = Turns::of(requests.iter().map(|claim| &claim.request.key));
    let batch = Claims { policies, requests, share, sheet: Sheet::new(requests.len(), results_max, share), came };
    let mut rest = Vec::new();
    for place in &first {
        if let Some(places) = later.remove(place) {
            let (batch, is_silent) = (&batch, batch.sheet.wait_for(*place));
            rest.push(async move {
                // Its answer is put down in any case.
                let silent = is_silent.await.unwrap_or(true);
                in_turn(requests, places, silent, |claim| claim.context.deadline, &batch.came, |claim| batch.one(claim))
                    .await
            });
        }
    }
    let chunks = first.chunks(share.chunk()).map(|places| batch.chunk(places));
    let (_, rest) = join(join_all(chunks), join_all(rest)).await;
    batch.sheet.answers(rest.into_iter().flatten())
}

/// The claims of a batch on their way.
struct Claims<'a, Came> {
    policies: &'a OutagePolicies,
    requests: &'a [PolicyClaim<'a>],
    share: &'a Share<'a>,
    sheet: Sheet<'a>,
    came: Came,
}

impl<Came: Fn() -> Duration> Claims<'_, Came> {
    /// Asks for the claims at these places in one go, and puts down each answer as it is known. They have one timer as long as
    /// their deadlines are the same.
    async fn chunk(&self, places: &[usize]) {
        let longest = places.iter().map(|place| self.requests[*place].context.deadline).max().unwrap_or_default();
        let room = timeout(longest.saturating_sub((self.came)()), self.share.load(places.len())).await;
        let begun = (self.came)();
        let in_time = |place: &usize| room.is_ok() && self.requests[*place].context.deadline > begun;
        let (tried, over): (Vec<_>, Vec<_>) = places.iter().copied().partition(in_time);
        for place in over {
            self.sheet.put(place, Err(too_late()));
        }
        let requests: Vec<_> = tried.iter().map(|place| self.requests[*place]).collect();
        let (sheet, missing, is_full) = (&self.sheet, AtomicUsize::new(tried.len()), Notify::new());
        let tell = |number: usize, answer| {
            if sheet.put(tried[number], answer) && missing.fetch_sub(1, Ordering::AcqRel) == 1 {
                is_full.notify_one();
            }
        };
        // It goes on as long as an item hangs, which may have been late for long.
        let is_full = pin!(is_full.notified());
        let all = pin!(self.policies.claim_batch(&requests, &tell));
        let mut all = select(all, is_full);
        for end in soonest_first(requests.iter().map(|claim| claim.context.deadline)) {
            if timeout(end.saturating_sub((self.came)()), &mut all).await.is_ok() {
                break;
            }
            let late_ones = requests.iter().enumerate().filter(|(_, claim)| claim.context.deadline <= end);
            late_ones.for_each(|(number, _)| tell(number, late()));
        }
        // Nobody waits for what will never be told.
        (0..tried.len()).for_each(|number| tell(number, Err(EngineError::no_answer())));
    }

    /// Asks for one claim.
    async fn one(&self, claim: &PolicyClaim<'_>) -> Result<Fitted, EngineError> {
        let left = claim.context.deadline.saturating_sub((self.came)());
        let _room = timeout(left, self.share.load(1)).await.map_err(|_| too_late())?;
        let claimed = self.policies.claim(claim.request, claim.context).await?;
        Ok(self.sheet.fit(claimed))
    }
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
    requests: &'a [Ask],
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
        let request = &requests[place];
        let left = deadline(request).saturating_sub(came());
        let answer = if silent {
            Err(EngineError::unavailable("an earlier item on the same key was not answered"))
        } else if left.is_zero() {
            Err(too_late())
        } else {
            within(left, call(request)).await
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
struct Sheet<'a> {
    lines: Mutex<Lines>,
    share: &'a Share<'a>,
}

struct Lines {
    answers: Vec<Option<Result<Fitted, EngineError>>>,
    /// Who waits for the answer to an item, and hears whether it is none.
    waiting: HashMap<usize, oneshot::Sender<bool>>,
    /// Bytes that more results may have.
    results_left: usize,
    kept: Kept,
}

impl<'a> Sheet<'a> {
    /// For a batch of so many items, whose results may have so many bytes together.
    fn new(items: usize, results_max: usize, share: &'a Share<'a>) -> Self {
        let answers = iter::repeat_with(|| None).take(items).collect();
        let lines = Lines { answers, waiting: HashMap::new(), results_left: results_max, kept: Kept::default() };
        Self { lines: Mutex::new(lines), share }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, place: usize) -> oneshot::Receiver<bool> {
        let (sender, receiver) = oneshot::channel();
        self.lines().waiting.insert(place, sender);
        receiver
    }

    /// Puts an answer down; false if there is one.
    fn put(&self, place: usize, answer: Result<Answered<ClaimResponse>, EngineError>) -> bool {
        let lines = &mut *self.lines();
        if lines.answers[place].is_some() {
            return false;
        }
        if let Some(waiting) = lines.waiting.remove(&place) {
            // An error means that it is not waited for any longer.
            let _ = waiting.send(answer.is_err());
        }
        lines.answers[place] = Some(answer.map(|claimed| lines.fit(claimed, self.share)));
        true
    }

    /// Leaves the result of a duplicate out if there is no room for it.
    fn fit(&self, claimed: Answered<ClaimResponse>) -> Fitted {
        self.lines().fit(claimed, self.share)
    }

    /// All of them, with those of items that had to wait for their turn.
    fn answers(
        self,
        later: impl Iterator<Item = (usize, Result<Fitted, EngineError>)>,
    ) -> (Vec<Result<Fitted, EngineError>>, Kept) {
        let Lines { mut answers, kept, .. } = self.lines.into_inner().unwrap_or_else(PoisonError::into_inner);
        later.for_each(|(place, answer)| answers[place] = Some(answer));
        (answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(EngineError::no_answer()))).collect(), kept)
    }
}

impl Lines {
    fn fit(&mut self, mut claimed: Answered<ClaimResponse>, share: &Share<'_>) -> Fitted {
        let Some(result) = stored_result(&mut claimed.answer) else { return Fitted { claimed, result_omitted: false } };
        let bytes = result.as_ref().map_or(0, |result| result.len());
        let fits = bytes <= self.results_left && share.keep(bytes, &mut self.kept);
        if fits {
            self.results_left -= bytes;
        } else {
            *result = None;
        }
        Fitted { claimed, result_omitted: !fits }
    }
}

/// The result that a duplicate is told, if there is one.
fn stored_result(claimed: &mut ClaimResponse) -> Option<&mut Option<Box<str>>> {
    match claimed {
        ClaimResponse::Duplicate(held) => Some(&mut held.record.result).filter(|result| result.is_some()),
        ClaimResponse::Granted(_) | ClaimResponse::Mismatch(_) => None,
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
    use crate::domain::call::CallContext;
    use crate::domain::claim::{
        ClaimRequest, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
    };
    use crate::domain::clock::{Clock, ManualClock, Timestamp};
    use crate::domain::limits::Limits;
    use crate::domain::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
    use crate::domain::record::LiveClaim;
    use crate::domain::terms::ClaimOnOutage;
    use crate::engine::conformance::fresh_claim;
    use crate::engine::memory::{BYTES_MAX_DEFAULT, Memory};
    use crate::engine::{Capabilities, Engine, Metadata};
    use crate::gateway::loads::Loads;

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
    async fn answered(requests: &[Ask]) -> (Vec<Result<Duration, EngineError>>, Duration) {
        let begun = Instant::now();
        let call = |request: &Ask| {
            let takes = request.takes;
            async move {
                sleep(takes).await;
                Ok(takes)
            }
        };
        (each(requests, |request| (&request.key, request.deadline), || begun.elapsed(), call).await, begun.elapsed())
    }

    fn is_unknown(answer: &Result<Duration, EngineError>) -> bool {
        matches!(answer, Err(EngineError::Indeterminate(_)))
    }

    #[tokio::test(start_paused = true)]
    async fn an_item_that_hangs_takes_nobody_elses_answer_away() {
        let requests = [
            Ask::new(SECOND, Duration::MAX),
            Ask::new(SECOND, Duration::ZERO),
            Ask::new(SECOND * 3, SECOND * 2),
            Ask::new(SECOND / 10, SECOND / 2),
        ];
        let (answers, took) = answered(&requests).await;
        assert!(is_unknown(&answers[0]) && is_unknown(&answers[3]), "{answers:?}");
        assert_eq!(answers[1..3], [Ok(Duration::ZERO), Ok(SECOND * 2)]);
        assert!(took < SECOND * 2 + SECOND / 10, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_an_item_that_waits_for_its_turn_goes_by() {
        let slow = Ask::new(SECOND, SECOND * 6 / 10);
        let of_the_same = || Ask { key: slow.key.clone(), deadline: SECOND, takes: SECOND * 6 / 10 };
        let requests = [of_the_same(), of_the_same(), of_the_same()];
        let (answers, took) = answered(&requests).await;
        assert!(answers[0].is_ok() && is_unknown(&answers[1]), "{answers:?}");
        assert!(matches!(answers[2], Err(EngineError::Determinate(_))), "it was not tried: {answers:?}");
        assert!(took < SECOND + SECOND / 10, "{took:?}");
    }

    /// An engine whose claims take as long as a test says of their keys.
    struct Slow {
        inner: Memory,
        takes: HashMap<Key, Duration>,
        most: Most,
    }

    /// How many claims are under way, and how many were at most.
    #[derive(Default)]
    struct Most {
        now: AtomicUsize,
        seen: AtomicUsize,
    }

    #[async_trait]
    impl Engine for Slow {
        async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
            self.most.seen.fetch_max(self.most.now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            sleep(self.takes.get(&request.key).copied().unwrap_or_default()).await;
            let answer = self.inner.claim(request, deadline).await;
            self.most.now.fetch_sub(1, Ordering::Relaxed);
            answer
        }

        async fn settle(&self, _: &OutcomeRequest, _: Duration) -> Result<OutcomeResponse, EngineError> {
            unimplemented!()
        }

        async fn renew(&self, _: &RenewalRequest, _: Duration) -> Result<RenewalResponse, EngineError> {
            unimplemented!()
        }

        async fn read(&self, _: &Key) -> Result<Option<LiveClaim>, EngineError> {
            unimplemented!()
        }

        async fn release(&self, _: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
            unimplemented!()
        }

        async fn list(&self, _: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
            unimplemented!()
        }

        async fn get_metadata(&self, _: &str) -> Result<Option<Metadata>, EngineError> {
            unimplemented!()
        }

        async fn compare_and_set_metadata(
            &self,
            _: &str,
            _: Option<&Metadata>,
            _: &Metadata,
        ) -> Result<bool, EngineError> {
            unimplemented!()
        }

        async fn probe(&self) -> Result<(), EngineError> {
            unimplemented!()
        }

        fn capabilities(&self) -> Capabilities {
            self.inner.capabilities()
        }
    }

    /// A claim, and the deadline of its call.
    type Timed = (ClaimRequest, Duration);

    fn claim(deadline: Duration) -> Timed {
        (fresh_claim(), deadline)
    }

    fn again((request, deadline): &Timed) -> Timed {
        (ClaimRequest { attempt: fresh_claim().attempt, ..request.clone() }, *deadline)
    }

    fn of_policy((request, deadline): &Timed) -> PolicyClaim<'_> {
        PolicyClaim { request, context: CallContext { deadline: *deadline, on_outage: ClaimOnOutage::FailClosed } }
    }

    fn policies(engine: &Arc<Slow>) -> OutagePolicies {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
        OutagePolicies::without_journal(engine.clone(), &clock)
    }

    /// What each claim was answered, by how long its key takes, and how long the whole did.
    #[expect(clippy::disallowed_methods, reason = "it is the test's own clock")]
    async fn claimed(requests: &[(Timed, Duration)]) -> (Vec<Result<ClaimResponse, EngineError>>, Duration) {
        let loads = Loads::new(&Limits::default());
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
        let takes = requests.iter().map(|((request, _), takes)| (request.key.clone(), *takes)).collect();
        let engine = Arc::new(Slow { inner: Memory::new(clock, BYTES_MAX_DEFAULT), takes, most: Most::default() });
        let begun = Instant::now();
        let requests: Vec<_> = requests.iter().map(|(timed, _)| of_policy(timed)).collect();
        let share = loads.of(&"shop".parse().unwrap());
        let (answers, _kept) = claims(&policies(&engine), &requests, &share, 0, || begun.elapsed()).await;
        (answers.into_iter().map(|answer| answer.map(|fitted| fitted.claimed.answer)).collect(), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_told_stands_at_its_own_item_also_behind_those_that_came_too_late() {
        let requests =
            [Duration::ZERO, SECOND, Duration::ZERO, SECOND].map(|deadline| (claim(deadline), Duration::ZERO));
        let (answers, _) = claimed(&requests).await;
        for (place, ((request, _), _)) in requests.iter().enumerate() {
            match &answers[place] {
                Ok(ClaimResponse::Granted(grant)) => {
                    assert_eq!((grant.attempt == request.attempt, place % 2), (true, 1));
                }
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
            assert!(matches!(granted, Ok(ClaimResponse::Granted(_))), "{granted:?}");
        }
        for unknown in [hung, late] {
            assert!(matches!(unknown, Err(EngineError::Indeterminate(_))), "{unknown:?}");
        }
        assert!(matches!(over, Err(EngineError::Determinate(_))), "it was not tried: {over:?}");
        assert!(took < SECOND * 2 + SECOND / 10, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_is_loaded_at_once_than_the_share_has_room_for() {
        const RESULT: usize = 1000;
        let limits = Limits { result_bytes: RESULT, batch_result_bytes: 64 << 10, ..Limits::default() };
        let loads = Loads::new(&limits);
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
        let engine =
            Slow { inner: Memory::new(clock, BYTES_MAX_DEFAULT), takes: HashMap::new(), most: Most::default() };
        let mut requests: Vec<_> = (0..200).map(|_| claim(SECOND * 60)).collect();
        for (request, deadline) in &requests {
            engine.inner.claim(request, *deadline).await.unwrap();
            let outcome = Outcome::Success { result: Some("x".repeat(RESULT).into()), retention: None };
            let (key, attempt) = (request.key.clone(), request.attempt.clone());
            let settle = OutcomeRequest { key, attempt, outcome, late: None };
            engine.inner.settle(&settle, SECOND).await.unwrap();
        }
        // The same key many times over in one batch, too.
        requests.extend(vec![requests[0].clone(); 50]);
        let takes = requests.iter().map(|(request, _)| (request.key.clone(), SECOND / 100)).collect();
        let engine = Arc::new(Slow { takes, ..engine });
        let policies = policies(&engine);
        let again: Vec<_> = requests.iter().map(again).collect();
        let again: Vec<_> = again.iter().map(of_policy).collect();
        let share = loads.of(&"shop".parse().unwrap());
        let batches = (0..10).map(|_| claims(&policies, &again, &share, 10 * RESULT, || Duration::ZERO));
        let batches = join_all(batches).await;
        // Three quarters of the bound are for loading, and half of that for an app.
        assert_eq!(engine.most.seen.load(Ordering::Relaxed), 24);
        let mut kept = 0;
        for (answers, _kept) in &batches {
            let fitted: Vec<_> = answers.iter().map(|answer| answer.as_ref().unwrap()).collect();
            let has_result = |fitted: &&&Fitted| match &fitted.claimed.answer {
                ClaimResponse::Duplicate(held) => held.record.result.is_some(),
                other => panic!("{other:?}"),
            };
            let results = fitted.iter().filter(has_result).count();
            assert_eq!(results + fitted.iter().filter(|fitted| fitted.result_omitted).count(), again.len());
            assert!(results <= 10, "{results}");
            kept += results;
        }
        assert_eq!(kept, 8, "as much as the share has room for");
    }

    #[tokio::test(start_paused = true)]
    async fn claims_of_one_key_wait_for_each_other_and_for_nobody_else() {
        let (hangs, quick) = (claim(SECOND), claim(SECOND));
        let (requests, took) = ([&hangs, &quick, &quick, &quick, &hangs], SECOND * 2);
        let takes = |claim: &Timed| if claim.0.key == hangs.0.key { took } else { SECOND / 10 };
        let (answers, took) = claimed(&requests.map(|request| (again(request), takes(request)))).await;
        assert!(matches!(answers[1], Ok(ClaimResponse::Granted(_))), "{answers:?}");
        for later in &answers[2..4] {
            assert!(matches!(later, Ok(ClaimResponse::Duplicate(_))), "{answers:?}");
        }
        assert!(matches!(answers[0], Err(EngineError::Indeterminate(_))), "{answers:?}");
        assert!(matches!(answers[4], Err(EngineError::Determinate(_))), "it was not tried: {answers:?}");
        assert!(took < SECOND + SECOND / 10, "{took:?}");
    }
}
