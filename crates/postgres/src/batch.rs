//! A batch of calls on distinct keys. The first statement makes the changes that are possible at once, and reads the
//! other rows. A second statement changes those. A call begins again if another one changed its row between the two.

use std::collections::VecDeque;

use hashbrown::{HashMap, HashSet};
use oncegate_core::engine::EngineError;
use oncegate_core::record::Key;
use sqlx::postgres::PgRow;

use super::arguments::{self, Change};
use super::call::{DecidedCall, Decision, KeyedCall, QueuedCall, SingleCall};
use super::failure::{Failure, Remedy};
use super::locks::LockCall;
use super::rounds::{Batched, Found, failed};
use super::row::{self, KeyResult};
use super::session::Session;

/// Most calls in a batch.
const CALLS_MAX: usize = 256;
/// Most bytes in a batch, by a rough count.
const BYTES_MAX: usize = 2 << 20;

type Calls = Vec<Box<dyn KeyedCall>>;

/// Next work of a connection.
pub(super) enum Work {
    Claims(Calls),
    Locks(Vec<LockCall>),
    Single(Box<dyn SingleCall>),
}

/// Takes the calls to send now from the queue; `None` if it is empty. A batch holds claims or locks. A second call on a key or a
/// lock waits for the next batch, and no call overtakes another on its key. Calls without a caller are dropped.
pub(super) fn next_work(queue: &mut VecDeque<QueuedCall>) -> Option<Work> {
    let (mut claims, mut locks, mut single) = (Calls::new(), Vec::new(), None);
    let (mut keys, mut names) = (HashSet::new(), HashSet::new());
    let (mut room, mut left) = (Room::default(), VecDeque::new());
    while let Some(call) = queue.pop_front() {
        match call {
            QueuedCall::Single(call) if room.is_untouched() => {
                single = Some(call);
                break;
            }
            QueuedCall::Keyed(call) if call.is_abandoned() => {}
            QueuedCall::Lock(call) if call.is_abandoned() => {}
            QueuedCall::Keyed(_) if !locks.is_empty() => left.push_back(call),
            QueuedCall::Lock(_) if !claims.is_empty() => left.push_back(call),
            QueuedCall::Keyed(call) if keys.contains(call.key()) => left.push_back(QueuedCall::Keyed(call)),
            QueuedCall::Lock(call) if names.contains(&call.key) => left.push_back(QueuedCall::Lock(call)),
            QueuedCall::Keyed(call) if room.take(call.bytes()) => {
                keys.insert(call.key().clone());
                claims.push(call);
            }
            QueuedCall::Lock(call) if room.take(call.bytes()) => {
                names.insert(call.key.clone());
                locks.push(*call);
            }
            QueuedCall::Keyed(_) | QueuedCall::Lock(_) | QueuedCall::Single(_) => {
                left.push_back(call);
                break;
            }
        }
    }
    left.append(queue);
    *queue = left;
    match single {
        Some(call) => Some(Work::Single(call)),
        None if !claims.is_empty() => Some(Work::Claims(claims)),
        None if !locks.is_empty() => Some(Work::Locks(locks)),
        None => None,
    }
}

/// The room that the calls of a batch have taken.
#[derive(Default)]
struct Room {
    calls: usize,
    bytes: usize,
}

impl Room {
    fn is_untouched(&self) -> bool {
        self.calls == 0
    }

    /// Takes room for a call of this size, if there is enough. There always is for the first one.
    fn take(&mut self, bytes: usize) -> bool {
        let fits = self.is_untouched() || self.calls < CALLS_MAX && self.bytes + bytes <= BYTES_MAX;
        if fits {
            self.calls += 1;
            self.bytes += bytes;
        }
        fits
    }
}

/// Answers waiting calls from the results of a batch that was sent after them: they need no statement.
pub(super) fn answer_waiting(queue: &mut VecDeque<QueuedCall>, found: &Found) {
    if found.is_empty() || queue.is_empty() {
        return;
    }
    let answer = |call| match call {
        QueuedCall::Keyed(call) => match found.get(call.key()) {
            Some(claim) => call.answer_by(claim).map(QueuedCall::Keyed),
            None => Some(QueuedCall::Keyed(call)),
        },
        other @ (QueuedCall::Lock(_) | QueuedCall::Single(_)) => Some(other),
    };
    *queue = queue.drain(..).filter_map(answer).collect();
}

