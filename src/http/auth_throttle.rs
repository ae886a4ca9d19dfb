//! Slows down guesses, on both listeners: beyond a rate, the answer to a caller without a valid credential is delayed, and its
//! connection closed. It takes part in no concurrency limit meanwhile, so it delays nobody else.

use axum::http::{HeaderValue, header};
use axum::response::Response;

use super::problem::{Code, Problem};
use crate::telemetry::metrics::tenants::AuthenticationMetrics;
use crate::tenants::throttle::{Throttle, Verdict};

/// Passes an answer on; late, if it is one failure of too many.
pub async fn throttled(throttle: &Throttle, metrics: &AuthenticationMetrics, mut response: Response) -> Response {
    let failed = response.extensions().get::<Problem>().is_some_and(|problem| problem.code == Code::Unauthenticated);
    if !failed {
        return response;
    }
    let verdict = throttle.failed();
    metrics.failed(!matches!(verdict, Verdict::Answer));
    match verdict {
        Verdict::Answer => return response,
        Verdict::Delay(delay, _place) => tokio::time::sleep(delay).await,
        Verdict::Close => {}
    }
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
