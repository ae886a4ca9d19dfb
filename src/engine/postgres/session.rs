//! A lane's connection: how it is opened, and what is asked of it besides calls: whether the server is still fit, and lists.

use std::time::Duration;

use sqlx::{Executor as _, Row as _, query};

use super::failure::{Failure, determinate, reading};
use super::options::Options;
use super::row;
use super::status::Status;
use super::work::Link;
use crate::database::{Address, Refused, connect, schema};
use crate::domain::operator::{ListRequest, ListedClaim};
use crate::engine::{Determinate, EngineError, Metadata};

/// The migration that brought all that this engine uses.
const NEEDED: i64 = 1;

/// What all connections of an engine have in common.
pub(super) struct Shared {
    pub(super) address: Address,
    pub(super) options: Options,
    pub(super) status: Status,
}

/// Lifts the fences to the time in microseconds, if they lie more than an hour behind: they then go on rising over a back-up
/// that was restored. Nobody lifts at the same time, since the lower of two would come last; and an hour is more than what
/// is granted while this runs.
const LIFT_FENCES: &str = "BEGIN; \
    SELECT pg_advisory_xact_lock(1869505383, 1); \
    SELECT setval('oncegate_fence', now.us) \
    FROM oncegate_fence, LATERAL (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) AS now \
    WHERE last_value < now.us - 3600000000 AND now.us < 9007199254740991; \
    COMMIT";

const FITNESS: &str = "SELECT current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on', marker::text, \
                       oldest_build FROM oncegate_schema";

/// Connects to the primary, and makes sure that all is there.
pub(super) async fn open(shared: &Shared) -> Result<Link, Determinate> {
    let limit = shared.options.connect_timeout;
    let (connection, schema) = connect(&shared.address, NEEDED, limit).await.map_err(determinate)?;
    let mut link = Link { connection, pooled: shared.address.is_pooled() };
    let preparing = async {
        link.connection.execute(sqlx::raw_sql(LIFT_FENCES)).await?;
        check(&mut link, shared).await
    };
    match tokio::time::timeout(limit, preparing).await {
        Err(_elapsed) => return Err(silent(limit)),
        Ok(Err(error)) => return Err(certain(&error)),
        Ok(Ok(fits)) => fits.map_err(determinate)?,
    }
    shared.status.seen(&schema.marker);
    Ok(link)
}

/// Asks the server whether it is still fit, whether it still has its data, and whether gateways of this build may use it.
async fn check(link: &mut Link, shared: &Shared) -> sqlx::Result<Result<(), Refused>> {
    let rows = link.run(query(FITNESS)).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    shared.status.set_durable(row.try_get(0)?);
    shared.status.seen(row.try_get(1)?);
    Ok(schema::allows(row.try_get(2)?))
}

/// Whether the store would answer now. The connection is not to be used again if it would not.
pub(super) async fn probe(link: &mut Link, shared: &Shared) -> Result<(), EngineError> {
    let fits = check(link, shared).await.map_err(|error| certain(&error))?;
    fits.map_err(|refused| determinate(refused).into())
}

/// A page of the claims that stand. One that cannot be read is left out; asked for by itself it says so.
pub(super) async fn list(link: &mut Link, ask: &ListRequest) -> Result<Vec<ListedClaim>, sqlx::Error> {
    let after = ask.after.map(|id| id.as_bytes().to_vec()).unwrap_or_default();
    let limit = i64::try_from(ask.limit).unwrap_or(i64::MAX);
    let page = query(include_str!("list.sql"))
        .bind(ask.app.to_string())
        .bind(after)
        .bind(row::asked_letter(ask.state))
        .bind(limit);
    let mut listed = Vec::new();
    for row in &link.run(page).await? {
        let key = row::key(row, 1)?;
        if let Ok(Some(found)) = row::found(row, &key)? {
            listed.push(ListedClaim { global_id: key.global_id, held: found.held });
        }
    }
    Ok(listed)
}

/// The note of this name. One that cannot be read says so.
pub(super) async fn note(link: &mut Link, name: String) -> sqlx::Result<Result<Option<Metadata>, EngineError>> {
    let rows = link.run(query("SELECT value FROM oncegate_notes WHERE name = $1").bind(name)).await?;
    let Some(row) = rows.first() else { return Ok(Ok(None)) };
    let note = String::from_utf8(row.try_get(0)?).ok().and_then(|text| Metadata::new(text).ok());
    let unreadable = || EngineError::incompatible("a note cannot be read by this release");
    Ok(note.map(Some).ok_or_else(unreadable))
}

/// Compare-and-set of a note.
pub(super) async fn compare_and_set_metadata(
    link: &mut Link,
    name: String,
    expected: Option<Metadata>,
    new: &Metadata,
) -> sqlx::Result<bool> {
    let bytes = |note: &Metadata| note.as_str().as_bytes().to_vec();
    let swap = query(include_str!("swap_note.sql"));
    let rows = link.run(swap.bind(name).bind(expected.as_ref().map(bytes)).bind(bytes(new))).await?;
    rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)
}

/// A failure of what changes nothing.
fn certain(error: &sqlx::Error) -> Determinate {
    match reading(Failure::from(error).told) {
        EngineError::Determinate(why) => why,
        EngineError::Indeterminate(why) => Determinate::Unavailable(why.to_string()),
    }
}

fn silent(limit: Duration) -> Determinate {
    Determinate::Unavailable(format!("the PostgreSQL server did not let us in within {limit:?}"))
}
