//! Calls on claims: the meaning of a stored claim, and the write that applies the effect of a transition to it.

use std::time::Duration;

use bytes::Bytes;
use oncegate_core::claim::{
    self, ClaimRequest, ClaimResponse, Effect, NamesEnd, OutcomeRequest, OutcomeResponse, RenewalRequest,
    RenewalResponse,
};
use oncegate_core::clock::{Timestamp, micros};
use oncegate_core::engine::{EngineError, millis, value};
use oncegate_core::operator::{self, ReleaseRequest, ReleaseResponse};
use oncegate_core::record::{ClaimState, Key, LiveClaim, Record};
use oncegate_driver::Reply;

use super::operation::Operation;
use super::step::{Guard, Write};
use super::time::Time;
use super::value::{Found, Head, Mark};

/// Fences are integers that every JSON reader reads as the same number.
const FENCES_END: i64 = 1 << 53;

/// Shortest rest that a duplicate reports for a lease that has not ended. A repeat before the clock advances would find
/// the same.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// A request on a claim.
pub trait Request: Send + Sync + 'static {
    /// The answer to it.
    type Answer: NamesEnd + Send + Sync + 'static;

    /// True if there is probably no claim.
    const EXPECTS_ABSENCE: bool = false;

    /// True if its write grants the claim.
    const IS_GRANT: bool = false;

    /// Returns the key of the claim.
    fn key(&self) -> &Key;

    /// Returns about how many bytes it stores, beyond its key.
    fn bytes(&self) -> usize {
        0
    }

    /// Applies the table of transitions.
    fn transition(&self, live: Option<&LiveClaim>) -> (Effect, Self::Answer);

    /// Completes an answer whose record was written with this fence.
    fn with_fence(answer: Self::Answer, _: Option<u64>) -> Self::Answer {
        answer
    }

    /// Completes an answer about a claim that ends after this time, by the store's clock.
    fn with_time_left(answer: Self::Answer, _: Duration) -> Self::Answer {
        answer
    }
}

impl Request for ClaimRequest {
    type Answer = ClaimResponse;

    const EXPECTS_ABSENCE: bool = true;

    const IS_GRANT: bool = true;

    fn key(&self) -> &Key {
        &self.key
    }

    fn bytes(&self) -> usize {
        self.contents.as_str().len().min(self.contents_stored_bytes)
    }

    fn transition(&self, live: Option<&LiveClaim>) -> (Effect, ClaimResponse) {
        claim::claim(live, self, None)
    }

    fn with_fence(mut answer: ClaimResponse, fence: Option<u64>) -> ClaimResponse {
        if let ClaimResponse::Granted(grant) = &mut answer {
            grant.fence = fence;
        }
        answer
    }

    fn with_time_left(mut answer: ClaimResponse, left: Duration) -> ClaimResponse {
        if let ClaimResponse::Duplicate(live) = &mut answer {
            live.left = live.left.map(|sure| sure.max(left.min(ASK_AGAIN)));
        }
        answer
    }
}

impl Request for OutcomeRequest {
    type Answer = OutcomeResponse;

    fn key(&self) -> &Key {
        &self.key
    }

    fn bytes(&self) -> usize {
        usize::try_from(self.result_bytes()).unwrap_or(usize::MAX)
    }

    fn transition(&self, live: Option<&LiveClaim>) -> (Effect, OutcomeResponse) {
        claim::settle(live, self)
    }
}

impl Request for RenewalRequest {
    type Answer = RenewalResponse;

    fn key(&self) -> &Key {
        &self.key
    }

    fn transition(&self, live: Option<&LiveClaim>) -> (Effect, RenewalResponse) {
        claim::renew(live, self)
    }
}

impl Request for ReleaseRequest {
    type Answer = ReleaseResponse;

    fn key(&self) -> &Key {
        &self.key
    }

    fn bytes(&self) -> usize {
        self.result.as_ref().map_or(0, |result| result.len())
    }

    fn transition(&self, live: Option<&LiveClaim>) -> (Effect, ReleaseResponse) {
        operator::release(live, self)
    }
}

/// A lookup: its request is the key.
impl Request for Key {
    type Answer = Option<LiveClaim>;

    fn key(&self) -> &Key {
        self
    }

    fn transition(&self, live: Option<&LiveClaim>) -> (Effect, Option<LiveClaim>) {
        (Effect::Keep, live.cloned())
    }
}

/// A stored claim at an instant of the store.
pub struct StoredClaim {
    head: Head,
    text: Bytes,
    /// `None`: a tombstone.
    record: Option<Record>,
    revision: i64,
    mark: Mark,
    has_ended: bool,
}

