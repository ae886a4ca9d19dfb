//! Chains for operators: how each stands, and switching one to another of its engines, which reaches every gateway.

use serde::Serialize;

use super::operator::{Filter, filtered};
use super::{EngineHealth, Gateway, NamedChain, NamedEngine, within};
use crate::domain::tenant::AppKey;
use crate::engine::EngineError;
pub use crate::resilience::chain::{ChainStatus, ChainSwitchError, Switched};

/// How long the engine to be left may take to list what stands on it.
const COUNT_PATIENCE: std::time::Duration = std::time::Duration::from_secs(3);

/// Claims are counted up to this many: more are many.
pub const COUNTED_MAX: usize = 1000;

/// A chain, as operators are shown it.
#[derive(Debug, Serialize)]
pub struct ShownChain {
    name: String,
    #[serde(flatten)]
    status: ChainStatus,
    held_ms: Option<u64>,
    health: Vec<ShownEngine>,
}

/// An engine of a chain, as operators are shown it.
#[derive(Debug, Serialize)]
pub struct ShownEngine {
    engine: String,
    #[serde(flatten)]
    health: EngineHealth,
}

/// Why a chain was not switched.
#[derive(Debug)]
pub enum SwitchError {
    /// There is no such chain; there are these.
    UnknownChain(Vec<String>),
    /// The engine to switch to does not promise what the chain requires, or cannot say.
    Unfit(EngineError),
    /// Something of the chain itself.
    Rejected(ChainSwitchError),
}

/// How many claims stand on the engine in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimCount {
    /// So many; [`COUNTED_MAX`] means that many at least.
    Counted(usize),
    /// The engine does not answer, or cannot tell.
    Unknown,
}

impl Gateway {
    /// Every chain, after asking its engines how they are.
    pub async fn chains(&self) -> Vec<ShownChain> {
        let health = self.engines_health().await;
        let shown = |(name, named): (&String, &NamedChain)| {
            let status = named.chain.status();
            let of = |engine: &String| {
                let health = health.get(engine)?.clone();
                Some(ShownEngine { engine: engine.clone(), health })
            };
            ShownChain {
                name: name.clone(),
                held_ms: status.frozen_for.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
                health: status.engines.iter().filter_map(of).collect(),
                status,
            }
        };
        self.engines.chains.iter().map(shown).collect()
    }

    /// How the chain of this name stands.
    ///
    /// # Errors
    /// That there is none.
    pub fn chain_status(&self, chain: &str) -> Result<ChainStatus, SwitchError> {
        Ok(self.chain(chain)?.chain.status())
    }

    /// Makes another engine of a chain the active one, at every gateway that reaches the stores.
    ///
    /// # Errors
    /// Why it was not done.
    pub async fn switch(&self, chain: &str, to: &str) -> Result<Switched, SwitchError> {
        let NamedChain { chain, requirement, .. } = self.chain(chain)?;
        if let (Some(requirement), Some(NamedEngine { engine, .. })) = (requirement, self.engines.by_name.get(to))
            && chain.status().engines.iter().any(|name| name == to)
        {
            requirement.check(&**engine).await.map_err(SwitchError::Unfit)?;
        }
        chain.switch(to).await.map_err(SwitchError::Rejected)
    }

    /// How many claims of these apps stand on the engine in use, as far as it can tell.
    pub async fn count_claims(&self, chain: &str, apps: Vec<AppKey>) -> ClaimCount {
        let engine = self.engines.chains.get(chain).map(|named| named.policies.engine());
        let Some(engine) = engine.filter(|engine| engine.capabilities().lists) else { return ClaimCount::Unknown };
        let count = async {
            let mut counted = 0;
            for app in apps {
                let limit = COUNTED_MAX - counted;
                counted += filtered(engine, &app, Filter::default(), limit).await?.len();
                if counted >= COUNTED_MAX {
                    break;
                }
            }
            Ok(counted)
        };
        within(COUNT_PATIENCE, count).await.map_or(ClaimCount::Unknown, ClaimCount::Counted)
    }

    fn chain(&self, name: &str) -> Result<&NamedChain, SwitchError> {
        let known = || SwitchError::UnknownChain(self.engines.chains.keys().cloned().collect());
        self.engines.chains.get(name).ok_or_else(known)
    }
}
