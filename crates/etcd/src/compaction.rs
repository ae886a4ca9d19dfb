//! The history of the store. With `compact` in the URL gateways compact it. Without, they warn if nothing compacts it.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use oncegate_coordination::step::{Guard, Stepped, Write};
use oncegate_coordination::sweep::Cursor;
use oncegate_core::engine::{Determinate, EngineError};

use super::failure::Failure;
use super::proto::{RangeRequest, RangeResponse};
use super::session::{Replied, Session};
use super::step;
use super::store::Store;

/// History that is older than this is expected to be compacted.
const AGE_EXPECTED: Duration = Duration::from_mins(10);

/// Time between two warnings.
const BETWEEN_WARNINGS: Duration = Duration::from_hours(1);

/// Revisions that are remembered, over the age of the history that is kept.
const SAMPLES: u32 = 10;

/// Tasks of one gateway about the history.
pub(super) struct Compaction {
    /// History of at least this age is compacted, or is expected to be.
    age: Duration,
    samples: VecDeque<Sample>,
    /// The next look at the history, by this gateway's monotonic clock.
    next: Duration,
    warned_at: Option<Duration>,
}

/// A revision of the store, and a time at which it was the newest or an older one.
#[derive(Clone, Copy)]
struct Sample {
    revision: i64,
    seen_at: Duration,
}

impl Compaction {
    /// Creates the tasks for the history of a store.
    pub(super) fn new(store: &Store) -> Self {
        Self::of_age(store.url.compact.unwrap_or(AGE_EXPECTED))
    }

    fn of_age(age: Duration) -> Self {
        Self { age, samples: VecDeque::new(), next: Duration::ZERO, warned_at: None }
    }

    /// Compacts the history, or checks whether it is compacted, if that is due. The store has just had this revision.
    pub(super) async fn advance(&mut self, store: &Store, session: &Session, revision: i64) -> Result<(), Failure> {
        let now = store.state.time.monotonic();
        let Some(old) = self.due(now, revision) else { return Ok(()) };
        if store.url.compact.is_some() {
            if let Err(reason) = compact(store, session, old, self.age).await?
                && self.is_warning_due(now)
            {
                tracing::warn!(
                    server = store.state.server.address(),
                    reason,
                    "etcd refuses to compact its history, which grows until no room is left. Give the user of the URL the role root, \
                     or start every member with --auto-compaction-mode=periodic --auto-compaction-retention=1m and leave compact out \
                     of the URL"
                );
            }
            return Ok(());
        }
        if !is_compacted(session.range(range_at(&store.keys.clock, old)).await)? && self.is_warning_due(now) {
            tracing::warn!(
                server = store.state.server.address(),
                "etcd keeps history that is older than ten minutes, so its database grows with each claim until no room is left. Start \
                 every member with --auto-compaction-mode=periodic --auto-compaction-retention=1m; or, if nothing else uses this \
                 etcd, write ?compact=1m into the URL"
            );
        }
        Ok(())
    }

    /// Records a revision. Returns the newest one that is old enough, if a look at the history is due.
    fn due(&mut self, now: Duration, revision: i64) -> Option<i64> {
        let is_old = |sample: &Sample| now.saturating_sub(sample.seen_at) >= self.age;
        while self.samples.get(1).is_some_and(is_old) {
            self.samples.pop_front();
        }
        // The data were lost. What was seen before means nothing any more.
        self.samples.retain(|sample| sample.revision <= revision);
        if self.samples.back().is_none_or(|last| now.saturating_sub(last.seen_at) >= self.age / SAMPLES) {
            self.samples.push_back(Sample { revision, seen_at: now });
        }
        let oldest = *self.samples.front()?;
        if now < self.next || now.saturating_sub(oldest.seen_at) < self.age {
            return None;
        }
        self.next = now + self.age / 4;
        Some(oldest.revision)
    }

    /// Returns whether a warning is due, and records that it is given.
    fn is_warning_due(&mut self, now: Duration) -> bool {
        let is_due = self.warned_at.is_none_or(|last| now.saturating_sub(last) >= BETWEEN_WARNINGS);
        if is_due {
            self.warned_at = Some(now);
        }
        is_due
    }
}

