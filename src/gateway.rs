//! The use cases: claim, settle, renew, inspect, and many at once. Turns a caller's words into engine calls on its own
//! terms and by its deadline, and an engine's answers into what the caller may know. Knows engines only by contract.

mod batch;
mod batch_permits;
pub mod chains;
pub mod claim;
mod granted;
pub mod loads;
pub mod operator;
pub mod outcome;
pub mod quota;
pub mod requirement;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use serde::Serialize;

use self::batch_permits::BatchPermits;
use self::granted::GrantedOperations;
use self::loads::Loads;
use self::outcome::Suspects;
use self::requirement::Requirement;
#[cfg(any(test, feature = "test-util"))]
use crate::domain::attempt::Entropy;
use crate::domain::attempt::{Attempt, Issuer, Nonce};
use crate::domain::call::Answered;
use crate::domain::canonical::Canonical;
use crate::domain::claim::{RenewalRequest, RenewalResponse};
use crate::domain::clock::{Clock, Timestamp};
use crate::domain::global_id::GlobalId;
use crate::domain::limits::Limits;
use crate::domain::outage_policy::OutagePolicy;
use crate::domain::record::{Key, LiveClaim};
use crate::domain::tenant::{AppKey, Operation};
use crate::domain::terms::Retention;
use crate::engine::breaker::BreakerState;
use crate::engine::{Determinate, Engine, EngineError};
use crate::resilience::chain::Chain;
#[cfg(any(test, feature = "test-util"))]
use crate::resilience::chain::Setup;
use crate::resilience::degrade::OutagePolicies;
use crate::telemetry::metrics::app::AppMetrics;
use crate::telemetry::traces;
use crate::tenants::App;
use crate::tenants::quota::Exceeded;

/// How long an engine may take to say how it is.
const PROBE_PATIENCE: Duration = Duration::from_secs(1);

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
    pub engine: Arc<dyn Engine>,
    /// Its URL without secrets.
    pub url: String,
}

/// A chain of the configuration.
pub struct NamedChain {
    /// The chain, for its status and to switch it.
    pub chain: Arc<Chain>,
    /// The outage policies above it. Calls go through these.
    pub policies: OutagePolicies,
    /// The capabilities that it requires of its engine, if any.
    pub requirement: Option<Requirement>,
}

impl Engines {
    /// One chain over one engine, without a call guard and without a journal.
    #[cfg(any(test, feature = "test-util"))]
    pub fn of_one(chain: &str, engine: Arc<dyn Engine>, clock: &Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        let policies = OutagePolicies::without_journal(engine.clone(), clock);
        let setup = Setup::of_one(chain, engine, clock.clone(), entropy);
        let chains =
            [(chain.to_owned(), NamedChain { chain: Arc::new(Chain::start(setup)), policies, requirement: None })];
        Self { by_name: BTreeMap::new(), chains: chains.into() }
    }
}

/// How an engine is.
#[derive(Clone, Debug, Serialize)]
pub struct EngineHealth {
    /// Whether it answers.
    pub up: bool,
    /// What it says, or why it does not answer.
    pub detail: String,
    /// What stands before it, and lets calls through or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerHealth>,
}

/// How the breaker before an engine stands.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BreakerHealth {
    /// Whether calls are let through.
    pub state: BreakerState,
    /// Since when, by this gateway's clock.
    pub since: Timestamp,
}

/// The gateway's core.
pub struct Gateway {
    engines: Engines,
    issuer: Issuer,
    clock: Arc<dyn Clock>,
    metrics: ArcSwap<HashMap<AppKey, AppMetrics>>,
    suspects: Mutex<Suspects>,
    granted: GrantedOperations,
    batch_permits: BatchPermits,
    loads: Loads,
}

/// A record that stands, with the instants that its durations come to by this gateway's clock.
#[derive(Debug)]
pub struct ClaimView {
    /// The claim.
    pub global_id: GlobalId,
    /// What the store holds.
    pub claim: LiveClaim,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
    /// The policy that tells of it in place of the store.
    pub degraded: Option<OutagePolicy>,
    /// Its result was left out, because its batch has no room for it.
    pub result_omitted: bool,
}

