//! What every request meets before and after its handler: a place among those in flight, an ID, bounds on its head, a
//! contained panic, the problem document, a metric.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::Method;
use axum::response::Response;

use super::extract::Visit;
use super::places::Place;
use super::{Api, Connection, Front, rate_limit};
use crate::telemetry::logging::access::AccessLine;
use crate::telemetry::metrics::Endpoint;
use crate::telemetry::traces::{self, TracedRequest};
use crate::tenants::quota::Purpose;
use crate::transport::Incoming;
use crate::web::auth_throttle::throttled;
use crate::web::head;
use crate::web::problem::{Code, Members, Problem};
use crate::web::request_id::RequestId;
use crate::web::response::{contain, finish};

/// Stands around the whole API.
pub(super) async fn edge(front: &Front, request: Request<Incoming>, connection: &Arc<Connection>) -> Response {
    let api = &*front.api;
    let begun = api.clock.monotonic();
    let request_id = RequestId::of(request.headers(), &*api.entropy);
    let endpoint = endpoint(request.uri().path());
    let method = request.method().clone();
    let visit = Visit::at(endpoint, connection.clone());
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
