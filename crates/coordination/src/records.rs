//! Calls on shared records: metadata of the gateways, locks and degraded grants.

use bytes::Bytes;
use oncegate_core::clock::{Timestamp, micros};
use oncegate_core::engine::{ChangePurpose, ChangeResponse, EngineError, RecordChange, RecordView, SharedRecord};
use oncegate_driver::Reply;

use super::operation::Operation;
use super::step::{Guard, Write};
use super::time::{GAIN_MAX, Time};
use super::value::{Found, Head, Mark};

/// A stored record at an instant of the store.
pub struct StoredRecord {
    /// `None`: it has ended.
    pub record: Option<SharedRecord>,
    head: Head,
    mark: Mark,
}

impl StoredRecord {
    /// Reads a stored record.
    ///
    /// # Errors
    /// The value cannot be read.
    pub fn read(found: &Found, time: Time) -> Result<Self, EngineError> {
        let (head, bytes) = Head::decode(&found.value)?;
        let is_live = !head.is_tombstone && head.end.is_none_or(|end| time.clock < end);
        let record = is_live.then(|| SharedRecord::from_stored(&bytes[..])).transpose()?;
        Ok(Self { record, head, mark: found.mark })
    }

    /// Returns since when nothing is left of it, if it is over.
    pub fn over_since(&self) -> Option<Timestamp> {
        self.head.end.filter(|_| self.record.is_none())
    }

    fn guards(&self) -> Vec<Guard> {
        let before = self.head.end.filter(|_| self.record.is_some()).map(Guard::Before);
        std::iter::once(Guard::Unchanged(self.mark)).chain(before).collect()
    }
}

/// A lookup of a record.
pub struct RecordLookup {
    key: Bytes,
    reply: Reply<RecordView>,
    record: Option<SharedRecord>,
}

impl RecordLookup {
    /// Creates the lookup of the record under this key of the store.
    pub fn new(key: Bytes, reply: Reply<RecordView>) -> Self {
        Self { key, reply, record: None }
    }
}

impl Operation for RecordLookup {
    fn key(&self) -> &Bytes {
        &self.key
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_abandoned()
    }

    fn bytes(&self) -> usize {
        128
    }

    fn decide(&mut self, found: Option<&Found>, time: Time) -> Result<Option<Write>, EngineError> {
        let stored = found.map(|found| StoredRecord::read(found, time)).transpose()?;
        self.record = stored.and_then(|stored| stored.record);
        Ok(None)
    }

    fn answer(self: Box<Self>, _: Option<i64>, time: Time) {
        let view = RecordView { record: self.record, now: time.clock, clock_gain: GAIN_MAX };
        self.reply.send(Ok(view));
    }

    fn fail(self: Box<Self>, why: EngineError) {
        self.reply.send(Err(why.of_read()));
    }
}

/// A change of a record.
pub struct ChangeCall {
    key: Bytes,
    change: RecordChange,
    reply: Reply<ChangeResponse>,
    /// The answer, if nothing is written.
    answer: Option<ChangeResponse>,
}

impl ChangeCall {
    /// Creates the call of a change of the record under this key of the store.
    pub fn new(key: Bytes, change: RecordChange, reply: Reply<ChangeResponse>) -> Self {
        Self { key, change, reply, answer: None }
    }

    /// Returns the bounds of time of the change, as guards.
    fn bounds(&self) -> impl Iterator<Item = Guard> {
        let RecordChange { from, before, .. } = self.change;
        let from = (from > Timestamp::default()).then_some(Guard::From(from));
        let before = (before < Timestamp::from_micros(u64::MAX)).then_some(Guard::Before(before));
        from.into_iter().chain(before)
    }
}

impl Operation for ChangeCall {
    fn key(&self) -> &Bytes {
        &self.key
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_abandoned()
    }

    fn bytes(&self) -> usize {
        256 + self.change.new.as_stored().len()
    }

    fn expects_absence(&self) -> bool {
        self.change.expected.is_none()
    }

    fn is_grant(&self) -> bool {
        self.change.purpose == ChangePurpose::Grant
    }

    fn decide(&mut self, found: Option<&Found>, time: Time) -> Result<Option<Write>, EngineError> {
        let stored = found.map(|found| StoredRecord::read(found, time)).transpose()?;
        let stands = stored.as_ref().and_then(|stored| stored.record.as_ref());
        self.answer = self.change.decide(stands, time.clock).map(|answer| match answer {
            ChangeResponse::Refused { view, maybe_stored } => {
                ChangeResponse::Refused { view: RecordView { clock_gain: GAIN_MAX, ..view }, maybe_stored }
            }
            stored @ ChangeResponse::Stored(_) => stored,
        });
        if self.answer.is_some() {
            return Ok(None);
        }
        let mut guards = stored.as_ref().map_or_else(|| vec![Guard::Absent], StoredRecord::guards);
        guards.extend(self.bounds());
        let RecordChange { lasts, notifies, .. } = self.change;
        let head = Head {
            fence: None,
            end: lasts.map(|lasts| time.end_of(lasts)),
            lasts_us: lasts.map_or(0, micros),
            notifies,
            is_tombstone: false,
        };
        Ok(Some(Write { guards, put: Some(head.encode(self.change.new.as_stored())), is_remembered: true }))
    }

    fn answer(self: Box<Self>, _: Option<i64>, time: Time) {
        self.reply.send(Ok(self.answer.unwrap_or(ChangeResponse::Stored(time.clock))));
    }

    fn fail(self: Box<Self>, why: EngineError) {
        self.reply.send(Err(why));
    }
}
