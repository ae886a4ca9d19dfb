//! Several workers for one server.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::worker::{self, Intervals, Worker};
use super::{Call, Connection, Connector, Readiness};

/// The workers of one server, and its other tasks. They end when the pool is closed or dropped.
pub struct Pool<C> {
    workers: Box<[Worker<C>]>,
    tasks: TaskTracker,
    closing: CancellationToken,
    _guard: DropGuard,
}

impl<C: Call> Pool<C> {
    /// Starts `size` workers, round-robin on the runtimes of `cores`, or on the current one if there are none. Each uses the
    /// connector that is made for its readiness.
    ///
    /// # Panics
    /// Without `cores`, outside a tokio runtime.
    pub fn start<K>(
        size: usize,
        cores: &[Handle],
        intervals: Intervals,
        connector: impl Fn(Arc<Readiness>) -> K,
    ) -> Self
    where
        K: Connector<Connection: Connection<Call = C>>,
    {
        let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
        let cores = if cores.is_empty() { vec![Handle::current()] } else { cores.to_vec() };
        let start = |core: &Handle| {
            let readiness = Arc::new(Readiness::default());
            let connector = connector(readiness.clone());
            let (worker, task) = worker::new(connector, intervals, readiness, closing.clone(), core.id());
            tasks.spawn_on(task, core);
            worker
        };
        let workers = cores.iter().cycle().take(size).map(start).collect();
        Self { workers, tasks, _guard: closing.clone().drop_guard(), closing }
    }

    /// Returns the workers.
    pub fn workers(&self) -> &[Worker<C>] {
        &self.workers
    }

    /// Starts another task of the pool, on the current runtime. It must end soon after its token is cancelled.
    pub fn spawn<T: Future<Output = ()> + Send + 'static>(&self, task: impl FnOnce(CancellationToken) -> T) {
        self.tasks.spawn(task(self.closing.clone()));
    }

    /// Closes the connections once the calls that were sent are answered. Calls that were not sent are refused.
    pub async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
