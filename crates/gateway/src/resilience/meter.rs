//! Metrics of an engine's calls and shards, and log lines when a shard goes down or comes up, or the store refuses calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::breaker::BreakerState;
use oncegate_core::engine::{EngineError, Node, NodeRole};
use oncegate_telemetry::metrics::shards::{ShardMetrics, ShardState};
use oncegate_telemetry::metrics::{EngineCall, EngineMetrics, EngineResult};

use super::refusal::{Refusal, RefusalKind};

/// The meter of one engine.
pub struct Meter {
    name: String,
    metrics: EngineMetrics,
    shards: ShardMetrics,
    refusal: Mutex<Option<Refusal>>,
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
            refusal: Mutex::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Records the answer of a call, and its time. `now` is the wall clock.
    pub fn called<Answer>(
        &self,
        call: EngineCall,
        answer: &Result<Answer, EngineError>,
        took: Duration,
        now: impl FnOnce() -> Timestamp,
    ) {
        self.metrics.called(call, engine_result(answer), took);
        if let Some((kind, reason)) = answer.as_ref().err().and_then(Refusal::of) {
            self.refused(call, kind, reason, now());
        }
    }

    /// Records a refusal, and logs it: it is no outage, which is logged when it begins and ends, and callers do not get the
    /// reason.
    fn refused(&self, call: EngineCall, kind: RefusalKind, reason: &str, now: Timestamp) {
        let mut last = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        let (refusal, is_logged) = Refusal::next(last.as_ref(), kind, reason, now);
        *last = Some(refusal);
        drop(last);
        if is_logged && !self.is_closed() {
            tracing::error!(engine.name = %self.name, call = call.label(), reason, "The store refused a call");
        }
    }

    /// Returns the last refusal, if it was within the last minute.
    pub fn refusal(&self, now: Timestamp) -> Option<Refusal> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone().filter(|last| last.is_present(now))
    }

    /// Records how often the store came back without its data.
    pub fn lost_data(&self, times: u64) {
        self.metrics.set_data_lost(times);
    }

    /// Records the state of the shards of the store, where it has several servers.
    pub fn shards(&self, nodes: &[Node]) {
        let primaries = nodes.iter().filter(|node| node.role == NodeRole::Primary);
        self.shards.set_all(primaries.map(|node| {
            let breaker = node.breaker.unwrap_or(BreakerState::Closed) as u8;
            ShardState { shard: node.shard, up: node.up, warnings: node.warnings.len(), breaker }
        }));
    }

    /// Records a change of the breaker of a shard.
    pub fn breaker(&self, shard: u16, state: BreakerState) {
        self.shards.set_breaker(shard, state as u8);
    }

    /// Stops logging: the engine is about to be closed.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Returns whether the engine is about to be closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Records whether the engine is up.
    pub fn set_up(&self, up: bool) {
        self.metrics.set_up(up);
    }

    /// Logs that the engine, or one of its shards, answers again, or why it does not.
    pub fn changed(&self, shard: Option<u16>, failure: Option<&EngineError>) {
        let name = &self.name;
        match failure {
            _ if self.is_closed() => {}
            None => tracing::info!(engine.name = %name, engine.shard = shard, "The engine answers again"),
            Some(failure) => {
                tracing::warn!(engine.name = %name, engine.shard = shard, error = %failure, "The engine does not answer");
            }
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

#[cfg(test)]
mod tests {
    use oncegate_core::engine::Determinate;

    use super::*;
    use crate::resilience::tests::metric;

    #[test]
    fn refusals_are_one_until_a_minute_passes_without_any() {
        let at = |second: u64| Timestamp::from_micros(second * 1_000_000);
        let meter = Meter::new("refusing");
        let refuse = |failure: EngineError, second| {
            meter.called(EngineCall::Claim, &Err::<(), _>(failure), Duration::ZERO, || at(second));
        };
        let (full, incompatible) = (|| Determinate::Full("full".into()).into(), EngineError::incompatible);
        let known = |second| meter.refusal(at(second)).map(|refusal| (refusal.kind, refusal.since, refusal.last_at));
        for failure in [EngineError::unavailable("down"), EngineError::paused("frozen"), EngineError::no_answer()] {
            refuse(failure, 1);
        }
        assert_eq!(known(1), None, "these are no refusals by the store");
        refuse(full(), 10);
        refuse(full(), 69);
        assert_eq!(known(128), Some((RefusalKind::Full, at(10), at(69))));
        assert_eq!(known(129), None);
        refuse(full(), 129);
        assert_eq!(known(129), Some((RefusalKind::Full, at(129), at(129))));
        refuse(incompatible("too old"), 130);
        assert_eq!(known(130), Some((RefusalKind::Incompatible, at(130), at(130))));
    }

    #[test]
    fn an_engine_its_calls_and_its_shards_are_measured() {
        let named = |name: &str| metric(&format!("oncegate_{name}"));
        named("");
        let meter = Meter::new("measured");
        assert_eq!(named("engine_up{engine=\"measured\"}"), Some(1.0));
        meter.set_up(false);
        assert_eq!(named("engine_up{engine=\"measured\"}"), Some(0.0));
        meter.lost_data(3);
        assert_eq!(named("engine_data_lost_total{engine=\"measured\"}"), Some(3.0));
        meter.called(
            EngineCall::Claim,
            &Err::<(), _>(EngineError::no_answer()),
            Duration::from_millis(3),
            Timestamp::default,
        );
        let counted = "engine_call_duration_seconds_count{engine=\"measured\",call=\"claim\",result=\"indeterminate\"}";
        assert_eq!(named(counted), Some(1.0));
        let node = |shard, role, up| Node {
            address: "a:1".into(),
            role,
            version: None,
            shard,
            up,
            breaker: Some(BreakerState::HalfOpen),
            warnings: Vec::new(),
        };
        meter.shards(&[
            node(0, NodeRole::Primary, true),
            node(1, NodeRole::Replica, true),
            node(1, NodeRole::Primary, false),
        ]);
        let of =
            |name: &str, shard: u16| named(&format!("engine_shard_{name}{{engine=\"measured\",shard=\"{shard}\"}}"));
        assert_eq!((of("up", 0), of("up", 1)), (Some(1.0), Some(0.0)));
        assert_eq!(of("breaker_state", 0), Some(1.0));
        meter.breaker(0, BreakerState::Open);
        assert_eq!(of("breaker_state", 0), Some(2.0));
        meter.shards(&[node(0, NodeRole::Primary, true)]);
        assert_eq!(
            (of("up", 1), of("breaker_state", 1)),
            (Some(1.0), Some(0.0)),
            "the gauges of a shard that is no longer there say that it is up"
        );
        assert!(!meter.is_closed());
        meter.close();
        assert!(meter.is_closed());
    }
}
