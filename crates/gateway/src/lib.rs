//! The use cases: claim, settle, renew and inspect, one call or a batch. Translates the calls of an app into calls of
//! an engine, with the app's terms and deadlines. Removes from each answer what its caller may not know.

mod batch;
mod batch_permits;
pub mod chains;
pub mod claim;
mod engines;
pub mod fleet;
mod granted;
mod known_health;
pub mod lock;
mod met_unknowns;
pub mod operator;
pub mod outcome;
pub mod quota;
mod renewal;
pub mod resilience;
pub mod result_memory;
mod roster;
pub mod tenants;
#[cfg(test)]
mod tests;
pub mod unknowns;
mod wait_permits;
mod waiters;
pub mod waiting;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use oncegate_core::attempt::{Issuer, Nonce};
use oncegate_core::canonical::Canonical;
use oncegate_core::clock::{Clock, Timestamp};
use oncegate_core::engine::{Determinate, EngineError};
use oncegate_core::global_id::GlobalId;
use oncegate_core::limits::Limits;
use oncegate_core::record::{ClaimId, Key, LiveClaim};
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::Retention;
use oncegate_telemetry::metrics::app::AppMetrics;
use oncegate_telemetry::traces;

use self::batch_permits::BatchPermits;
pub use self::engines::{BreakerHealth, EngineHealth, Engines, NamedChain, NamedEngine};
use self::fleet::Fleet;
use self::granted::GrantedOperations;
pub use self::known_health::KnownEngine;
use self::known_health::KnownHealth;
use self::lock::Locks;
use self::met_unknowns::MetUnknowns;
pub use self::met_unknowns::MetUnknownsOf;
pub use self::renewal::RenewalAnswer;
pub use self::resilience::refusal::{Refusal, RefusalKind};
use self::result_memory::ResultMemory;
pub use self::waiters::WaitedClaim;
use self::waiters::Waiters;
use crate::tenants::App;
use crate::tenants::quota::Exceeded;

/// The use cases, over the engines and chains of the configuration.
pub struct Gateway {
    engines: Engines,
    issuer: Issuer,
    clock: Arc<dyn Clock>,
    metrics: ArcSwap<HashMap<AppKey, AppMetrics>>,
    granted: GrantedOperations,
    batch_permits: BatchPermits,
    result_memory: ResultMemory,
    waiters: Waiters,
    locks: Locks,
    known_health: KnownHealth,
    met_unknowns: MetUnknowns,
    fleet: Fleet,
}

/// A live claim.
#[derive(Debug)]
pub struct ClaimView {
    /// The claim's ID.
    pub global_id: GlobalId,
    /// The claim, with the end of its lease or retention by the store's clock; by this gateway's clock if a policy answers.
    pub claim: LiveClaim,
    /// Its result was left out, because the batch has no room for it.
    pub result_omitted: bool,
}

/// Reason why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The nonce is part of the claimed values, so a retry of the business would reuse it.
    #[error(
        "the attempt nonce also occurs in the contents or the fingerprint; send a fresh one for each try, such as a UUID"
    )]
    NonceInContents,
    /// The nonce has the prefix of attempts that hold nothing.
    #[error("an attempt nonce may not begin with \"observed-\"; send a fresh one for each try, such as a UUID")]
    NonceReserved,
    /// Contents and operation of an outcome do not give the claim's ID.
    #[error("operation and contents do not give this global ID; send those of the claim, or leave them out")]
    NotItsContents,
    /// The retention is longer than the app allows its callers.
    #[error("the longest retention of this app is {0} (retention_max)")]
    RetentionTooLong(Retention),
    /// The chain of the app forgets claims when it switches automatically, and the operation does not accept that.
    #[error(
        "the chain of this app switches automatically and then forgets claims, so none of this operation may become `unknown`"
    )]
    ChainForgets,
    /// The app uses as many locks as it may; nothing was done.
    #[error("the app uses {0} locks of other names at this gateway, and may not use more")]
    TooManyLocks(usize),
    /// The app has used up a quota; nothing was done.
    #[error(transparent)]
    QuotaExceeded(Exceeded),
    /// The store certainly did nothing.
    #[error(transparent)]
    Store(Determinate),
    /// The store may have executed the call. For a claim, the nonce to repeat the claim call with.
    #[error("it is not known whether the store took the call")]
    OutcomeUnknown(Option<Nonce>),
}

/// Result of a call to the store that a failure reports, for the labels of metrics.
pub(crate) enum StoreResult {
    Full,
    Incompatible,
    Unavailable,
    /// The store may have executed the call. Failures that are found before the store is called have this label too.
    Unknown,
}

