//! The routes of the proxy, and which of them a request takes.

use std::sync::Arc;

use axum::http::{HeaderName, Method, Uri};

use super::authorizer::Authorizer;
use super::destination::Destination;
use super::fields::StoredFields;
use super::hourly::Hourly;
use super::options::{KeyRequirement, RouteOptions, UpstreamOptions};
use super::upstream::Upstream;
use crate::domain::tenant::Operation;
use crate::telemetry::metrics::proxy::RouteMetrics;

/// A route: its options, and what is made of them once.
pub(super) struct Route {
    pub(super) options: RouteOptions,
    pub(super) operation: Operation,
    path: matchit::Router<()>,
    methods: Vec<Method>,
    pub(super) upstream: Arc<Destination>,
    pub(super) key_headers: Vec<HeaderName>,
    /// Asked before each replay.
    pub(super) authorizer: Option<Authorizer>,
    pub(super) stored_fields: StoredFields,
    pub(super) metrics: RouteMetrics,
    /// Reports that responses are not stored because they are private.
    pub(super) private_reports: Hourly,
}

/// The way of a request through the proxy.
pub(super) enum Way<'a> {
    /// By a route that protects it.
    Protected(&'a Arc<Route>),
    /// Forwarded as it is, because the method or the path is not protected.
    Unprotected(&'a Arc<Destination>),
    /// No route matches.
    None,
}

/// All routes, in the order of the configuration.
pub(super) struct Routes {
    routes: Vec<Arc<Route>>,
    unmatched: Option<Arc<Destination>>,
}

impl Route {
    /// Returns the route of these options. `None` if they are not valid, which the configuration has excluded.
    pub(super) fn new(options: &RouteOptions, of: &UpstreamOptions, upstream: Arc<Destination>) -> Option<Self> {
        Some(Self {
            operation: options.operation()?,
            path: options.matcher().ok()?,
            methods: options.methods()?,
            upstream,
            key_headers: options.key_headers()?,
            authorizer: Authorizer::new(options, of).ok()?,
            stored_fields: options.stored_fields().ok()?,
            metrics: RouteMetrics::new(&options.name),
            private_reports: Hourly::default(),
            options: options.clone(),
        })
    }

    fn matches(&self, host: &str, path: &str) -> bool {
        self.options.has_host(host) && self.path.at(path).is_ok()
    }
}

impl Routes {
    pub(super) fn new(routes: Vec<Arc<Route>>, unmatched: Option<Arc<Destination>>) -> Self {
        Self { routes, unmatched }
    }

    /// Returns the upstreams, each once.
    pub(super) fn upstreams(&self) -> Vec<Arc<Upstream>> {
        let mut upstreams: Vec<Arc<Upstream>> = Vec::new();
        for upstream in self.routes.iter().map(|route| &route.upstream).chain(&self.unmatched).map(|it| it.upstream()) {
            if !upstreams.iter().any(|other| Arc::ptr_eq(other, upstream)) {
                upstreams.push(upstream.clone());
            }
        }
        upstreams
    }

    /// Returns the way of a request: the first route for its host, path and method; else that of the first route for its host
    /// and path, without protection.
    pub(super) fn find(&self, host: &str, path: &str, method: &Method) -> Way<'_> {
        let matching = self.routes.iter().filter(|route| route.matches(host, path));
        match pick(matching, |route| route.methods.contains(method)) {
            Some((route, true)) if route.options.key != KeyRequirement::Off => Way::Protected(route),
            Some((route, _)) => Way::Unprotected(&route.upstream),
            None => self.unmatched.as_ref().map_or(Way::None, Way::Unprotected),
        }
    }

    /// Returns the names of the fields with keys that a preflight of a path may ask for.
    pub(super) fn key_headers<'a>(&'a self, host: &str, path: &str) -> &'a [HeaderName] {
        self.routes.iter().find(|route| route.matches(host, path)).map_or(&[], |route| &route.key_headers)
    }
}

/// Picks the route of a request among those for its host and path: the first for its method, and true; else the first, and
/// false.
pub(super) fn pick<R: Copy>(matching: impl Iterator<Item = R>, has_method: impl Fn(R) -> bool) -> Option<(R, bool)> {
    let mut matching = matching.peekable();
    let first = *matching.peek()?;
    Some(matching.find(|route| has_method(*route)).map_or((first, false), |route| (route, true)))
}

/// Returns what is wrong with a path for which servers do not agree on what it names.
pub(super) fn ambiguous(uri: &Uri) -> Option<&'static str> {
    let path = uri.path();
    let lower = path.to_ascii_lowercase();
    if ["%2f", "%5c"].iter().any(|escaped| lower.contains(escaped)) || path.contains('\\') {
        return Some("an escaped slash or a backslash");
    }
    let mut segments = path.strip_prefix('/').unwrap_or(path).split('/').peekable();
    while let Some(segment) = segments.next() {
        let decoded = segment.to_ascii_lowercase().replace("%2e", ".");
        if [".", ".."].contains(&&*decoded) {
            return Some("a dot segment");
        }
        if segment.is_empty() && (segments.peek().is_some() || path.len() > 1 && path.ends_with("//")) {
            return Some("an empty segment");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_servers_read_differently_is_ambiguous() {
        for good in ["/", "/a", "/a/", "/a/b.c", "/..a", "/a%20b", "/a?x=//../%2f"] {
            assert_eq!(ambiguous(&good.parse().unwrap()), None, "{good}");
        }
        for bad in ["/a/../b", "/./a", "/a/..", "//a", "/a//b", "/a//", "/a%2Fb", "/a%5cb", "/%2e%2E/a", "/.%2e"] {
            assert!(ambiguous(&bad.parse().unwrap()).is_some(), "{bad}");
        }
    }
}
