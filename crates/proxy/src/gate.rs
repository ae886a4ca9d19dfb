//! Decides whether a request may continue. Refuses requests that some server could read as another request, and keys
//! that no route protects.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::{HeaderMap, Method};
use oncegate_core::clock::millis;
use oncegate_core::terms::Mode;
use oncegate_telemetry::metrics::proxy::{OffRoute, ProxyResult, off_route};
use oncegate_web::problem::{Code, Problem};

use super::Proxy;
use super::destination::Destination;
use super::key;
use super::options::{OnUnmatchedKey, RouteOptions};
use super::route::{Route, Routes, Way};
use super::target::{self, Target, is_misspelt, overrides_method};

/// Time between two log lines about keys without protection.
const REPORT_INTERVAL: Duration = Duration::from_mins(1);

/// Bytes of a method that the log shows.
const METHOD_SHOWN: usize = 32;

/// The way of a request that is not refused, or the refusal.
pub(super) enum Passage<'a> {
    Protected(&'a Arc<Route>),
    Unprotected(&'a Arc<Destination>),
    Refused(Option<&'a Arc<Route>>, Problem),
}

/// Reason to refuse a request.
pub(super) struct Objection<'a> {
    reason: OffRoute,
    /// The route that its path takes.
    route: Option<&'a Arc<Route>>,
    /// True if any route could be meant: observing some of them does not let the request pass.
    concerns_all: bool,
    pub(super) problem: Problem,
}

/// Requests with a key that were forwarded without protection.
#[derive(Default)]
pub(super) struct Unprotected {
    /// Since the last line in the log.
    requests: AtomicU64,
    /// Milliseconds of the monotonic clock before which there is no other line.
    next_report: AtomicU64,
}

impl Proxy {
    /// Returns the passage of a request. Counts requests that are refused, or would be.
    pub(super) fn admit(&self, target: &Target, method: &Method, headers: &HeaderMap) -> Passage<'_> {
        let way = self.routes.find(&target.host, &target.path, method);
        if let Some(objection) = self.routes.objection(&way, target, method, headers) {
            let is_observed = match objection.route.filter(|_| !objection.concerns_all) {
                Some(route) if route.is_protected() => self.is_observed(route) && !self.may_mean_enforced(target),
                _ => self.are_all_observed(),
            };
            off_route(objection.reason, is_observed);
            if !is_observed {
                return Passage::Refused(objection.route, objection.problem);
            }
            if let Some(route) = objection.route {
                route.metrics.answered(ProxyResult::Refused);
                return Passage::Unprotected(&route.upstream);
            }
        } else if self.routes.passes_unprotected(&way, target, method, headers)
            && let Way::Unprotected { name, .. } = way
        {
            off_route(OffRoute::NoRouteForKey, true);
            self.unprotected.report(method, name, self.clock.monotonic());
        }
        match way {
            Way::Protected(route) => Passage::Protected(route),
            Way::Unprotected { upstream, .. } => Passage::Unprotected(upstream),
            Way::None => match self.routes.nearest(&target.host, &target.path) {
                Some(nearest) if self.are_all_observed() => {
                    off_route(OffRoute::NoRoute, true);
                    Passage::Unprotected(&nearest.upstream)
                }
                _ => {
                    let detail = "No route of the proxy has this host and path.";
                    Passage::Refused(None, Problem::new(Code::NotFound, detail))
                }
            },
        }
    }

    fn is_observed(&self, route: &Route) -> bool {
        let app = self.registry.app(route.options.app.as_ref());
        app.is_some_and(|app| app.terms_of(&route.operation).mode == Mode::Observe)
    }

    /// Reports whether some server could take a request for one to an enforced route.
    fn may_mean_enforced(&self, target: &Target) -> bool {
        let path = target::plainest(&target.path);
        self.routes.protected().any(|route| route.matches(&target.host, &path) && !self.is_observed(route))
    }

    fn are_all_observed(&self) -> bool {
        self.routes.protects() && self.routes.protected().all(|route| self.is_observed(route))
    }
}