/// Compacts the history before a revision, unless another gateway has done it lately. Returns the reason of a refusal.
async fn compact(store: &Store, session: &Session, old: i64, age: Duration) -> Result<Result<(), String>, Failure> {
    let keys = &store.keys;
    let Replied { time, responses, .. } = session.run(|| vec![step::read(&keys.compact)]).await?;
    let read = responses.into_iter().next().map(|response| step::result_of(response, 0));
    let Some(Ok(Stepped::Found(stored))) = read else {
        return Err(Failure::lost("etcd's reply does not fit the request"));
    };
    if stored.as_ref().is_some_and(|stored| time.clock < Cursor::decode(&stored.value).due) {
        return Ok(Ok(()));
    }
    let next = Cursor { due: time.clock.plus(age / 2), from: Bytes::new() };
    let guard = stored.map_or(Guard::Absent, |stored| Guard::Unchanged(stored.mark));
    let write = Write { guards: vec![guard], put: Some(next.encode()), is_remembered: false };
    let Replied { revision, responses, .. } =
        session.run(|| vec![step::conditional(keys, &keys.compact, &write)]).await?;
    let written = responses.into_iter().next().map(|response| step::result_of(response, revision));
    if !matches!(written, Some(Ok(Stepped::Written(..)))) {
        // Another gateway was faster.
        return Ok(Ok(()));
    }
    match session.compact(old).await {
        Err(Failure { answer: EngineError::Determinate(Determinate::Incompatible(reason)), .. }) => Ok(Err(reason)),
        Err(failure) if says_compacted(&failure) => Ok(Ok(())),
        compacted => compacted.map(Ok),
    }
}

/// Returns the request that reads a key at an old revision. It fails after that revision was compacted.
pub(super) fn range_at(key: &Bytes, revision: i64) -> RangeRequest {
    RangeRequest { key: key.clone(), revision, serializable: true, keys_only: true, ..RangeRequest::default() }
}

/// Returns whether the revision of a request of [`range_at`] is compacted.
pub(super) fn is_compacted(answer: Result<RangeResponse, Failure>) -> Result<bool, Failure> {
    match answer {
        Ok(_) => Ok(false),
        Err(failure) if says_compacted(&failure) => Ok(true),
        Err(failure) => Err(failure),
    }
}

fn says_compacted(failure: &Failure) -> bool {
    failure.answer.reason().contains("has been compacted")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);

    #[test]
    fn the_newest_revision_that_is_old_enough_is_compacted_and_no_newer_one() {
        let mut compaction = Compaction::of_age(SEC * 60);
        let mut compacted = Vec::new();
        for second in 0..200 {
            let now = SEC * second;
            // A revision is the number of the second in which it was the newest.
            if let Some(old) = compaction.due(now, second.into()) {
                let age = i64::from(second) - old;
                assert!((60..70).contains(&age), "at {second}: {old}");
                compacted.push(second);
            }
        }
        assert!(compacted.first().is_some_and(|first| *first >= 60), "{compacted:?}");
        assert!((8..=10).contains(&compacted.len()), "each quarter of the age: {compacted:?}");
    }

    #[test]
    fn revisions_of_lost_data_are_forgotten() {
        let mut compaction = Compaction::of_age(SEC * 60);
        assert_eq!(compaction.due(SEC, 1000), None);
        assert_eq!(compaction.due(SEC * 59, 7), None);
        assert_eq!(compaction.due(SEC * 100, 8), None, "revision 7 was seen 41 s ago");
        assert_eq!(compaction.due(SEC * 120, 9), Some(7));
    }

    #[test]
    fn a_warning_is_given_once_an_hour() {
        let mut compaction = Compaction::of_age(AGE_EXPECTED);
        let minutes = (0..200).filter(|minute| compaction.is_warning_due(SEC * 60 * *minute));
        assert_eq!(minutes.collect::<Vec<_>>(), [0, 60, 120, 180]);
    }

    #[test]
    fn only_a_compacted_revision_counts_as_compacted() {
        assert_eq!(is_compacted(Ok(RangeResponse::default())), Ok(false));
        let why = "OutOfRange: etcdserver: mvcc: required revision has been compacted";
        assert_eq!(is_compacted(Err(Failure::lost(why))), Ok(true));
        assert!(is_compacted(Err(Failure::lost("etcdserver: request timed out"))).is_err());
    }
}
