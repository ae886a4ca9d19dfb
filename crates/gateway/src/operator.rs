//! Calls of operators: release a claim, settle it instead of its holder, list claims, and show the engines. A change applies
//! only while the attempt that the operator was shown still holds the claim; the store compares it.

use std::time::Duration;

use oncegate_core::attempt::Attempt;
use oncegate_core::call::CallContext;
use oncegate_core::claim::{Outcome, OutcomeRequest, OutcomeResponse};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{Backup, Capabilities, Engine, EngineError, Topology as _};
use oncegate_core::global_id::GlobalId;
use oncegate_core::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use oncegate_core::record::{ClaimId, ClaimState, Key, Realm, Record};
use oncegate_core::spool::{SpoolFilter, SpooledEntry};
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::OutcomeOnOutage;
use serde::Serialize;

use super::{ClaimView, EngineHealth, Failure, Gateway, NamedEngine, failure, read_failure, within};
use crate::resilience::call_guard::BreakerChange;
use crate::tenants::App;
use oncegate_outage::OutcomeAnswer;

/// Time limit of a list, which may read many claims.
const LIST_DEADLINE: Duration = Duration::from_secs(15);

/// Claims that a selective filter reads from the store at once, and for one page.
const READ_AT_ONCE: usize = 500;
pub(super) const READ_MAX: usize = 10_000;

/// Result of an operator's change.
#[derive(Debug)]
pub enum Changed {
    /// The claim has ended, and can be claimed again.
    Released,
    /// The claim has this state now.
    Settled {
        /// Its state.
        state: ClaimState,
        /// End of its retention.
        expires_at: Option<Timestamp>,
    },
    /// There is no live claim; nothing was changed.
    Absent,
    /// The claim has succeeded; nothing was changed.
    AlreadySucceeded,
    /// Another attempt holds the claim; nothing was changed.
    Superseded {
        /// Its state, where it is known.
        state: Option<ClaimState>,
    },
}

/// Reason why claims or locks were not listed.
#[derive(Debug)]
pub enum ListError {
    /// The engine of the app cannot list them.
    NotSupported {
        /// The name of the app's engine.
        engine: String,
        /// The names of engines that can.
        able: Vec<String>,
    },
    /// The engine did not answer.
    Failed(Failure),
}

/// Reason why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// There is no such engine; these are there.
    #[error("There is no such engine; there are: {}", .0.join(", "))]
    UnknownEngine(Vec<String>),
    /// The engine of this name makes none.
    #[error("Engine `{0}` makes no backups; use the tools of its store")]
    NotSupported(String),
    /// The engine did not begin one.
    #[error("No backup was made: {}", .0.reason())]
    Failed(EngineError),
}

/// Filter of a list of claims.
#[derive(Clone, Debug)]
pub struct Filter {
    /// The realm of the claims.
    pub realm: Realm,
    /// Only claims in this state.
    pub state: Option<ClaimState>,
    /// Only claims of this operation.
    pub operation: Option<Operation>,
    /// Only claims that were claimed after this instant.
    pub claimed_after: Option<Timestamp>,
    /// Only claims that were claimed before this instant.
    pub claimed_before: Option<Timestamp>,
    /// Only claims after this global ID.
    pub after: Option<GlobalId>,
}

/// An engine in the admin API.
#[derive(Debug, Serialize)]
pub struct EngineStatus {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(flatten)]
    health: EngineHealth,
    breaker_changes: Vec<BreakerChange>,
    chains: Vec<String>,
    capabilities: Capabilities,
}

impl EngineStatus {
    /// Removes its URL, which is configuration.
    pub fn hide_url(&mut self) {
        self.url = None;
    }
}

impl Gateway {
    /// Returns up to `limit` entries that wait for their stores, by chain.
    pub fn spooled(&self, filter: &SpoolFilter, limit: usize) -> Vec<SpooledEntry> {
        self.engines.chains.values().flat_map(|named| named.policies.waiting(filter, limit)).collect()
    }

