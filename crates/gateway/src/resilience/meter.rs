//! Metrics of an engine's calls, and whether it is up, logged when that changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncegate_core::engine::{EngineError, Node, NodeRole};
use oncegate_telemetry::metrics::shards::ShardMetrics;
use oncegate_telemetry::metrics::{EngineCall, EngineMetrics, EngineResult};

/// The meter of one engine.
pub struct Meter {
    name: String,
    metrics: EngineMetrics,
    shards: ShardMetrics,
    up: AtomicBool,
    /// The engine was closed on purpose, so nothing about it is logged.
    closed: AtomicBool,
}

impl Meter {
    /// Returns the meter of the engine of this name.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            metrics: EngineMetrics::new(name),
            shards: ShardMetrics::new(name),
            up: AtomicBool::new(true),
            closed: AtomicBool::new(false),
        }
    }

    /// Records the answer of a call, and its time.
    pub fn called<Answer>(&self, call: EngineCall, answer: &Result<Answer, EngineError>, took: Duration) {
        self.metrics.called(call, engine_result(answer), took);
        self.set_up(answer.as_ref().err().filter(|failure| failure.is_unavailable()));
    }

    /// Records how often the store came back without its data.
    pub fn lost_data(&self, times: u64) {
        self.metrics.set_data_lost(times);
    }

    /// Records which shards of the store are connected, where it has several servers.
    pub fn shards(&self, nodes: &[Node]) {
        for node in nodes.iter().filter(|node| node.role == NodeRole::Primary) {
            self.shards.set(node.shard, node.up, node.warnings.len());
        }
    }

    /// Stops logging: the engine is about to be closed.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Returns whether the engine is about to be closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Sets `engine_up`, and logs once when it changes.
    fn set_up(&self, failure: Option<&EngineError>) {
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
            None => tracing::info!(engine.name = %self.name, "The engine answers again"),
            Some(failure) => tracing::warn!(engine.name = %self.name, error = %failure, "The engine does not answer"),
        }
    }
}

/// Returns the kind of an answer, for metrics and traces.
pub fn engine_result<Answer>(answer: &Result<Answer, EngineError>) -> EngineResult {
    match answer {
        Ok(_) => EngineResult::Ok,
        Err(EngineError::Determinate(_)) => EngineResult::Determinate,
        Err(EngineError::Indeterminate(_)) => EngineResult::Indeterminate,
    }
}
