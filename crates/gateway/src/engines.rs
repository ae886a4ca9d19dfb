//! The engines and chains of a gateway: which chain serves an app, health, and closing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
#[cfg(any(test, feature = "test-util"))]
use oncegate_core::attempt::Entropy;
#[cfg(any(test, feature = "test-util"))]
use oncegate_core::clock::Clock;
use oncegate_core::clock::Timestamp;
#[cfg(any(test, feature = "test-util"))]
use oncegate_core::engine::Engine;
use oncegate_core::engine::breaker::BreakerState;
use oncegate_core::engine::{EngineError, Node, Topology as _};
use serde::Serialize;

use super::{Gateway, within};
use crate::resilience::call_guard::CallGuard;
use crate::resilience::chain::Chain;
#[cfg(any(test, feature = "test-util"))]
use crate::resilience::chain::Setup;
use crate::tenants::App;
use oncegate_outage::OutagePolicies;

/// Time limit of a health check.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The engines and chains of a gateway, by their names in the configuration.
#[derive(Default)]
pub struct Engines {
    /// Every engine.
    pub by_name: BTreeMap<String, NamedEngine>,
    /// Every chain.
    pub chains: BTreeMap<String, NamedChain>,
}

/// An engine of the configuration.
pub struct NamedEngine {
    /// The engine, behind its call guard.
    pub engine: Arc<CallGuard>,
    /// Its URL without secrets.
    pub url: String,
}

/// A chain of the configuration.
pub struct NamedChain {
    /// The chain, for its status and to switch it.
    pub chain: Arc<Chain>,
    /// The outage policies above it. Calls go through these.
    pub policies: OutagePolicies,
}

impl Engines {
    /// Creates one chain over one engine, without a call guard and without a journal.
    #[cfg(any(test, feature = "test-util"))]
    pub fn of_one(chain: &str, engine: Arc<dyn Engine>, clock: &Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        let policies = OutagePolicies::without_journal(engine.clone(), clock);
        let setup = Setup::of_one(chain, engine, clock.clone(), entropy);
        let chains = [(chain.to_owned(), NamedChain { chain: Arc::new(Chain::start(setup)), policies })];
        Self { by_name: BTreeMap::new(), chains: chains.into() }
    }
}

/// Health of an engine.
#[derive(Clone, Debug, Serialize)]
pub struct EngineHealth {
    /// True if the engine answers.
    pub up: bool,
    /// The reason if it does not, or if its store has refused a call within the last minute.
    pub detail: String,
    /// The breaker in front of it.
    pub breaker: BreakerHealth,
    /// The servers of the store, where it has several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Node>,
    /// Number of times that the store has lost its data since the engine was opened.
    #[serde(skip)]
    pub losses: u64,
}

/// State of the breaker in front of an engine.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BreakerHealth {
    /// Its state.
    pub state: BreakerState,
    /// Start of the state, by this gateway's clock.
    pub since: Timestamp,
}

impl Gateway {
    /// Probes every engine, and checks whether the chains' requirements are met.
    pub async fn engines_health(&self) -> BTreeMap<String, EngineHealth> {
        let probe = async |(name, NamedEngine { engine, .. }): (&String, &NamedEngine)| {
            let answer = within(PROBE_TIMEOUT, engine.probe()).await;
            let up = answer.is_ok();
            let detail = match (answer, engine.refusal()) {
                (Err(error), _) => error.to_string(),
                (Ok(()), None) => "answers".into(),
                (Ok(()), Some(refusal)) => format!("answers, but refuses calls: {}", refusal.reason),
            };
            let (breaker, nodes, losses) = (self.breaker(engine), engine.nodes(), engine.data_lost());
            (name.clone(), EngineHealth { up, detail, breaker, nodes, losses })
        };
        let health = join_all(self.engines.by_name.iter().map(probe)).await.into_iter().collect();
        self.known_health.checked(&health, self.clock.wall());
        for NamedChain { chain, policies } in self.engines.chains.values() {
            // Detects a loss of data even without claims.
            drop(chain.status());
            if let Some(requirement) = chain.requirement() {
                // Updates the metric. An unavailable store was reported above.
                let _recorded = within(PROBE_TIMEOUT, requirement.enforce(policies.engine())).await;
            }
        }
        health
    }

    /// Returns the present state of the breaker of an engine.
    pub(super) fn breaker(&self, engine: &CallGuard) -> BreakerHealth {
        let (state, lasted) = engine.breaker();
        BreakerHealth { state, since: self.clock.wall().minus(lasted) }
    }

    /// Returns the chains that have this engine.
    pub(super) fn chains_of(&self, engine: &str) -> Vec<String> {
        let has_engine = |named: &NamedChain| named.chain.status().engines.iter().any(|name| name == engine);
        let chains = self.engines.chains.iter().filter(|(_, named)| has_engine(named));
        chains.map(|(name, _)| name.clone()).collect()
    }

    /// Closes every engine after making its data durable.
    pub async fn close(&self) {
        // Chains before the engines that they use.
        let chain = async |chain: &NamedChain| {
            chain.policies.close().await;
            chain.chain.close().await;
        };
        join_all(self.engines.chains.values().map(chain)).await;
        join_all(self.engines.by_name.values().map(|named| named.engine.close())).await;
    }

    pub(super) fn named_chain(&self, app: &App) -> Result<&NamedChain, EngineError> {
        let absent = || EngineError::unavailable(format!("there is no chain `{}`", app.chain));
        self.engines.chains.get(&app.chain).ok_or_else(absent)
    }

    /// Returns whether the chain of an app switches automatically, and then forgets claims.
    pub(super) fn forgets_by_itself(&self, app: &App) -> bool {
        self.named_chain(app).is_ok_and(|named| named.chain.switches_by_itself())
    }

    /// Returns the chain of an app.
    pub(super) fn policies(&self, app: &App) -> Result<&OutagePolicies, EngineError> {
        Ok(&self.named_chain(app)?.policies)
    }
}
