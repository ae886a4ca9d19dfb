//! The shared records of the memory engine, with a bound of their own.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::super::{
    ChangePurpose, ChangeResponse, Determinate, EngineError, RecordChange, RecordName, RecordView, SharedRecord,
};
use super::SWEPT_PER_CALL;
use crate::clock::Timestamp;
use crate::operator::{LockListRequest, LockPage};

/// Bound on the memory for records.
const BYTES_MAX: usize = 64 << 20;

/// Bytes of a record beyond its value: its name, twice, and its places in both tables.
const OVERHEAD_BYTES: usize = 400;

/// The records of an engine.
#[derive(Default)]
pub(super) struct Records {
    stored: HashMap<RecordName, Stored>,
    /// The ends of records that end by themselves, soonest first.
    ends: BTreeSet<(Timestamp, RecordName)>,
    bytes: usize,
}

struct Stored {
    record: SharedRecord,
    ends_at: Option<Timestamp>,
}

impl Records {
    /// Returns the record of a name at this instant.
    pub(super) fn view(&self, name: &RecordName, now: Timestamp) -> RecordView {
        let live = self.stored.get(name).filter(|stored| stored.ends_at.is_none_or(|ends_at| now < ends_at));
        RecordView { record: live.map(|stored| stored.record.clone()), now }
    }

    /// Lists the records of an app's locks at this instant.
    pub(super) fn list(&self, request: &LockListRequest, now: Timestamp) -> LockPage {
        let is_live = |stored: &Stored| stored.ends_at.is_none_or(|ends_at| now < ends_at);
        let mut records: Vec<_> = self.stored.iter().filter(|(_, stored)| is_live(stored)).collect();
        records.sort_unstable_by_key(|(name, _)| *name);
        let records = records.into_iter().filter_map(|(name, stored)| match name {
            RecordName::Lock(app, name) if *app == request.app && Some(name) > request.after.as_ref() => {
                Some((name.clone(), stored.record.clone()))
            }
            _ => None,
        });
        LockPage { records: records.take(request.limit).collect(), now }
    }

    /// Applies a change at this instant.
    pub(super) fn change(&mut self, change: &RecordChange, now: Timestamp) -> Result<ChangeResponse, EngineError> {
        self.sweep(now);
        let stands = self.view(&change.name, now).record;
        if let Some(answer) = change.decide(stands.as_ref(), now) {
            return Ok(answer);
        }
        if change.purpose == ChangePurpose::Grant && self.bytes > BYTES_MAX {
            return Err(Determinate::Full("the locks of the memory engine have reached their bound".into()).into());
        }
        let ends_at = change.lasts.map(|lasts: Duration| now.plus(lasts));
        self.remove(&change.name);
        self.ends.extend(ends_at.map(|ends_at| (ends_at, change.name.clone())));
        let stored = Stored { record: change.new.clone(), ends_at };
        self.bytes += stored.bytes();
        self.stored.insert(change.name.clone(), stored);
        Ok(ChangeResponse::Stored(now))
    }

    fn remove(&mut self, name: &RecordName) {
        let Some(old) = self.stored.remove(name) else { return };
        self.bytes -= old.bytes();
        if let Some(ends_at) = old.ends_at {
            self.ends.remove(&(ends_at, name.clone()));
        }
    }

    fn sweep(&mut self, now: Timestamp) {
        for _ in 0..SWEPT_PER_CALL {
            let Some((_, name)) = self.ends.first().filter(|(ends_at, _)| *ends_at <= now).cloned() else { return };
            self.remove(&name);
        }
    }
}

impl Stored {
    fn bytes(&self) -> usize {
        OVERHEAD_BYTES + self.record.as_stored().len()
    }
}
