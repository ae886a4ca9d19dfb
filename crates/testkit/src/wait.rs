//! Waits for a condition instead of a fixed time.

use std::time::Duration;

/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `holds` returns true. Panics after `timeout`.
pub async fn until(what: &str, timeout: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(timeout, waiting).await.unwrap_or_else(|_| panic!("not within {timeout:?}: {what}"));
}

/// Returns the result of a call. Panics after `timeout`.
pub async fn answered_within<Answer>(timeout: Duration, call: impl Future<Output = Answer>) -> Answer {
    tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| panic!("no answer within {timeout:?}"))
}
