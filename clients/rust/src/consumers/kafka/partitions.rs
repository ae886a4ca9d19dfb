//! The records of each partition that a consumer has: one is running, the others wait behind it. No broker and no
//! clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use rdkafka::message::{Message, OwnedMessage};

use crate::consume::Action;
use crate::consumers::recipe::Verdict;

/// Topic and number of a partition.
pub(super) type Name = (String, i32);

/// Number of one run of one record: a run that ends after its partition was revoked changes nothing.
pub(super) type Ticket = u64;

/// A run that starts now.
pub(super) struct Started {
    pub(super) ticket: Ticket,
    pub(super) record: Arc<OwnedMessage>,
    pub(super) failures: u32,
}

/// Partitions of one consumer.
#[derive(Default)]
pub(super) struct Partitions {
    partitions: BTreeMap<Name, Partition>,
    last_ticket: Ticket,
}

#[derive(Default)]
struct Partition {
    /// The first is running, or waits for its next run.
    records: VecDeque<Arc<OwnedMessage>>,
    work: Option<Ticket>,
    /// Runs of the first record that ended with [`crate::WorkError::nothing_happened`].
    failures: u32,
    /// Time at which the first record runs again.
    due: Option<Instant>,
    /// The offset that is not committed yet.
    commit: Option<i64>,
    is_paused: bool,
}

impl Partitions {
    /// Takes a record. Returns its partition if that is full from now on, to be paused.
    pub(super) fn take(&mut self, record: OwnedMessage, buffered: usize) -> Option<Name> {
        let name = (record.topic().to_owned(), record.partition());
        let at = self.partitions.entry(name.clone()).or_default();
        at.records.push_back(Arc::new(record));
        let is_full = at.records.len() >= buffered && !at.is_paused;
        at.is_paused |= is_full;
        is_full.then_some(name)
    }

    /// Starts the first record of each partition without a running one, at most `free` of them.
    pub(super) fn begin(&mut self, now: Instant, free: usize) -> Vec<Started> {
        let waiting =
            self.partitions.values_mut().filter(|at| at.work.is_none() && at.due.is_none_or(|due| due <= now));
        let mut started = Vec::new();
        for at in waiting {
            let Some(record) = at.records.front() else { continue };
            if started.len() == free {
                break;
            }
            self.last_ticket += 1;
            at.work = Some(self.last_ticket);
            started.push(Started { ticket: self.last_ticket, record: Arc::clone(record), failures: at.failures });
        }
        started
    }

    /// Ends a run. Without a verdict its record is not done. Returns false for the run of a partition that is not here.
    pub(super) fn end(&mut self, ticket: Ticket, verdict: Option<&Verdict>, now: Instant) -> bool {
        let Some(at) = self.partitions.values_mut().find(|at| at.work == Some(ticket)) else { return false };
        at.work = None;
        match verdict {
            None => {}
            Some(verdict) if verdict.action == Action::Redeliver => {
                at.failures = verdict.failures;
                at.due = Some(now + verdict.delay);
            }
            Some(_) => {
                // One after the other: an offset is never committed past a record that is not done.
                at.commit = at.records.pop_front().map(|done| done.offset() + 1);
                (at.failures, at.due) = (0, None);
            }
        }
        true
    }

    /// Returns the offsets that are due.
    pub(super) fn to_commit(&self) -> Vec<(Name, i64)> {
        self.partitions.iter().filter_map(|(name, at)| Some((name.clone(), at.commit?))).collect()
    }

    /// Notes that all due offsets are committed.
    pub(super) fn committed(&mut self) {
        for at in self.partitions.values_mut() {
            at.commit = None;
        }
    }

    /// Returns the paused partitions that have room again, to be resumed.
    pub(super) fn take_resumable(&mut self, buffered: usize) -> Vec<Name> {
        let has_room = |at: &Partition| at.is_paused && at.records.len() <= buffered / 2;
        let mut resumed = Vec::new();
        for (name, at) in self.partitions.iter_mut().filter(|(_, at)| has_room(at)) {
            at.is_paused = false;
            resumed.push(name.clone());
        }
        resumed
    }

    /// Takes partitions away, with the records that wait there.
    pub(super) fn take_away(&mut self, names: &[Name]) -> Self {
        let taken = names.iter().filter_map(|name| self.partitions.remove_entry(name)).collect();
        Self { partitions: taken, last_ticket: 0 }
    }

