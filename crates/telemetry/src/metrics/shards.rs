//! Metrics of the shards of a store: of a Redis Cluster, or of one primary and its replicas.

use std::sync::{Mutex, MutexGuard, PoisonError};

use metrics::{Gauge, gauge};

use super::{ENGINE_SHARD_BREAKER_STATE, ENGINE_SHARD_UP, ENGINE_SHARD_WARNINGS};

/// Number of shards with their own metrics. It bounds the labels.
const SHARDS_MAX: usize = 1024;

/// Metrics of the shards of one engine.
pub struct ShardMetrics {
    engine: Box<str>,
    /// By number.
    shards: Mutex<Vec<Gauges>>,
}

struct Gauges {
    up: Gauge,
    warnings: Gauge,
    breaker: Gauge,
}

/// State of a shard.
#[derive(Clone, Copy)]
pub struct ShardState {
    /// Number of the shard.
    pub shard: u16,
    /// True if its primary is connected.
    pub up: bool,
    /// Number of its warnings.
    pub warnings: usize,
    /// Its breaker: 0 closed, 1 half-open, 2 open.
    pub breaker: u8,
}

impl ShardMetrics {
    /// Returns the metrics of the engine of this name. A store without shards has none.
    pub fn new(engine: &str) -> Self {
        Self { engine: engine.into(), shards: Mutex::default() }
    }

    /// Sets the state of all present shards. A shard that was removed has no problem.
    pub fn set_all(&self, states: impl Iterator<Item = ShardState>) {
        let mut shards = self.shards();
        let known = shards.len();
        let mut is_gone = vec![true; known];
        for state in states {
            let number = usize::from(state.shard);
            while shards.len() <= number.min(SHARDS_MAX - 1) {
                let gauges = self.gauges(shards.len());
                gauges.set(true, 0, 0);
                shards.push(gauges);
            }
            if let Some(gauges) = shards.get(number) {
                gauges.set(state.up, state.warnings, state.breaker);
            }
            if let Some(is_gone) = is_gone.get_mut(number) {
                *is_gone = false;
            }
        }
        for (gauges, _) in shards.iter().zip(is_gone).filter(|(_, is_gone)| *is_gone) {
            gauges.set(true, 0, 0);
        }
    }

    /// Sets the state of the breaker of a shard, if the shard has metrics.
    pub fn set_breaker(&self, shard: u16, state: u8) {
        if let Some(gauges) = self.shards().get(usize::from(shard)) {
            gauges.breaker.set(f64::from(state));
        }
    }

    fn shards(&self) -> MutexGuard<'_, Vec<Gauges>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gauges(&self, shard: usize) -> Gauges {
        let (engine, shard) = (self.engine.to_string(), shard.to_string());
        Gauges {
            up: gauge!(ENGINE_SHARD_UP, "engine" => engine.clone(), "shard" => shard.clone()),
            warnings: gauge!(ENGINE_SHARD_WARNINGS, "engine" => engine.clone(), "shard" => shard.clone()),
            breaker: gauge!(ENGINE_SHARD_BREAKER_STATE, "engine" => engine, "shard" => shard),
        }
    }
}

impl Gauges {
    fn set(&self, up: bool, warnings: usize, breaker: u8) {
        self.up.set(if up { 1.0 } else { 0.0 });
        self.warnings.set(f64::from(u32::try_from(warnings).unwrap_or(u32::MAX)));
        self.breaker.set(f64::from(breaker));
    }
}
