//! The route table: one row for each operation. Routing, the labels in metrics, the routes in traces and in the access log,
//! 404 and 405 derive from it.

use std::borrow::Cow;
use std::pin::Pin;

use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse as _, Response};
use oncegate_core::global_id::GlobalId;
use oncegate_core::lock::LockName;
use oncegate_gateway::tenants::quota::Purpose;
use oncegate_web::nothing;
use oncegate_web::problem::{Code, Problem};
use percent_encoding::percent_decode_str;

use super::batch::Items;
use super::call::ApiCall;
use super::{
    claim, claim_batch, document, global_id, inspect, lock_hold, lock_inspect, lock_release, lock_renewal, outcome,
    outcome_batch, renewal,
};

/// Makes the row of an operation for authenticated callers. Its name is that of its file, and its label in metrics.
macro_rules! operation {
    ($method:ident $path:literal, $purpose:ident, $input:ident, $name:ident($($argument:ident),*)) => {
        Route {
            method: Method::$method,
            path: $path,
            label: stringify!($name),
            purpose: Purpose::$purpose,
            handler: Handler::Authenticated(Operation::$input(|$($argument),*| Box::pin($name::$name($($argument),*)))),
        }
    };
}

/// The operations. A path without a parameter takes precedence over one with a parameter.
pub(super) static ROUTES: [Route; 12] = [
    operation!(POST "/v1/claims", New, App, claim(call)),
    operation!(POST "/v1/claims/{global_id}/outcome", Settle, Claim, outcome(call, claim)),
    operation!(POST "/v1/claims/{global_id}/renewal", Settle, Claim, renewal(call, claim)),
    operation!(GET "/v1/claims/{global_id}", New, Claim, inspect(call, claim)),
    operation!(POST "/v1/claims/batch", New, Batch, claim_batch(call, items)),
    operation!(POST "/v1/outcomes/batch", Settle, Batch, outcome_batch(call, items)),
    operation!(POST "/v1/global-ids", New, App, global_id(call)),
    operation!(POST "/v1/locks/{name}/holds", New, Lock, lock_hold(call, name)),
    operation!(POST "/v1/locks/{name}/release", Settle, Lock, lock_release(call, name)),
    operation!(POST "/v1/locks/{name}/renewal", Settle, Lock, lock_renewal(call, name)),
    operation!(GET "/v1/locks/{name}", New, Lock, lock_inspect(call, name)),
    public(Method::GET, "/openapi.yaml", document),
];

/// Label and route of requests that are for no operation.
pub(super) const OTHER: &str = "other";

/// The response of an operation, boxed so that the table can hold every operation.
type Handling<'a> = Pin<Box<dyn Future<Output = Result<Response, Problem>> + Send + 'a>>;

/// One operation.
pub(super) struct Route {
    pub(super) method: Method,
    /// Its path as in `openapi.yaml`.
    pub(super) path: &'static str,
    /// Its label in metrics.
    pub(super) label: &'static str,
    /// Selects the permits and quotas that its requests use.
    pub(super) purpose: Purpose,
    pub(super) handler: Handler,
}

/// The code of an operation.
pub(super) enum Handler {
    /// Answers every caller, without a credential.
    Public(fn() -> Response),
    /// Gets only calls that are authenticated and charged.
    Authenticated(Operation),
}

/// The code of an operation for authenticated callers, by its input in addition to the call.
pub(super) enum Operation {
    /// No further input.
    App(for<'a> fn(ApiCall<'a>) -> Handling<'a>),
    /// The claim that the path names.
    Claim(for<'a> fn(ApiCall<'a>, GlobalId) -> Handling<'a>),
    /// The lock that the path names.
    Lock(for<'a> fn(ApiCall<'a>, LockName) -> Handling<'a>),
    /// The items of a batch. Each item is charged.
    Batch(for<'a> fn(ApiCall<'a>, Items<'a>) -> Handling<'a>),
}

/// The result of routing: indexes of [`ROUTES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Routing {
    Found(usize),
    /// The path has other methods. Holds the first of its routes.
    WrongMethod(usize),
    NotFound,
}

impl Routing {
    /// Finds the route of a request.
    pub(super) fn of(method: &Method, path: &str) -> Self {
        let exact = ROUTES.iter().position(|route| route.path == path);
        let first = exact.or_else(|| ROUTES.iter().position(|route| route.parameter(path).is_some()));
        let Some(first) = first else { return Self::NotFound };
        let same_path = |route: &Route| route.path == ROUTES[first].path;
        let found = ROUTES.iter().skip(first).position(|route| route.takes(method) && same_path(route));
        found.map_or(Self::WrongMethod(first), |offset| Self::Found(first + offset))
    }

    /// Returns the index of the route in metrics. Requests without a route have the one after the last.
    pub(super) fn index(self) -> usize {
        match self {
            Self::Found(index) | Self::WrongMethod(index) => index,
            Self::NotFound => ROUTES.len(),
        }
    }