impl StoredClaim {
    /// Reads a stored claim.
    ///
    /// # Errors
    /// The value cannot be read.
    pub fn read(found: &Found, time: Time) -> Result<Self, EngineError> {
        let (head, text) = Head::decode(&found.value)?;
        let record = if head.is_tombstone { None } else { Some(value::decode(&text)?) };
        let has_ended = head.end.is_some_and(|end| end <= time.clock);
        Ok(Self { head, text, record, revision: found.revision, mark: found.mark, has_ended })
    }

    /// Returns whether the claim has ended completely.
    pub fn is_over(&self) -> bool {
        self.record.as_ref().is_none_or(|record| self.has_ended && !record.outlives_lease())
    }

    /// Returns since when nothing is left of it, if it is over.
    pub fn over_since(&self) -> Option<Timestamp> {
        self.head.end.filter(|_| self.is_over())
    }

    /// Returns the live claim.
    pub fn live(&self, time: Time) -> Option<LiveClaim> {
        let left = |end| if self.has_ended { Duration::ZERO } else { time.left(end, self.head.lasts_us) };
        let left = self.head.end.map(left);
        LiveClaim::of_stored(self.record.clone()?, left, self.head.end, fence_of(self.fence()))
    }

    fn fence(&self) -> i64 {
        self.head.fence.unwrap_or(self.revision)
    }

    /// Returns the conditions for the step that changes it: it was not written since, and has not ended since.
    fn guards(&self) -> Vec<Guard> {
        let before = self.head.end.filter(|_| !self.has_ended && self.record.is_some()).map(Guard::Before);
        std::iter::once(Guard::Unchanged(self.mark)).chain(before).collect()
    }
}

/// Returns the stored form of a duration: whole milliseconds.
fn rounded(lasts: Duration) -> Duration {
    Duration::from_millis(millis(lasts))
}

/// Returns the end that an effect stores; nothing if the record has no end, or keeps its own.
fn end_of(effect: &Effect, time: Time) -> Option<Timestamp> {
    effect.lasts().map(|lasts| time.end_of(rounded(lasts)))
}

/// Returns the write that applies an effect to the stored record; nothing if the effect changes nothing.
fn write_of(effect: Effect, stored: Option<&StoredClaim>, live: Option<&LiveClaim>, time: Time) -> Option<Write> {
    let guards = stored.map_or_else(|| vec![Guard::Absent], StoredClaim::guards);
    let (end, lasts_us) = (end_of(&effect, time), effect.lasts().map(rounded).map_or(0, micros));
    match effect {
        Effect::Keep => None,
        Effect::Delete => Some(Write { guards, put: None, is_remembered: false }),
        Effect::Extend(_) => stored.map(|stored| {
            let head = Head { fence: Some(stored.fence()), end, lasts_us, notifies: false, is_tombstone: false };
            Write { guards, put: Some(head.encode(&stored.text)), is_remembered: true }
        }),
        Effect::Replace(record) => stored.map(|stored| {
            let head = Head { fence: Some(stored.fence()), notifies: false, ..stored.head };
            Write { guards, put: Some(head.encode(value::encode(&record).as_bytes())), is_remembered: false }
        }),
        Effect::Put(record, _) => {
            let is_in_progress = record.state == ClaimState::InProgress;
            // The fence of a new attempt is the revision of this write.
            let fence = stored.filter(|_| live.is_some() && !is_in_progress).map(StoredClaim::fence);
            let head = Head { fence, end, lasts_us, notifies: live.is_some(), is_tombstone: false };
            let put = Some(head.encode(value::encode(&record).as_bytes()));
            Some(Write { guards, put, is_remembered: is_in_progress })
        }
    }
}

/// Returns the fence of a revision, while there are such.
fn fence_of(revision: i64) -> Option<u64> {
    u64::try_from(revision).ok().filter(|_| revision < FENCES_END)
}

/// A request on a claim, with its reply channel.
pub struct ClaimCall<R: Request> {
    request: R,
    key: Bytes,
    reply: Reply<R::Answer>,
    /// The answer, if the write that was decided is done or there is none.
    answer: Option<R::Answer>,
}

impl<R: Request> ClaimCall<R> {
    /// Creates the call of a request on the claim under this key of the store.
    pub fn new(request: R, key: Bytes, reply: Reply<R::Answer>) -> Self {
        Self { request, key, reply, answer: None }
    }
}

impl<R: Request> Operation for ClaimCall<R> {
    fn key(&self) -> &Bytes {
        &self.key
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_abandoned()
    }

    fn bytes(&self) -> usize {
        512 + self.request.bytes()
    }

    fn expects_absence(&self) -> bool {
        R::EXPECTS_ABSENCE
    }

    fn is_grant(&self) -> bool {
        R::IS_GRANT
    }

