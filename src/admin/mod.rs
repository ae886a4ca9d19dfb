//! The admin listener: metrics and health, on a router of its own.

pub mod health;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use self::health::Lifecycle;
use crate::domain::attempt::Entropy;
use crate::gateway::Gateway;
use crate::http::edge;
use crate::http::problem::{Code, Problem};
use crate::telemetry::metrics::Metrics;

/// What the admin handlers work with.
pub struct Admin {
    /// Asked how its engines are.
    pub gateway: Arc<Gateway>,
    /// What has been measured.
    pub metrics: Arc<Metrics>,
    /// Whether the gateway is starting, ready or draining.
    pub lifecycle: Arc<Lifecycle>,
    /// Names requests.
    pub entropy: Arc<dyn Entropy>,
}

/// The admin routes.
pub fn router(admin: Arc<Admin>) -> Router {
    let entropy = admin.entropy.clone();
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn(move |request: Request, next: Next| edge::plain(entropy.clone(), request, next)))
        .with_state(admin)
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, content_type)], admin.metrics.render()).into_response()
}

async fn nothing_here() -> Problem {
    Problem::new(Code::NotFound, "There is nothing at this path; here are /metrics, /livez and /readyz.")
}

async fn wrong_method() -> Problem {
    Problem::new(Code::MethodNotAllowed, "This path takes GET only.")
}
