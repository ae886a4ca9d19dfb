//! `GET /v1/locks/{name}`: the holders of a lock and its queue, without attempts.

use axum::response::Response;
use oncegate_core::lock::LockName;
use oncegate_web::lock::{LockBody, free};
use oncegate_web::problem::Problem;
use oncegate_web::response::json;

use super::call::ApiCall;

/// Handles a lookup.
pub(super) async fn lock_inspect(call: ApiCall<'_>, name: LockName) -> Result<Response, Problem> {
    let found = call.api.gateway.view_lock(call.app, &name).await?;
    Ok(json(&LockBody::from(found.ok_or_else(free)?)))
}