    fn decide(&mut self, found: Option<&Found>, time: Time) -> Result<Option<Write>, EngineError> {
        let stored = found.map(|found| StoredClaim::read(found, time)).transpose()?;
        let live = stored.as_ref().and_then(|stored| stored.live(time));
        let (effect, answer) = self.request.transition(live.as_ref());
        let answer = answer.with_end(end_of(&effect, time));
        let end = stored.as_ref().and_then(|stored| stored.head.end);
        self.answer =
            Some(R::with_time_left(answer, end.map_or(Duration::ZERO, |end: Timestamp| end.since(time.clock))));
        Ok(write_of(effect, stored.as_ref(), live.as_ref(), time))
    }

    fn answer(self: Box<Self>, revision: Option<i64>, _: Time) {
        let answer = self.answer.map(|answer| match revision {
            Some(revision) => R::with_fence(answer, fence_of(revision)),
            None => answer,
        });
        self.reply.send(answer.ok_or_else(EngineError::no_answer));
    }

    fn fail(self: Box<Self>, why: EngineError) {
        self.reply.send(Err(why));
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_core::terms::{LeaseEnd, Terms};

    use super::*;

    const SEC: Duration = Duration::from_secs(1);
    const MARK: Mark = Mark { number: 9, seen_at: SEC };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    /// The store's time at this second, and a claim that ends at the hundredth.
    fn stored(now: u64, record: &Record) -> (Time, StoredClaim) {
        let head =
            Head { fence: Some(3), end: Some(at(100)), lasts_us: 30_000_000, notifies: false, is_tombstone: false };
        let found = Found { value: head.encode(value::encode(record).as_bytes()), revision: 7, mark: MARK };
        let time = Time { clock: at(now), latest: at(now) };
        (time, StoredClaim::read(&found, time).unwrap())
    }

    #[test]
    fn a_change_is_made_over_the_revision_that_was_read_and_before_the_end_that_it_relies_on() {
        let record = fresh_claim().record();
        let (time, live) = stored(99, &record);
        assert!(live.live(time).is_some() && !live.is_over());
        assert_eq!(live.guards(), [Guard::Unchanged(MARK), Guard::Before(at(100))]);
        let (time, ended) = stored(100, &record);
        assert!(ended.live(time).is_none() && ended.is_over());
        assert_eq!(ended.guards(), [Guard::Unchanged(MARK)], "what has ended stays ended");
        assert_eq!(write_of(Effect::Put(record, Some(SEC)), None, None, time).unwrap().guards, [Guard::Absent]);
    }

    #[test]
    fn a_claim_that_outlives_its_lease_is_not_over() {
        let record = fresh_claim().record();
        let record = Record { terms: Terms { on_lease_end: LeaseEnd::Unknown, ..record.terms }, ..record };
        let (time, stored) = stored(200, &record);
        assert!(!stored.is_over());
        assert_eq!(stored.live(time).map(|live| live.record.state), Some(ClaimState::Unknown));
    }

    #[test]
    fn a_new_attempt_has_a_new_fence_and_all_else_keeps_the_fence_of_its_attempt() {
        let record = fresh_claim().record();
        let (time, stored) = stored(99, &record);
        let live = stored.live(time);
        let head = |effect| {
            let write = write_of(effect, Some(&stored), live.as_ref(), time).unwrap();
            Head::decode(&write.put.unwrap()).unwrap().0
        };
        let settled = Record { state: ClaimState::Succeeded, ..record.clone() };
        assert_eq!(head(Effect::Put(settled, Some(SEC))).fence, Some(3));
        assert_eq!(head(Effect::Extend(SEC * 60)).fence, Some(3));
        let other = fresh_claim().record();
        let taken = head(Effect::Put(other, Some(SEC)));
        assert_eq!((taken.fence, taken.end, taken.notifies), (None, Some(at(100)), true));
        assert_eq!(write_of(Effect::Keep, Some(&stored), live.as_ref(), time), None);
        assert_eq!(write_of(Effect::Delete, Some(&stored), live.as_ref(), time).unwrap().put, None);
    }

    #[test]
    fn a_duplicate_of_a_lease_that_is_about_to_end_is_asked_again_after_a_tick() {
        let request = fresh_claim();
        let live =
            LiveClaim { record: request.record(), left: Some(Duration::from_micros(1)), ends_at: None, fence: None };
        let left = |until| match ClaimRequest::with_time_left(ClaimResponse::Duplicate(live.clone()), until) {
            ClaimResponse::Duplicate(live) => live.left,
            other => panic!("{other:?}"),
        };
        assert_eq!((left(SEC), left(ASK_AGAIN / 2)), (Some(ASK_AGAIN), Some(ASK_AGAIN / 2)));
    }
}
