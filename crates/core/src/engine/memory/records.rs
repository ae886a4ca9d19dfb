//! The shared records of the memory engine, with a separate bound.

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
pub(super) struct RecordTable {
    stored: HashMap<RecordName, Stored>,
    /// The ends of records that have one, soonest first.
    ends: BTreeSet<(Timestamp, RecordName)>,
    bytes: usize,
}

struct Stored {
    record: SharedRecord,
    ends_at: Option<Timestamp>,
}

impl RecordTable {
    /// Returns the record of a name at this instant.
    pub(super) fn view(&self, name: &RecordName, now: Timestamp) -> RecordView {
        let live = self.stored.get(name).filter(|stored| stored.ends_at.is_none_or(|ends_at| now < ends_at));
        RecordView { record: live.map(|stored| stored.record.clone()), now, clock_gain: Duration::ZERO }
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
            return Err(Determinate::Full("the records of the memory engine have reached their bound".into()).into());
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

#[cfg(test)]
mod tests {
    use super::super::super::Metadata;
    use super::super::super::shared_record::RECORD_BYTES_MAX;
    use super::*;

    const SEC: Duration = Duration::from_secs(1);
    const NOON: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    /// Returns a change that creates the record of a lock, which lasts for a second.
    fn grant(name: &str, value: &[u8]) -> RecordChange {
        RecordChange {
            name: RecordName::Lock("shop".parse().unwrap(), name.parse().unwrap()),
            new: SharedRecord::versioned(1, value).unwrap(),
            lasts: Some(SEC),
            purpose: ChangePurpose::Grant,
            ..RecordChange::of_metadata("n", None, &Metadata::new("").unwrap())
        }
    }

    #[test]
    fn a_record_ends_at_its_instant_and_is_not_listed_any_more() {
        let mut records = RecordTable::default();
        let change = grant("a", b"value");
        records.change(&change, NOON).unwrap();
        let list = LockListRequest { app: "shop".parse().unwrap(), after: None, limit: 10 };
        let found = |now| (records.view(&change.name, now).record.is_some(), records.list(&list, now).records.len());
        assert_eq!(found(NOON.plus(SEC).minus(Duration::from_micros(1))), (true, 1));
        assert_eq!(found(NOON.plus(SEC)), (false, 0));
    }

    #[test]
    fn a_full_table_refuses_grants_until_records_end_and_accepts_what_keeps() {
        let mut records = RecordTable::default();
        let value = vec![0; RECORD_BYTES_MAX];
        let mut count = 0;
        let refused = loop {
            let change = grant(&format!("lock-{count}"), &value);
            match records.change(&change, NOON) {
                Ok(_) => count += 1,
                Err(EngineError::Determinate(Determinate::Full(_))) => break change,
                other => panic!("unexpected {other:?}"),
            }
        };
        assert_eq!(
            count,
            BYTES_MAX / (OVERHEAD_BYTES + refused.new.as_stored().len()) + 1,
            "the last one passes the bound"
        );
        let keep = RecordChange { purpose: ChangePurpose::Keep, ..refused };
        assert_eq!(records.change(&keep, NOON), Ok(ChangeResponse::Stored(NOON)));
        let shorter = SharedRecord::versioned(2, b"").unwrap();
        let replace = RecordChange { expected: Some(keep.new), new: shorter, ..grant("x", b"") };
        let replace = RecordChange { name: keep.name, purpose: ChangePurpose::Keep, ..replace };
        assert_eq!(records.change(&replace, NOON), Ok(ChangeResponse::Stored(NOON)));
        records.change(&grant("y", b""), NOON).unwrap_err();

        // Every call removes a few records that have ended.
        for version in 2..200 {
            let new = SharedRecord::versioned(version, b"").unwrap();
            let change = RecordChange { new, lasts: None, ..grant("z", b"") };
            let stands = records.view(&change.name, NOON).record;
            records.change(&RecordChange { expected: stands, ..change }, NOON.plus(SEC)).unwrap();
        }
        let last = SharedRecord::versioned(1, b"").unwrap().as_stored().len() + OVERHEAD_BYTES;
        assert_eq!((records.stored.len(), records.ends.len(), records.bytes), (1, 0, last));
    }
}
