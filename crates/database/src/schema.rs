//! The schema: how it is brought up to date, and whether a gateway of this build and a database fit each other.

use std::sync::LazyLock;
use std::time::Duration;

use sqlx::migrate::{Migrate as _, MigrateError, Migration, MigrationType, Migrator};
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _, Row as _, SqlSafeStr as _};
use tokio::time::timeout;

use super::address::Address;
use super::connect::{DatabaseError, failure, open};

/// The number by which a database tells gateways apart; see `migrations/README.md`.
pub const BUILD: i32 = 1;

/// The files of `migrations`, in order: number, subject, text. Listed by hand: the macro that would read the folder takes
/// a second client library, built for the compiler alone.
const FILES: [(i64, &str, &str); 3] = [
    (1, "claims", include_str!("../../../migrations/0001_claims.sql")),
    (2, "apps", include_str!("../../../migrations/0002_apps.sql")),
    (3, "notes", include_str!("../../../migrations/0003_notes.sql")),
];

/// All migrations, in order.
static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let migration = |(version, subject, text): (_, &'static str, &'static str)| {
        let without_transaction = text.starts_with("-- no-transaction");
        Migration::new(version, subject.into(), MigrationType::Simple, text.into_sql_str(), without_transaction)
    };
    let mut migrations = Migrator::with_migrations(FILES.map(migration).into());
    // A database may be ahead of a gateway; whether it is too far ahead is for the gate to say.
    migrations.set_ignore_missing(true);
    migrations.dangerous_set_table_name("oncegate_migrations");
    migrations
});

/// How long a migration may take, waiting for another one that runs included.
const PATIENCE: Duration = Duration::from_mins(10);

/// How long a database may take to tell its status.
const STATUS_PATIENCE: Duration = Duration::from_secs(10);

/// What a database has of the schema, and what it lacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The newest migration that was applied; 0 if there is no schema.
    pub version: i64,
    /// The newest migration of this release.
    pub newest: i64,
    /// The migrations of this release that were not applied: number and subject.
    pub pending: Vec<(i64, &'static str)>,
    /// Whether gateways of this build may use the database.
    pub fits_build: bool,
}

/// What a database says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schema {
    /// The newest migration that was applied; 0 if there is no schema.
    pub version: i64,
    /// Gateways of an older build are to keep off.
    pub oldest_build: i32,
    /// Made with the schema: another one means that the data is gone.
    pub marker: String,
}

/// Applies what is missing; returns the version before and after. Safe when several run at once.
///
/// # Errors
/// Why it could not be done. What was applied before stays.
pub async fn migrate(address: &Address, connect_timeout: Duration) -> Result<(i64, i64), DatabaseError> {
    let mut connection = open(address, connect_timeout).await?;
    let migrated = timeout(PATIENCE, apply(&mut connection)).await;
    // Also lets go of the lock, if something failed while it was held.
    drop(connection.close().await);
    migrated.unwrap_or_else(|_| Err(DatabaseError::Unavailable("the migration took longer than ten minutes".into())))
}

async fn apply(connection: &mut PgConnection) -> Result<(i64, i64), DatabaseError> {
    connection.lock().await.map_err(not_migrated)?;
    // Asked while the lock is held, so that of two that run at once only one says what it did.
    let before = read(connection).await?.version;
    MIGRATIONS.run_direct(None, connection, false).await.map_err(not_migrated)?;
    let after = read(connection).await?.version;
    connection.unlock().await.map_err(not_migrated)?;
    Ok((before, after))
}

/// Returns what a database has and what it lacks. Changes nothing.
///
/// # Errors
/// That it could not be read; not that there is no schema.
pub async fn status(address: &Address, connect_timeout: Duration) -> Result<Status, DatabaseError> {
    let mut connection = open(address, connect_timeout).await?;
    let status = timeout(STATUS_PATIENCE, inspect(&mut connection)).await;
    drop(connection.close().await);
    status.unwrap_or_else(|_| Err(DatabaseError::Unavailable("the database did not answer within ten seconds".into())))
}

