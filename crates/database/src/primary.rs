//! Connections to the primary: finds it among the servers of a URL, and refuses servers that accept no writes.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{ConnectOptions as _, Executor as _, Row as _};
use tokio::time::timeout;

use super::address::{Address, Node};
use super::error::DatabaseError;

/// The oldest major version that PostgreSQL itself still supports.
const VERSION_MIN: i32 = 14;

/// Connects to the primary, with any schema. `limit` bounds the attempt at each server.
pub(super) async fn open(address: &Address, limit: Duration) -> Result<PgConnection, DatabaseError> {
    let mut failures = Vec::new();
    for node in &address.nodes {
        match within(limit, open_node(node)).await {
            Ok(connection) => return Ok(connection),
            Err(error) => failures.push((node, error)),
        }
    }
    let reason = |(node, error): &(&Node, DatabaseError)| format!("{}: {error}", node.name);
    let reasons = failures.iter().map(reason).collect::<Vec<_>>().join("; ");
    // One server that may become usable is enough to try again.
    if failures.iter().all(|(_, error)| matches!(error, DatabaseError::Incompatible(_))) {
        Err(DatabaseError::Incompatible(reasons))
    } else {
        Err(DatabaseError::Unavailable(reasons))
    }
}

/// Bounds a step of connecting.
pub(super) async fn within<T>(
    limit: Duration,
    step: impl Future<Output = Result<T, DatabaseError>>,
) -> Result<T, DatabaseError> {
    let late = |_| Err(DatabaseError::Unavailable(format!("no connection to the PostgreSQL server within {limit:?}")));
    timeout(limit, step).await.unwrap_or_else(late)
}

async fn open_node(node: &Node) -> Result<PgConnection, DatabaseError> {
    let mut connection = node.options.connect().await?;
    let role = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', \
                current_setting('server_version_num')::int";
    // One message for all. A pooler may switch servers between transactions. The next server may not have a statement that was
    // prepared separately, or may have another client's statement under the same name.
    let row = connection.fetch_one(sqlx::raw_sql(role)).await?;
    let (standby, read_only, version): (bool, bool, i32) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    check_version(version)?;
    if standby {
        // Its data lags behind the primary, so not even a lookup is safe there.
        return Err(DatabaseError::Unavailable("it is a standby and accepts no writes".into()));
    }
    if read_only {
        let why = "its sessions are read-only (default_transaction_read_only)";
        return Err(DatabaseError::Unavailable(why.into()));
    }
    Ok(connection)
}

/// Checks the version of a server, as its `server_version_num`.
fn check_version(version: i32) -> Result<(), DatabaseError> {
    let major = version / 10_000;
    if major < VERSION_MIN {
        let why = format!("the PostgreSQL server has version {major}; use version {VERSION_MIN} or later");
        return Err(DatabaseError::Incompatible(why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_too_old_is_refused_with_its_version() {
        for version in [140_000, 140_018, 150_000, 180_001] {
            assert_eq!(check_version(version), Ok(()));
        }
        let refused = check_version(139_999).unwrap_err();
        assert!(matches!(&refused, DatabaseError::Incompatible(why) if why.contains("version 13; use version 14")));
    }
}
