//! `POST /v1/claims/{global_id}/renewal`: a longer lease for an operation that takes longer.

use axum::response::Response;
use serde::Deserialize;

use super::pipeline::Call;
use super::{answer, success};
use crate::domain::global_id::GlobalId;
use crate::domain::record::ClaimId;
use crate::domain::terms::Span;
use crate::web::fields::{checked_lease, parsed};
use crate::web::problem::Problem;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RenewalBody {
    attempt: String,
    lease: Option<Span>,
}

/// Handles a renewal.
pub(super) async fn renewal(call: Call<'_>, global_id: GlobalId) -> Result<Response, Problem> {
    let body: RenewalBody = call.parse()?;
    let attempt = parsed("attempt", &body.attempt)?;
    let lease = checked_lease(body.lease, &call.api.limits)?;
    let body = answer::renewed(&call.api.gateway.renew(call.app, ClaimId::of_api(global_id), attempt, lease).await?)?;
    Ok(success(&body))
}
