//! The capabilities that a chain requires of its engine at run time. An engine that lacks one gets no new claims; granted
//! claims are still settled, renewed and looked up.

use std::sync::atomic::{AtomicBool, Ordering};

use oncegate_core::engine::capability::Capability;
use oncegate_core::engine::{Engine, EngineError};
use oncegate_telemetry::metrics::chain::ChainMetrics;

/// The required capabilities, and whether the engine had them when last checked.
pub struct Requirement {
    chain: String,
    required: Vec<Capability>,
    met: AtomicBool,
    metrics: ChainMetrics,
}

impl Requirement {
    /// Creates the requirement of a chain.
    pub fn new(chain: &str, required: impl IntoIterator<Item = Capability>) -> Self {
        let (required, metrics) = (required.into_iter().collect(), ChainMetrics::new(chain));
        Self { chain: chain.to_owned(), required, met: AtomicBool::new(true), metrics }
    }

    /// Reports whether the active engine met the requirements at its last check.
    pub(crate) fn is_met(&self) -> bool {
        self.met.load(Ordering::Relaxed)
    }

    /// Checks that the active engine may take claims now, and updates the metric.
    ///
    /// # Errors
    /// A capability is missing, or the engine does not answer.
    pub(crate) async fn enforce(&self, engine: &dyn Engine) -> Result<(), EngineError> {
        let missing = self.missing_after_probe(engine).await?;
        self.record(missing);
        self.result(missing)
    }

    /// Checks that an engine may become the active one. It need not be the active engine: no metric changes.
    ///
    /// # Errors
    /// A capability is missing, or the engine does not answer.
    pub(crate) async fn check(&self, engine: &dyn Engine) -> Result<(), EngineError> {
        self.result(self.missing_after_probe(engine).await?)
    }

    /// Probes the engine if a capability seems to be missing: it may not have connected to its store yet.
    async fn missing_after_probe(&self, engine: &dyn Engine) -> Result<Option<Capability>, EngineError> {
        if self.missing(engine).is_none() {
            return Ok(None);
        }
        engine.probe().await?;
        Ok(self.missing(engine))
    }

    /// Returns a required capability that an engine lacks. Does not ask its store.
    pub(crate) fn missing(&self, engine: &dyn Engine) -> Option<Capability> {
        let capabilities = engine.capabilities();
        self.required.iter().copied().find(|required| !required.is_in(capabilities))
    }

    fn result(&self, missing: Option<Capability>) -> Result<(), EngineError> {
        missing.map_or(Ok(()), |missing| Err(EngineError::incompatible(self.reason(missing))))
    }

    /// Returns the error text for an engine that lacks this capability.
    pub(crate) fn reason(&self, missing: Capability) -> String {
        let (chain, missing) = (&self.chain, missing.as_str());
        format!("chain `{chain}` requires `{missing}`, which its store does not provide with its present configuration")
    }

    /// Updates the metric, and logs a change once.
    fn record(&self, missing: Option<Capability>) {
        let met = missing.is_none();
        // No write in the common case: the threads share this cache line.
        if self.met.load(Ordering::Relaxed) == met || self.met.swap(met, Ordering::Relaxed) == met {
            return;
        }
        self.metrics.set_requirements_met(met);
        match missing {
            None => {
                tracing::info!(chain.name = %self.chain, "Grants are made again: the store provides what the chain requires");
            }
            Some(missing) => tracing::error!(chain.name = %self.chain, "Grants are refused: {}", self.reason(missing)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use oncegate_core::clock::SystemClock;
    use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};

    use super::*;
    use crate::resilience::tests::metric;

    #[tokio::test]
    async fn an_engine_gets_claims_only_if_it_has_the_required_capabilities() {
        let memory = Memory::new(Arc::new(SystemClock::new()), BYTES_MAX_DEFAULT);
        for (required, met) in [
            (vec![], true),
            (vec![Capability::StrictFence], true),
            (vec![Capability::StrictFence, Capability::Durable], false),
            (vec![Capability::Forever], false),
        ] {
            let requirement = Requirement::new("c", required.clone());
            let result = tokio::time::timeout(Duration::from_secs(15), requirement.enforce(&memory)).await.unwrap();
            assert_eq!(result.is_ok(), met, "{required:?}");
            assert!(result.err().is_none_or(|error| matches!(error, EngineError::Determinate(_))));
            assert_eq!(requirement.check(&memory).await.is_ok(), met, "{required:?}");
        }
    }

    #[tokio::test]
    async fn a_check_of_another_engine_says_nothing_of_the_active_one() {
        let memory = Memory::new(Arc::new(SystemClock::new()), BYTES_MAX_DEFAULT);
        let metric = || metric("oncegate_chain_requirements_met{chain=\"checked\"}");
        metric();
        let requirement = Requirement::new("checked", [Capability::Durable]);
        let before = metric();
        assert!(requirement.check(&memory).await.is_err());
        assert_eq!((requirement.is_met(), metric()), (true, before));
    }

    #[tokio::test]
    async fn what_is_missing_is_said_once_and_measured() {
        let memory = Memory::new(Arc::new(SystemClock::new()), BYTES_MAX_DEFAULT);
        let metric = || metric("oncegate_chain_requirements_met{chain=\"said-once\"}");
        metric();
        let mut requirement = Requirement::new("said-once", [Capability::Durable]);
        for _ in 0..2 {
            let refused = requirement.enforce(&memory).await.unwrap_err().to_string();
            assert!(refused.contains("`said-once` requires `durable`"), "{refused}");
            assert_eq!((requirement.met.load(Ordering::Relaxed), metric()), (false, Some(0.0)));
        }
        requirement.required.clear();
        for _ in 0..2 {
            requirement.enforce(&memory).await.unwrap();
            assert_eq!((requirement.met.load(Ordering::Relaxed), metric()), (true, Some(1.0)));
        }
    }
}
