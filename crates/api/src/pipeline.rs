//! The pipeline of every request: permit and head, route, authentication, permit of the app, charge, body, handler. The way
//! back: rate limits, auth throttle, problem document, metrics, trace, access log.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use oncegate_core::clock::micros;
use oncegate_gateway::tenants::App;
use oncegate_gateway::tenants::quota::Purpose;
use oncegate_telemetry::logging::access::AccessLine;
use oncegate_telemetry::traces::{self, TracedRequest};
use oncegate_transport::Incoming;
use oncegate_web::auth_throttle::throttled;
use oncegate_web::body::JsonBytes;
use oncegate_web::head;
use oncegate_web::problem::{Code, Members, Problem};
use oncegate_web::request_id::RequestId;
use oncegate_web::response::{contain, finish};
use tracing::Span;

use super::answer;
use super::batch::Items;
use super::call::{ApiCall, Waiting, authenticate};
use super::concurrency::{Held, Permit};
use super::events::note_call;
use super::routes::{Handler, OTHER, Operation, ROUTES, Route, Routing};
use super::{Api, ApiConnection, ApiService, rate_limit};

/// Knowledge about a request while it is served.
struct RequestContext {
    id: RequestId,
    method: Method,
    routing: Routing,
    /// Set once the request is authenticated.
    app: Option<Arc<App>>,
}

impl RequestContext {
    fn purpose(&self) -> Purpose {
        self.routing.route().map_or(Purpose::New, |route| route.purpose)
    }

    /// Returns the route for traces and the access log.
    fn route(&self) -> &'static str {
        self.routing.route().map_or(OTHER, |route| route.path)
    }

    /// Returns the method for operators. Callers may invent methods of any length.
    fn method(&self) -> &str {
        const KNOWN: [Method; 7] =
            [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::HEAD, Method::OPTIONS];
        if KNOWN.contains(&self.method) { self.method.as_str() } else { "_OTHER" }
    }
}

pub(super) async fn serve(
    service: &ApiService,
    mut request: Request<Incoming>,
    connection: &ApiConnection,
) -> Response {
    let api = &*service.api;
    let started_at = api.clock.monotonic();
    let mut context = RequestContext {
        id: RequestId::of(request.headers(), &*api.entropy),
        method: request.method().clone(),
        routing: Routing::of(request.method(), request.uri().path()),
        app: None,
    };
    let traced = || TracedRequest {
        headers: request.headers(),
        method: context.method(),
        route: context.route(),
        id: context.id.as_str(),
    };
    let span = api.traces.request(traced, || api.entropy.bits());
    let response = match admit(api, context.purpose(), &request) {
        // The permit is held until the head of the response is known, unless the call waits. Its body is in memory by then.
        Ok(permit) => {
            let permit = Held::new(permit);
            let release = || permit.release();
            traces::in_span!(span, contain(respond(api, &mut request, connection, &mut context, &release)))
        }
        Err(problem) => problem.into_response(),
    };
    let response = with_rate_limits(response, &context, api);
    note(api, &context, request.uri().path(), &response);
    let response =
        finish(throttled(&api.throttle, &api.authentication, response).await, &context.id, &api.problem_base);
    let took = api.clock.monotonic().saturating_sub(started_at);
    service.metrics[context.routing.index()].answered(response.status().as_u16(), took);
    record(api, &context, &span, response.status().as_u16(), took);
    response
}

/// Takes a permit for a request, and checks its head.
fn admit<'a>(api: &'a Api, purpose: Purpose, request: &Request<Incoming>) -> Result<Permit<'a>, Problem> {
    let Some(permit) = api.concurrency.acquire(purpose) else {
        let detail = "The gateway has as many requests in flight as it may have; try again after Retry-After.";
        return Err(Problem::new(Code::Overloaded, detail).retry_soon());
    };
    head::check(request, &api.limits, api.loopback_only && api.registry.is_open())?;
    Ok(permit)
}

/// Returns the response of the operation, or the problem that prevents it.
async fn respond(
    api: &Api,
    request: &mut Request<Incoming>,
    connection: &ApiConnection,
    context: &mut RequestContext,
    release: &(dyn Fn() + Sync),
) -> Response {
    let Routing::Found(index) = context.routing else {
        return context.routing.rejection(request.method(), request.uri().path());
    };
    let route = &ROUTES[index];
    let handled = match &route.handler {
        Handler::Public(handler) => return handler(),
        Handler::Authenticated(operation) => {
            operate(api, route, operation, request, connection, context, release).await
        }
    };
    handled.unwrap_or_else(Problem::into_response)
}

