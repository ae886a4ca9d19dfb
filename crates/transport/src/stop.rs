//! The stop of a listener, as the tasks of its connections await it.

use std::task::Poll;

use tokio_util::sync::CancellationToken;

/// Resolves when a listener stops. The token wakes the task, so later polls of the connection's task do not
/// register again.
pub(super) async fn stopped(stop: &CancellationToken) {
    let mut cancelled = std::pin::pin!(stop.cancelled());
    let mut is_registered = false;
    std::future::poll_fn(|context| {
        if is_registered && !stop.is_cancelled() {
            return Poll::Pending;
        }
        is_registered = true;
        cancelled.as_mut().poll(context)
    })
    .await;
}
