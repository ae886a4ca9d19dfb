//! What operators may do beyond callers: end a claim, settle it in its holder's place, list claims, and see the engines.
//! Only what stands exactly as the operator was shown it is changed: by the attempt, compared by the store.

use std::time::Duration;

use serde::Serialize;

use super::{ClaimView, EngineHealth, Failure, Gateway, NamedEngine, failed, looked_up, within};
use crate::domain::attempt::Attempt;
use crate::domain::call::CallContext;
use crate::domain::claim::{Outcome, OutcomeRequest, OutcomeResponse};
use crate::domain::clock::Timestamp;
use crate::domain::global_id::GlobalId;
use crate::domain::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::domain::record::{ClaimState, Key};
use crate::domain::tenant::{AppKey, Operation};
use crate::domain::terms::OutcomeOnOutage;
use crate::engine::{Capabilities, Engine, EngineError};
use crate::resilience::degrade::OutcomeAnswer;
use crate::tenants::App;

/// How long a list may take: it looks at many claims.
const LIST_DEADLINE: Duration = Duration::from_secs(15);

/// What became of an operator's change.
#[derive(Debug)]
pub enum Changed {
    /// The claim is gone, and can be claimed again.
    Released,
    /// The claim stands so now.
    Settled {
        /// Its state.
        state: ClaimState,
        /// When it ends by itself.
        expires_at: Option<Timestamp>,
    },
    /// No claim stands any more; nothing was changed.
    Absent,
    /// The operation has been reported done; nothing was changed.
    AlreadySucceeded,
    /// Another attempt's claim stands by now; it was not touched.
    Superseded {
        /// Its state, where it is known.
        state: Option<ClaimState>,
    },
}

/// Why there is no list.
#[derive(Debug)]
pub enum ListError {
    /// The engine of the app cannot list; these can.
    NotSupported {
        /// The name of the app's engine.
        engine: String,
        /// The names of engines that list.
        able: Vec<String>,
    },
    /// The engine did not answer.
    Failed(Failure),
}

/// The claims that a list is about.
#[derive(Clone, Copy, Default, Debug)]
pub struct Filter {
    /// Only claims in this state.
    pub state: Option<ClaimState>,
    /// Only claims after this global ID.
    pub after: Option<GlobalId>,
    /// The records that gateways keep for themselves too.
    pub internal: bool,
}

/// An engine, as operators are shown it.
#[derive(Debug, Serialize)]
pub struct EngineStatus {
    name: String,
    url: String,
    #[serde(flatten)]
    health: EngineHealth,
    chains: Vec<String>,
    capabilities: Capabilities,
}

