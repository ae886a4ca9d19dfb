//! Releases a claim, or settles it for its holder. Reads the attempt of the live claim first, and changes the claim
//! only if that attempt still holds it. So a change in between is not undone.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use oncegate_core::claim::Outcome;
use oncegate_core::clock::Timestamp;
use oncegate_core::global_id::GlobalId;
use oncegate_core::record::ClaimState;
use oncegate_core::tenant::AppKey;
use oncegate_gateway::ClaimView;
use oncegate_gateway::operator::Changed;
use oncegate_web::body::{self, JsonBytes};
use oncegate_web::fields::check_retention;
use oncegate_web::problem::{Code, Members, Problem};
use oncegate_web::response::json;
use serde::Serialize;

use super::{Named, Target};
use crate::Admin;
use crate::audit::{Change, Done, Reason};
use crate::auth::Operator;
use crate::bodies::{ReleaseClaim, SettleClaim};

/// 200 to a change.
#[derive(Serialize)]
struct ChangedBody {
    app: AppKey,
    global_id: GlobalId,
    state: &'static str,
    expires_at: Option<Timestamp>,
}

/// `POST /admin/v1/claims/release`: ends a claim, so that its operation can be claimed again.
pub(crate) async fn release(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    body: JsonBytes,
) -> Result<Response, Problem> {
    let ReleaseClaim { app, operation, contents, realm, global_id, attempt_hash, even_succeeded, reason } =
        body.parse()?;
    let target = Named { app, operation, contents, realm, global_id }.find(&admin)?;
    let even_succeeded = even_succeeded.unwrap_or(false);
    let found = target.inspect(&admin, attempt_hash.as_deref()).await?;
    if found.claim.record.state == ClaimState::Succeeded && !even_succeeded {
        return Err(succeeded());
    }
    let detail = even_succeeded.then(|| "even_succeeded".to_owned());
    let change = Change { detail, ..change_of("claim.release", &target, &found, reason) };
    let attempt = found.claim.record.attempt;
    let gateway = admin.gateway.clone();
    let action = async move {
        let changed = gateway.release(&target.app, target.id, attempt, even_succeeded).await?;
        result_of(&target, &changed)
    };
    Ok(json(&admin.audit.execute(&operator, change, action).await?))
}

/// `POST /admin/v1/claims/settle`: reports an outcome for the holder.
pub(crate) async fn settle(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    body: JsonBytes,
) -> Result<Response, Problem> {
    let body: SettleClaim<'_> = body.parse()?;
    let SettleClaim { app, operation, contents, realm, global_id, attempt_hash, result, retention, reason, .. } = body;
    let target = Named { app, operation, contents, realm, global_id }.find(&admin)?;
    check_retention(retention, &admin.limits)?;
    let result = result.map(|result| body::result(result, admin.limits.result_bytes)).transpose()?;
    let outcome = body.outcome.with(result, retention)?;
    let detail = match outcome {
        Outcome::Success { .. } => "outcome: success",
        Outcome::Failure => "outcome: failure",
        Outcome::Unknown => "outcome: unknown",
    };
    let found = target.inspect(&admin, attempt_hash.as_deref()).await?;
    if found.claim.record.state == ClaimState::Succeeded {
        return Err(succeeded());
    }
    let change = Change { detail: Some(detail.to_owned()), ..change_of("claim.settle", &target, &found, reason) };
    let attempt = found.claim.record.attempt;
    let gateway = admin.gateway.clone();
    let action = async move {
        let changed = gateway.settle_by_operator(&target.app, target.id, attempt, outcome).await?;
        result_of(&target, &changed)
    };
    Ok(json(&admin.audit.execute(&operator, change, action).await?))
}

pub(super) fn change_of(name: &'static str, target: &Target, found: &ClaimView, reason: Reason) -> Change {
    let record = &found.claim.record;
    Change {
        app: Some(target.app.key.clone()),
        operation: record.operation.clone(),
        global_id: Some(target.id.global_id),
        attempt_hash: Some(record.attempt.hash()),
        ..Change::new(name, reason).of_realm(target.id.realm)
    }
}

/// Returns the result of a change, for the operator and for the audit trail.
fn result_of(target: &Target, changed: &Changed) -> Result<Done<ChangedBody>, Problem> {
    let body = |state, expires_at| {
        (ChangedBody { app: target.app.key.clone(), global_id: target.id.global_id, state, expires_at }, state)
    };
    match *changed {
        Changed::Released => Ok(body("released", None)),
        Changed::Settled { state: ClaimState::Succeeded, expires_at } => Ok(body("succeeded", expires_at)),
        Changed::Settled { state: ClaimState::Unknown | ClaimState::InProgress, expires_at } => {
            Ok(body("unknown", expires_at))
        }
        Changed::Absent => Err(target.nothing()),
        Changed::AlreadySucceeded => Err(succeeded()),
        Changed::Superseded { state } => Err(superseded(state)),
    }
}

fn succeeded() -> Problem {
    Problem::new(
        Code::AlreadySucceeded,
        "The operation has been reported done; nothing was changed. Only a release with \"even_succeeded\": true ends such a \
         claim, and then the operation can be run again.",
    )
}

pub(super) fn superseded(state: Option<ClaimState>) -> Problem {
    let detail = "Another attempt holds the claim than the one that was looked at; nothing was changed. Show it again, then \
                  decide anew.";
    let members = state.map_or(Members::None, |state| Members::Superseded { state });
    Problem { members, ..Problem::new(Code::Superseded, detail) }
}
