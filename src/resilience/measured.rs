//! Measures an engine's calls, says whether it is up, and logs when that changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;

use crate::domain::claim::{Claim, Claimed, Renew, Renewed, Settle, Settled};
use crate::domain::clock::Clock;
use crate::domain::operator::{List, Listed, Release, Released};
use crate::domain::record::{Held, Key};
use crate::engine::{Capabilities, Determinate, Engine, EngineError, Note};
use crate::telemetry::metrics::{EngineCall, EngineMetrics, EngineResult};

/// An engine whose calls are measured.
pub struct Measured {
    inner: Arc<dyn Engine>,
    name: String,
    clock: Arc<dyn Clock>,
    metrics: EngineMetrics,
    up: AtomicBool,
}

impl Measured {
    /// Wraps an engine; `name` is its name in the configuration.
    pub fn new(inner: Arc<dyn Engine>, name: &str, clock: Arc<dyn Clock>) -> Self {
        let metrics = EngineMetrics::new(name);
        Self { inner, name: name.to_owned(), clock, metrics, up: AtomicBool::new(true) }
    }

    async fn measure<Answer>(
        &self,
        call: EngineCall,
        future: impl Future<Output = Result<Answer, EngineError>> + Send,
    ) -> Result<Answer, EngineError> {
        let begun = self.clock.monotonic();
        let answer = future.await;
        let took = self.clock.monotonic().saturating_sub(begun);
        let result = match &answer {
            Ok(_) => EngineResult::Ok,
            Err(EngineError::Determinate(_)) => EngineResult::Determinate,
            Err(EngineError::Indeterminate(_)) => EngineResult::Indeterminate,
        };
        self.metrics.called(call, result, took);
        self.note(answer.as_ref().err().filter(|failure| is_silence(failure)));
        answer
    }

    /// Keeps `engine_up` by whether the store was silent, and logs once when it changes.
    fn note(&self, failure: Option<&EngineError>) {
        let up = failure.is_none();
        // The common case writes nothing that other threads read.
        if self.up.load(Ordering::Relaxed) == up || self.up.swap(up, Ordering::Relaxed) == up {
            return;
        }
        self.metrics.set_up(up);
        match failure {
            None => tracing::info!(engine.name = %self.name, "the engine answers again"),
            Some(failure) => tracing::warn!(engine.name = %self.name, error = %failure, "the engine does not answer"),
        }
    }
}

/// Whether a failure means that the store does not serve. One that says that it is full, or that a record cannot be
/// read, answers.
fn is_silence(failure: &EngineError) -> bool {
    matches!(failure, EngineError::Indeterminate(_) | EngineError::Determinate(Determinate::Unavailable(_)))
}

#[async_trait]
impl Engine for Measured {
    async fn claim(&self, ask: &Claim) -> Result<Claimed, EngineError> {
        self.measure(EngineCall::Claim, self.inner.claim(ask)).await
    }

    async fn settle(&self, ask: &Settle) -> Result<Settled, EngineError> {
        self.measure(EngineCall::Settle, self.inner.settle(ask)).await
    }

    async fn renew(&self, ask: &Renew) -> Result<Renewed, EngineError> {
        self.measure(EngineCall::Renew, self.inner.renew(ask)).await
    }

    async fn read(&self, key: &Key) -> Result<Option<Held>, EngineError> {
        self.measure(EngineCall::Read, self.inner.read(key)).await
    }

    async fn release(&self, ask: &Release) -> Result<Released, EngineError> {
        self.measure(EngineCall::Release, self.inner.release(ask)).await
    }

    async fn list(&self, ask: &List) -> Result<Vec<Listed>, EngineError> {
        self.measure(EngineCall::List, self.inner.list(ask)).await
    }

    async fn note(&self, name: &str) -> Result<Option<Note>, EngineError> {
        self.measure(EngineCall::Note, self.inner.note(name)).await
    }

    async fn swap_note(&self, name: &str, expected: Option<&Note>, new: &Note) -> Result<bool, EngineError> {
        self.measure(EngineCall::Note, self.inner.swap_note(name, expected, new)).await
    }

    async fn probe(&self) -> Result<(), EngineError> {
        let answer = self.measure(EngineCall::Probe, self.inner.probe()).await;
        self.metrics.set_data_lost(self.inner.data_lost());
        answer
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn data_lost(&self) -> u64 {
        self.inner.data_lost()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