impl Failure {
    /// Returns the result of the call to the store.
    pub(crate) fn store_result(&self) -> StoreResult {
        match self {
            Self::Store(Determinate::Full(_)) => StoreResult::Full,
            Self::Store(Determinate::Incompatible(_)) => StoreResult::Incompatible,
            Self::Store(Determinate::Unavailable(_) | Determinate::Paused(_)) => StoreResult::Unavailable,
            Self::OutcomeUnknown(_)
            | Self::NonceInContents
            | Self::NonceReserved
            | Self::NotItsContents
            | Self::RetentionTooLong(_)
            | Self::ChainForgets
            | Self::TooManyLocks(_)
            | Self::QuotaExceeded(_) => StoreResult::Unknown,
        }
    }
}

impl Gateway {
    /// Creates a gateway. Every app's chain must be among the engines; only apps that were passed to
    /// [`measure_apps`](Self::measure_apps) are measured.
    pub fn new(engines: Engines, issuer: Issuer, clock: Arc<dyn Clock>, limits: &Limits) -> Self {
        Self {
            engines,
            locks: Locks::new(clock.clone(), issuer.entropy(), limits),
            issuer,
            clock,
            metrics: ArcSwap::default(),
            granted: GrantedOperations::default(),
            batch_permits: BatchPermits::default(),
            result_memory: ResultMemory::new(limits),
            waiters: Waiters::new(limits),
            known_health: KnownHealth::default(),
            met_unknowns: MetUnknowns::default(),
            fleet: Fleet::default(),
        }
    }

    /// Sets the apps whose calls are measured. Metrics name their configured operations, and up to `operations_max` others of
    /// each.
    pub fn measure_apps(&self, apps: &[Arc<App>], operations_max: usize) {
        let previous = self.metrics.load();
        let metrics = |app: &Arc<App>| {
            let configured = app.operations.keys().map(AsRef::as_ref);
            let metrics = AppMetrics::new(app.key.as_ref(), configured, operations_max, previous.get(&app.key));
            (app.key.clone(), metrics)
        };
        self.metrics.store(Arc::new(apps.iter().map(metrics).collect()));
    }

    /// Returns the live claim of this name, if there is one.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn inspect(&self, app: &App, id: ClaimId) -> Result<Option<ClaimView>, Failure> {
        let (key, global_id) = (Key::new(&app.key, id), id.global_id);
        let call = async { self.policies(app)?.read(&key).await };
        let span = traces::child!("lookup", oncegate.app = %app.key, oncegate.global_id = %global_id);
        let claim = traces::in_span!(span, within(app.terms.deadline, call)).map_err(read_failure)?;
        Ok(claim.map(|claim| self.view(global_id, claim)))
    }

    /// Returns the ID of a claim of these contents. Calls no store.
    pub fn global_id(app: &App, operation: &Operation, contents: &Canonical) -> GlobalId {
        GlobalId::of(&app.key, operation, contents)
    }

    fn view(&self, global_id: GlobalId, claim: LiveClaim) -> ClaimView {
        let claim = LiveClaim { ends_at: self.expires_at(claim.left, claim.ends_at), ..claim };
        ClaimView { global_id, claim, result_omitted: false }
    }

    /// Returns the end that an answer names: the store's, by its clock. Without one it is computed by this gateway's clock.
    fn expires_at(&self, left: Option<Duration>, ends_at: Option<Timestamp>) -> Option<Timestamp> {
        ends_at.or_else(|| left.map(|left| self.clock.wall().plus(left)))
    }

    fn since(&self, started: Duration) -> Duration {
        self.clock.monotonic().saturating_sub(started)
    }
}

/// Bounds a call by its deadline, even if a layer below does not.
async fn within<Answer>(
    deadline: Duration,
    call: impl Future<Output = Result<Answer, EngineError>>,
) -> Result<Answer, EngineError> {
    tokio::time::timeout(deadline, call).await.unwrap_or_else(|_| late())
}

fn late<Answer>() -> Result<Answer, EngineError> {
    Err(EngineError::indeterminate("the deadline has passed"))
}

/// Returns the failure of a call that changes nothing: whether it was executed does not matter.
fn read_failure(error: EngineError) -> Failure {
    // The primary lacks replicas, so the data that was read may be lost with it: the result is unknown, although the
    // store has answered.
    if error.is_shortfall() { Failure::OutcomeUnknown(None) } else { Failure::Store(error.without_effect()) }
}

fn failure(error: EngineError, nonce: Option<Nonce>) -> Failure {
    match error {
        EngineError::Determinate(certain) => Failure::Store(certain),
        EngineError::Indeterminate(_) => Failure::OutcomeUnknown(nonce),
    }
}
