//! `GET /admin/v1/proxy/routes`: the routes of the proxy, and what this gateway has answered on them since its start. Calls no store.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use oncegate_core::clock::Timestamp;
use oncegate_core::tenant::AppKey;
use oncegate_telemetry::proxy_routes::{RouteTotals, totals};
use oncegate_web::response::json;
use serde::Serialize;

use super::Admin;

/// A route of the configuration, as operators see it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ProxyRoute {
    /// Its name. The operation of its claims is `proxy:<name>`.
    pub name: String,
    /// The app whose claims they are.
    pub app: AppKey,
    /// Hosts of its requests. Empty: any.
    pub hosts: Vec<String>,
    /// Paths of its requests.
    pub path: String,
    /// Methods that are protected.
    pub methods: Vec<String>,
    /// Name of its upstream.
    pub upstream: String,
}

#[derive(Serialize)]
struct RoutesBody<'a> {
    /// Since when requests are counted: the start of this gateway.
    since: Timestamp,
    routes: Vec<RouteBody<'a>>,
}

#[derive(Serialize)]
struct RouteBody<'a> {
    #[serde(flatten)]
    route: &'a ProxyRoute,
    answers: BTreeMap<String, u64>,
    stored_bytes: u64,
    tombstones: u64,
    upstream_p99_seconds: Option<f64>,
}

/// Answers with the routes, in the order of the configuration.
pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Response {
    let mut found = totals(&admin.metrics.render());
    let routes = admin.proxy.routes.iter();
    let routes = routes.map(|route| body(route, found.remove(&route.name).unwrap_or_default())).collect();
    json(&RoutesBody { since: admin.started.at(), routes })
}

fn body(route: &ProxyRoute, totals: RouteTotals) -> RouteBody<'_> {
    let RouteTotals { answers, stored_bytes, tombstones, upstream_p99_seconds } = totals;
    RouteBody { route, answers, stored_bytes, tombstones, upstream_p99_seconds }
}
