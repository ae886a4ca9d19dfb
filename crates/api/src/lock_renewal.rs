//! `POST /v1/locks/{name}/renewal`: a longer lease for a hold.

use axum::response::Response;
use oncegate_core::clock::{Timestamp, millis};
use oncegate_core::lock::LockName;
use oncegate_web::fields::{checked_lease, parsed};
use oncegate_web::lock::not_held;
use oncegate_web::problem::Problem;
use oncegate_web::response::json;
use serde::Serialize;

use super::call::ApiCall;
use super::renewal::RenewalBody;

/// Body of the 200 response.
#[derive(Serialize)]
struct RenewedBody {
    name: LockName,
    lease_ms: u64,
    lease_expires_at: Timestamp,
}

/// Handles a renewal.
pub(super) async fn lock_renewal(call: ApiCall<'_>, name: LockName) -> Result<Response, Problem> {
    let body: RenewalBody = call.parse()?;
    let attempt = parsed("attempt", &body.attempt)?;
    let lease = checked_lease(body.lease, &call.api.limits)?;
    let renewed = call.api.gateway.renew_lock(call.app, &name, attempt, lease).await?;
    let (left, lease_expires_at) = renewed.ok_or_else(not_held)?;
    Ok(json(&RenewedBody { name, lease_ms: millis(left), lease_expires_at }))
}