    /// Returns the partitions that are paused.
    pub(super) fn paused(&self) -> Vec<Name> {
        self.partitions.iter().filter(|(_, at)| at.is_paused).map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn is_at_work(&self) -> bool {
        self.partitions.values().any(|at| at.work.is_some())
    }

    pub(super) fn has_records(&self) -> bool {
        self.partitions.values().any(|at| !at.records.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rdkafka::message::Timestamp;

    use super::*;

    const DELAY: Duration = Duration::from_secs(5);

    fn record(partition: i32, offset: i64) -> OwnedMessage {
        OwnedMessage::new(None, None, "orders".to_owned(), Timestamp::NotAvailable, partition, offset, None)
    }

    fn verdict(action: Action, failures: u32) -> Verdict {
        Verdict { action, delay: DELAY, failures, why: "done".to_owned() }
    }

    fn orders(partition: i32) -> Name {
        ("orders".to_owned(), partition)
    }

    fn with_records(records: &[(i32, i64)]) -> Partitions {
        let mut partitions = Partitions::default();
        for (partition, offset) in records {
            partitions.take(record(*partition, *offset), 100);
        }
        partitions
    }

    fn offsets(started: &[Started]) -> Vec<(i32, i64)> {
        started.iter().map(|started| (started.record.partition(), started.record.offset())).collect()
    }

    #[test]
    fn one_record_of_a_partition_is_at_work_and_its_offset_is_committed_when_it_is_done() {
        let (mut partitions, now) = (with_records(&[(0, 7), (0, 8), (1, 3)]), Instant::now());
        let started = partitions.begin(now, 16);
        assert_eq!(offsets(&started), [(0, 7), (1, 3)]);
        assert!(partitions.begin(now, 16).is_empty());
        assert_eq!(partitions.to_commit(), []);
        assert!(partitions.end(started[0].ticket, Some(&verdict(Action::Park, 0)), now));
        assert_eq!(partitions.to_commit(), [(orders(0), 8)]);
        assert_eq!(offsets(&partitions.begin(now, 16)), [(0, 8)]);
        partitions.committed();
        assert_eq!(partitions.to_commit(), []);
    }

    #[test]
    fn no_more_records_are_begun_than_workers_are_free() {
        let mut partitions = with_records(&[(0, 7), (1, 3)]);
        assert_eq!(partitions.begin(Instant::now(), 1).len(), 1);
        assert_eq!(partitions.begin(Instant::now(), 0).len(), 0);
    }

    #[test]
    fn a_record_that_is_redelivered_holds_back_its_partition_only_and_keeps_its_failures() {
        let (mut partitions, now) = (with_records(&[(0, 7), (0, 8), (1, 3), (1, 4)]), Instant::now());
        let started = partitions.begin(now, 16);
        partitions.end(started[0].ticket, Some(&verdict(Action::Redeliver, 1)), now);
        partitions.end(started[1].ticket, Some(&verdict(Action::Ack, 0)), now);
        assert_eq!(partitions.to_commit(), [(orders(1), 4)]);
        assert_eq!(offsets(&partitions.begin(now, 16)), [(1, 4)]);
        let again = partitions.begin(now + DELAY, 16);
        assert_eq!((offsets(&again), again[0].failures), (vec![(0, 7)], 1));
        partitions.end(again[0].ticket, Some(&verdict(Action::DeadLetter, 2)), now);
        let next = partitions.begin(now, 16);
        assert_eq!((offsets(&next), next[0].failures), (vec![(0, 8)], 0));
    }

    #[test]
    fn a_run_without_a_verdict_is_not_committed() {
        let (mut partitions, now) = (with_records(&[(0, 7)]), Instant::now());
        let started = partitions.begin(now, 16);
        assert!(partitions.end(started[0].ticket, None, now));
        assert_eq!(partitions.to_commit(), []);
        assert!(partitions.has_records());
    }

    #[test]
    fn a_full_partition_is_paused_until_it_is_half_empty() {
        let (mut partitions, now) = (Partitions::default(), Instant::now());
        let paused: Vec<_> = (0..5).map(|offset| partitions.take(record(0, offset), 4)).collect();
        assert_eq!(paused, [None, None, None, Some(orders(0)), None]);
        for _ in 0..3 {
            assert!(partitions.take_resumable(4).is_empty());
            let started = partitions.begin(now, 16);
            partitions.end(started[0].ticket, Some(&verdict(Action::Ack, 0)), now);
        }
        assert_eq!(partitions.take_resumable(4), [orders(0)]);
        assert!(partitions.take_resumable(4).is_empty());
    }

    #[test]
    fn a_run_that_ends_after_its_partition_came_back_changes_nothing() {
        let (mut partitions, now) = (with_records(&[(0, 7), (1, 3)]), Instant::now());
        let started = partitions.begin(now, 16);
        let mut taken = partitions.take_away(&[orders(0), orders(9)]);
        assert!(taken.is_at_work());
        partitions.take(record(0, 7), 100);
        assert_eq!(offsets(&partitions.begin(now, 16)), [(0, 7)]);
        assert!(!partitions.end(started[0].ticket, Some(&verdict(Action::Ack, 0)), now));
        assert_eq!(partitions.to_commit(), []);
        assert!(taken.end(started[0].ticket, Some(&verdict(Action::Ack, 0)), now));
        assert_eq!((taken.to_commit(), taken.is_at_work()), (vec![(orders(0), 8)], false));
    }
}
