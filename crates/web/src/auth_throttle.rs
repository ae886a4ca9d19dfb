//! Applies the auth throttle, on both listeners: above a rate, a response to a request without a valid credential is delayed
//! and its connection closed. The request holds no permit while it waits, so it delays no other.

use axum::http::{HeaderValue, header};
use axum::response::Response;
use oncegate_gateway::tenants::auth_throttle::{AuthThrottle, Penalty};
use oncegate_telemetry::metrics::tenants::AuthenticationMetrics;

use super::problem::{Code, Problem};

/// Marks the response to a wrong credential that has no problem document.
#[derive(Clone, Copy, Debug)]
pub struct Failed;

/// Passes a response on. Delays it if it is one authentication failure of too many.
pub async fn throttled(throttle: &AuthThrottle, metrics: &AuthenticationMetrics, mut response: Response) -> Response {
    let parts = response.extensions();
    let is_unauthenticated = parts.get::<Problem>().is_some_and(|problem| problem.code == Code::Unauthenticated);
    if !is_unauthenticated && parts.get::<Failed>().is_none() {
        return response;
    }
    let penalty = throttle.failed();
    metrics.failed(!matches!(penalty, Penalty::None));
    match penalty {
        Penalty::None => return response,
        Penalty::Delay(delay, _place) => tokio::time::sleep(delay).await,
        Penalty::Close => {}
    }
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
