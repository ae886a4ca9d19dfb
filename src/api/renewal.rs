//! `POST /v1/claims/{global_id}/renewal`: more time for an operation that takes longer.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;

use super::extract::{Caller, ClaimId};
use super::{Api, answer, success};
use crate::domain::attempt::Attempt;
use crate::domain::terms::Span;
use crate::web::body::JsonBytes;
use crate::web::problem::Problem;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RenewalBody {
    attempt: String,
    lease: Option<Span>,
}

/// Handles the call.
pub async fn renewal(
    State(api): State<Arc<Api>>,
    Caller(app): Caller,
    ClaimId(global_id): ClaimId,
    body: JsonBytes,
) -> Result<Response, Problem> {
    let body: RenewalBody = body.parse()?;
    let attempt = body.attempt.parse::<Attempt>().map_err(|wrong| Problem::invalid(format!("`attempt`: {wrong}.")))?;
    let lease = body.lease.map(|lease| lease.0);
    let checked = lease.map_or(Ok(()), |lease| api.limits.check_lease(lease));
    checked.map_err(|wrong| Problem::invalid(format!("`lease`: {wrong}.")))?;
    let body = answer::renewed(&api.gateway.renew(&app, global_id, attempt, lease).await?)?;
    Ok(success(&body))
}
