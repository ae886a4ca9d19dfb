//! Responses: JSON bodies, and the last steps of every response: contained panics, the request's ID, the document of a problem.

use std::panic::AssertUnwindSafe;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt;
use serde::Serialize;

use super::problem::{Code, Problem, ProblemBase};
use super::request_id::{REQUEST_ID, RequestId};

/// The header that names the outage policy behind an answer without the store.
pub const DEGRADED: HeaderName = HeaderName::from_static("oncegate-degraded");

/// Returns a JSON response.
pub fn json<T: Serialize>(body: &T) -> Response {
    written(|text| serde_json::to_writer(text, body))
}

/// Returns the JSON response that `write` writes.
pub fn written(write: impl FnOnce(&mut Vec<u8>) -> serde_json::Result<()>) -> Response {
    // Most responses fit.
    let mut text = Vec::with_capacity(512);
    if write(&mut text).is_err() {
        return Problem::new(Code::Internal, "The answer could not be written; report the request_id.").into_response();
    }
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Turns a panic into the response of its request. Not an `async fn`: that would keep the future twice for each waiting
/// caller.
pub fn contain(answer: impl Future<Output = Response>) -> impl Future<Output = Response> {
    AssertUnwindSafe(answer).catch_unwind().map(|answered| {
        answered.unwrap_or_else(|_| {
            // The panic hook has logged it.
            let detail = "The gateway met a fault of its own; what the request asked for may or may not have happened. \
                          Send it again, and report the request_id.";
            Problem::new(Code::Internal, detail).into_response()
        })
    })
}

/// Adds the ID of the request, and writes the document of a problem.
pub fn finish(mut response: Response, request_id: &RequestId, base: &ProblemBase) -> Response {
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        write(&mut response, &problem, request_id, base);
    }
    response.headers_mut().insert(REQUEST_ID, request_id.0.clone());
    response
}

fn write(response: &mut Response, problem: &Problem, request_id: &RequestId, base: &ProblemBase) {
    // Most problems fit.
    let mut text = Vec::with_capacity(768);
    let written = problem.document(request_id.as_str(), base).write(&mut text);
    *response.body_mut() = written.map_or_else(|_| Body::empty(), |()| Body::from(text));
    let headers = response.headers_mut();
    // The router has set the length of the body that this one replaces.
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if let Some(wait) = problem.retry_after {
        // Whole seconds, rounded up, so that no client retries too early.
        let seconds = u64::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u64::MAX).max(1);
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(degraded) = problem.degraded {
        headers.insert(DEGRADED, HeaderValue::from_static(degraded.name()));
    }
    if problem.code == Code::Unauthenticated {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_becomes_a_500() {
        let answer = contain(async { panic!("planted") }).await;
        let answer = finish(answer, &RequestId(HeaderValue::from_static("r-1")), &ProblemBase::default());
        assert_eq!(answer.status(), 500);
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!(answer.headers()[REQUEST_ID], "r-1");
    }
}
