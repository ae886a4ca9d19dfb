//! Count of the running handlers, so that a server can wait for them before it stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Handlers that run, of a middleware and all its copies.
#[derive(Clone)]
pub(super) struct Runs(Arc<watch::Sender<usize>>);

/// One handler that runs. It counts until it is dropped.
pub(crate) struct Running(Runs);

impl Runs {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    pub(super) fn begin(&self) -> Running {
        self.0.send_modify(|running| *running += 1);
        Running(self.clone())
    }

    /// Returns true once none runs, or false if some still do after this time.
    pub(super) async fn end_within(&self, limit: Duration) -> bool {
        let mut running = self.0.subscribe();
        tokio::time::timeout(limit, running.wait_for(|running| *running == 0)).await.is_ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.0.send_modify(|running| *running -= 1);
    }
}
