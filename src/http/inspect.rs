//! `GET /v1/claims/{global_id}`: the record that stands, for its own app, without the attempt.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::extract::{Caller, ClaimId};
use super::problem::{Code, Problem};
use super::{Api, answer, json};
use crate::tenants::quota::Purpose;

/// Handles the call.
pub async fn inspect(
    State(api): State<Arc<Api>>,
    Caller(app): Caller,
    ClaimId(global_id): ClaimId,
) -> Result<Response, Problem> {
    api.gateway.charge_request(&app, Purpose::New)?;
    let found = api.gateway.inspect(&app, global_id).await?;
    let nothing = || {
        Problem::new(
            Code::NotFound,
            "No claim stands under this global ID: it was never claimed, was released, or has ended.",
        )
    };
    Ok(json(&answer::record(found.ok_or_else(nothing)?)))
}