    /// Returns the route that names the request, if one does.
    pub(super) fn route(self) -> Option<&'static Route> {
        ROUTES.get(self.index())
    }

    /// Returns the response to a request that no route handles: 404 or 405.
    pub(super) fn rejection(self, method: &Method, path: &str) -> Response {
        if let Some(route) = self.route() {
            return wrong_method(method, route.path);
        }
        let is_path = |path: &str| Self::of(method, path) != Self::NotFound;
        let hint = nothing::hint(path, "/v1", &nothing::ADMIN, is_path, ROUTES.iter().map(|route| route.path));
        let detail = format!("There is nothing at this path; {hint}GET /openapi.yaml for the paths of the API.");
        Problem::new(Code::NotFound, detail).into_response()
    }
}

impl Route {
    fn takes(&self, method: &Method) -> bool {
        self.method == *method || self.method == Method::GET && *method == Method::HEAD
    }

    /// Returns the segment of a path at the place of the parameter, if the path has this form.
    fn parameter<'p>(&self, path: &'p str) -> Option<&'p str> {
        let (before, rest) = self.path.split_once('{')?;
        let (_name, after) = rest.split_once('}')?;
        let segment = path.strip_prefix(before)?.strip_suffix(after)?;
        (!segment.is_empty() && !segment.contains('/')).then_some(segment)
    }

    /// Returns the claim that a path names.
    pub(super) fn claim(&self, path: &str) -> Result<GlobalId, Problem> {
        let claim = |text: &str| text.parse().ok().or_else(|| percent_decoded(text)?.parse().ok());
        self.parameter(path).and_then(claim).ok_or_else(|| {
            Problem::invalid(
                "The path must name a claim by its global ID: the 32 lowercase hex digits of the 201 answer.",
            )
        })
    }
}

impl Route {
    /// Returns the advice for an outcome call with a body that is too large: the operation has had its effect.
    pub(super) fn advice_if_too_large(&self) -> Option<&'static str> {
        match self.path {
            "/v1/claims/{global_id}/outcome" => Some(
                "The outcome was not recorded: report it in a smaller body, a success with a smaller `result` or without one, before \
                 the lease ends.",
            ),
            "/v1/outcomes/batch" => {
                Some("No outcome was recorded: report them in smaller batches, before their leases end.")
            }
            _ => None,
        }
    }

    /// Returns the lock that a path names.
    pub(super) fn lock(&self, path: &str) -> Result<LockName, Problem> {
        let segment = self.parameter(path).unwrap_or_default();
        let name = segment.parse().or_else(|wrong| percent_decoded(segment).ok_or(wrong)?.parse());
        name.map_err(|wrong| Problem::invalid(format!("The path must name a lock: {wrong}.")))
    }
}

/// Returns the text of a percent-encoded segment (RFC 3986, 2.1).
fn percent_decoded(segment: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(segment).decode_utf8().ok()
}

/// Returns the response to a request with a method that its path does not take: the methods of the path, and a path
/// that the caller may have meant.
fn wrong_method(method: &Method, path: &str) -> Response {
    let methods = ROUTES.iter().filter(|route| route.path == path).map(|route| &route.method);
    let allowed = methods.map(|method| if method == Method::GET { "GET,HEAD" } else { method.as_str() });
    let allowed = allowed.collect::<Vec<_>>().join(",");
    let detail = format!("This path takes {} only.{}", allowed.replace(',', " and "), meant(method, path));
    let mut response = Problem::new(Code::MethodNotAllowed, detail).into_response();
    response.headers_mut().extend(HeaderValue::try_from(allowed).ok().map(|allowed| (header::ALLOW, allowed)));
    response
}

/// Names the operations above and below a path that take the method, else the one that takes a body at this path, else all below
/// it.
fn meant(method: &Method, path: &str) -> String {
    let is_below = |lower: &str, upper: &str| lower.strip_prefix(upper).is_some_and(|rest| rest.starts_with('/'));
    let below = ROUTES.iter().filter(|route| is_below(route.path, path));
    let above = ROUTES.iter().filter(|route| is_below(path, route.path));
    let mut meant: Vec<&Route> = below.clone().chain(above).filter(|route| route.takes(method)).collect();
    if meant.is_empty() {
        let posts = |route: &&Route| route.path == path && route.method == Method::POST;
        let own = ROUTES.iter().find(posts).filter(|_| *method == Method::PUT || *method == Method::PATCH);
        meant = own.map_or_else(|| below.collect(), |own| vec![own]);
    }
    let meant: Vec<String> = meant.iter().map(|route| format!("{} {}", route.method, route.path)).collect();
    if meant.is_empty() { String::new() } else { format!(" Did you mean {}?", meant.join(" or ")) }
}

