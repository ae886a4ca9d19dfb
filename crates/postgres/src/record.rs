//! Records of gateways' metadata, and lists of locks. Each call is a separate statement.

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{ChangeResponse, EngineError, RecordChange, RecordView};
use oncegate_core::operator::{LockListRequest, LockPage};
use sqlx::{Row as _, query};

use super::call::Statement;
use super::failure::Failure;
use super::row::{now, view};
use super::session::Session;

/// Reads metadata of this name.
pub(super) struct GetMetadata(pub(super) Box<str>);

impl Statement for GetMetadata {
    type Response = RecordView;

    async fn run(self, session: &mut Session) -> Result<RecordView, EngineError> {
        let get = query(include_str!("get_metadata.sql")).bind(String::from(self.0));
        let rows = session.run(get).await.map_err(|error| failed(&error).of_read())?;
        let row = rows.first().ok_or_else(|| failed(&sqlx::Error::RowNotFound).of_read())?;
        view(row, 0)
    }
}

/// Lists records of locks.
impl Statement for LockListRequest {
    type Response = LockPage;

    async fn run(self, session: &mut Session) -> Result<LockPage, EngineError> {
        let page = query(include_str!("list_locks.sql"))
            .bind(self.app.to_string())
            .bind(self.after.map(|after| after.to_string()).unwrap_or_default())
            .bind(i64::try_from(self.limit).unwrap_or(i64::MAX));
        let rows = session.run(page).await.map_err(|error| failed(&error).of_read())?;
        let mut found = LockPage { records: Vec::new(), now: Timestamp::default() };
        for row in &rows {
            let RecordView { record, now, .. } = view(row, 0)?;
            found.now = now;
            let name: Option<String> = row.try_get(2).map_err(|error| failed(&error))?;
            let name = name.and_then(|name| name.parse().ok());
            found.records.extend(name.zip(record));
        }
        Ok(found)
    }
}

/// Compares and sets metadata of this name.
pub(super) struct ChangeMetadata(pub(super) Box<str>, pub(super) RecordChange);

impl Statement for ChangeMetadata {
    type Response = ChangeResponse;

    async fn run(self, session: &mut Session) -> Result<ChangeResponse, EngineError> {
        let Self(name, RecordChange { expected, new, .. }) = self;
        let change = query(include_str!("change_metadata.sql"))
            .bind(String::from(name))
            .bind(expected.map(|expected| expected.version().to_vec()))
            .bind(new.as_stored().to_vec());
        let rows = session.run(change).await.map_err(|error| failed(&error))?;
        let row = rows.first().ok_or_else(|| failed(&sqlx::Error::RowNotFound))?;
        if row.try_get(0).map_err(|error| failed(&error))? {
            return Ok(ChangeResponse::Stored(now(row, 1)?));
        }
        Ok(ChangeResponse::Refused { view: view(row, 1)?, maybe_stored: false })
    }
}

fn failed(error: &sqlx::Error) -> EngineError {
    Failure::from(error).answer
}
