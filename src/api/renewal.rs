//! `POST /v1/claims/{global_id}/renewal`: a longer lease for an operation that takes longer.

use axum::response::Response;
use serde::Deserialize;

use super::pipeline::Call;
use super::{answer, success};
use crate::domain::attempt::Attempt;
use crate::domain::global_id::GlobalId;
use crate::domain::terms::Span;
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
    let attempt = body.attempt.parse::<Attempt>().map_err(|wrong| Problem::invalid(format!("`attempt`: {wrong}.")))?;
    let lease = body.lease.map(|lease| lease.0);
    let checked = lease.map_or(Ok(()), |lease| call.api.limits.check_lease(lease));
    checked.map_err(|wrong| Problem::invalid(format!("`lease`: {wrong}.")))?;
    let body = answer::renewed(&call.api.gateway.renew(call.app, global_id, attempt, lease).await?)?;
    Ok(success(&body))
}
