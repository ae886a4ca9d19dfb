//! The chains: which engine each uses, whether it grants, and whether its engine promises what the chain requires.

use metrics::{Gauge, gauge};

use super::{CHAIN_ACTIVE, CHAIN_EPOCH, CHAIN_HELD, CHAIN_REQUIREMENTS_MET};

/// The handle of a chain that requires something of its engines.
pub struct ChainMetrics {
    requirements_met: Gauge,
}

impl ChainMetrics {
    /// The handle of the chain of this name. Its requirements count as met until it is said otherwise.
    pub fn new(chain: &str) -> Self {
        let metrics = Self { requirements_met: gauge!(CHAIN_REQUIREMENTS_MET, "chain" => chain.to_owned()) };
        metrics.set_requirements_met(true);
        metrics
    }

    /// Says whether the engine promises what the chain requires.
    pub fn set_requirements_met(&self, met: bool) {
        self.requirements_met.set(if met { 1.0 } else { 0.0 });
    }
}

/// The handles of what a chain uses.
pub struct ActiveMetrics {
    active: Vec<(String, Gauge)>,
    epoch: Gauge,
    held: Gauge,
}

impl ActiveMetrics {
    /// The handles of the chain of this name and of its engines. It counts as granting until it is said otherwise.
    pub fn new<'a>(chain: &str, engines: impl Iterator<Item = &'a str>) -> Self {
        let of = |engine: &str| gauge!(CHAIN_ACTIVE, "chain" => chain.to_owned(), "engine" => engine.to_owned());
        let metrics = Self {
            active: engines.map(|engine| (engine.to_owned(), of(engine))).collect(),
            epoch: gauge!(CHAIN_EPOCH, "chain" => chain.to_owned()),
            held: gauge!(CHAIN_HELD, "chain" => chain.to_owned()),
        };
        metrics.set_held(false);
        metrics
    }

    /// Says which engine is in use, and how often the chain was switched.
    pub fn set_active(&self, engine: &str, epoch: u64) {
        for (name, active) in &self.active {
            active.set(if name == engine { 1.0 } else { 0.0 });
        }
        #[expect(clippy::cast_precision_loss, reason = "nobody switches so often")]
        self.epoch.set(epoch as f64);
    }

    /// Says whether the chain grants nothing because its store lost its data.
    pub fn set_held(&self, held: bool) {
        self.held.set(if held { 1.0 } else { 0.0 });
    }
}