/// A renewed lease, or why not.
#[derive(Debug)]
pub struct RenewalAnswer {
    /// The claim.
    pub global_id: GlobalId,
    /// What became of the renewal.
    pub renewed: RenewalResponse,
    /// When what is left ends, by this gateway's clock; for display.
    pub expires_at: Option<Timestamp>,
    /// The policy that renewed it in place of the store.
    pub degraded: Option<OutagePolicy>,
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The nonce is part of what is claimed, so a retry of the business would reuse it.
    #[error(
        "the attempt nonce also stands in the contents or the fingerprint; send a fresh one for each try, such as a UUID"
    )]
    NonceInContents,
    /// The nonce is one of those that mark attempts that hold nothing.
    #[error("an attempt nonce may not begin with \"observed-\"; send a fresh one for each try, such as a UUID")]
    NonceReserved,
    /// Contents and operation of an outcome do not give the claim's ID.
    #[error("operation and contents do not give this global ID; send those of the claim, or leave them out")]
    NotItsContents,
    /// The app allows its callers no retention as long as this.
    #[error("the longest retention of this app is {0} (retention_max)")]
    RetentionTooLong(Retention),
    /// The app has used up a quota; nothing was done.
    #[error(transparent)]
    QuotaExceeded(Exceeded),
    /// The store certainly did nothing.
    #[error(transparent)]
    Store(Determinate),
    /// The store may have done it. For a claim, the nonce to repeat the claim call with.
    #[error("it is not known whether the store took the call")]
    OutcomeUnknown(Option<Nonce>),
}

impl Gateway {
    /// A gateway over these engines. Every app's chain must be among them; apps that are not [measured](Gateway::measure_apps) are
    /// not measured.
    pub fn new(engines: Engines, issuer: Issuer, clock: Arc<dyn Clock>, limits: &Limits) -> Self {
        Self {
            engines,
            issuer,
            clock,
            metrics: ArcSwap::default(),
            suspects: Mutex::default(),
            granted: GrantedOperations::default(),
            batch_permits: BatchPermits::default(),
            loads: Loads::new(limits),
        }
    }

    /// From now on measures the calls of these apps, up to `operations_max` operations of each by name beside those that
    /// are configured.
    pub fn measure_apps(&self, apps: &[Arc<App>], operations_max: usize) {
        let previous = self.metrics.load();
        let metrics = |app: &Arc<App>| {
            let configured = app.operations.keys().map(AsRef::as_ref);
            let metrics = AppMetrics::new(app.key.as_ref(), configured, operations_max, previous.get(&app.key));
            (app.key.clone(), metrics)
        };
        self.metrics.store(Arc::new(apps.iter().map(metrics).collect()));
    }

    /// Renewal.
    ///
    /// # Errors
    /// Why there is no answer; a lost lease is an answer.
    pub async fn renew(
        &self,
        app: &App,
        global_id: GlobalId,
        attempt: Attempt,
        lease: Option<Duration>,
    ) -> Result<RenewalAnswer, Failure> {
        if attempt.nonce().is_observed() {
            // It holds nothing, and must not be made to stop: observing disturbs nobody.
            let left = lease.unwrap_or(app.terms.terms.lease);
            let expires_at = Some(self.clock.wall().plus(left));
            return Ok(RenewalAnswer {
                global_id,
                renewed: RenewalResponse::Renewed { left },
                expires_at,
                degraded: None,
            });
        }
        let begun = self.clock.monotonic();
        let deadline = app.terms.deadline;
        let request = RenewalRequest { key: Key { app: app.key.clone(), global_id }, attempt, lease };
        let call = async { self.policies(app)?.renew(&request, deadline).await };
        let span = traces::child!("renewal", oncegate.app = %app.key, oncegate.global_id = %global_id);
        let renewed = traces::in_span!(span, within(deadline, call)).map_err(|failure| failed(failure, None))?;
        let Answered { answer: mut renewed, policy: degraded } = renewed;
        let mut expires_at = None;
        if let RenewalResponse::Renewed { left } = &mut renewed {
            *left = left.saturating_sub(self.since(begun));
            if left.as_millis() == 0 {
                return Err(Failure::OutcomeUnknown(None));
            }
            expires_at = Some(self.clock.wall().plus(*left));
        }
        Ok(RenewalAnswer { global_id, renewed, expires_at, degraded })
    }

