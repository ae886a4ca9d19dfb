//! Connections to the primary: finds it among the servers of a URL, refuses what takes no writes, and makes the schema
//! where that was asked for. What it means that a server said no is sorted here.

use std::fmt;
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgSeverity};
use sqlx::{ConnectOptions as _, Executor as _, Row as _};
use tokio::time::timeout;

use super::address::{Address, Migrate, Node};
use super::schema::{self, Schema};

/// The oldest major version that is supported by its makers.
const VERSION_MIN: i32 = 14;

/// Why there is no connection. Nothing was done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DatabaseError {
    /// No server that takes writes can be reached now.
    #[error("{0}")]
    Unavailable(String),
    /// The database must not be used as it is.
    #[error("{0}")]
    Incompatible(String),
}

/// Connects to the primary and looks whether the database fits: `needed` is the migration that brought what the caller
/// uses. Each step is bounded by `limit`.
///
/// # Errors
/// Why the database is not to be used, for now or as it is.
pub async fn connect(address: &Address, needed: i64, limit: Duration) -> Result<(PgConnection, Schema), DatabaseError> {
    let mut connection = open(address, limit).await?;
    let mut schema = asked(limit, schema::read(&mut connection)).await?;
    let outdated = match address.migrate {
        Migrate::Always => schema.version < needed,
        Migrate::IfEmpty => schema.version == 0,
        Migrate::Never => false,
    };
    if outdated {
        let (before, after) = schema::migrate(address, limit).await?;
        if before != after {
            tracing::info!(database.servers = address.name(), before, after, "the database was migrated");
        }
        schema = asked(limit, schema::read(&mut connection)).await?;
    }
    schema.check(needed)?;
    Ok((connection, schema))
}

/// Connects to the primary, whatever its schema.
///
/// # Errors
/// Why none of the servers is to be used.
pub async fn open(address: &Address, limit: Duration) -> Result<PgConnection, DatabaseError> {
    let mut refusals = Vec::new();
    for node in &address.nodes {
        match asked(limit, open_node(node)).await {
            Ok(connection) => return Ok(connection),
            Err(why) => refusals.push((node, why)),
        }
    }
    // Of a server that is no primary less is to be told than of one that should be and is not.
    let all = |(node, why): &(&Node, DatabaseError)| format!("{}: {why}", node.name);
    let told = refusals.iter().map(all).collect::<Vec<_>>().join("; ");
    let is_incompatible = |(_, why): &(_, DatabaseError)| matches!(why, DatabaseError::Incompatible(_));
    Err(if refusals.iter().all(is_incompatible) {
        DatabaseError::Incompatible(told)
    } else {
        DatabaseError::Unavailable(told)
    })
}

async fn asked<T>(limit: Duration, asked: impl Future<Output = Result<T, DatabaseError>>) -> Result<T, DatabaseError> {
    let late = |_| Err(DatabaseError::Unavailable(format!("the PostgreSQL server did not let us in within {limit:?}")));
    timeout(limit, asked).await.unwrap_or_else(late)
}

async fn open_node(node: &Node) -> Result<PgConnection, DatabaseError> {
    let failed = |error: sqlx::Error| failure(&error);
    let mut connection = node.options.connect().await.map_err(failed)?;
    let fit = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', \
               current_setting('server_version_num')::int";
    // In one message: behind a pooler that switches servers between transactions, a statement that was prepared in a message
    // of its own may run on a server that does not have it, or has another client's in its place.
    let row = connection.fetch_one(sqlx::raw_sql(fit)).await.map_err(failed)?;
    let (standby, read_only): (bool, bool) = (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
    let version: i32 = row.try_get(2).map_err(failed)?;
    if version / 10_000 < VERSION_MIN {
        return Err(DatabaseError::Incompatible(format!(
            "the PostgreSQL server is of version {}; {VERSION_MIN} or later is needed",
            version / 10_000
        )));
    }
    if standby {
        // What it holds is behind the primary, so not even a lookup is safe there.
        return Err(DatabaseError::Unavailable("it is a standby and takes no writes".into()));
    }
    if read_only {
        let why = "its sessions are read-only (default_transaction_read_only)";
        return Err(DatabaseError::Unavailable(why.into()));
    }
    Ok(connection)
}

/// What it means that something failed that changes no claim: a connection, a lookup, a migration. Holds neither values
/// nor passwords: of those the server's messages of these kinds tell nothing.
pub fn failure(error: &sqlx::Error) -> DatabaseError {
    let unavailable = |why: String| DatabaseError::Unavailable(why);
    match error {
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            refusal(&code, error.message())
        }
        sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            unavailable("the PostgreSQL server refuses connections".into())
        }
        // What TLS has against a server comes as an error of the connection.
        sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => no_tls(error),
        sqlx::Error::Io(error) => unavailable(format!("the connection to the PostgreSQL server failed: {error}")),
        sqlx::Error::Tls(error) => no_tls(error),
        error => unavailable(format!("the PostgreSQL server cannot be talked to: {error}")),
    }
}

