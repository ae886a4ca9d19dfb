//! What every request meets before and after its handler: a place among those in flight, an ID, bounds on its head, a
//! contained panic, the problem document, a metric.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::response::Response;
use futures_util::FutureExt;

use super::auth_throttle::throttled;
use super::extract::Visit;
use super::incoming::Incoming;
use super::places::Place;
use super::problem::{Code, Members, Problem};
use super::{Api, DEGRADED, Front, head, rate_limit};
use crate::domain::attempt::Entropy;
use crate::domain::hex;
use crate::telemetry::logging::access::AccessLine;
use crate::telemetry::metrics::Endpoint;
use crate::telemetry::traces::{self, TracedRequest};
use crate::tenants::CachedCredential;
use crate::tenants::quota::Purpose;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The name of a request, in its answer and in the logs: the caller's own, or a random one.
#[derive(Clone, Debug)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// The text.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or("")
    }

    /// Takes the caller's own ID, or draws one.
    pub fn of(headers: &HeaderMap, entropy: &dyn Entropy) -> Self {
        let usable = |value: &&HeaderValue| {
            let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
            (1..=64).contains(&value.len()) && value.as_bytes().iter().all(allowed)
        };
        let own = headers.get(REQUEST_ID).filter(usable).cloned();
        Self(own.unwrap_or_else(|| {
            let text = &mut [0; 16];
            hex::write(&entropy.bits().to_be_bytes(), text);
            HeaderValue::from_bytes(text).unwrap_or(HeaderValue::from_static(""))
        }))
    }
}

/// Stands around the whole API. `cached` is what the connection's requests have proved so far.
pub(super) async fn edge(front: &Front, request: Request<Incoming>, cached: &Arc<CachedCredential>) -> Response {
    let api = &*front.api;
    let begun = api.clock.monotonic();
    let request_id = RequestId::of(request.headers(), &*api.entropy);
    let endpoint = endpoint(request.uri().path());
    let method = request.method().clone();
    let visit = Visit::at(endpoint, cached.clone());
    let traced = || TracedRequest {
        headers: request.headers(),
        method: known(&method),
        route: route(endpoint),
        id: request_id.as_str(),
    };
    let span = api.traces.request(traced, || api.entropy.bits());
    let response = match admit(api, visit.purpose(), &request) {
        // The place is kept until the answer's head is known; its body is in memory by then.
        Ok(_place) => traces::in_span!(span, contain(front.route(endpoint, request, &request_id, &visit))),
        Err(problem) => axum::response::IntoResponse::into_response(problem),
    };
    let response = with_quotas(response, &visit, api);
    let response = finish(throttled(&api.throttle, &api.authentication, response).await, &request_id);
    let status = response.status().as_u16();
    let took = api.clock.monotonic().saturating_sub(begun);
    let is_shown = !span.is_none() || api.access.is_some();
    let app = visit.app().filter(|_| is_shown).cloned();
    // The answer is known: the app's place is free.
    drop(visit);
    api.metrics.answered(endpoint, status, took);
    if !span.is_none() {
        span.record("http.response.status_code", status);
        app.as_ref().map(|app| span.record("oncegate.app", app.key.as_ref()));
        if status >= 500 {
            span.record("otel.status_code", "ERROR");
        }
    }
    if let Some(access) = &api.access {
        access.write(&AccessLine {
            timestamp: api.clock.wall().to_string(),
            method: known(&method),
            route: route(endpoint),
            status,
            app: app.as_ref().map(|app| app.key.as_ref()),
            duration_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            request_id: request_id.as_str(),
        });
    }
    tracing::debug!(
        http.method = %method, http.status = status, request.id = request_id.as_str(), took_us = took.as_micros(), "answered"
    );
    response
}

/// Lets a request in, if there is room and its head keeps the rules.
fn admit<'a>(api: &'a Api, purpose: Purpose, request: &Request<Incoming>) -> Result<Place<'a>, Problem> {
    let Some(place) = api.places.take(purpose) else {
        let detail = "The gateway has as many requests in flight as it may have; try again after Retry-After.";
        return Err(Problem::new(Code::Overloaded, detail).retry_after(Duration::from_secs(1)));
    };
    head::check(request, &api.limits, api.loopback_only && api.registry.is_open())?;
    Ok(place)
}

/// Turns a panic into the answer of the request that it happened in.
pub async fn contain(answer: impl Future<Output = Response>) -> Response {
    AssertUnwindSafe(answer).catch_unwind().await.unwrap_or_else(|_| {
        // The panic hook has logged what happened, and where.
        let detail = "The gateway met a fault of its own; what the request asked for may or may not have happened. Send it \
                      again, and report the request_id.";
        axum::response::IntoResponse::into_response(Problem::new(Code::Internal, detail))
    })
}