impl Routes {
    /// Returns the reason to refuse a request that would take this way.
    pub(super) fn objection<'a>(
        &'a self,
        way: &Way<'a>,
        target: &Target,
        method: &Method,
        headers: &HeaderMap,
    ) -> Option<Objection<'a>> {
        if !self.protects() {
            return None;
        }
        let route = way.route();
        let ambiguous = |detail: String, concerns_all| {
            let problem = Problem::new(Code::AmbiguousTarget, detail);
            Some(Objection { reason: OffRoute::AmbiguousTarget, route, concerns_all, problem })
        };
        if let Some(what) = target.ambiguity {
            let detail =
                format!("The path has {what}: servers do not agree on what it names. Send the path without it.");
            return ambiguous(detail, true);
        }
        if is_misspelt(method) {
            let detail =
                "Methods are written in capitals; some servers understand this one, and others do not.".to_owned();
            return ambiguous(detail, false);
        }
        if method.is_safe() {
            let is_doubtful = overrides_method(headers) && self.has_key(&target.host, headers);
            let detail = "The request has a key and a safe method that a field overrides. Send it with the method that is meant.";
            return is_doubtful.then(|| ambiguous(detail.to_owned(), false)).flatten();
        }
        let allowed = route.map_or(&self.allow_in_path, |route| &route.options.allow_in_path);
        if let Some((what, name)) = target.form_beside(allowed).map(target::PathForm::names) {
            let detail = format!(
                "The path has {what}: servers do not agree on what it names. Send the path without it; if it is part of the API, \
                 let an operator add \"{name}\" to allow_in_path."
            );
            return ambiguous(detail, false);
        }
        let decoded = self.find_decoded(target, method);
        if decoded.map(Arc::as_ptr) != route.map(Arc::as_ptr) {
            let detail = "The path has an escape: servers that decode it take the path for one of another route. Send the path as \
                          the route has it.";
            return ambiguous(detail.to_owned(), true);
        }
        let is_forwarded =
            method.is_idempotent() && !overrides_method(headers) || self.unmatched_keyed == OnUnmatchedKey::Forward;
        if is_forwarded || !self.passes_unprotected(way, target, method, headers) {
            return None;
        }
        let nearest = self.nearest(&target.host, &target.path);
        let nearest = nearest.map(|route| {
            let RouteOptions { name, path, methods, .. } = &route.options;
            format!(" The nearest route is `{name}` ({} {path}): send the request as it says.", methods.join(", "))
        });
        let detail = format!(
            "The request has a key, and no route protects it: a repeat would run again. Nothing was forwarded.{} For a path that \
             needs no protection, let an operator add a route with key = \"off\".",
            nearest.unwrap_or_default()
        );
        let problem = Problem::new(Code::NoRouteForKey, detail);
        Some(Objection { reason: OffRoute::NoRouteForKey, route, concerns_all: false, problem })
    }

    /// Reports whether a request has a key and no protection, although no route intends that.
    fn passes_unprotected(&self, way: &Way<'_>, target: &Target, method: &Method, headers: &HeaderMap) -> bool {
        let is_unprotected =
            matches!(way, Way::Unprotected { .. }) && way.route().is_none_or(|route| route.is_protected());
        is_unprotected && !method.is_safe() && self.has_key(&target.host, headers)
    }

    /// Reports whether a request has a field of the key of a route for its host, in any spelling. A request of HTTP/1.0 may name none: the upstream may
    /// take it for any.
    fn has_key(&self, host: &str, headers: &HeaderMap) -> bool {
        let routes = self.protected().filter(|route| host.is_empty() || route.options.has_host(host));
        routes.flat_map(|route| &route.key_headers).any(|name| key::has_field(headers, name))
    }

    /// Returns the protected route whose path has most in common with this one, for its host if there is one.
    fn nearest(&self, host: &str, path: &str) -> Option<&Arc<Route>> {
        let segments: Vec<_> = path.split('/').collect();
        let distance = |route: &&Arc<Route>| {
            let own: Vec<_> = route.options.path.split('/').collect();
            let is_same = |(own, other): &(&&str, &&str)| own.starts_with('{') || own.eq_ignore_ascii_case(other);
            let common = own.iter().zip(&segments).take_while(is_same).count();
            (!route.options.has_host(host), Reverse(common), own.len().abs_diff(segments.len()))
        };
        self.protected().min_by_key(distance)
    }
}

impl Unprotected {
    /// Counts a request, and logs once a minute.
    fn report(&self, method: &Method, upstream: &str, now: Duration) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let (now, next) = (millis(now), millis(now + REPORT_INTERVAL));
        let is_due =
            self.next_report.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| (at <= now).then_some(next));
        if is_due.is_ok() {
            let requests = self.requests.swap(0, Ordering::Relaxed);
            let method = method.as_str().get(..METHOD_SHOWN).unwrap_or(method.as_str());
            tracing::warn!(
                method,
                upstream,
                requests,
                "Requests with a key were forwarded without protection: no route protects their method and path"
            );
        }
    }
}