    /// Checks that there is an engine of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn check_engine(&self, name: &str) -> Result<(), BackupError> {
        self.engine(name).map(drop)
    }

    /// Begins a backup of an engine.
    ///
    /// # Errors
    /// The engine makes none, or not now.
    pub async fn backup(&self, name: &str) -> Result<Backup, BackupError> {
        let backup = self.engine(name)?.engine.backup().await.map_err(BackupError::Failed)?;
        backup.ok_or_else(|| BackupError::NotSupported(name.to_owned()))
    }

    fn engine(&self, name: &str) -> Result<&NamedEngine, BackupError> {
        let names = || BackupError::UnknownEngine(self.engines.by_name.keys().cloned().collect());
        self.engines.by_name.get(name).ok_or_else(names)
    }

    /// Ends the claim that this attempt holds; a succeeded one only with `even_succeeded`.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn release(
        &self,
        app: &App,
        id: ClaimId,
        attempt: Attempt,
        even_succeeded: bool,
    ) -> Result<Changed, Failure> {
        if !even_succeeded {
            // A success may be reported after the operator has looked. A failure never undoes one.
            return self.settle_by_operator(app, id, attempt, Outcome::Failure).await;
        }
        let request = ReleaseRequest { key: Key::new(&app.key, id), attempt, result: None };
        let call = async { self.policies(app)?.release(&request).await };
        let released = within(app.terms.deadline, call).await.map_err(|error| failure(error, None))?;
        if released != ReleaseResponse::Superseded {
            self.met_unknowns.remove(&request.key);
        }
        Ok(match released {
            ReleaseResponse::Done => Changed::Released,
            ReleaseResponse::Absent => Changed::Absent,
            ReleaseResponse::Superseded => Changed::Superseded { state: None },
        })
    }

    /// Replaces the result of the succeeded claim that this attempt holds. The claim stays for its time.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn replace_result(
        &self,
        app: &App,
        id: ClaimId,
        attempt: Attempt,
        result: Box<str>,
    ) -> Result<ReleaseResponse, Failure> {
        let request = ReleaseRequest { key: Key::new(&app.key, id), attempt, result: Some(result) };
        let call = async { self.policies(app)?.release(&request).await };
        within(app.terms.deadline, call).await.map_err(|error| failure(error, None))
    }

    /// Settles the claim that this attempt holds. An outcome without a live claim is not recorded.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn settle_by_operator(
        &self,
        app: &App,
        id: ClaimId,
        attempt: Attempt,
        outcome: Outcome,
    ) -> Result<Changed, Failure> {
        let request = OutcomeRequest { key: Key::new(&app.key, id), attempt, outcome, late: None };
        // An operator needs the store's answer, and can repeat the call.
        let context = CallContext { deadline: app.terms.deadline, on_outage: OutcomeOnOutage::FailClosed };
        let call = async { self.policies(app)?.settle(&request, context).await };
        let settled = within(app.terms.deadline, call).await.map_err(|error| failure(error, None))?;
        let OutcomeAnswer::Response(settled) = settled.answer else { return Err(Failure::OutcomeUnknown(None)) };
        match &settled {
            OutcomeResponse::Done { state: Some(ClaimState::Unknown), .. } | OutcomeResponse::Superseded { .. } => {}
            _ => self.met_unknowns.remove(&request.key),
        }
        Ok(match settled {
            OutcomeResponse::Done { state: Some(state), left, ends_at, .. } => {
                Changed::Settled { state, expires_at: self.expires_at(left, ends_at) }
            }
            OutcomeResponse::Done { state: None, late: Some(true), .. } | OutcomeResponse::Expired => Changed::Absent,
            OutcomeResponse::Done { state: None, .. } => Changed::Released,
            OutcomeResponse::AlreadySucceeded => Changed::AlreadySucceeded,
            OutcomeResponse::Superseded { state, .. } => Changed::Superseded { state: Some(state) },
        })
    }

    /// Returns the engine of an app, if it can list claims and locks.
    pub(super) fn listing_engine(&self, app: &App) -> Result<&dyn Engine, ListError> {
        let engine = self.policies(app).map_err(|error| ListError::Failed(read_failure(error)))?.engine();
        if engine.capabilities().lists {
            return Ok(engine);
        }
        let able = self.engines.by_name.iter().filter(|(_, named)| named.engine.capabilities().lists);
        let able = able.map(|(name, _)| name.clone()).collect();
        Err(ListError::NotSupported { engine: self.engine_name(app), able })
    }

    /// Lists up to `limit` claims of an app, in the order of their global IDs, without their results. Returns also the ID to
    /// continue after, if there may be more.
    ///
    /// # Errors
    /// The engine cannot list claims, or does not answer.
    pub async fn list(
        &self,
        app: &App,
        filter: Filter,
        limit: usize,
    ) -> Result<(Vec<ClaimView>, Option<GlobalId>), ListError> {
        let engine = self.listing_engine(app)?;
        let listed = within(LIST_DEADLINE, filtered(engine, &app.key, filter, limit)).await;
        let (listed, next) = listed.map_err(|error| ListError::Failed(read_failure(error)))?;
        let view = |mut listed: ListedClaim| {
            listed.claim.record.result = None;
            self.view(listed.global_id, listed.claim)
        };
        Ok((listed.into_iter().map(view).collect(), next))
    }

    /// Returns the name of the engine that stores an app's claims.
    pub fn engine_name(&self, app: &App) -> String {
        self.engines.chains.get(&app.chain).map(|named| named.chain.status().active).unwrap_or_default()
    }

    /// Returns every engine, after a health check.
    pub async fn engines(&self) -> Vec<EngineStatus> {
        let health = self.engines_health().await;
        let status = |(name, health): (String, EngineHealth)| {
            let NamedEngine { engine, url } = self.engines.by_name.get(&name)?;
            Some(EngineStatus {
                url: Some(url.clone()),
                health,
                breaker_changes: engine.breaker_changes(),
                chains: self.chains_of(&name),
                capabilities: engine.capabilities(),
                name,
            })
        };
        health.into_iter().filter_map(status).collect()
    }
}

