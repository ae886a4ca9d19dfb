//! `GET /admin/v1/engines`: where claims are kept, and how that is.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use super::Admin;
use super::auth::Operator;
use crate::domain::spool::Spooled;
use crate::gateway::operator::EngineStatus;
use crate::web::response::json;

#[derive(Serialize)]
struct EnginesBody {
    engines: Vec<EngineStatus>,
    spool: Spooled,
}

/// Every engine, and what waits for their stores.
pub(super) async fn engines(State(admin): State<Arc<Admin>>, _operator: Operator) -> Response {
    json(&EnginesBody { engines: admin.gateway.engines().await, spool: admin.spool.spooled() })
}
