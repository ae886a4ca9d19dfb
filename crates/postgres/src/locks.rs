//! Calls on locks, and on degraded grants, which are in the table of the locks: those that arrive together share a statement and its
//! commit, each for another record.

use oncegate_core::clock::micros;
use oncegate_core::engine::{ChangeResponse, EngineError, RecordChange, RecordView};
use oncegate_core::lock::LockName;
use oncegate_core::record::Key;
use oncegate_core::tenant::AppKey;
use oncegate_driver::Reply;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row as _, query};

use super::failure::{Failure, Remedy};
use super::rounds::{Batched, Found, failed};
use super::routes::Route;
use super::row::view;
use super::session::Session;

const STATEMENT: &str = include_str!("change_locks.sql");

/// The latest instant that a statement gets: the year 2255, which PostgreSQL can still represent.
const LATEST: u64 = (1 << 53) - 1;

/// The longest time that a record lasts, in microseconds: a hundred years.
const LASTS_MAX: u64 = 100 * 365 * 24 * 3_600_000_000;

/// A row of the table of locks: an app and a name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LockKey {
    pub(super) app: String,
    pub(super) name: String,
}

/// A call on a lock, and where its answer goes.
pub(super) struct LockCall {
    pub(super) key: LockKey,
    pub(super) work: LockWork,
    /// Given back when the call is answered or dropped: until then, other calls on its lock take the same connection.
    pub(super) _route: Route,
}

pub(super) enum LockWork {
    Read(Reply<RecordView>),
    Change(Box<RecordChange>, Reply<ChangeResponse>),
}

/// Result of the statement for a lock.
struct Outcome {
    stored: bool,
    view: RecordView,
}

impl LockKey {
    /// Returns the row of a lock.
    pub(super) fn of_lock(app: &AppKey, name: &LockName) -> Self {
        Self { app: app.to_string(), name: name.to_string() }
    }

    /// Returns the row of the degraded grants of a claim. No app key contains a colon, so it is among the locks of no app.
    pub(super) fn of_grants(key: &Key) -> Self {
        Self { app: format!("grants:{}", key.namespace()), name: key.global_id.to_string() }
    }
}

impl LockCall {
    pub(super) fn is_abandoned(&self) -> bool {
        match &self.work {
            LockWork::Read(reply) => reply.is_abandoned(),
            LockWork::Change(_, reply) => reply.is_abandoned(),
        }
    }

    /// Returns about how many bytes it adds to a statement.
    pub(super) fn bytes(&self) -> usize {
        256 + self.change().map_or(0, |change| change.new.as_stored().len())
    }

    pub(super) fn fail(self, why: EngineError) {
        match self.work {
            LockWork::Read(reply) => reply.send(Err(why.of_read())),
            LockWork::Change(_, reply) => reply.send(Err(why)),
        }
    }

    fn change(&self) -> Option<&RecordChange> {
        match &self.work {
            LockWork::Read(_) => None,
            LockWork::Change(change, _) => Some(change),
        }
    }

    fn answer(self, Outcome { stored, view }: Outcome) {
        match self.work {
            LockWork::Read(reply) => reply.send(Ok(view)),
            LockWork::Change(_, reply) if stored => reply.send(Ok(ChangeResponse::Stored(view.now))),
            LockWork::Change(_, reply) => reply.send(Ok(ChangeResponse::Refused { view, maybe_stored: false })),
        }
    }
}

impl Batched for LockCall {
    const GIVEN_UP: &'static str = "the lock was changed by others each time; try again";

    async fn step(session: &mut Session, group: Vec<Self>, _: &mut Found) -> (Vec<Self>, Remedy) {
        answer(session, group).await
    }

    fn fail_with(self, why: EngineError) {
        self.fail(why);
    }
}

/// Runs the statement once.
async fn answer(session: &mut Session, mut group: Vec<LockCall>) -> (Vec<LockCall>, Remedy) {
    // The order is always the same, so that two statements lock the same rows one after the other.
    group.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    let rows = session.run(statement(&group)).await;
    let outcomes = match rows.and_then(|rows| outcomes(&group, &rows)) {
        Ok(outcomes) => outcomes,
        Err(error) => {
            return failed(Failure::from(&error), group, |_| true);
        }
    };
    for (call, outcome) in group.into_iter().zip(outcomes) {
        match outcome {
            Ok(outcome) => call.answer(outcome),
            Err(unreadable) => call.fail(unreadable),
        }
    }
    (Vec::new(), Remedy::Again)
}

/// Collects one column of all calls.
macro_rules! column {
    ($calls:expr, $call:ident => $value:expr) => {
        $calls.iter().map(|$call| $value).collect::<Vec<_>>()
    };
}