fn no_tls(error: impl fmt::Display) -> DatabaseError {
    DatabaseError::Unavailable(format!(
        "no TLS with the PostgreSQL server ({error}); sslmode and sslrootcert in its URL say how much is asked of its \
         certificate"
    ))
}

/// What a refusal of the server means, by its SQLSTATE.
pub fn refusal(code: &str, message: &str) -> DatabaseError {
    let why = match code {
        "28P01" | "28000" => "it does not accept the user and password of the URL",
        "3D000" => "it has no database of that name; create it, or name another one in the URL",
        "42501" => {
            let why = "our user may not do what is needed; see docs/engines/postgres.md";
            return DatabaseError::Incompatible(format!("{code}: the PostgreSQL server refuses: {why}"));
        }
        "42P01" | "42703" | "42883" | "3F000" => {
            let why = "the schema is not there; run `oncegate migrate`";
            return DatabaseError::Incompatible(format!("{code}: the PostgreSQL server refuses: {why}"));
        }
        "25006" => "it takes no writes",
        "53300" => "it has no connection left for us; raise max_connections, or lower `connections` in the URL",
        "57P01" | "57P02" => "it is shutting down",
        "57P03" => "it is starting up or shutting down",
        "26000" | "42P05" | "08P01" => {
            "something between us and it changes connections under way; put ?pooler=transaction into the URL"
        }
        // The words of other errors may repeat what was sent, so only those of connecting and of the server are told.
        _ if matches!(code.get(..2), Some("08" | "53" | "55" | "57" | "58" | "XX" | "40")) => {
            return DatabaseError::Unavailable(format!("{code}: the PostgreSQL server refuses: {}", plain(message)));
        }
        _ => return DatabaseError::Unavailable(format!("the PostgreSQL server answered with the error {code}")),
    };
    DatabaseError::Unavailable(format!("{code}: the PostgreSQL server refuses: {why}"))
}

/// An error in the server's own words, up to where it would repeat a name or a value.
fn plain(message: &str) -> String {
    let message = message.split(['"', '\'', '(']).next().unwrap_or_default();
    let message: String = message.chars().filter(|char| !char.is_control()).take(120).collect();
    message.trim_end().to_owned()
}

/// Whether the server has ended the connection with this error.
pub fn ends_connection(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => {
            let error = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>();
            error.is_none_or(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic))
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_operator_must_put_right_is_told_apart_from_what_passes() {
        for (code, incompatible) in
            [("42P01", true), ("42501", true), ("57P03", false), ("25006", false), ("28P01", false), ("99999", false)]
        {
            let refused = refusal(code, "some words");
            assert_eq!(matches!(refused, DatabaseError::Incompatible(_)), incompatible, "{refused:?}");
            assert!(refused.to_string().contains(code));
        }
    }

    #[test]
    fn what_was_sent_is_not_repeated() {
        let told = refusal("22021", "invalid byte sequence: hunter2").to_string();
        assert!(!told.contains("hunter2"), "{told}");
        let told = refusal("53100", "could not extend file \"base/1/2\": No space").to_string();
        assert_eq!(told, "53100: the PostgreSQL server refuses: could not extend file");
    }
}
