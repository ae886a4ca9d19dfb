//! `GET /v1/claims/{global_id}`: the record of a live claim, for its own app, without the attempt.

use axum::response::Response;
use oncegate_core::global_id::GlobalId;
use oncegate_core::record::ClaimId;
use oncegate_web::problem::{Code, Problem};
use oncegate_web::record::RecordBody;
use oncegate_web::response::json;

use super::call::ApiCall;

/// Handles a lookup.
pub(super) async fn inspect(call: ApiCall<'_>, global_id: GlobalId) -> Result<Response, Problem> {
    let found = call.api.gateway.inspect(call.app, ClaimId::of_api(global_id)).await?;
    let nothing = || {
        Problem::new(
            Code::NotFound,
            "There is no claim under this global ID: it was never claimed, was released, or has ended.",
        )
    };
    Ok(json(&RecordBody::from(found.ok_or_else(nothing)?)))
}
