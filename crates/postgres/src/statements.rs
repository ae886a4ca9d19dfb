//! Requests with their own statements: health checks, lists, metadata.

use std::sync::Arc;

use oncegate_core::engine::{EngineError, Metadata};
use oncegate_core::operator::{ListRequest, ListedClaim};
use sqlx::{Row as _, query};

use super::call::Statement;
use super::failure::Failure;
use super::row;
use super::session::{Session, Store};

/// Checks that the server answers and is fit.
pub(super) struct Probe(pub(super) Arc<Store>);

impl Statement for Probe {
    type Answer = ();

    // The database may not be for this gateway any more; a new connection would be refused for the same reason.
    const SURVIVES_REFUSAL: bool = false;

    async fn run(self, session: &mut Session) -> Result<(), EngineError> {
        session.check(&self.0).await.map_err(EngineError::from)
    }
}

impl Statement for ListRequest {
    type Answer = Vec<ListedClaim>;

    /// Reads a page of claims. One that cannot be read is left out; a lookup of it reports why.
    async fn run(self, session: &mut Session) -> Result<Vec<ListedClaim>, EngineError> {
        let after = self.after.map(|id| id.as_bytes().to_vec()).unwrap_or_default();
        let page = query(include_str!("list.sql"))
            .bind(self.app.to_string())
            .bind(after)
            .bind(row::listed_letter(self.state))
            .bind(i64::try_from(self.limit).unwrap_or(i64::MAX));
        let rows = session.run(page).await.map_err(|error| reading(&error))?;
        let listed = rows.iter().filter_map(|row| row::listed(row).transpose());
        listed.collect::<sqlx::Result<_>>().map_err(|error| reading(&error))
    }
}

/// Reads a metadata value.
pub(super) struct GetMetadata(pub(super) String);

impl Statement for GetMetadata {
    type Answer = Option<Metadata>;

    async fn run(self, session: &mut Session) -> Result<Option<Metadata>, EngineError> {
        let get = query("SELECT value FROM oncegate_notes WHERE name = $1").bind(self.0);
        let rows = session.run(get).await.map_err(|error| reading(&error))?;
        let Some(row) = rows.first() else { return Ok(None) };
        let bytes = row.try_get(0).map_err(|error| reading(&error))?;
        let value = String::from_utf8(bytes).ok().and_then(|text| Metadata::new(text).ok());
        value.map(Some).ok_or_else(|| EngineError::incompatible("a metadata value cannot be read by this release"))
    }
}

/// Compares and sets a metadata value.
pub(super) struct CompareAndSetMetadata {
    pub(super) name: String,
    pub(super) expected: Option<Metadata>,
    pub(super) new: Metadata,
}

impl Statement for CompareAndSetMetadata {
    type Answer = bool;

    async fn run(self, session: &mut Session) -> Result<bool, EngineError> {
        let bytes = |value: &Metadata| value.as_str().as_bytes().to_vec();
        let swap = query(include_str!("compare_and_set_metadata.sql"))
            .bind(self.name)
            .bind(self.expected.as_ref().map(bytes))
            .bind(bytes(&self.new));
        let stored = session.run(swap).await.and_then(|rows| rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0));
        stored.map_err(|error| Failure::from(&error).answer)
    }
}

fn reading(error: &sqlx::Error) -> EngineError {
    Failure::from(error).answer.of_read()
}
