//! Metrics of the shards of a store: of a Redis Cluster, or of one primary and its replicas.

use std::sync::{Mutex, PoisonError};

use metrics::{Gauge, gauge};

use super::{ENGINE_SHARD_UP, ENGINE_SHARD_WARNINGS};

/// Shards that have their own metrics, so that labels are bounded.
const SHARDS_MAX: u16 = 1024;

/// Metrics of the shards of one engine.
pub struct ShardMetrics {
    engine: Box<str>,
    shards: Mutex<Vec<(Gauge, Gauge)>>,
}

impl ShardMetrics {
    /// Returns the metrics of the engine of this name. A store without shards has none.
    pub fn new(engine: &str) -> Self {
        Self { engine: engine.into(), shards: Mutex::default() }
    }

    /// Sets whether the primary of a shard is connected, and how many warnings it has.
    pub fn set(&self, shard: u16, up: bool, warnings: usize) {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        while shards.len() <= usize::from(shard.min(SHARDS_MAX)) {
            let number = shards.len().to_string();
            let up = gauge!(ENGINE_SHARD_UP, "engine" => self.engine.to_string(), "shard" => number.clone());
            up.set(1.0);
            shards.push((up, gauge!(ENGINE_SHARD_WARNINGS, "engine" => self.engine.to_string(), "shard" => number)));
        }
        if let Some((gauge, warned)) = shards.get(usize::from(shard)) {
            gauge.set(if up { 1.0 } else { 0.0 });
            warned.set(f64::from(u32::try_from(warnings).unwrap_or(u32::MAX)));
        }
    }
}
