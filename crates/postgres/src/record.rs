//! Shared records: metadata and locks. Each call is a statement of its own.

use oncegate_core::clock::{Timestamp, micros};
use oncegate_core::engine::{ChangeResponse, EngineError, RecordChange, RecordName, RecordView, SharedRecord};
use oncegate_core::operator::{LockListRequest, LockPage};
use sqlx::postgres::PgRow;
use sqlx::{Row as _, query};

use super::call::Statement;
use super::failure::Failure;
use super::session::Session;

/// The latest instant that a statement gets: the year 2255, which PostgreSQL can still represent.
const LATEST: u64 = (1 << 53) - 1;

/// The longest time that a record lasts, in microseconds: a hundred years.
const LASTS_MAX: u64 = 100 * 365 * 24 * 3_600_000_000;

/// Reads a record.
pub(super) struct GetRecord(pub(super) RecordName);

impl Statement for GetRecord {
    type Answer = RecordView;

    async fn run(self, session: &mut Session) -> Result<RecordView, EngineError> {
        let get = match self.0 {
            RecordName::Metadata(name) => query(include_str!("get_metadata.sql")).bind(String::from(name)),
            RecordName::Lock(app, name) => {
                query(include_str!("get_lock.sql")).bind(app.to_string()).bind(name.to_string())
            }
        };
        let rows = session.run(get).await.map_err(|error| failed(&error).of_read())?;
        let row = rows.first().ok_or_else(|| failed(&sqlx::Error::RowNotFound).of_read())?;
        view(row, 0)
    }
}

/// Lists records of locks.
impl Statement for LockListRequest {
    type Answer = LockPage;

    async fn run(self, session: &mut Session) -> Result<LockPage, EngineError> {
        let page = query(include_str!("list_locks.sql"))
            .bind(self.app.to_string())
            .bind(self.after.map(|after| after.to_string()).unwrap_or_default())
            .bind(i64::try_from(self.limit).unwrap_or(i64::MAX));
        let rows = session.run(page).await.map_err(|error| failed(&error).of_read())?;
        let mut found = LockPage { records: Vec::new(), now: Timestamp::default() };
        for row in &rows {
            let RecordView { record, now } = view(row, 0)?;
            found.now = now;
            let name: Option<String> = row.try_get(2).map_err(|error| failed(&error))?;
            let name = name.and_then(|name| name.parse().ok());
            found.records.extend(name.zip(record));
        }
        Ok(found)
    }
}

/// Compares and sets a record.
pub(super) struct ChangeRecord(pub(super) RecordChange);

impl Statement for ChangeRecord {
    type Answer = ChangeResponse;

    async fn run(self, session: &mut Session) -> Result<ChangeResponse, EngineError> {
        let RecordChange { name, expected, new, lasts, from, before, notifies, .. } = self.0;
        let expected = expected.map(|expected| expected.version().to_vec());
        let stored = new.as_stored().to_vec();
        let number = |value: u64, max: u64| i64::try_from(value.min(max)).unwrap_or(i64::MAX);
        let change = match name {
            RecordName::Metadata(name) => {
                query(include_str!("change_metadata.sql")).bind(String::from(name)).bind(expected).bind(stored)
            }
            RecordName::Lock(app, name) => query(include_str!("change_lock.sql"))
                .bind(app.to_string())
                .bind(name.to_string())
                .bind(stored)
                .bind(expected)
                .bind(number(lasts.map_or(LASTS_MAX, micros), LASTS_MAX))
                .bind(number(from.as_micros(), LATEST))
                .bind(number(before.as_micros(), LATEST))
                .bind(notifies),
        };
        let rows = session.run(change).await.map_err(|error| failed(&error))?;
        let row = rows.first().ok_or_else(|| failed(&sqlx::Error::RowNotFound))?;
        if row.try_get(0).map_err(|error| failed(&error))? {
            return Ok(ChangeResponse::Stored(now(row, 1)?));
        }
        Ok(ChangeResponse::Refused { view: view(row, 1)?, maybe_stored: false })
    }
}

/// Reads a view, whose columns begin at this position.
fn view(row: &PgRow, at: usize) -> Result<RecordView, EngineError> {
    let record: Option<Vec<u8>> = row.try_get(at + 1).map_err(|error| failed(&error))?;
    Ok(RecordView { now: now(row, at)?, record: record.map(SharedRecord::from_stored).transpose()? })
}

fn now(row: &PgRow, at: usize) -> Result<Timestamp, EngineError> {
    let micros: i64 = row.try_get(at).map_err(|error| failed(&error))?;
    Ok(Timestamp::from_micros(u64::try_from(micros).unwrap_or_default()))
}

fn failed(error: &sqlx::Error) -> EngineError {
    Failure::from(error).answer
}
