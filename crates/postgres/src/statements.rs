//! Requests with their own statements: health checks and lists.

use std::sync::Arc;

use oncegate_core::engine::EngineError;
use oncegate_core::operator::{ListRequest, ListedClaim};
use oncegate_core::record::Key;
use sqlx::{Row as _, query};

use super::arguments;
use super::call::Statement;
use super::failure::Failure;
use super::row;
use super::session::{Session, Store};

/// Checks that the server answers and is fit.
pub(super) struct Probe(pub(super) Arc<Store>);

impl Statement for Probe {
    type Response = ();

    // The database may not be for this gateway any more; a new connection would be refused for the same reason.
    const SURVIVES_REFUSAL: bool = false;

    async fn run(self, session: &mut Session) -> Result<(), EngineError> {
        session.check(&self.0).await.map_err(EngineError::from)
    }
}

impl Statement for ListRequest {
    type Response = Vec<ListedClaim>;

    /// Reads a page of claims. An unreadable claim is left out; a lookup of it reports why.
    async fn run(self, session: &mut Session) -> Result<Vec<ListedClaim>, EngineError> {
        let after = self.after.map(|id| id.as_bytes().to_vec()).unwrap_or_default();
        let page = query(include_str!("list.sql"))
            .bind(self.realm.namespace(&self.app).into_owned())
            .bind(after)
            .bind(arguments::listed_letter(self.state))
            .bind(i64::try_from(self.limit).unwrap_or(i64::MAX));
        let rows = session.run(page).await.map_err(|error| reading(&error))?;
        let listed = rows.iter().filter_map(|row| row::listed(row).transpose());
        listed.collect::<sqlx::Result<_>>().map_err(|error| reading(&error))
    }
}

/// Marks a claim in progress, so that its end is notified.
pub(super) struct Mark {
    pub(super) key: Key,
    /// Fence of the claim that was found.
    pub(super) fence: u64,
}

impl Statement for Mark {
    type Response = bool;

    /// Returns whether the claim is marked now.
    async fn run(self, session: &mut Session) -> Result<bool, EngineError> {
        let mark = query(include_str!("mark.sql"))
            .bind(self.key.namespace().into_owned())
            .bind(self.key.global_id.as_bytes().to_vec())
            .bind(self.fence.cast_signed());
        let marked = session.run(mark).await.and_then(|rows| rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0));
        marked.map_err(|error| Failure::from(&error).answer)
    }
}

fn reading(error: &sqlx::Error) -> EngineError {
    Failure::from(error).answer.of_read()
}