impl Gateway {
    /// Ends the claim that this attempt holds: one that succeeded only where that is meant.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn release(
        &self,
        app: &App,
        global_id: GlobalId,
        attempt: Attempt,
        even_succeeded: bool,
    ) -> Result<Changed, Failure> {
        if !even_succeeded {
            // A success may be reported at any moment, also after the operator has looked. A failure never undoes one.
            return self.settle_by_operator(app, global_id, attempt, Outcome::Failure).await;
        }
        let request = ReleaseRequest { key: Key { app: app.key.clone(), global_id }, attempt };
        let call = async { self.policies(app)?.release(&request).await };
        let released = within(app.terms.deadline, call).await.map_err(|failure| failed(failure, None))?;
        Ok(match released {
            ReleaseResponse::Done => Changed::Released,
            ReleaseResponse::Absent => Changed::Absent,
            ReleaseResponse::Superseded => Changed::Superseded { state: None },
        })
    }

    /// Settles the claim that this attempt holds in its holder's place. What is gone is not recorded anew.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn settle_by_operator(
        &self,
        app: &App,
        global_id: GlobalId,
        attempt: Attempt,
        outcome: Outcome,
    ) -> Result<Changed, Failure> {
        let request = OutcomeRequest { key: Key { app: app.key.clone(), global_id }, attempt, outcome, late: None };
        // An operator needs to know what is, and can try again.
        let context = CallContext { deadline: app.terms.deadline, on_outage: OutcomeOnOutage::FailClosed };
        let call = async { self.policies(app)?.settle(&request, context).await };
        let settled = within(app.terms.deadline, call).await.map_err(|failure| failed(failure, None))?;
        let OutcomeAnswer::Response(settled) = settled.answer else { return Err(Failure::OutcomeUnknown(None)) };
        Ok(match settled {
            OutcomeResponse::Done { state: Some(state), left, .. } => {
                Changed::Settled { state, expires_at: left.map(|left| self.clock.wall().plus(left)) }
            }
            OutcomeResponse::Done { state: None, late: Some(true), .. } | OutcomeResponse::Expired => Changed::Absent,
            OutcomeResponse::Done { state: None, .. } => Changed::Released,
            OutcomeResponse::AlreadySucceeded => Changed::AlreadySucceeded,
            OutcomeResponse::Superseded { state, .. } => Changed::Superseded { state: Some(state) },
        })
    }

    /// Lists claims of an app, in the order of their global IDs, without their results.
    ///
    /// # Errors
    /// Why there is no list.
    pub async fn list(&self, app: &App, filter: Filter, limit: usize) -> Result<Vec<ClaimView>, ListError> {
        let policies = self.policies(app).map_err(|failure| ListError::Failed(looked_up(failure)))?;
        let engine = policies.engine();
        if !engine.capabilities().lists {
            let able = self.engines.by_name.iter().filter(|(_, named)| named.engine.capabilities().lists);
            let able = able.map(|(name, _)| name.clone()).collect();
            return Err(ListError::NotSupported { engine: self.engine_name(app), able });
        }
        let listed = within(LIST_DEADLINE, filtered(engine, &app.key, filter, limit)).await;
        let listed = listed.map_err(|failure| ListError::Failed(looked_up(failure)))?;
        let inspected = |mut listed: ListedClaim| {
            listed.claim.record.result = None;
            self.view(listed.global_id, listed.claim)
        };
        Ok(listed.into_iter().map(inspected).collect())
    }

    /// The name of the engine that keeps an app's claims.
    pub fn engine_name(&self, app: &App) -> String {
        self.engines.chains.get(&app.chain).map(|named| named.chain.status().active).unwrap_or_default()
    }

    /// Every engine, after asking it how it is.
    pub async fn engines(&self) -> Vec<EngineStatus> {
        let health = self.engines_health().await;
        let status = |(name, health): (String, EngineHealth)| {
            let chains = self.engines.chains.iter().filter(|(_, named)| named.chain.status().engines.contains(&name));
            let NamedEngine { engine, url } = self.engines.by_name.get(&name)?;
            Some(EngineStatus {
                url: url.clone(),
                health,
                chains: chains.map(|(chain, _)| chain.clone()).collect(),
                capabilities: engine.capabilities(),
                name,
            })
        };
        health.into_iter().filter_map(status).collect()
    }
}

/// Lists claims until there are enough that pass the filter, or no more.
pub(super) async fn filtered(
    engine: &dyn Engine,
    app: &AppKey,
    filter: Filter,
    limit: usize,
) -> Result<Vec<ListedClaim>, EngineError> {
    let mut request = ListRequest { app: app.clone(), state: filter.state, after: filter.after, limit };
    let mut found: Vec<ListedClaim> = Vec::new();
    loop {
        let page = engine.list(&request).await?;
        let is_last = page.len() < request.limit;
        request.after = page.last().map(|last| last.global_id);
        let is_internal =
            |listed: &ListedClaim| listed.claim.record.operation.as_ref().is_some_and(Operation::is_internal);
        found.extend(page.into_iter().filter(|listed| filter.internal || !is_internal(listed)));
        if is_last || found.len() >= limit {
            found.truncate(limit);
            return Ok(found);
        }
    }
}
