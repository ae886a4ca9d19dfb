//! A session at the primary that receives notifications.

use std::time::Duration;

use sqlx::Executor as _;
use sqlx::postgres::{PgListener, PgPoolOptions};

use super::address::{Address, Node};
use super::error::DatabaseError;
use super::primary::within;

/// Listens on a channel at the primary. `limit` bounds the attempt at each server.
///
/// # Errors
/// The reason why no server of the URL accepts it. The last one counts.
pub async fn listen(address: &Address, channel: &str, limit: Duration) -> Result<PgListener, DatabaseError> {
    let mut failure = DatabaseError::Unavailable("there is no server".into());
    for node in &address.nodes {
        match within(limit, listen_at(node, channel, limit)).await {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Checks that the session of a listener is alive.
///
/// # Errors
/// The session is dead, and its listener must be replaced.
pub async fn check(listener: &mut PgListener) -> Result<(), DatabaseError> {
    listener.execute("SELECT 1").await?;
    Ok(())
}

async fn listen_at(node: &Node, channel: &str, limit: Duration) -> Result<PgListener, DatabaseError> {
    // The library takes the session of a listener from a pool.
    let pool = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None).acquire_timeout(limit);
    let pool = pool.connect_with(node.options.clone()).await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    // A standby refuses it.
    listener.listen(channel).await?;
    Ok(listener)
}
