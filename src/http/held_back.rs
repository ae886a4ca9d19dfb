//! What becomes of the answer to a caller that proved nothing: past a rate it is held back for a while, and its
//! connection closed. It holds no place among the requests in flight meanwhile, so nobody else waits for it.

use axum::http::{HeaderValue, header};
use axum::response::Response;

use super::Api;
use super::problem::{Code, Problem};
use crate::tenants::throttle::Verdict;

/// Passes an answer on; late, if it is one of too many failures.
pub(super) async fn held_back(api: &Api, mut response: Response) -> Response {
    let failed = response.extensions().get::<Problem>().is_some_and(|problem| problem.code == Code::Unauthenticated);
    if !failed {
        return response;
    }
    match api.throttle.failed() {
        Verdict::Answer => {
            api.metrics.authentication_failed(false);
            return response;
        }
        Verdict::Delay(delay, _place) => {
            api.metrics.authentication_failed(true);
            tokio::time::sleep(delay).await;
        }
        Verdict::Close => api.metrics.authentication_failed(true),
    }
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