/// Returns the row of an operation that needs no credential.
const fn public(method: Method, path: &'static str, handler: fn() -> Response) -> Route {
    Route { method, path, label: OTHER, purpose: Purpose::New, handler: Handler::Public(handler) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_of(method: &Method, path: &str) -> Result<&'static str, Option<&'static str>> {
        match Routing::of(method, path) {
            Routing::Found(index) => Ok(ROUTES[index].path),
            other => Err(other.route().map(|route| route.path)),
        }
    }

    #[test]
    fn every_route_is_found_by_its_path_and_method_and_by_no_other() {
        for route in &ROUTES {
            let path = route.path.replace("{global_id}", "x").replace("{name}", "x");
            assert_eq!(path_of(&route.method, &path), Ok(route.path));
            assert_eq!(path_of(&Method::DELETE, &path), Err(Some(route.path)));
            for other in [format!("{path}/"), format!("{path}x/y"), format!("/{path}"), format!("{path}/outcome/y")] {
                assert_eq!(path_of(&route.method, &other), Err(None), "{other}");
            }
        }
        for other in ["", "/", "*", "/v1/claims//outcome", "/v1/claimsx", "/v1/claims/x/outcomes", "/v1/claims/"] {
            assert_eq!(path_of(&Method::POST, other), Err(None), "{other}");
        }
    }

    #[test]
    fn the_document_describes_exactly_the_operations_of_the_table() {
        let document: serde_json::Value = serde_yaml_ng::from_str(include_str!("../../../openapi.yaml")).unwrap();
        let paths = document["paths"].as_object().unwrap();
        let operations = |(path, item): (&String, &serde_json::Value)| {
            let methods = item.as_object().unwrap().keys().filter(|key| *key != "parameters");
            methods.map(|method| format!("{} {path}", method.to_uppercase())).collect::<Vec<_>>()
        };
        let mut described: Vec<_> = paths.iter().flat_map(operations).collect();
        let of_callers = ROUTES.iter().filter(|route| matches!(route.handler, Handler::Authenticated(_)));
        let mut routed: Vec<_> = of_callers.map(|route| format!("{} {}", route.method, route.path)).collect();
        described.sort_unstable();
        routed.sort_unstable();
        assert_eq!(described, routed);
    }

    #[test]
    fn a_path_without_a_parameter_takes_precedence() {
        assert_eq!(path_of(&Method::POST, "/v1/claims/batch"), Ok("/v1/claims/batch"));
        assert_eq!(path_of(&Method::GET, "/v1/claims/batch"), Err(Some("/v1/claims/batch")));
        assert_eq!(path_of(&Method::POST, "/v1/claims/batch/outcome"), Ok("/v1/claims/{global_id}/outcome"));
    }

    #[test]
    fn head_is_handled_like_get_and_405_lists_both() {
        assert_eq!(path_of(&Method::HEAD, "/v1/claims/x"), Ok("/v1/claims/{global_id}"));
        assert_eq!(path_of(&Method::HEAD, "/v1/claims"), Err(Some("/v1/claims")));
        for (path, allowed) in [("/v1/claims/x", "GET,HEAD"), ("/v1/claims", "POST")] {
            let response = Routing::of(&Method::PUT, path).rejection(&Method::PUT, path);
            assert_eq!(response.headers()[header::ALLOW], allowed);
        }
    }

    #[test]
    fn a_wrong_method_is_told_where_it_may_have_meant_to_go() {
        for (method, path, advice) in [
            ("GET", "/v1/claims", " Did you mean GET /v1/claims/{global_id}?"),
            ("POST", "/v1/locks/{name}", " Did you mean POST /v1/locks/{name}/holds or "),
            ("DELETE", "/v1/locks/{name}", " or POST /v1/locks/{name}/release or POST /v1/locks/{name}/renewal?"),
            ("GET", "/v1/claims/{global_id}/outcome", " Did you mean GET /v1/claims/{global_id}?"),
        ] {
            let meant = meant(&method.parse().unwrap(), path);
            assert!(meant.contains(advice), "{method} {path}: {meant}");
        }
        assert_eq!(meant(&Method::PUT, "/v1/claims"), " Did you mean POST /v1/claims?");
        assert_eq!(meant(&Method::DELETE, "/v1/global-ids"), "");
    }

    #[test]
    fn operations_on_a_claim_or_a_lock_name_it_in_their_path_and_others_have_no_parameter() {
        for Route { path, handler, .. } in &ROUTES {
            let is_on_claim = matches!(handler, Handler::Authenticated(Operation::Claim(_)));
            let is_on_lock = matches!(handler, Handler::Authenticated(Operation::Lock(_)));
            assert_eq!(path.contains("/{global_id}"), is_on_claim, "{path}");
            assert_eq!(path.contains("/locks/{name}"), is_on_lock, "{path}");
            assert_eq!(path.contains('{'), is_on_claim || is_on_lock, "{path}");
        }
    }

    #[test]
    fn a_global_id_may_be_percent_encoded() {
        let Routing::Found(inspect) = Routing::of(&Method::GET, "/v1/claims/x") else { panic!("it has a route") };
        let id = "0123456789abcdef0123456789abcdef";
        let claim = |segment: &str| ROUTES[inspect].claim(&format!("/v1/claims/{segment}")).ok();
        assert_eq!(claim(id), Some(id.parse().unwrap()));
        assert_eq!(claim(&id.replace('a', "%61")), Some(id.parse().unwrap()));
        for wrong in ["x", "%", "%6", "%6x", "%ff", &id[1..], &id.replace('a', "%2561")] {
            assert_eq!(claim(wrong), None, "{wrong}");
        }
    }
}
