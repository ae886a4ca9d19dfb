//! Calls on claims: what a stored claim means, and the write that applies the effect of a transition to it.

use std::time::Duration;

use bytes::Bytes;
use oncegate_core::claim::{
    self, ClaimRequest, ClaimResponse, Effect, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::clock::{Timestamp, micros};
use oncegate_core::engine::{EngineError, millis, value};
use oncegate_core::operator::{self, ReleaseRequest, ReleaseResponse};
use oncegate_core::record::{ClaimState, Key, LiveClaim, Record};
use oncegate_driver::Reply;

use super::operation::Operation;
use super::step::{Guard, Write};
use super::time::Time;
use super::value::{Found, Head};

/// Fences are integers that every JSON reader reads as the same number.
const FENCES_END: i64 = 1 << 53;

/// What a duplicate reports at least of a lease that has not ended: asking again sooner than the clock advances finds the same.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// A request on a claim.
pub(super) trait Request: Send + Sync + 'static {
    /// The answer to it.
    type Answer: Send + Sync + 'static;

    /// Whether it is likely that there is no claim.
    const EXPECTS_ABSENCE: bool = false;

    /// Whether its write grants the claim.
    const IS_GRANT: bool = false;

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
pub(super) struct StoredClaim {
    head: Head,
    text: Bytes,
    record: Record,
    mod_revision: i64,
    has_ended: bool,
}

impl StoredClaim {
    /// Reads a stored claim.
    ///
    /// # Errors
    /// The value cannot be read.
    pub(super) fn read(found: &Found, time: Time) -> Result<Self, EngineError> {
        let (head, text) = Head::decode(&found.value)?;
        let record = value::decode(&text)?;
        let has_ended = head.end.is_some_and(|end| end <= time.clock);
        Ok(Self { head, text, record, mod_revision: found.mod_revision, has_ended })
    }

    /// Returns whether nothing is left of the claim.
    pub(super) fn is_over(&self) -> bool {
        self.has_ended && !self.record.outlives_lease()
    }

    /// Returns the live claim.
    pub(super) fn live(&self, time: Time) -> Option<LiveClaim> {
        let left = |end| if self.has_ended { Duration::ZERO } else { time.left(end, self.head.lasts_us) };
        let left = self.head.end.map(left);
        LiveClaim::of_stored(self.record.clone(), left, fence_of(self.fence()))
    }

    fn fence(&self) -> i64 {
        self.head.fence.unwrap_or(self.mod_revision)
    }

    /// Returns what must still hold in the step that changes it: it was not written since, and has not ended since.
    fn guards(&self) -> Vec<Guard> {
        let before = self.head.end.filter(|_| !self.has_ended).map(Guard::Before);
        std::iter::once(Guard::Revision(self.mod_revision)).chain(before).collect()
    }
}

/// Returns the write that applies an effect to what is stored; nothing, if it changes nothing.
fn write_of(effect: Effect, stored: Option<&StoredClaim>, live: Option<&LiveClaim>, time: Time) -> Option<Write> {
    let guards = stored.map_or_else(|| vec![Guard::Absent], StoredClaim::guards);
    let lasting = |lasts: Option<Duration>| {
        let lasts = lasts.map(|lasts| Duration::from_millis(millis(lasts)));
        (lasts.map(|lasts| time.end_of(lasts)), lasts.map_or(0, micros))
    };
    match effect {
        Effect::Keep => None,
        Effect::Delete => Some(Write { guards, put: None, is_remembered: false }),
        Effect::Extend(lease) => stored.map(|stored| {
            let (end, lasts_us) = lasting(Some(lease));
            let head = Head { fence: Some(stored.fence()), end, lasts_us, notifies: false };
            Write { guards, put: Some(head.encode(&stored.text)), is_remembered: true }
        }),
        Effect::Put(record, lasts) => {
            let is_in_progress = record.state == ClaimState::InProgress;
            // An operator replaces the result alone.
            let is_edited =
                live.is_some_and(|live| live.record.state == record.state && live.record.attempt == record.attempt);
            let (end, lasts_us) = match stored.filter(|_| is_edited) {
                Some(stored) => (stored.head.end, stored.head.lasts_us),
                None => lasting(lasts),
            };
            // The fence of a new attempt is the revision of this write.
            let fence = stored.filter(|_| live.is_some() && !is_in_progress).map(StoredClaim::fence);
            let head = Head { fence, end, lasts_us, notifies: live.is_some() };
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
pub(super) struct ClaimCall<R: Request> {
    request: R,
    key: Bytes,
    reply: Reply<R::Answer>,
    /// The answer, if the write that was decided is done or there is none.
    answer: Option<R::Answer>,
}

impl<R: Request> ClaimCall<R> {
    pub(super) fn new(request: R, key: Bytes, reply: Reply<R::Answer>) -> Self {
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