impl Filter {
    /// Returns a filter that passes all claims of a realm.
    pub fn all(realm: Realm) -> Self {
        Self { realm, state: None, operation: None, claimed_after: None, claimed_before: None, after: None }
    }

    /// Reports whether a claim passes the filters that the engine does not apply.
    fn passes(&self, record: &Record) -> bool {
        let (operation, claimed_at) = (record.operation.as_ref(), record.attempt.timestamp());
        (self.operation.is_none() || self.operation.as_ref() == operation)
            && self.claimed_after.is_none_or(|after| claimed_at > after)
            && self.claimed_before.is_none_or(|before| claimed_at < before)
    }

    /// Reports whether it leaves out claims that the engine returns.
    fn is_selective(&self) -> bool {
        self.operation.is_some() || self.claimed_after.is_some() || self.claimed_before.is_some()
    }
}

/// Lists claims until `limit` pass the filter, there are no more, or enough were read. Returns also the ID to continue after.
pub(super) async fn filtered(
    engine: &dyn Engine,
    app: &AppKey,
    filter: Filter,
    limit: usize,
) -> Result<(Vec<ListedClaim>, Option<GlobalId>), EngineError> {
    let (realm, state, after) = (filter.realm, filter.state, filter.after);
    // One more, to know whether there is a next page.
    let page = if filter.is_selective() { READ_AT_ONCE.max(limit + 1) } else { limit + 1 };
    let mut request = ListRequest { app: app.clone(), realm, state, after, limit: page };
    let (mut found, mut read): (Vec<ListedClaim>, usize) = (Vec::new(), 0);
    loop {
        let page = engine.list(&request).await?;
        read += page.len();
        let is_last = page.len() < request.limit;
        request.after = page.last().map(|last| last.global_id);
        found.extend(page.into_iter().filter(|listed| filter.passes(&listed.claim.record)));
        if found.len() > limit {
            found.truncate(limit);
            let next = found.last().map(|last| last.global_id);
            return Ok((found, next));
        }
        if is_last || read >= READ_MAX {
            let next = request.after.filter(|_| !is_last);
            return Ok((found, next));
        }
    }
}
