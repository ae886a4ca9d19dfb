//! `GET /v1/claims/{global_id}`: the record of a live claim, for its own app, without the attempt.

use axum::response::Response;

use super::pipeline::Call;
use crate::domain::global_id::GlobalId;
use crate::domain::record::ClaimId;
use crate::web::problem::{Code, Problem};
use crate::web::record::RecordBody;
use crate::web::response::json;

/// Handles a lookup.
pub(super) async fn inspect(call: Call<'_>, global_id: GlobalId) -> Result<Response, Problem> {
    let found = call.api.gateway.inspect(call.app, ClaimId::of_api(global_id)).await?;
    let nothing = || {
        Problem::new(
            Code::NotFound,
            "No claim stands under this global ID: it was never claimed, was released, or has ended.",
        )
    };
    Ok(json(&RecordBody::from(found.ok_or_else(nothing)?)))
}
