//! Measures an engine's calls, says whether it is up, and logs when that changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::engine::EngineError;
use crate::telemetry::metrics::{EngineCall, EngineMetrics, EngineResult};

/// What is measured of one engine.
pub struct Meter {
    name: String,
    metrics: EngineMetrics,
    up: AtomicBool,
    /// The engine has been closed: that it does not answer is no news.
    closed: AtomicBool,
}

impl Meter {
    /// The meter of the engine of this name.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            metrics: EngineMetrics::new(name),
            up: AtomicBool::new(true),
            closed: AtomicBool::new(false),
        }
    }

    /// A call ended like this after this long.
    pub fn called<Answer>(&self, call: EngineCall, answer: &Result<Answer, EngineError>, took: Duration) {
        self.metrics.called(call, engine_result(answer), took);
        self.note(answer.as_ref().err().filter(|failure| failure.is_unavailable()));
    }

    /// The store has come back without its data this often, all told.
    pub fn lost_data(&self, times: u64) {
        self.metrics.set_data_lost(times);
    }

    /// The engine is about to be closed. From now on nothing about it is logged.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Whether the engine is about to be closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Keeps `engine_up` by whether the store was silent, and logs once when it changes.
    fn note(&self, failure: Option<&EngineError>) {
        let up = failure.is_none();
        // The common case writes nothing that other threads read.
        if self.up.load(Ordering::Relaxed) == up || self.up.swap(up, Ordering::Relaxed) == up {
            return;
        }
        self.metrics.set_up(up);
        if self.is_closed() {
            return;
        }
        match failure {
            None => tracing::info!(engine.name = %self.name, "the engine answers again"),
            Some(failure) => tracing::warn!(engine.name = %self.name, error = %failure, "the engine does not answer"),
        }
    }
}

/// The kind of an engine's answer, as metrics and traces have it.
pub fn engine_result<Answer>(answer: &Result<Answer, EngineError>) -> EngineResult {
    match answer {
        Ok(_) => EngineResult::Ok,
        Err(EngineError::Determinate(_)) => EngineResult::Determinate,
        Err(EngineError::Indeterminate(_)) => EngineResult::Indeterminate,
    }
}
