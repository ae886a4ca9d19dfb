//! The API: its router and state, one operation a file, and the floor they stand on. `openapi.yaml` is the contract.

pub mod answer;
pub mod auth_throttle;
pub mod batch;
pub mod body;
pub mod choice;
pub mod claim;
pub mod claim_batch;
pub mod connection;
pub mod edge;
mod explain;
pub mod extract;
pub mod global_id;
pub mod head;
pub mod incoming;
pub mod inspect;
pub mod listener;
pub mod outcome;
pub mod outcome_batch;
pub mod places;
mod plain;
pub mod problem;
mod rate_limit;
mod refusals;
pub mod renewal;
pub mod tls;
mod unread;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::Serialize;
use tower::Service;

use self::edge::RequestId;
use self::extract::{ClaimId, Visit};
use self::incoming::Incoming;
use self::listener::Answers;
use self::places::Places;
use self::problem::{Code, Problem};
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

/// The header that says which policy answers in place of the store.
const DEGRADED: HeaderName = HeaderName::from_static("oncegate-degraded");

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

impl Answers for Front {
    fn answer(
        &self,
        request: Request<Incoming>,
        cached: &Arc<CachedCredential>,
    ) -> impl Future<Output = Response> + Send {
        edge::edge(self, request, cached)
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
    ([(header::CONTENT_TYPE, content_type)], include_str!("../../openapi.yaml")).into_response()
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

/// A body in JSON.
pub fn json<T: Serialize>(body: &T) -> Response {
    written(|text| serde_json::to_writer(text, body))
}

fn written(write: impl FnOnce(&mut Vec<u8>) -> serde_json::Result<()>) -> Response {
    // Most answers fit.
    let mut text = Vec::with_capacity(512);
    if write(&mut text).is_err() {
        return Problem::new(Code::Internal, "The answer could not be written; report the request_id.").into_response();
    }
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
