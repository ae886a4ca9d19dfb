//! Slows down guesses, on both listeners: beyond a rate, the answer to a caller without a valid credential is delayed, and its
//! connection closed. It takes part in no concurrency limit meanwhile, so it delays nobody else.

use axum::http::{HeaderValue, header};
use axum::response::Response;

use super::problem::{Code, Problem};
use crate::telemetry::metrics::tenants::AuthenticationMetrics;
use crate::tenants::auth_throttle::{AuthThrottle, Penalty};

/// Passes an answer on; late, if it is one failure of too many.
pub async fn throttled(throttle: &AuthThrottle, metrics: &AuthenticationMetrics, mut response: Response) -> Response {
    let failed = response.extensions().get::<Problem>().is_some_and(|problem| problem.code == Code::Unauthenticated);
    if !failed {
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