/// Tells an app on its answers what it has left.
fn with_quotas(mut response: Response, visit: &Visit, api: &Api) -> Response {
    if let Some(app) = visit.app() {
        let exceeded = match response.extensions().get() {
            Some(Problem { members: Members::QuotaExceeded { quota }, .. }) => Some(*quota),
            _ => None,
        };
        rate_limit::tell(response.headers_mut(), app, exceeded, || api.clock.monotonic());
    }
    response
}

/// Names the answer after its request, and writes the document of a problem.
pub fn finish(mut response: Response, request_id: &RequestId) -> Response {
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        write(&mut response, &problem, request_id);
    }
    response.headers_mut().insert(REQUEST_ID, request_id.0.clone());
    response
}

fn write(response: &mut Response, problem: &Problem, request_id: &RequestId) {
    let document = problem.document(request_id.as_str());
    *response.body_mut() = serde_json::to_vec(&document).map_or_else(|_| Body::empty(), Body::from);
    let headers = response.headers_mut();
    // The router has told the length of the body that this one takes the place of.
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if let Some(wait) = problem.retry_after {
        // Whole seconds, rounded up, so that nobody comes too early.
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

/// A method as it is shown to operators: callers may invent others, of any length.
fn known(method: &Method) -> &str {
    const KNOWN: [Method; 7] =
        [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::HEAD, Method::OPTIONS];
    if KNOWN.contains(method) { method.as_str() } else { "_OTHER" }
}

/// The route of an endpoint, for traces and the access log.
const fn route(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Claim => "/v1/claims",
        Endpoint::ClaimBatch => "/v1/claims/batch",
        Endpoint::Inspect => "/v1/claims/{global_id}",
        Endpoint::Outcome => "/v1/claims/{global_id}/outcome",
        Endpoint::Renewal => "/v1/claims/{global_id}/renewal",
        Endpoint::OutcomeBatch => "/v1/outcomes/batch",
        Endpoint::GlobalId => "/v1/global-ids",
        Endpoint::Other => "other",
    }
}

/// What a path is called in metrics: as the router would match it.
fn endpoint(path: &str) -> Endpoint {
    let Some(rest) = path.strip_prefix("/v1/claims") else {
        return match path {
            "/v1/outcomes/batch" => Endpoint::OutcomeBatch,
            "/v1/global-ids" => Endpoint::GlobalId,
            _ => Endpoint::Other,
        };
    };
    let mut segments = rest.split('/');
    match (segments.next(), segments.next(), segments.next(), segments.next()) {
        (Some(""), None, None, None) => Endpoint::Claim,
        (Some(""), Some("batch"), None, None) => Endpoint::ClaimBatch,
        (Some(""), Some(id), None, None) if !id.is_empty() => Endpoint::Inspect,
        (Some(""), Some(id), Some("outcome"), None) if !id.is_empty() => Endpoint::Outcome,
        (Some(""), Some(id), Some("renewal"), None) if !id.is_empty() => Endpoint::Renewal,
        _ => Endpoint::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        let answer = contain(async { panic!("planted") }).await;
        let answer = finish(answer, &RequestId(HeaderValue::from_static("r-1")));
        assert_eq!(answer.status(), 500);
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!(answer.headers()[REQUEST_ID], "r-1");
    }

    #[test]
    fn paths_are_called_what_the_router_matches() {
        let of_paths = [
            ("/v1/claims", Endpoint::Claim),
            ("/v1/claims/batch", Endpoint::ClaimBatch),
            ("/v1/claims/x", Endpoint::Inspect),
            ("/v1/claims/x/outcome", Endpoint::Outcome),
            ("/v1/claims/x/renewal", Endpoint::Renewal),
            ("/v1/outcomes/batch", Endpoint::OutcomeBatch),
            ("/v1/global-ids", Endpoint::GlobalId),
        ];
        for (path, named) in of_paths {
            assert_eq!(endpoint(path) as usize, named as usize, "{path}");
            for other in [format!("{path}/"), format!("{path}x/y"), format!("/{path}")] {
                assert_eq!(endpoint(&other) as usize, Endpoint::Other as usize, "{other}");
            }
        }
        for other in ["", "/", "/v1/claims//outcome", "/v1/claimsx", "/v1/claims/x/outcomes", "/v1/claims/x/outcome/y"]
        {
            assert_eq!(endpoint(other) as usize, Endpoint::Other as usize, "{other}");
        }
    }
}
