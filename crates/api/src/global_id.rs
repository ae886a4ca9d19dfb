//! `POST /v1/global-ids`: the global ID that a claim of these contents would have. Needs no store.

use axum::response::Response;
use oncegate_core::global_id::GlobalId;
use oncegate_gateway::Gateway;
use oncegate_web::problem::Problem;
use oncegate_web::response::json;
use serde::Serialize;

use super::call::ApiCall;
use super::claim::ClaimBody;

#[derive(Serialize)]
struct GlobalIdBody<'a> {
    global_id: GlobalId,
    canonical: &'a str,
}

/// Handles the call.
pub(super) async fn global_id(call: ApiCall<'_>) -> Result<Response, Problem> {
    let request = call.parse::<ClaimBody<'_>>()?.into_request(&call.api.limits)?;
    let global_id = Gateway::global_id(call.app, &request.operation, &request.contents);
    Ok(json(&GlobalIdBody { global_id, canonical: request.contents.as_str() }))
}
