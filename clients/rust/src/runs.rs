//! Count of what runs in the background, so that a process can wait for it before it stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// What runs for a client or a middleware, and for all its copies.
#[derive(Clone)]
pub(crate) struct Runs(Arc<watch::Sender<usize>>);

/// One that runs. It counts until it is dropped.
pub(crate) struct Running(Runs);

impl Runs {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    pub(crate) fn begin(&self) -> Running {
        self.0.send_modify(|running| *running += 1);
        Running(self.clone())
    }

    /// Returns true once none runs, or false if some still do after this time.
    pub(crate) async fn end_within(&self, limit: Duration) -> bool {
        let mut running = self.0.subscribe();
        tokio::time::timeout(limit, running.wait_for(|running| *running == 0)).await.is_ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.0.send_modify(|running| *running -= 1);
    }
}
