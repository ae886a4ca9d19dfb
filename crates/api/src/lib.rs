//! The public API: its route table, the pipeline of every request, and one operation per file. `openapi.yaml` is the contract.

mod answer;
mod batch;
mod call;
mod claim;
mod claim_batch;
mod concurrency;
mod events;
mod global_id;
mod inspect;
mod lock_hold;
mod lock_inspect;
mod lock_release;
mod lock_renewal;
mod outcome;
mod outcome_batch;
mod pipeline;
mod rate_limit;
mod renewal;
mod routes;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use oncegate_core::attempt::Entropy;
use oncegate_core::clock::Clock;
use oncegate_core::limits::Limits;
use oncegate_gateway::Gateway;
use oncegate_gateway::tenants::auth_throttle::AuthThrottle;
use oncegate_gateway::tenants::{CachedCredential, Registry};
use oncegate_telemetry::logging::access::AccessLog;
use oncegate_telemetry::metrics::EndpointMetrics;
use oncegate_telemetry::metrics::tenants::AuthenticationMetrics;
use oncegate_telemetry::traces::Traces;
use oncegate_transport::{CallerWatch, ConnectionState, HttpService, Incoming, Rejection};
use oncegate_web::problem::ProblemBase;
use oncegate_web::recent::Recent;
use oncegate_web::rejection;

pub use self::answer::{granted, success};
pub use self::claim::ClaimBody;
pub use self::concurrency::ConcurrencyLimit;

/// Dependencies and settings of the API.
pub struct Api {
    /// The use cases.
    pub gateway: Arc<Gateway>,
    /// The apps and their credentials.
    pub registry: Arc<Registry>,
    /// Delays responses to wrong credentials.
    pub throttle: AuthThrottle,
    /// Limits of requests.
    pub limits: Limits,
    /// Base of the types of problems.
    pub problem_base: ProblemBase,
    /// Rejects hosts that are not loopback while the gateway is open.
    pub loopback_only: bool,
    /// Limit of the requests in flight.
    pub concurrency: ConcurrencyLimit,
    /// Measures durations.
    pub clock: Arc<dyn Clock>,
    /// Source of request IDs.
    pub entropy: Arc<dyn Entropy>,
    /// Counts failed authentications.
    pub authentication: AuthenticationMetrics,
    /// The access log, if there is one.
    pub access: Option<AccessLog>,
    /// Creates the spans of requests.
    pub traces: Traces,
    /// Recent calls.
    pub recent: Arc<Recent>,
}

/// The API as the service of a listener.
#[derive(Clone)]
pub struct ApiService {
    api: Arc<Api>,
    /// By index of the route; the last is of requests without a route.
    metrics: Arc<[EndpointMetrics]>,
}

impl ApiService {
    /// Returns the service of this API.
    pub fn new(api: Api) -> Self {
        let labels = routes::ROUTES.iter().map(|route| route.label).chain([routes::OTHER]);
        Self { api: Arc::new(api), metrics: labels.map(EndpointMetrics::new).collect() }
    }
}

/// State of a connection for the API: the credential that was verified last, and the presence of its caller.
#[derive(Default)]
pub struct ApiConnection {
    credential: CachedCredential,
    caller: CallerWatch,
}

impl ConnectionState for ApiConnection {
    fn account(&self) -> Option<Arc<str>> {
        self.credential.app().map(|app| app.as_ref().into())
    }

    fn caller(&self) -> Option<&CallerWatch> {
        Some(&self.caller)
    }
}

impl HttpService for ApiService {
    type Connection = ApiConnection;

    fn call(
        &self,
        request: Request<Incoming>,
        connection: &Arc<ApiConnection>,
    ) -> impl Future<Output = Response> + Send {
        pipeline::serve(self, request, connection)
    }

    fn reject(&self, rejection: Rejection) -> Response {
        rejection::response(rejection, &self.api.limits, &self.api.problem_base)
    }
}

/// `GET /openapi.yaml`: the contract of this build. Public.
fn document() -> Response {
    let content_type = HeaderValue::from_static("application/yaml");
    ([(header::CONTENT_TYPE, content_type)], include_str!("../../../openapi.yaml")).into_response()
}
