//! `GET /v1/locks/{name}`: the holders of a lock and its queue, without attempts.

use axum::response::Response;

use super::pipeline::Call;
use crate::domain::lock::LockName;
use crate::web::lock::{LockBody, free};
use crate::web::problem::Problem;
use crate::web::response::json;

/// Handles a lookup.
pub(super) async fn lock_inspect(call: Call<'_>, name: LockName) -> Result<Response, Problem> {
    let found = call.api.gateway.view_lock(call.app, &name).await?;
    Ok(json(&LockBody::from(found.ok_or_else(free)?)))
}
