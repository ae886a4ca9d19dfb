//! The routes of the proxy, and which of them a request takes.

use std::sync::Arc;

use axum::http::{HeaderName, Method};
use oncegate_core::tenant::Operation;
use oncegate_telemetry::metrics::proxy::RouteMetrics;

use super::authorizer::Authorizer;
use super::destination::Destination;
use super::fields::StoredFields;
use super::hourly::Hourly;
use super::options::{KeyRequirement, OnUnmatchedKey, ProxyOptions, RouteOptions, UpstreamOptions};
use super::principal_source::PrincipalSource;
use super::target::{self, PathForm, Target};
use super::upstream::Upstream;

/// A route: its options, and the values that are computed from them once.
pub(super) struct Route {
    pub(super) options: RouteOptions,
    pub(super) operation: Operation,
    path: matchit::Router<()>,
    /// Matches decoded paths.
    decoded_path: matchit::Router<()>,
    methods: Vec<Method>,
    pub(super) upstream: Arc<Destination>,
    pub(super) key_headers: Vec<HeaderName>,
    /// Sources of the principal, those of the dialect too.
    pub(super) principal: Vec<PrincipalSource>,
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
    /// Forwarded unchanged, because its route does not protect the method, or no route takes the path.
    Unprotected { upstream: &'a Arc<Destination>, name: &'a str, route: Option<&'a Arc<Route>> },
    /// No route matches.
    None,
}

impl<'a> Way<'a> {
    /// Returns the route that the path takes.
    pub(super) fn route(&self) -> Option<&'a Arc<Route>> {
        match self {
            Self::Protected(route) => Some(route),
            Self::Unprotected { route, .. } => *route,
            Self::None => None,
        }
    }
}

/// All routes, in the order of the configuration.
pub(super) struct Routes {
    all: Vec<Arc<Route>>,
    unmatched: Option<(String, Arc<Destination>)>,
    pub(super) unmatched_keyed: OnUnmatchedKey,
    /// For what no route takes.
    pub(super) allow_in_path: Vec<PathForm>,
}

impl Route {
    /// Returns the route of these options. `None` if they are not valid, which the configuration has excluded.
    pub(super) fn new(options: &RouteOptions, of: &UpstreamOptions, upstream: Arc<Destination>) -> Option<Self> {
        Some(Self {
            operation: options.operation()?,
            path: options.matcher().ok()?,
            decoded_path: options.decoded_matcher().ok()?,
            methods: options.methods()?,
            upstream,
            key_headers: options.key_headers()?,
            principal: options.principal_sources(),
            authorizer: Authorizer::new(options, of).ok()?,
            stored_fields: options.stored_fields().ok()?,
            metrics: RouteMetrics::new(&options.name),
            private_reports: Hourly::default(),
            options: options.clone(),
        })
    }

    /// Reports whether the route protects its methods.
    pub(super) fn is_protected(&self) -> bool {
        self.options.key != KeyRequirement::Off
    }

    pub(super) fn matches(&self, host: &str, path: &str) -> bool {
        self.options.has_host(host) && self.path.at(path).is_ok()
    }
}

impl Routes {
    pub(super) fn new(routes: Vec<Arc<Route>>, unmatched: Option<Arc<Destination>>, options: &ProxyOptions) -> Self {
        let unmatched = unmatched.map(|upstream| (options.unmatched.clone(), upstream));
        let (unmatched_keyed, allow_in_path) = (options.unmatched_keyed, options.allow_in_path.clone());
        Self { all: routes, unmatched, unmatched_keyed, allow_in_path }
    }

    /// Returns the routes that protect something.
    pub(super) fn protected(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.all.iter().filter(|route| route.is_protected())
    }

    /// Reports whether any route protects something.
    pub(super) fn protects(&self) -> bool {
        self.protected().next().is_some()
    }

    /// Returns the upstreams, each once.
    pub(super) fn upstreams(&self) -> Vec<Arc<Upstream>> {
        let mut upstreams: Vec<Arc<Upstream>> = Vec::new();
        let unmatched = self.unmatched.iter().map(|(_, upstream)| upstream);
        for upstream in self.all.iter().map(|route| &route.upstream).chain(unmatched).map(|it| it.upstream()) {
            if !upstreams.iter().any(|other| Arc::ptr_eq(other, upstream)) {
                upstreams.push(upstream.clone());
            }
        }
        upstreams
    }

    /// Returns the path of a request through the proxy: the first route for its host, path and method. Without one, the
    /// first route for its host and path, without protection.
    pub(super) fn find(&self, host: &str, path: &str, method: &Method) -> Way<'_> {
        match self.pick(method, |route| route.matches(host, path)) {
            Some((route, true)) if route.is_protected() => Way::Protected(route),
            Some((route, _)) => {
                Way::Unprotected { upstream: &route.upstream, name: &route.options.upstream, route: Some(route) }
            }
            None => match &self.unmatched {
                Some((name, upstream)) => Way::Unprotected { upstream, name, route: None },
                None => Way::None,
            },
        }
    }

    /// Returns the route that a request takes at servers which decode the escapes of its path.
    pub(super) fn find_decoded(&self, target: &Target, method: &Method) -> Option<&Arc<Route>> {
        let path = target::decoded(&target.path);
        let is_on_path = |route: &Route| route.options.has_host(&target.host) && route.decoded_path.at(&path).is_ok();
        self.pick(method, is_on_path).map(|(route, _)| route)
    }

    fn pick(&self, method: &Method, is_matching: impl Fn(&Route) -> bool) -> Option<(&Arc<Route>, bool)> {
        pick(self.all.iter().filter(|route| is_matching(route)), |route| route.methods.contains(method))
    }

    /// Returns the names of the fields with keys that a preflight of a path may ask for.
    pub(super) fn key_headers<'a>(&'a self, host: &str, path: &str) -> &'a [HeaderName] {
        self.all.iter().find(|route| route.matches(host, path)).map_or(&[], |route| &route.key_headers)
    }
}

/// Picks the route of a request among those for its host and path: the first for its method, and true; else the first, and
/// false.
pub(super) fn pick<R: Copy>(matching: impl Iterator<Item = R>, has_method: impl Fn(R) -> bool) -> Option<(R, bool)> {
    let mut matching = matching.peekable();
    let first = *matching.peek()?;
    Some(matching.find(|route| has_method(*route)).map_or((first, false), |route| (route, true)))
}