/// Authenticates a request, takes one of the app's permits, charges the app, reads the body, and calls the operation.
async fn operate(
    api: &Api,
    route: &'static Route,
    operation: &Operation,
    request: &mut Request<Incoming>,
    connection: &ApiConnection,
    context: &mut RequestContext,
    release: &(dyn Fn() + Sync),
) -> Result<Response, Problem> {
    // Taken out of the request, so that waiting callers keep it in one place only.
    let body = std::mem::replace(request.body_mut(), Incoming::Whole(Bytes::new()));
    let request = &*request;
    let app = authenticate(api, request.headers(), connection)?;
    let app = &*context.app.insert(app);
    let permit_of_app = Held::new(api.gateway.acquire_permit(app, route.purpose)?);
    let charge_and_read = async {
        api.gateway.charge_request(app, route.purpose)?;
        if route.method == Method::POST {
            let received = JsonBytes::receive(request.headers(), body, &api.limits).await;
            received.map_err(|problem| match route.advice_if_too_large() {
                Some(advice) if problem.code == Code::BodyTooLarge => problem.and(advice),
                _ => problem,
            })
        } else {
            Ok(JsonBytes::default())
        }
    };
    let (request_id, headers) = (&context.id, request.headers());
    let release = || {
        release();
        permit_of_app.release();
    };
    let waiting = Waiting { connection, release: &release };
    match operation {
        Operation::App(handler) => {
            let body = charge_and_read.await?;
            handler(ApiCall { api, app, request_id, headers, body, waiting }).await
        }
        Operation::Claim(handler) => {
            let claim = route.claim(request.uri().path())?;
            let body = charge_and_read.await?;
            handler(ApiCall { api, app, request_id, headers, body, waiting }, claim).await
        }
        Operation::Lock(handler) => {
            let name = route.lock(request.uri().path())?;
            let body = charge_and_read.await?;
            handler(ApiCall { api, app, request_id, headers, body, waiting }, name).await
        }
        Operation::Batch(handler) => {
            let body = charge_and_read.await?;
            let items = body.clone();
            let call = ApiCall { api, app, request_id, headers, body, waiting };
            handler(call, Items::new(&items, api, app, route.purpose)).await
        }
    }
}

/// Adds the rate limits of the app and their rest.
fn with_rate_limits(mut response: Response, context: &RequestContext, api: &Api) -> Response {
    if let Some(app) = &context.app {
        let exceeded = match response.extensions().get() {
            Some(Problem { members: Members::QuotaExceeded { quota }, .. }) => Some(*quota),
            _ => None,
        };
        rate_limit::write(response.headers_mut(), app, exceeded, || api.clock.monotonic());
    }
    response
}

/// Records a response that operators may look for. A plain grant or success does not have the mark for it.
fn note(api: &Api, context: &RequestContext, path: &str, response: &Response) {
    let (false, Some(app)) = (response.extensions().is_empty(), &context.app) else { return };
    if let Some(noted) = answer::noted(response) {
        let of_path = context.routing.route().and_then(|route| route.claim(path).ok());
        note_call(api, app, &context.id, noted.of_call(None, of_path));
    }
}

/// Records the response in its trace and in the logs.
fn record(api: &Api, context: &RequestContext, span: &Span, status: u16, took: Duration) {
    let app = context.app.as_ref().map(|app| app.key.as_ref());
    if !span.is_none() {
        span.record("http.response.status_code", status);
        app.map(|app| span.record("oncegate.app", app));
        if status >= 500 {
            span.record("otel.status_code", "ERROR");
        }
    }
    if let Some(access) = &api.access {
        access.write(&AccessLine {
            timestamp: api.clock.wall().to_string(),
            method: context.method(),
            route: context.route(),
            status,
            app,
            duration_us: micros(took),
            request_id: context.id.as_str(),
        });
    }
    tracing::debug!(
        http.method = %context.method, http.status = status, request.id = context.id.as_str(), took_us = took.as_micros(),
        "Answered a request"
    );
}
