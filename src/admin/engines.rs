//! `GET /admin/v1/engines` and `GET /admin/v1/chains`: where claims are kept, and how that is.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use super::Admin;
use super::auth::Operator;
use crate::gateway::operator::{ChainStatus, EngineStatus};
use crate::http::json;

#[derive(Serialize)]
struct EnginesBody {
    engines: Vec<EngineStatus>,
}

#[derive(Serialize)]
struct ChainsBody {
    chains: Vec<ChainStatus>,
}

/// Every engine.
pub(super) async fn engines(State(admin): State<Arc<Admin>>, _operator: Operator) -> Response {
    json(&EnginesBody { engines: admin.gateway.engines().await })
}

/// Every chain.
pub(super) async fn chains(State(admin): State<Arc<Admin>>, _operator: Operator) -> Response {
    json(&ChainsBody { chains: admin.gateway.chains() })
}
