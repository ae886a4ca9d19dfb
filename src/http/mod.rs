//! The API: its router and state, one operation a file, and the floor they stand on. `openapi.yaml` is the contract.

pub mod answer;
pub mod batch;
pub mod body;
pub mod claim;
pub mod claim_batch;
pub mod edge;
pub mod extract;
pub mod global_id;
pub mod guard;
mod held_back;
pub mod inspect;
pub mod listener;
pub mod outcome;
pub mod outcome_batch;
pub mod places;
pub mod problem;
mod rate_limit;
pub mod renewal;
pub mod tls;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;

use self::places::Places;
use self::problem::{Code, Problem};
use crate::domain::attempt::Entropy;
use crate::domain::clock::Clock;
use crate::domain::limits::Limits;
use crate::gateway::Gateway;
use crate::telemetry::metrics::{Endpoint, HttpMetrics};
use crate::tenants::Registry;
use crate::tenants::throttle::Throttle;

/// The header that says which policy answers in place of the store.
const DEGRADED: HeaderName = HeaderName::from_static("oncegate-degraded");

/// What the handlers work with.
pub struct Api {
    /// The use cases.
    pub gateway: Arc<Gateway>,
    /// Who may call.
    pub registry: Arc<Registry>,
    /// How often callers have proved nothing.
    pub throttle: Throttle,
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
}

/// Every path of the API, and what it is called in metrics.
const PATHS: [(&str, Endpoint); 7] = [
    ("/v1/claims", Endpoint::Claim),
    ("/v1/claims/batch", Endpoint::ClaimBatch),
    ("/v1/claims/{global_id}/outcome", Endpoint::Outcome),
    ("/v1/claims/{global_id}/renewal", Endpoint::Renewal),
    ("/v1/claims/{global_id}", Endpoint::Inspect),
    ("/v1/outcomes/batch", Endpoint::OutcomeBatch),
    ("/v1/global-ids", Endpoint::GlobalId),
];

/// The API's routes.
pub fn router(api: Arc<Api>) -> Router {
    let around = api.clone();
    Router::new()
        .route("/v1/claims", post(claim::claim))
        .route("/v1/claims/batch", post(claim_batch::claim_batch))
        .route("/v1/claims/{global_id}", get(inspect::inspect))
        .route("/v1/claims/{global_id}/outcome", post(outcome::outcome))
        .route("/v1/claims/{global_id}/renewal", post(renewal::renewal))
        .route("/v1/outcomes/batch", post(outcome_batch::outcome_batch))
        .route("/v1/global-ids", post(global_id::global_id))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn(move |request: Request, next: Next| edge::edge(around.clone(), request, next)))
        .with_state(api)
}

async fn nothing_here() -> Problem {
    Problem::new(Code::NotFound, "There is nothing at this path; see openapi.yaml for the paths of the API.")
}

async fn wrong_method() -> Problem {
    Problem::new(Code::MethodNotAllowed, "This path does not take this method; the header Allow says which it takes.")
}

/// A success: its status, its body, and the policy that answers in place of the store, if one does.
pub fn success<Body: answer::Success>(body: &Body) -> Response {
    let mut response = json(body);
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
    match serde_json::to_vec(body) {
        Ok(text) => {
            let content_type = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
            (content_type, text).into_response()
        }
        Err(_) => {
            Problem::new(Code::Internal, "The answer could not be written; report the request_id.").into_response()
        }
    }
}
