//! `POST /v1/claims/{global_id}/renewal`: a longer lease for an operation that takes longer.

use axum::response::Response;
use oncegate_core::global_id::GlobalId;
use oncegate_core::record::ClaimId;
use oncegate_core::terms::Span;
use oncegate_web::fields::{checked_lease, parsed};
use oncegate_web::problem::Problem;
use serde::Deserialize;

use super::answer;
use super::call::ApiCall;

/// Body of a renewal, of a claim or of a hold.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RenewalBody {
    pub(super) attempt: String,
    pub(super) lease: Option<Span>,
}

/// Handles a renewal.
pub(super) async fn renewal(call: ApiCall<'_>, global_id: GlobalId) -> Result<Response, Problem> {
    let body: RenewalBody = call.parse()?;
    let attempt = parsed("attempt", &body.attempt)?;
    let lease = checked_lease(body.lease, &call.api.limits)?;
    let body = answer::renewed(&call.api.gateway.renew(call.app, ClaimId::of_api(global_id), attempt, lease).await?)?;
    Ok(answer::success(&body))
}