async fn inspect(connection: &mut PgConnection) -> Result<Status, DatabaseError> {
    let schema = read(connection).await?;
    let mut applied = Vec::new();
    if schema.version > 0 {
        let rows = sqlx::query("SELECT version FROM oncegate_migrations WHERE success").persistent(false);
        for row in connection.fetch_all(rows).await.map_err(|error| failure(&error))? {
            applied.push(row.try_get::<i64, _>(0).map_err(|error| failure(&error))?);
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
        MigrateError::Execute(error) => failure(&error),
        MigrateError::ExecuteMigration(error, version) => match failure(&error) {
            DatabaseError::Unavailable(why) => DatabaseError::Unavailable(format!("migration {version}: {why}")),
            DatabaseError::Incompatible(why) => DatabaseError::Incompatible(format!("migration {version}: {why}")),
        },
        MigrateError::VersionMismatch(version) => DatabaseError::Incompatible(format!(
            "migration {version} was applied in another form than this gateway knows; it was left as it is"
        )),
        MigrateError::Dirty(version) => DatabaseError::Incompatible(format!(
            "migration {version} was begun and not finished; put it right, and set its `success` in oncegate_migrations"
        )),
        error => DatabaseError::Incompatible(format!("the database cannot be migrated: {error}")),
    }
}

/// Reads what the database says of itself.
///
/// # Errors
/// That it could not be read; not that there is no schema.
pub async fn read(connection: &mut PgConnection) -> Result<Schema, DatabaseError> {
    let failed = |error: sqlx::Error| failure(&error);
    let exists = "SELECT to_regclass('oncegate_schema') IS NOT NULL AND to_regclass('oncegate_migrations') IS NOT NULL";
    let exists: bool = first(connection, exists).await?.ok_or_else(unreadable)?.try_get(0).map_err(failed)?;
    let absent = Schema { version: 0, oldest_build: 0, marker: String::new() };
    if !exists {
        return Ok(absent);
    }
    let told = "SELECT (SELECT coalesce(max(version), 0) FROM oncegate_migrations WHERE success), oldest_build, marker::text \
                FROM oncegate_schema";
    let Some(row) = first(connection, told).await? else { return Ok(absent) };
    let version = row.try_get(0).map_err(failed)?;
    let oldest_build = row.try_get(1).map_err(failed)?;
    Ok(Schema { version, oldest_build, marker: row.try_get(2).map_err(failed)? })
}

async fn first(
    connection: &mut PgConnection,
    question: &'static str,
) -> Result<Option<sqlx::postgres::PgRow>, DatabaseError> {
    // In one message, as in `connect`.
    connection.fetch_optional(sqlx::raw_sql(question)).await.map_err(|error| failure(&error))
}

fn unreadable() -> DatabaseError {
    DatabaseError::Unavailable("the PostgreSQL server does not answer what it was asked".into())
}

/// Checks that gateways of this build may use a database that asks for at least `oldest_build`. A gateway that runs asks
/// again and again: the number may rise under it.
///
/// # Errors
/// This gateway is too old.
pub fn check_build(oldest_build: i32) -> Result<(), DatabaseError> {
    check_build_of(oldest_build, BUILD)
}

fn check_build_of(oldest_build: i32, build: i32) -> Result<(), DatabaseError> {
    if oldest_build <= build {
        return Ok(());
    }
    Err(DatabaseError::Incompatible(format!(
        "the database was migrated for gateways of build {oldest_build} or later, and this one is of build {build}: replace it \
         by a newer release"
    )))
}

impl Schema {
    /// Whether this build may use the database, for what came with the migration `needed`.
    ///
    /// # Errors
    /// Which of the two is too old, and what to do.
    pub fn check(&self, needed: i64) -> Result<(), DatabaseError> {
        self.check_for(BUILD, needed)
    }

    fn check_for(&self, build: i32, needed: i64) -> Result<(), DatabaseError> {
        check_build_of(self.oldest_build, build)?;
        if self.version < needed {
            return Err(DatabaseError::Incompatible(format!(
                "the database has the schema of version {}, and this gateway needs version {needed}: run `oncegate migrate`",
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
    fn only_what_is_too_old_is_turned_away() {
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
    fn every_file_is_a_migration_with_its_number_and_its_subject() {
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
