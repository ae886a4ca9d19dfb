//! Middleware of the admin listener. Around every route: rules of the head, request ID, contained panics, problem documents,
//! auth throttle. Around the admin API: a concurrency limit.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use oncegate_core::attempt::Entropy;
use oncegate_core::limits::Limits;
use oncegate_gateway::tenants::auth_throttle::AuthThrottle;
use oncegate_telemetry::metrics::tenants::AuthenticationMetrics;
use oncegate_web::auth_throttle::throttled;
use oncegate_web::head;
use oncegate_web::problem::{Code, Problem, ProblemBase};
use oncegate_web::request_id::RequestId;
use oncegate_web::response::{contain, finish};
use tokio::sync::Semaphore;

use super::console;

/// Limit of concurrent requests to the admin API: a few people and their scripts.
const IN_FLIGHT_MAX: usize = 16;

/// Parameters of the middleware around every route.
pub(super) struct Outer {
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) limits: Limits,
    pub(super) problem_base: ProblemBase,
    /// Rejects hosts that are not loopback.
    pub(super) loopback_only: bool,
    /// The console is served. It checks the hosts of its pages itself.
    pub(super) has_console: bool,
    pub(super) throttle: AuthThrottle,
    pub(super) metrics: AuthenticationMetrics,
}

/// Passes a request on if its head is valid, and finishes its response.
pub(super) async fn outer(State(outer): State<Arc<Outer>>, mut request: Request, next: Next) -> Response {
    let request_id = RequestId::of(request.headers(), &*outer.entropy);
    request.extensions_mut().insert(request_id.clone());
    let is_of_console = outer.has_console && console::has(request.uri().path());
    let mut response = match head::check(&request, &outer.limits, outer.loopback_only && !is_of_console) {
        Ok(()) => contain(next.run(request)).await,
        Err(problem) => problem.into_response(),
    };
    if let Some(problem) = response.extensions_mut().get_mut::<Problem>() {
        problem.tell_reason();
    }
    finish(throttled(&outer.throttle, &outer.metrics, response).await, &request_id, &outer.problem_base)
}

/// Limits the concurrent requests to the admin API. Metrics and health need no permit.
pub(super) async fn limited(State(permits): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    let Ok(_permit) = permits.try_acquire() else {
        let detail = format!("{IN_FLIGHT_MAX} requests to the admin API are in flight; try again after Retry-After.");
        return Problem::new(Code::Overloaded, detail).retry_soon().into_response();
    };
    next.run(request).await
}

/// Returns the permits for concurrent requests.
pub(super) fn permits() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(IN_FLIGHT_MAX))
}
