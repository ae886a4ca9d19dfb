//! A connection to the primary whose schema fits, after a migration if the URL asks for one.

use std::time::Duration;

use sqlx::postgres::PgConnection;

use super::address::{Address, Migrate};
use super::error::DatabaseError;
use super::primary::{open, within};
use super::schema::{self, Schema};

/// Connects to the primary and checks that the database fits. `needed` is the migration that created the caller's
/// tables; `limit` bounds each step.
pub async fn connect(address: &Address, needed: i64, limit: Duration) -> Result<(PgConnection, Schema), DatabaseError> {
    let mut connection = open(address, limit).await?;
    let mut schema = within(limit, schema::read(&mut connection)).await?;
    let outdated = match address.migrate {
        Migrate::Always => schema.version < needed,
        Migrate::IfEmpty => schema.version == 0,
        Migrate::Never => false,
    };
    if outdated {
        let (before, after) = schema::migrate(address, limit).await?;
        if before != after {
            tracing::info!(database.servers = address.name(), before, after, "Migrated the database");
        }
        schema = within(limit, schema::read(&mut connection)).await?;
    } else if schema.version < needed && address.migrate == Migrate::IfEmpty {
        // Another connection may be making the schema, one migration after another.
        within(limit, schema::wait_for_migrations(&mut connection)).await?;
        schema = within(limit, schema::read(&mut connection)).await?;
    }
    schema.check(needed)?;
    Ok((connection, schema))
}
