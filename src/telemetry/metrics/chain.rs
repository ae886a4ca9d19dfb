//! Whether the engines of a chain promise what the chain requires.

use metrics::{Gauge, gauge};

use super::CHAIN_REQUIREMENTS_MET;

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
