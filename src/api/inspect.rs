//! `GET /v1/claims/{global_id}`: the record that stands, for its own app, without the attempt.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::Api;
use super::extract::{Caller, ClaimId};
use crate::tenants::quota::Purpose;
use crate::web::problem::{Code, Problem};
use crate::web::record::RecordBody;
use crate::web::response::json;

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
    Ok(json(&RecordBody::from(found.ok_or_else(nothing)?)))
}
