//! The schema: its migrations, and whether this build and a database fit each other.

use std::sync::LazyLock;
use std::time::Duration;

use sqlx::migrate::{Migrate as _, MigrateError, Migration, MigrationType, Migrator};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection as _, Executor as _, Row as _, SqlSafeStr as _};
use tokio::time::timeout;

use super::address::Address;
use super::error::DatabaseError;
use super::primary::open;

/// Number of a build of the gateway, for databases; see `migrations/README.md`.
pub const BUILD: i32 = 1;

/// The files of `migrations`, in order: number, subject, text. Listed by hand: the macro that reads the folder would add a
/// second client library to the build.
const FILES: [(i64, &str, &str); 4] = [
    (1, "claims", include_str!("../../../migrations/0001_claims.sql")),
    (2, "apps", include_str!("../../../migrations/0002_apps.sql")),
    (3, "metadata", include_str!("../../../migrations/0003_metadata.sql")),
    (4, "locks", include_str!("../../../migrations/0004_locks.sql")),
];

/// All migrations, in order.
static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let migration = |(version, subject, text): (_, &'static str, &'static str)| {
        let without_transaction = text.starts_with("-- no-transaction");
        Migration::new(version, subject.into(), MigrationType::Simple, text.into_sql_str(), without_transaction)
    };
    let mut migrations = Migrator::with_migrations(FILES.map(migration).into());
    // A database may have newer migrations; `oldest_build` says whether they matter to this build.
    migrations.set_ignore_missing(true);
    migrations.dangerous_set_table_name("oncegate_migrations");
    migrations
});

/// Time limit of a migration, including the wait for another one.
const MIGRATION_TIMEOUT: Duration = Duration::from_mins(10);

/// Time limit of a status query.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

/// Migrations of a database: applied and missing ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The newest migration that was applied; 0 if there is no schema.
    pub version: i64,
    /// The newest migration of this release.
    pub newest: i64,
    /// The migrations of this release that were not applied: number and subject.
    pub pending: Vec<(i64, &'static str)>,
    /// Gateways of this build may use the database.
    pub fits_build: bool,
}

/// The schema of a database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schema {
    /// The newest migration that was applied; 0 if there is no schema.
    pub version: i64,
    /// Gateways of an older build must not use the database.
    pub oldest_build: i32,
    /// Created with the schema: another one means that the data was lost.
    pub marker: String,
}

/// Applies the missing migrations; returns the version before and after. Several may run at once.
///
/// # Errors
/// The database cannot be reached, or a migration failed. Migrations that were applied before it stay.
pub async fn migrate(address: &Address, connect_timeout: Duration) -> Result<(i64, i64), DatabaseError> {
    let mut connection = open(address, connect_timeout).await?;
    let migrated = timeout(MIGRATION_TIMEOUT, apply(&mut connection)).await;
    // Releases the lock as well, if a migration failed.
    drop(connection.close().await);
    migrated.unwrap_or_else(|_| Err(DatabaseError::Unavailable("the migration took longer than ten minutes".into())))
}

async fn apply(connection: &mut PgConnection) -> Result<(i64, i64), DatabaseError> {
    connection.lock().await.map_err(not_migrated)?;
    // Read under the lock, so that only one of two concurrent migrations reports the applied changes.
    let before = read(connection).await?.version;
    MIGRATIONS.run_direct(None, connection, false).await.map_err(not_migrated)?;
    let after = read(connection).await?.version;
    connection.unlock().await.map_err(not_migrated)?;
    Ok((before, after))
}

/// Waits until no other connection applies migrations.
pub(super) async fn wait_for_migrations(connection: &mut PgConnection) -> Result<(), DatabaseError> {
    connection.lock().await.map_err(not_migrated)?;
    connection.unlock().await.map_err(not_migrated)
}

/// Returns the applied and the missing migrations of a database. Changes nothing.
///
/// # Errors
/// The database cannot be read. A database without a schema is no error.
pub async fn status(address: &Address, connect_timeout: Duration) -> Result<Status, DatabaseError> {
    let mut connection = open(address, connect_timeout).await?;
    let status = timeout(STATUS_TIMEOUT, inspect(&mut connection)).await;
    drop(connection.close().await);
    status.unwrap_or_else(|_| Err(DatabaseError::Unavailable("the database did not answer within ten seconds".into())))
}

async fn inspect(connection: &mut PgConnection) -> Result<Status, DatabaseError> {
    let schema = read(connection).await?;
    let mut applied: Vec<i64> = Vec::new();
    if schema.version > 0 {
        let rows = sqlx::query("SELECT version FROM oncegate_migrations WHERE success").persistent(false);
        for row in connection.fetch_all(rows).await? {
            applied.push(row.try_get(0)?);
        }
    }
    let pending = FILES.iter().filter(|(version, ..)| !applied.contains(version));
    Ok(Status {
        version: schema.version,
        newest: FILES[FILES.len() - 1].0,
        pending: pending.map(|(version, subject, _)| (*version, *subject)).collect(),
        fits_build: schema.oldest_build <= BUILD,
    })
}

