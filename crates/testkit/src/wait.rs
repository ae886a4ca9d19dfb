//! Waiting for something to become true, instead of sleeping and hoping.

use std::time::Duration;

/// Between two looks: short beside anything that is waited for.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks again and again until it holds. Panics if that takes longer than `patience`.
pub async fn until(what: &str, patience: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(patience, waiting).await.unwrap_or_else(|_| panic!("not within {patience:?}: {what}"));
}

/// The answer of a call that must not take longer than `patience`.
pub async fn answered_within<Answer>(patience: Duration, call: impl Future<Output = Answer>) -> Answer {
    tokio::time::timeout(patience, call).await.unwrap_or_else(|_| panic!("no answer within {patience:?}"))
}
