//! `POST /v1/global-ids`: what a claim of these contents would be named. Asks no store.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use super::Api;
use super::claim::ClaimBody;
use super::extract::Caller;
use crate::domain::global_id::GlobalId;
use crate::gateway::Gateway;
use crate::web::body::JsonBytes;
use crate::web::problem::Problem;
use crate::web::response::json;

#[derive(Serialize)]
struct GlobalIdBody<'a> {
    global_id: GlobalId,
    canonical: &'a str,
}

/// Handles the call.
pub async fn global_id(State(api): State<Arc<Api>>, Caller(app): Caller, body: JsonBytes) -> Result<Response, Problem> {
    let request = body.parse::<ClaimBody<'_>>()?.into_request(&api.limits)?;
    let global_id = Gateway::global_id(&app, &request.operation, &request.contents);
    Ok(json(&GlobalIdBody { global_id, canonical: request.contents.as_str() }))
}
