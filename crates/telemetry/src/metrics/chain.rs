//! Metrics of chains: the engine in use, the grant freeze, unmet requirements, and failover.

use metrics::{Gauge, counter, gauge};

use super::{CHAIN_ACTIVE, CHAIN_EPOCH, CHAIN_GRANTS_FROZEN, CHAIN_REQUIREMENTS_MET, CHAIN_SWITCHES, CHAIN_WITNESS_UP};

/// Metric of a chain that has requirements for its engines.
pub struct ChainMetrics {
    requirements_met: Gauge,
}

impl ChainMetrics {
    /// Returns the metric of the chain of this name, whose requirements count as met at first.
    pub fn new(chain: &str) -> Self {
        let metrics = Self { requirements_met: gauge!(CHAIN_REQUIREMENTS_MET, "chain" => chain.to_owned()) };
        metrics.set_requirements_met(true);
        metrics
    }

    /// Sets whether the engine meets the chain's requirements.
    pub fn set_requirements_met(&self, met: bool) {
        self.requirements_met.set(if met { 1.0 } else { 0.0 });
    }
}

/// Metrics of a chain's state.
pub struct ActiveMetrics {
    active: Vec<(String, Gauge)>,
    epoch: Gauge,
    held: Gauge,
}

impl ActiveMetrics {
    /// Returns the metrics of the chain of this name and of its engines, without a grant freeze.
    pub fn new<'a>(chain: &str, engines: impl Iterator<Item = &'a str>) -> Self {
        let of = |engine: &str| gauge!(CHAIN_ACTIVE, "chain" => chain.to_owned(), "engine" => engine.to_owned());
        let metrics = Self {
            active: engines.map(|engine| (engine.to_owned(), of(engine))).collect(),
            epoch: gauge!(CHAIN_EPOCH, "chain" => chain.to_owned()),
            held: gauge!(CHAIN_GRANTS_FROZEN, "chain" => chain.to_owned()),
        };
        metrics.set_held(false);
        metrics
    }

    /// Sets the engine in use, and how often the chain was switched.
    pub fn set_active(&self, engine: &str, epoch: u64) {
        for (name, active) in &self.active {
            active.set(if name == engine { 1.0 } else { 0.0 });
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        self.epoch.set(epoch as f64);
    }

    /// Sets whether the chain is in a grant freeze.
    pub fn set_held(&self, held: bool) {
        self.held.set(if held { 1.0 } else { 0.0 });
    }
}

/// Metrics of a chain with a witness.
pub struct FailoverMetrics {
    chain: String,
    witness_up: Gauge,
}

impl FailoverMetrics {
    /// Returns the metrics of the chain of this name.
    pub fn new(chain: &str) -> Self {
        Self { chain: chain.to_owned(), witness_up: gauge!(CHAIN_WITNESS_UP, "chain" => chain.to_owned()) }
    }

    /// Sets whether the witness answers and has the record of the chain.
    pub fn set_witness_up(&self, up: bool) {
        self.witness_up.set(if up { 1.0 } else { 0.0 });
    }

    /// Counts a switch that this gateway completed.
    pub fn switched(&self, to: &str, cause: &'static str) {
        let (chain, to) = (self.chain.clone(), to.to_owned());
        counter!(CHAIN_SWITCHES, "chain" => chain, "to" => to, "cause" => cause).increment(1);
    }
}
