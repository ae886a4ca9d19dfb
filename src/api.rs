//! The API: its router and state, one operation a file, and the floor they stand on. `openapi.yaml` is the contract.

pub mod answer;
pub mod batch;
pub mod claim;
pub mod claim_batch;
pub mod extract;
pub mod global_id;
pub mod inspect;
pub mod outcome;
pub mod outcome_batch;
mod pipeline;
pub mod places;
mod rate_limit;
pub mod renewal;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use tower::Service;

use self::extract::{ClaimId, Visit};
use self::places::Places;
use crate::domain::attempt::Entropy;
use crate::domain::clock::Clock;
use crate::domain::limits::Limits;
use crate::gateway::Gateway;
use crate::telemetry::logging::access::AccessLog;
use crate::telemetry::metrics::tenants::AuthenticationMetrics;
use crate::telemetry::metrics::{Endpoint, HttpMetrics};
use crate::telemetry::traces::Traces;
use crate::tenants::auth_throttle::AuthThrottle;
use crate::tenants::{CachedCredential, Registry};
use crate::transport::{ConnectionState, HttpService, Incoming, Rejection};
use crate::web;
use crate::web::problem::{Code, Problem};
use crate::web::request_id::RequestId;
use crate::web::response::{DEGRADED, written};

/// What the handlers work with.
pub struct Api {
    /// The use cases.
    pub gateway: Arc<Gateway>,
    /// Who may call.
    pub registry: Arc<Registry>,
    /// How often callers have proved nothing.
    pub throttle: AuthThrottle,
    /// The bounds of requests.
    pub limits: Limits,
    /// Answers only to hosts that are loopback, as long as it is open.
    pub loopback_only: bool,
    /// Places for requests in flight.
    pub places: Places,
    /// Measures requests.
    pub clock: Arc<dyn Clock>,
    /// Names requests.
    pub entropy: Arc<dyn Entropy>,
    /// Where the measures go.
    pub metrics: HttpMetrics,
    /// Counts failed authentications.
    pub authentication: AuthenticationMetrics,
    /// Where each answer is a line, if it is to be one.
    pub access: Option<AccessLog>,
    /// Where spans of requests go.
    pub traces: Traces,
}

/// The API as its listener calls it.
#[derive(Clone)]
pub struct Front {
    api: Arc<Api>,
    router: Router,
}

/// What the API remembers of a connection: the credential that was verified last.
#[derive(Default)]
pub struct Connection {
    credential: CachedCredential,
}

impl ConnectionState for Connection {
    fn account(&self) -> Option<Arc<str>> {
        self.credential.app().map(|app| app.as_ref().into())
    }
}

impl HttpService for Front {
    type Connection = Connection;

    fn call(&self, request: Request<Incoming>, connection: &Arc<Connection>) -> impl Future<Output = Response> + Send {
        pipeline::edge(self, request, connection)
    }

    fn reject(&self, rejection: Rejection) -> Response {
        web::rejection::response(rejection, &self.api.limits)
    }
}

impl Front {
    /// The API over these.
    pub fn new(api: Arc<Api>) -> Self {
        let router = Router::new()
            .route("/v1/claims", post(claim_by_route))
            .route("/v1/claims/batch", post(claim_batch::claim_batch))
            .route("/v1/claims/{global_id}", get(inspect::inspect))
            .route("/v1/claims/{global_id}/outcome", post(outcome_by_route))
            .route("/v1/claims/{global_id}/renewal", post(renewal::renewal))
            .route("/v1/outcomes/batch", post(outcome_batch::outcome_batch))
            .route("/v1/global-ids", post(global_id::global_id))
            .route("/openapi.yaml", get(document))
            .fallback(nothing_here)
            .method_not_allowed_fallback(wrong_method)
            .with_state(api.clone());
        Self { api, router }
    }

    /// Finds who answers. The two calls that every operation makes are answered without the router's boxes and copies, which
    /// would cost as much as deciding about them does.
    async fn route(
        &self,
        endpoint: Endpoint,
        request: Request<Incoming>,
        request_id: &RequestId,
        visit: &Visit,
    ) -> Response {
        let is_post = request.method() == Method::POST;
        let answered = match endpoint {
            Endpoint::Claim if is_post => claim::claim(&self.api, visit, request).await,
            Endpoint::Outcome if is_post && let Some(claim) = ClaimId::of_path(request.uri().path()) => {
                outcome::outcome(&self.api, visit, Ok(claim), request).await
            }
            _ => {
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(request_id.clone());
                request.extensions_mut().insert(visit.clone());
                let Ok(answer) = self.router.clone().call(request).await;
                return answer;
            }
        };
        answered.unwrap_or_else(IntoResponse::into_response)
    }
}

async fn claim_by_route(
    State(api): State<Arc<Api>>,
    Extension(visit): Extension<Visit>,
    request: Request,
) -> Result<Response, Problem> {
    claim::claim(&api, &visit, request).await
}

async fn outcome_by_route(
    State(api): State<Arc<Api>>,
    Extension(visit): Extension<Visit>,
    claim: Result<ClaimId, Problem>,
    request: Request,
) -> Result<Response, Problem> {
    outcome::outcome(&api, &visit, claim, request).await
}

/// `GET /openapi.yaml`: what this build serves. Public, so it needs no credential.
async fn document() -> Response {
    let content_type = HeaderValue::from_static("application/yaml");
    ([(header::CONTENT_TYPE, content_type)], include_str!("../openapi.yaml")).into_response()
}

async fn nothing_here() -> Problem {
    Problem::new(Code::NotFound, "There is nothing at this path; GET /openapi.yaml for the paths of the API.")
}

async fn wrong_method() -> Problem {
    Problem::new(Code::MethodNotAllowed, "This path does not take this method; the header Allow says which it takes.")
}

/// A success: its status, its body, and the policy that answers in place of the store, if one does.
pub fn success<Body: answer::Success>(body: &Body) -> Response {
    let mut response = written(|text| body.write(text));
    if response.status().is_success() {
        *response.status_mut() = body.status();
    }
    if let Some(degraded) = body.degraded() {
        response.headers_mut().insert(DEGRADED, HeaderValue::from_static(degraded.name()));
    }
    response
}