    /// Lookup.
    ///
    /// # Errors
    /// Why there is no answer; that nothing stands is an answer.
    pub async fn inspect(&self, app: &App, global_id: GlobalId) -> Result<Option<ClaimView>, Failure> {
        let key = Key { app: app.key.clone(), global_id };
        let call = async { self.policies(app)?.read(&key).await };
        let span = traces::child!("lookup", oncegate.app = %app.key, oncegate.global_id = %global_id);
        let held = traces::in_span!(span, within(app.terms.deadline, call)).map_err(looked_up)?;
        Ok(held.map(|held| self.view(global_id, held)))
    }

    /// What a claim of these contents would be named. Asks no store.
    pub fn global_id(app: &App, operation: &Operation, contents: &Canonical) -> GlobalId {
        GlobalId::of(&app.key, operation, contents)
    }

    /// Asks every engine how it is, and whether it promises what chains require of it.
    pub async fn engines_health(&self) -> BTreeMap<String, EngineHealth> {
        let probe = async |(name, NamedEngine { engine, .. }): (&String, &NamedEngine)| {
            let answer = within(PROBE_PATIENCE, engine.probe()).await;
            let up = answer.is_ok();
            let detail = answer.map_or_else(|failure| failure.to_string(), |()| "answers".into());
            let since = |lasted| self.clock.wall().minus(lasted);
            let breaker = engine.breaker().map(|now| BreakerHealth { state: now.state, since: since(now.lasted) });
            (name.clone(), EngineHealth { up, detail, breaker })
        };
        let health = futures_util::future::join_all(self.engines.by_name.iter().map(probe)).await.into_iter().collect();
        for NamedChain { chain, policies, requirement } in self.engines.chains.values() {
            // Notices a loss of data even without claims.
            drop(chain.status());
            if let Some(requirement) = requirement {
                // Updates the metric. A store that is unavailable was reported above.
                let _noted = within(PROBE_PATIENCE, requirement.hold(policies.engine())).await;
            }
        }
        health
    }

    /// Lets go of every engine, each after making durable what is not yet.
    pub async fn close(&self) {
        // Chains before the engines that they use.
        let chain = async |chain: &NamedChain| {
            chain.policies.close().await;
            chain.chain.close().await;
        };
        futures_util::future::join_all(self.engines.chains.values().map(chain)).await;
        futures_util::future::join_all(self.engines.by_name.values().map(|named| named.engine.close())).await;
    }

    fn named_chain(&self, app: &App) -> Result<&NamedChain, EngineError> {
        let absent = || EngineError::unavailable(format!("there is no chain `{}`", app.chain));
        self.engines.chains.get(&app.chain).ok_or_else(absent)
    }

    fn policies(&self, app: &App) -> Result<&OutagePolicies, EngineError> {
        Ok(&self.named_chain(app)?.policies)
    }

    /// Returns where an app's claims go, if the engine in use meets the chain's requirement.
    async fn policies_for_claims(&self, app: &App) -> Result<&OutagePolicies, EngineError> {
        let NamedChain { policies, requirement, .. } = self.named_chain(app)?;
        if let Some(requirement) = requirement {
            requirement.hold(policies.engine()).await?;
        }
        Ok(policies)
    }

    fn view(&self, global_id: GlobalId, claim: LiveClaim) -> ClaimView {
        let expires_at = claim.left.map(|left| self.clock.wall().plus(left));
        ClaimView { global_id, claim, expires_at, degraded: None, result_omitted: false }
    }

    fn since(&self, begun: Duration) -> Duration {
        self.clock.monotonic().saturating_sub(begun)
    }
}

/// Answers by the deadline, whatever stands below.
async fn within<Answer>(
    deadline: Duration,
    call: impl Future<Output = Result<Answer, EngineError>>,
) -> Result<Answer, EngineError> {
    tokio::time::timeout(deadline, call).await.unwrap_or_else(|_| late())
}

fn late<Answer>() -> Result<Answer, EngineError> {
    Err(EngineError::indeterminate("the deadline has passed"))
}

/// A lookup changes nothing, so it does not matter whether it happened.
fn looked_up(failure: EngineError) -> Failure {
    Failure::Store(failure.without_effect())
}

fn failed(failure: EngineError, nonce: Option<Nonce>) -> Failure {
    match failure {
        EngineError::Determinate(certain) => Failure::Store(certain),
        EngineError::Indeterminate(_) => Failure::OutcomeUnknown(nonce),
    }
}
