//! Routes calls to connection workers: to one on the caller's own core, and past one whose member is slow or gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oncegate_core::engine::EngineError;
use oncegate_driver::{Pool, Reply, Worker};
use tokio::runtime::Handle;

use super::operation::{Call, Operation, Single};

/// The connections of an engine.
pub struct Routes<S> {
    pool: Pool<Call<S>>,
    next: AtomicUsize,
}

impl<S: Send + Sync + 'static> Routes<S> {
    /// Creates the routes of these workers.
    pub fn new(pool: Pool<Call<S>>) -> Arc<Self> {
        Arc::new(Self { pool, next: AtomicUsize::new(0) })
    }

    /// Returns the workers.
    pub fn pool(&self) -> &Pool<Call<S>> {
        &self.pool
    }

    /// Sends an operation on a key.
    pub async fn call<Answer>(
        &self,
        operation: impl FnOnce(Reply<Answer>) -> Box<dyn Operation>,
    ) -> Result<Answer, EngineError> {
        self.worker()?.call(|reply| Call::Keyed(operation(reply))).await
    }

    /// Runs requests that concern no key, with the session of a worker.
    pub async fn run<Answer, Running>(
        &self,
        run: impl FnOnce(S) -> Running + Send + 'static,
    ) -> Result<Answer, EngineError>
    where
        Answer: Send + 'static,
        Running: Future<Output = Result<Answer, EngineError>> + Send,
    {
        self.worker()?.call(|reply| Call::Single(Box::new(Single { run, reply }))).await
    }

    /// Returns the worker for a call: a ready one on this core, otherwise the next ready one, otherwise the one that
    /// became unready last.
    fn worker(&self) -> Result<&Worker<Call<S>>, EngineError> {
        let workers = self.pool.workers();
        let core = Handle::try_current().ok().map(|core| core.id());
        let ready = |worker: &&Worker<Call<S>>| worker.readiness().is_ready();
        let own = workers.iter().filter(ready).find(|worker| Some(worker.core()) == core);
        let next = || {
            let turn = self.next.fetch_add(1, Ordering::Relaxed) % workers.len().max(1);
            workers[turn..].iter().chain(&workers[..turn]).find(ready)
        };
        let last = || workers.iter().max_by_key(|worker| worker.readiness().last_loss());
        own.or_else(next).or_else(last).ok_or_else(|| EngineError::unavailable("the engine is closed"))
    }
}
