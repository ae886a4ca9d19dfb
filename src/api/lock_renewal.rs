//! `POST /v1/locks/{name}/renewal`: a longer lease for a hold.

use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::pipeline::Call;
use crate::domain::attempt::Attempt;
use crate::domain::clock::Timestamp;
use crate::domain::lock::LockName;
use crate::domain::terms::Span;
use crate::web::lock::not_held;
use crate::web::problem::Problem;
use crate::web::response::json;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RenewalBody {
    attempt: String,
    lease: Option<Span>,
}

/// Body of the 200 response.
#[derive(Serialize)]
struct RenewedBody {
    name: LockName,
    lease_ms: u64,
    lease_expires_at: Timestamp,
}

/// Handles a renewal.
pub(super) async fn lock_renewal(call: Call<'_>, name: LockName) -> Result<Response, Problem> {
    let body: RenewalBody = call.parse()?;
    let attempt = body.attempt.parse::<Attempt>().map_err(|wrong| Problem::invalid(format!("`attempt`: {wrong}.")))?;
    let lease = body.lease.map(|lease| lease.0);
    let checked = lease.map_or(Ok(()), |lease| call.api.limits.check_lease(lease));
    checked.map_err(|wrong| Problem::invalid(format!("`lease`: {wrong}.")))?;
    let renewed = call.api.gateway.renew_lock(call.app, &name, attempt, lease).await?;
    let (left, lease_expires_at) = renewed.ok_or_else(not_held)?;
    let lease_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    Ok(json(&RenewedBody { name, lease_ms, lease_expires_at }))
}
