//! Exchanges of a connection whose member may be slow.

use std::sync::Arc;
use std::time::Duration;

use oncegate_driver::{Exchange, Lost, Readiness};
use tokio::time::timeout;

/// How long an exchange may take before calls take another connection.
const SLOW: Duration = Duration::from_millis(100);

/// Waits for an exchange. While it is slow, calls take other connections.
pub fn watch(
    readiness: Arc<Readiness>,
    exchange: impl Future<Output = Result<(), String>> + Send + 'static,
) -> Exchange<()> {
    Box::pin(async move {
        let mut exchange = Box::pin(exchange);
        if let Ok(done) = timeout(SLOW, &mut exchange).await {
            return done.map_err(Lost::from);
        }
        readiness.set(false);
        exchange.await?;
        readiness.set(true);
        Ok(())
    })
}
