//! What a chain requires of its engine while it runs. An engine that cannot promise it now gets no new claims; what was
//! granted is still settled, renewed and looked up.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::capability::Capability;
use crate::engine::{Engine, EngineError};
use crate::telemetry::metrics::chain::ChainMetrics;

/// What a chain requires, and whether its engine promised it when last looked at.
pub struct Requirement {
    chain: String,
    required: Vec<Capability>,
    met: AtomicBool,
    metrics: ChainMetrics,
}

impl Requirement {
    /// That the engine of this chain promises all of this.
    pub fn new(chain: &str, required: impl IntoIterator<Item = Capability>) -> Self {
        let (required, metrics) = (required.into_iter().collect(), ChainMetrics::new(chain));
        Self { chain: chain.to_owned(), required, met: AtomicBool::new(true), metrics }
    }

    /// Whether the engine may take claims now.
    ///
    /// # Errors
    /// What it does not promise, or why it cannot be asked.
    pub(super) async fn hold(&self, engine: &dyn Engine) -> Result<(), EngineError> {
        if self.missing(engine).is_none() {
            self.note(None);
            return Ok(());
        }
        // It may not know yet, because it has not reached its store. One that is out is told as what it is.
        engine.probe().await?;
        let missing = self.missing(engine);
        self.note(missing);
        missing.map_or(Ok(()), |missing| Err(EngineError::incompatible(self.why(missing))))
    }

    /// Whether an engine that is not in use may come into use.
    ///
    /// # Errors
    /// What it does not promise, or why it cannot be asked.
    pub(super) async fn check(&self, engine: &dyn Engine) -> Result<(), EngineError> {
        if self.missing(engine).is_none() {
            return Ok(());
        }
        engine.probe().await?;
        self.missing(engine).map_or(Ok(()), |missing| Err(EngineError::incompatible(self.why(missing))))
    }

    fn missing(&self, engine: &dyn Engine) -> Option<Capability> {
        let capabilities = engine.capabilities();
        self.required.iter().copied().find(|required| !required.is_in(capabilities))
    }

    fn why(&self, missing: Capability) -> String {
        let (chain, missing) = (&self.chain, missing.as_str());
        format!("chain `{chain}` requires `{missing}`, which its store does not promise as it is configured now")
    }

    /// Keeps the metric, and logs once when it changes.
    fn note(&self, missing: Option<Capability>) {
        let met = missing.is_none();
        // The common case writes nothing that other threads read.
        if self.met.load(Ordering::Relaxed) == met || self.met.swap(met, Ordering::Relaxed) == met {
            return;
        }
        self.metrics.set_requirements_met(met);
        match missing {
            None => {
                tracing::info!(chain.name = %self.chain, "claims are taken again: the store promises what is required");
            }
            Some(missing) => tracing::error!(chain.name = %self.chain, "claims are refused: {}", self.why(missing)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::domain::clock::SystemClock;
    use crate::engine::memory::{BYTES_MAX_DEFAULT, Memory};

    #[tokio::test]
    async fn an_engine_takes_claims_only_where_it_promises_what_is_required() {
        let memory = Memory::new(Arc::new(SystemClock::new()), BYTES_MAX_DEFAULT);
        for (required, met) in [
            (vec![], true),
            (vec![Capability::StrictFence], true),
            (vec![Capability::StrictFence, Capability::Durable], false),
            (vec![Capability::Forever], false),
        ] {
            let requirement = Requirement::new("c", required.clone());
            let held = tokio::time::timeout(Duration::from_secs(5), requirement.hold(&memory)).await.unwrap();
            assert_eq!(held.is_ok(), met, "{required:?}");
            assert!(held.err().is_none_or(|why| matches!(why, EngineError::Determinate(_))));
        }
    }
}
