//! Chains for operators: their status, and the switch to another engine, which reaches every gateway.

use std::time::Duration;

use futures_util::future::join_all;
use oncegate_core::clock::millis;
use oncegate_core::engine::EngineError;
use oncegate_core::record::Realm;
use oncegate_core::tenant::AppKey;
use serde::Serialize;

use super::operator::{Filter, filtered};
use super::{EngineHealth, Gateway, NamedChain, within};
pub use crate::resilience::chain::{ChainStatus, ChainSwitchError, FailoverStatus, Hold, Switched};
use crate::resilience::requirement::Requirement;

/// Time limit of counting the claims of the active engine.
const COUNT_TIMEOUT: Duration = Duration::from_secs(3);

/// Largest number of claims that is counted.
pub const COUNTED_MAX: usize = 1000;

/// A chain in the admin API.
#[derive(Debug, Serialize)]
pub struct ShownChain {
    name: String,
    #[serde(flatten)]
    status: ChainStatus,
    held_ms: Option<u64>,
    health: Vec<ShownEngine>,
}

/// A chain as this gateway knows it, without a check of its engines.
#[derive(Debug, Serialize)]
pub struct KnownChain {
    /// Its name.
    pub name: String,
    /// Its state.
    #[serde(flatten)]
    pub status: ChainStatus,
    /// Time that is left of a grant freeze, in milliseconds.
    #[serde(rename = "held_ms")]
    pub frozen_ms: Option<u64>,
    /// Its engine meets the requirements of the chain, as far as this gateway knows. Otherwise it grants nothing.
    pub requirements_met: bool,
}

/// An engine of a chain in the admin API.
#[derive(Debug, Serialize)]
pub struct ShownEngine {
    engine: String,
    #[serde(flatten)]
    health: EngineHealth,
}

/// Reason why a chain was not switched.
#[derive(Debug)]
pub enum SwitchError {
    /// There is no chain of this name. Holds the names of all.
    UnknownChain(Vec<String>),
    /// The chain rejects the switch.
    Rejected(ChainSwitchError),
}

/// Reason why automatic switches of a chain are not held, or not allowed again.
#[derive(Debug)]
pub enum HoldError {
    /// There is no chain of this name. Holds the names of all.
    UnknownChain(Vec<String>),
    /// Only people switch the chain.
    Manual,
    /// The witness did not confirm it.
    Witness(EngineError),
}

/// Number of live claims on the active engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimCount {
    /// The number; [`COUNTED_MAX`] means at least that many.
    Counted(usize),
    /// The engine does not answer, or cannot list claims.
    Unknown,
}

impl Gateway {
    /// Returns every chain, after a health check of its engines.
    pub async fn chains(&self) -> Vec<ShownChain> {
        let holds = join_all(self.engines.chains.values().map(|named| named.chain.read_hold()));
        let (health, _) = tokio::join!(self.engines_health(), holds);
        let show = |(name, named): (&String, &NamedChain)| {
            let status = named.chain.status();
            let show_engine = |engine: &String| {
                let health = health.get(engine)?.clone();
                Some(ShownEngine { engine: engine.clone(), health })
            };
            ShownChain {
                name: name.clone(),
                held_ms: frozen_ms(&status),
                health: status.engines.iter().filter_map(show_engine).collect(),
                status,
            }
        };
        self.engines.chains.iter().map(show).collect()
    }

    /// Returns every chain as this gateway knows it. Calls no store.
    pub fn known_chains(&self) -> Vec<KnownChain> {
        let known = |(name, named): (&String, &NamedChain)| {
            let status = named.chain.status();
            let requirements_met = named.chain.requirement().is_none_or(Requirement::is_met);
            KnownChain { name: name.clone(), frozen_ms: frozen_ms(&status), requirements_met, status }
        };
        self.engines.chains.iter().map(known).collect()
    }

    /// Returns the status of a chain.
    ///
    /// # Errors
    /// There is no chain of this name.
    pub fn chain_status(&self, chain: &str) -> Result<ChainStatus, SwitchError> {
        Ok(self.chain(chain)?.chain.status())
    }

    /// Makes another engine of a chain the active one, for every gateway that reaches the stores.
    ///
    /// # Errors
    /// The chain was not switched.
    pub async fn switch(&self, chain: &str, to: &str) -> Result<Switched, SwitchError> {
        self.chain(chain)?.chain.switch(to).await.map_err(SwitchError::Rejected)
    }

    /// Holds the automatic switches of a chain at every gateway, or ends a hold. Returns the state after it.
    ///
    /// # Errors
    /// It was not done, or may have been done.
    pub async fn hold_switches(&self, chain: &str, hold: Option<Hold>) -> Result<FailoverStatus, HoldError> {
        let named = self.engines.chains.get(chain).ok_or_else(|| HoldError::UnknownChain(self.chain_names()))?;
        named.chain.set_hold(hold).await.map_err(HoldError::Witness)?.ok_or(HoldError::Manual)
    }

    /// Counts the live claims of these apps on the active engine, if it can list claims.
    pub async fn count_claims(&self, chain: &str, apps: Vec<AppKey>) -> ClaimCount {
        let engine = self.engines.chains.get(chain).map(|named| named.policies.engine());
        let Some(engine) = engine.filter(|engine| engine.capabilities().lists) else { return ClaimCount::Unknown };
        let count = async {
            let mut counted = 0;
            let all = apps.iter().flat_map(|app| [(app, Realm::Api), (app, Realm::Proxy)]);
            for (app, realm) in all {
                let (found, _) = filtered(engine, app, Filter::all(realm), COUNTED_MAX - counted).await?;
                counted += found.len();
                if counted >= COUNTED_MAX {
                    break;
                }
            }
            Ok(counted)
        };
        within(COUNT_TIMEOUT, count).await.map_or(ClaimCount::Unknown, ClaimCount::Counted)
    }

    fn chain(&self, name: &str) -> Result<&NamedChain, SwitchError> {
        self.engines.chains.get(name).ok_or_else(|| SwitchError::UnknownChain(self.chain_names()))
    }

    fn chain_names(&self) -> Vec<String> {
        self.engines.chains.keys().cloned().collect()
    }
}

/// Returns the time that is left of a grant freeze, in milliseconds.
fn frozen_ms(status: &ChainStatus) -> Option<u64> {
    status.frozen_for.map(millis)
}