impl Batched for Box<dyn KeyedCall> {
    const GIVEN_UP: &'static str = "the claim changed during every read; try again";

    async fn step(session: &mut Session, group: Calls, found: &mut Found) -> (Calls, Remedy) {
        step(session, group, found).await
    }

    fn fail_with(self, why: EngineError) {
        self.fail(why);
    }
}

/// Runs both statements once.
async fn step(session: &mut Session, mut group: Calls, found: &mut Found) -> (Calls, Remedy) {
    // The order is always the same, so that two statements lock the same rows one after the other.
    group.sort_unstable_by(|a, b| a.key().cmp(b.key()));
    let first_steps: Vec<_> = group.iter().map(|call| call.first_step()).collect();
    let results = match session.run(arguments::first(&first_steps)).await {
        Ok(rows) => results(&group, &rows),
        Err(error) => Err(error),
    };
    let results = match results {
        Ok(results) => results,
        // Where its rows could not be read, the statement was executed nevertheless.
        Err(error) => return failed(Failure::from(&error), group, |call| call.may_write()),
    };
    let (mut again, mut changes) = (Calls::new(), Vec::new());
    for (call, result) in group.into_iter().zip(results) {
        let claim = match result {
            Some(KeyResult::Written(written)) => {
                call.written(written);
                continue;
            }
            Some(KeyResult::Unreadable(why)) => {
                call.fail(why);
                continue;
            }
            Some(KeyResult::Taken) => {
                again.push(call);
                continue;
            }
            Some(KeyResult::Found(claim)) => claim,
            None => None,
        };
        let key = claim.is_some().then(|| call.key().clone());
        match call.decide(claim.as_deref()) {
            Decision::Answered => found.extend(key.zip(claim.map(|claim| claim.held))),
            Decision::Change(change, call) => changes.push((change, call)),
            Decision::Again(call) => again.push(call),
        }
    }
    if changes.is_empty() {
        return (again, Remedy::Again);
    }
    let (mut more, remedy) = apply(session, changes).await;
    again.append(&mut more);
    (again, remedy)
}

/// Runs the second statement. Returns the calls whose record others changed in between.
async fn apply(session: &mut Session, changes: Vec<(Box<Change>, Box<dyn DecidedCall>)>) -> (Calls, Remedy) {
    let asked: Vec<&Change> = changes.iter().map(|(change, _)| &**change).collect();
    let written: sqlx::Result<HashMap<Key, _>> = match session.run(arguments::second(&asked)).await {
        Ok(rows) => {
            rows.iter().map(|row| Ok((row::key(row, 0)?, (row::fence(row, 2)?, row::instant(row, 3)?)))).collect()
        }
        Err(error) => Err(error),
    };
    let written = match written {
        Ok(written) => written,
        Err(error) => {
            let calls = changes.into_iter().map(|(_, call)| call.revert()).collect();
            return failed(Failure::from(&error), calls, |_| true);
        }
    };
    let mut again = Calls::new();
    for (_, call) in changes {
        match written.get(call.key()) {
            Some(&(fence, ends_at)) => call.confirm(fence, ends_at),
            None => again.push(call.revert()),
        }
    }
    (again, Remedy::Again)
}

/// Returns the result for each call's key; `None` if nothing is stored there.
fn results(group: &[Box<dyn KeyedCall>], rows: &[PgRow]) -> sqlx::Result<Vec<Option<KeyResult>>> {
    let mut results: Vec<Option<KeyResult>> = group.iter().map(|_| None).collect();
    for row in rows {
        let (key, result) = row::result(row)?;
        // Sorted, and each once.
        let index = group.binary_search_by(|call| call.key().cmp(&key));
        let index = index.map_err(|_| sqlx::Error::Decode("a key that no call has".into()))?;
        // A written row replaces one that was read just before.
        if !matches!(results[index], Some(KeyResult::Written(..))) {
            results[index] = Some(result);
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests;