fn statement(calls: &[LockCall]) -> Query<'static, Postgres, PgArguments> {
    let number = |value: u64, max: u64| i64::try_from(value.min(max)).unwrap_or(i64::MAX);
    let lasts = |change: &RecordChange| number(change.lasts.map_or(LASTS_MAX, micros), LASTS_MAX);
    let expected = |change: &RecordChange| Some(change.expected.as_ref()?.version().to_vec());
    query(STATEMENT)
        .bind(column!(calls, call => call.key.app.clone()))
        .bind(column!(calls, call => call.key.name.clone()))
        .bind(column!(calls, call => call.change().and_then(expected)))
        .bind(column!(calls, call => call.change().map(|change| change.new.as_stored().to_vec())))
        .bind(column!(calls, call => call.change().map(lasts)))
        .bind(column!(calls, call => call.change().map(|change| number(change.from.as_micros(), LATEST))))
        .bind(column!(calls, call => call.change().map(|change| number(change.before.as_micros(), LATEST))))
        .bind(column!(calls, call => call.change().is_some_and(|change| change.notifies)))
}

/// Returns the outcome of each call.
fn outcomes(calls: &[LockCall], rows: &[PgRow]) -> sqlx::Result<Vec<Result<Outcome, EngineError>>> {
    let mut outcomes: Vec<Option<Result<Outcome, EngineError>>> = calls.iter().map(|_| None).collect();
    for row in rows {
        let (app, name): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
        // Sorted, and each once.
        let index = calls.binary_search_by(|call| (&*call.key.app, &*call.key.name).cmp(&(app, name)));
        let index = index.map_err(|_| sqlx::Error::Decode("a lock that no call has".into()))?;
        let stored = row.try_get(2)?;
        // A stored record replaces one that was read just before.
        if stored || outcomes[index].is_none() {
            outcomes[index] = Some(view(row, 3).map(|view| Outcome { stored, view }));
        }
    }
    outcomes.into_iter().map(|outcome| outcome.ok_or(sqlx::Error::RowNotFound)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use oncegate_core::clock::Timestamp;
    use oncegate_core::engine::{ChangePurpose, RecordName, SharedRecord};
    use oncegate_driver::Readiness;

    use super::super::routes::Routes;
    use super::*;

    fn call(work: LockWork) -> LockCall {
        let key = LockKey::of_lock(&"shop".parse().unwrap(), &"a".parse().unwrap());
        LockCall { _route: Routes::new(std::iter::once(Arc::<Readiness>::default())).take(&key), key, work }
    }

    fn change() -> RecordChange {
        RecordChange {
            name: RecordName::Lock("shop".parse().unwrap(), "a".parse().unwrap()),
            expected: None,
            new: SharedRecord::versioned(7, b"value").unwrap(),
            lasts: None,
            from: Timestamp::default(),
            before: Timestamp::default(),
            purpose: ChangePurpose::Keep,
            lease_max: std::time::Duration::ZERO,
            notifies: false,
        }
    }

    fn view() -> RecordView {
        RecordView { record: None, now: Timestamp::from_micros(5), clock_gain: std::time::Duration::ZERO }
    }

    #[test]
    fn a_change_counts_the_record_that_it_stores() {
        let (lookup, changed) = (Reply::new(), Reply::new());
        let bytes = change().new.as_stored().len();
        assert!(bytes > 5);
        assert_eq!(call(LockWork::Read(lookup.0)).bytes(), 256);
        assert_eq!(call(LockWork::Change(Box::new(change()), changed.0)).bytes(), 256 + bytes);
    }

    #[test]
    fn a_change_is_stored_or_refused_and_a_lookup_never_uncertain() {
        for (stored, expected) in [
            (true, ChangeResponse::Stored(view().now)),
            (false, ChangeResponse::Refused { view: view(), maybe_stored: false }),
        ] {
            let (reply, answer) = Reply::new();
            call(LockWork::Change(Box::new(change()), reply)).answer(Outcome { stored, view: view() });
            assert_eq!(answer.now_or_never().unwrap().unwrap(), Ok(expected));
        }
        let uncertain = || EngineError::indeterminate("lost");
        let ((read, looked_up), (write, changed)) = (Reply::new(), Reply::new());
        call(LockWork::Read(read)).fail(uncertain());
        call(LockWork::Change(Box::new(change()), write)).fail(uncertain());
        assert!(looked_up.now_or_never().unwrap().unwrap().is_err_and(|why| !why.is_uncertain()));
        assert!(changed.now_or_never().unwrap().unwrap().is_err_and(|why| why.is_uncertain()));
    }
}
