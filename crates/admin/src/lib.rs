//! The admin listener: metrics and health for every client that reaches it, and the admin API for operators with a token.

mod apps;
mod attention;
mod audit;
mod auth;
mod backup;
pub mod bodies;
mod chains;
mod claims;
mod config;
mod console;
mod engines;
mod gateways;
mod health;
mod history;
mod locks;
mod middleware;
mod operations;
mod proxy_keys;
mod proxy_routes;
mod query;
mod recent;
mod reloads;
mod role;
mod routes;
mod spool;
mod summary;
mod suspects;
mod unknowns;
mod waiting;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use oncegate_core::attempt::{Attempt, Entropy};
use oncegate_core::clock::Clock;
use oncegate_core::global_id::GlobalId;
use oncegate_core::limits::Limits;
use oncegate_gateway::Gateway;
use oncegate_gateway::tenants::Registry;
use oncegate_gateway::tenants::auth_throttle::AuthThrottle;
use oncegate_gateway::tenants::stored::Catalog;
use oncegate_outage::OutageJournal;
use oncegate_telemetry::history::History;
use oncegate_telemetry::metrics::Metrics;
use oncegate_telemetry::metrics::tenants::AuthenticationMetrics;
use oncegate_transport::{HttpService, Incoming, Rejection};
use oncegate_web::body::HasLimits;
use oncegate_web::problem::{Code, Problem, ProblemBase};
use oncegate_web::recent::Recent;
use oncegate_web::{nothing, rejection};
use tower::Service;

pub use self::audit::Audit;
pub use self::auth::{Token, Tokens};
pub use self::chains::automatic::AutomaticSwitches;
pub use self::console::{ConsoleOptions, ConsoleSettings};
pub use self::gateways::keep as keep_gateways;
pub use self::health::{Lifecycle, Stage};
use self::middleware::Outer;
pub use self::proxy_keys::ShownProxy;
pub use self::proxy_routes::ProxyRoute;
pub use self::reloads::{Reloads, Setting};
pub use self::role::{Role, TokenOptions};
pub use self::summary::Started;

/// Dependencies and settings of the admin listener.
pub struct Admin {
    /// The use cases.
    pub gateway: Arc<Gateway>,
    /// The apps.
    pub registry: Arc<Registry>,
    /// Rates and latencies of the last weeks.
    pub history: Arc<History>,
    /// Recent calls.
    pub recent: Arc<Recent>,
    /// The metrics of this process.
    pub metrics: Arc<Metrics>,
    /// The stage of the process: starting, ready or draining.
    pub lifecycle: Arc<Lifecycle>,
    /// The start of the process.
    pub started: Started,
    /// The last reload of the configuration.
    pub reloads: Arc<Reloads>,
    /// Source of request IDs.
    pub entropy: Arc<dyn Entropy>,
    /// Clock of the auth throttle.
    pub clock: Arc<dyn Clock>,
    /// Rejects hosts that are not loopback.
    pub loopback_only: bool,
    /// Limits of requests.
    pub limits: Limits,
    /// Base of the types of problems.
    pub problem_base: ProblemBase,
    /// Tokens of the admin API.
    pub tokens: Arc<Tokens>,
    /// Changes apps.
    pub apps: Arc<dyn Catalog>,
    /// Entries that wait for unavailable stores, and operations that may have been executed twice.
    pub journal: Arc<OutageJournal>,
    /// Returns what is left of a stored response of the proxy that is erased.
    pub erase: Box<EraseResponse>,
    /// The proxy.
    pub proxy: ShownProxy,
    /// Executes changes and records them.
    pub audit: Arc<Audit>,
    /// Settings of the console.
    pub console: ConsoleSettings,
}

/// Returns what is left of the stored response of a claim and an attempt once it is erased.
pub type EraseResponse = dyn Fn(&str, GlobalId, &Attempt) -> Box<str> + Send + Sync;

/// The admin listener's service.
#[derive(Clone)]
pub struct AdminService {
    router: Router,
    limits: Arc<Limits>,
    problem_base: ProblemBase,
}

impl AdminService {
    /// Returns the service with all admin routes.
    pub fn new(admin: Arc<Admin>) -> Self {
        Self { limits: Arc::new(admin.limits.clone()), problem_base: admin.problem_base.clone(), router: router(admin) }
    }
}

impl HttpService for AdminService {
    type Connection = ();

    // A backup is longer than memory.
    const STREAMS: bool = true;

    async fn call(&self, request: Request<Incoming>, _connection: &Arc<()>) -> Response {
        let Ok(response) = self.router.clone().call(request.map(Body::new)).await;
        response
    }

    fn reject(&self, rejection: Rejection) -> Response {
        rejection::response(rejection, &self.limits, &self.problem_base)
    }
}

/// Returns the admin routes.
fn router(admin: Arc<Admin>) -> Router {
    let outer = Arc::new(Outer {
        entropy: admin.entropy.clone(),
        limits: admin.limits.clone(),
        problem_base: admin.problem_base.clone(),
        loopback_only: admin.loopback_only,
        has_console: admin.console.options.enabled,
        throttle: AuthThrottle::new(admin.clock.clone(), "Admin API calls without a valid token"),
        metrics: AuthenticationMetrics::default(),
    });
    let console = console::router(&admin, routes::router());
    let api = routes::router()
        .route_layer(from_fn_with_state(admin.tokens.clone(), auth::authenticate))
        .layer(from_fn_with_state(middleware::permits(), middleware::limited));
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/openapi.yaml", get(document))
        .merge(api)
        .merge(console)
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(outer, middleware::outer))
        .with_state(admin)
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, content_type)], admin.metrics.render()).into_response()
}

/// `GET /openapi.yaml`: the contract of this listener. Public.
async fn document() -> Response {
    let content_type = HeaderValue::from_static("application/yaml");
    ([(header::CONTENT_TYPE, content_type)], include_str!("../../../openapi-admin.yaml")).into_response()
}

async fn nothing_here(uri: Uri) -> Problem {
    const PUBLIC: [&str; 4] = ["/metrics", "/livez", "/readyz", "/openapi.yaml"];
    let is_path = |path: &str| path.starts_with("/admin/v1/") || PUBLIC.contains(&path);
    let templates = PUBLIC.iter().chain(routes::paths()).copied();
    let hint = nothing::hint(uri.path(), "", &nothing::API, is_path, templates);
    Problem::new(
        Code::NotFound,
        format!("There is nothing at this path; {hint}GET /openapi.yaml for the paths of the admin listener."),
    )
}

async fn wrong_method() -> Problem {
    Problem::new(Code::MethodNotAllowed, "This path does not take this method; the header Allow says which it takes.")
}

impl HasLimits for Admin {
    fn limits(&self) -> &Limits {
        &self.limits
    }
}
