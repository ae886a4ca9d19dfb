//! `GET /admin/v1/engines`: the engines and their health.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use super::Admin;
use crate::domain::spool::SpoolStatus;
use crate::gateway::operator::EngineStatus;
use crate::web::response::json;

#[derive(Serialize)]
struct EnginesBody {
    engines: Vec<EngineStatus>,
    spool: SpoolStatus,
}

/// Returns every engine, and the entries that wait for their stores.
pub(super) async fn engines(State(admin): State<Arc<Admin>>) -> Response {
    json(&EnginesBody { engines: admin.gateway.engines().await, spool: admin.journal.status() })
}
