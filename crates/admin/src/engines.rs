//! `GET /admin/v1/engines`: the engines and their health.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use oncegate_core::spool::SpoolStatus;
use oncegate_gateway::operator::EngineStatus;
use oncegate_web::response::json;
use serde::Serialize;

use super::Admin;
use super::auth::Operator;
use super::role::Role;

#[derive(Serialize)]
struct EnginesBody {
    engines: Vec<EngineStatus>,
    spool: SpoolStatus,
}

/// Returns every engine, and the entries that wait for their stores.
pub(super) async fn engines(State(admin): State<Arc<Admin>>, Extension(operator): Extension<Operator>) -> Response {
    let mut engines = admin.gateway.engines().await;
    if operator.role == Role::View {
        engines.iter_mut().for_each(EngineStatus::hide_url);
    }
    json(&EnginesBody { engines, spool: admin.journal.status() })
}