fn not_migrated(error: MigrateError) -> DatabaseError {
    match error {
        MigrateError::Execute(error) => error.into(),
        MigrateError::ExecuteMigration(error, version) => {
            DatabaseError::from(&error).within(format_args!("migration {version}"))
        }
        MigrateError::VersionMismatch(version) => DatabaseError::Incompatible(format!(
            "migration {version} was applied with another text than this gateway has; nothing was changed"
        )),
        MigrateError::Dirty(version) => DatabaseError::Incompatible(format!(
            "migration {version} was started and not completed; repair it, and set its `success` in oncegate_migrations"
        )),
        error => DatabaseError::Incompatible(format!("the database cannot be migrated: {error}")),
    }
}

/// Reads the schema of a database.
///
/// # Errors
/// The database cannot be read. A database without a schema is no error.
pub async fn read(connection: &mut PgConnection) -> Result<Schema, DatabaseError> {
    let exists = "SELECT to_regclass('oncegate_schema') IS NOT NULL AND to_regclass('oncegate_migrations') IS NOT NULL";
    let no_row = || DatabaseError::Unavailable("the PostgreSQL server returned no row".into());
    let exists: bool = first(connection, exists).await?.ok_or_else(no_row)?.try_get(0)?;
    let absent = Schema { version: 0, oldest_build: 0, marker: String::new() };
    if !exists {
        return Ok(absent);
    }
    let query = "SELECT (SELECT coalesce(max(version), 0) FROM oncegate_migrations WHERE success), oldest_build, marker::text \
                 FROM oncegate_schema";
    let Some(row) = first(connection, query).await? else { return Ok(absent) };
    Ok(Schema { version: row.try_get(0)?, oldest_build: row.try_get(1)?, marker: row.try_get(2)? })
}

async fn first(connection: &mut PgConnection, query: &'static str) -> Result<Option<PgRow>, DatabaseError> {
    // In one message, for the reason given in `primary`.
    Ok(connection.fetch_optional(sqlx::raw_sql(query)).await?)
}

/// Checks that this build may use a database whose schema has this `oldest_build`. A running gateway checks it again and
/// again, since a migration may raise the number.
pub fn check_build(oldest_build: i32) -> Result<(), DatabaseError> {
    check_build_of(oldest_build, BUILD)
}

fn check_build_of(oldest_build: i32, build: i32) -> Result<(), DatabaseError> {
    if oldest_build <= build {
        return Ok(());
    }
    Err(DatabaseError::Incompatible(format!(
        "the database was migrated for gateways of build {oldest_build} or later, and this one has build {build}: replace it \
         by a newer release"
    )))
}

impl Schema {
    /// Checks that this build may use the database, and that the migration `needed` was applied.
    pub fn check(&self, needed: i64) -> Result<(), DatabaseError> {
        self.check_for(BUILD, needed)
    }

    fn check_for(&self, build: i32, needed: i64) -> Result<(), DatabaseError> {
        check_build_of(self.oldest_build, build)?;
        if self.version < needed {
            return Err(DatabaseError::Incompatible(format!(
                "the database has schema version {}, and this gateway needs version {needed}: run `oncegate migrate`",
                self.version
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_gateway_or_a_schema_that_is_too_old_is_refused() {
        let schema = |version, oldest_build| Schema { version, oldest_build, marker: String::new() };
        for (database, build, needed, fits) in [
            (schema(1, 1), 1, 1, true),
            (schema(7, 1), 1, 1, true),
            (schema(7, 2), 2, 7, true),
            (schema(7, 2), 3, 7, true),
            (schema(7, 2), 1, 1, false),
            (schema(1, 1), 2, 2, false),
            (schema(0, 0), 1, 1, false),
        ] {
            let found = database.check_for(build, needed);
            assert_eq!(found.is_ok(), fits, "{database:?}, build {build}: {found:?}");
            assert!(found.err().is_none_or(|why| matches!(why, DatabaseError::Incompatible(_))));
        }
    }

    #[test]
    fn every_file_is_a_migration_with_its_number_and_subject() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "sql"));
        let mut files: Vec<_> = files.map(|path| path.file_name().unwrap().display().to_string()).collect();
        files.sort();
        let named = |migration: &Migration| format!("{:04}_{}.sql", migration.version, migration.description);
        assert_eq!(MIGRATIONS.iter().map(named).collect::<Vec<_>>(), files);
        let versions: Vec<_> = MIGRATIONS.iter().map(|migration| migration.version).collect();
        assert!(versions.windows(2).all(|pair| pair[0] < pair[1]), "{versions:?}");
    }
}
