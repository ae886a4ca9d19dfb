//! The routes of the proxy, and which of them a request takes.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, Method, Uri};

use super::authorizer::Authorizer;
use super::dialect::Dialect;
use super::fields::StoredFields;
use super::options::{FingerprintPart, KeyRequirement, OnUnknown, RouteOptions, UpstreamOptions};
use super::principal::PrincipalSource;
use super::status::StatusRules;
use super::upstream::Upstream;
use crate::domain::tenant::{AppKey, Operation};
use crate::domain::terms::{Retention, Span};
use crate::telemetry::metrics::proxy::RouteMetrics;

/// A route.
pub(super) struct Route {
    pub(super) operation: Operation,
    pub(super) app: AppKey,
    hosts: Vec<String>,
    path: matchit::Router<()>,
    methods: Vec<Method>,
    pub(super) upstream: Arc<Upstream>,
    pub(super) key: KeyRequirement,
    pub(super) key_headers: Vec<HeaderName>,
    pub(super) dialect: Dialect,
    pub(super) principal: Vec<PrincipalSource>,
    /// Asked before each replay.
    pub(super) authorizer: Option<Authorizer>,
    pub(super) fingerprint: Vec<FingerprintPart>,
    pub(super) rules: StatusRules,
    pub(super) on_unknown: OnUnknown,
    pub(super) lease: Duration,
    pub(super) response_bytes: usize,
    pub(super) store_private: bool,
    pub(super) wait: Duration,
    /// Time of the oldest First-Sent that is accepted, and of a key.
    pub(super) retention: Option<Duration>,
    pub(super) response_retention: Option<Duration>,
    pub(super) stored_fields: StoredFields,
    pub(super) metrics: RouteMetrics,
}

/// The way of a request through the proxy.
pub(super) enum Way<'a> {
    /// By a route that protects it.
    Protected(&'a Arc<Route>),
    /// Forwarded as it is, because the method or the path is not protected.
    Unprotected(&'a Arc<Upstream>),
    /// No route matches.
    None,
}

/// All routes, in the order of the configuration.
pub(super) struct Routes {
    routes: Vec<Arc<Route>>,
    unmatched: Option<Arc<Upstream>>,
}

impl Route {
    /// Returns the route of these options. `None` if they are not valid, which the configuration has excluded.
    pub(super) fn new(options: &RouteOptions, of: &UpstreamOptions, upstream: Arc<Upstream>) -> Option<Self> {
        Some(Self {
            operation: options.operation()?,
            app: options.app.clone(),
            hosts: options.hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
            path: options.matcher().ok()?,
            methods: options.methods()?,
            upstream,
            key: options.key,
            key_headers: options.key_headers()?,
            dialect: options.dialect,
            principal: options.principal.clone(),
            authorizer: Authorizer::new(options, of).ok()?,
            fingerprint: options.fingerprint.clone(),
            rules: StatusRules {
                store: options.store.clone(),
                release: options.release.clone(),
                on_5xx: options.on_5xx.unwrap_or_else(|| options.dialect.on_5xx()),
            },
            on_unknown: options.on_unknown,
            lease: options.lease.0,
            response_bytes: options.response_bytes.0,
            store_private: options.store_private,
            wait: options.wait.0,
            retention: match options.retention {
                Retention::For(time) => Some(time),
                Retention::Forever => None,
            },
            response_retention: options.response_retention.map(|Span(time)| time),
            stored_fields: options.stored_fields().ok()?,
            metrics: RouteMetrics::new(&options.name),
        })
    }

    fn matches(&self, host: &str, path: &str) -> bool {
        (self.hosts.is_empty() || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host)))
            && self.path.at(path).is_ok()
    }
}

impl Routes {
    pub(super) fn new(routes: Vec<Arc<Route>>, unmatched: Option<Arc<Upstream>>) -> Self {
        Self { routes, unmatched }
    }

    /// Returns the upstreams, each once.
    pub(super) fn upstreams(&self) -> Vec<Arc<Upstream>> {
        let mut upstreams: Vec<Arc<Upstream>> = Vec::new();
        for upstream in self.routes.iter().map(|route| &route.upstream).chain(&self.unmatched) {
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
            Some((route, true)) if route.key != KeyRequirement::Off => Way::Protected(route),
            Some((route, _)) => Way::Unprotected(&route.upstream),
            None => self.unmatched.as_ref().map_or(Way::None, Way::Unprotected),
        }
    }
}

/// Picks the route of a request among those for its host and path: the first for its method, and true; else the first, and
/// false.
pub(super) fn pick<R: Copy>(matching: impl Iterator<Item = R>, has_method: impl Fn(R) -> bool) -> Option<(R, bool)> {
    let mut matching = matching.peekable();
    let first = *matching.peek()?;
    Some(matching.find(|route| has_method(*route)).map_or((first, false), |route| (route, true)))
}

impl Routes {
    /// Returns the names of the fields with keys that a preflight of a path may ask for.
    pub(super) fn key_headers<'a>(&'a self, host: &str, path: &str) -> &'a [HeaderName] {
        self.routes.iter().find(|route| route.matches(host, path)).map_or(&[], |route| &route.key_headers)
    }
}

impl RouteOptions {
    /// Returns the operation of its claims.
    pub fn operation(&self) -> Option<Operation> {
        format!("{}{}", Operation::PROXY_PREFIX, self.name).parse().ok()
    }

    /// Returns what matches its paths.
    ///
    /// # Errors
    /// The pattern is not valid.
    pub fn matcher(&self) -> Result<matchit::Router<()>, matchit::InsertError> {
        let mut router = matchit::Router::new();
        router.insert(self.path.as_str(), ())?;
        Ok(router)
    }

    /// Returns its methods; `None` if one of them is not valid.
    pub fn methods(&self) -> Option<Vec<Method>> {
        self.methods.iter().map(|method| Method::from_bytes(method.as_bytes()).ok()).collect()
    }

    /// Returns the names of the fields of the key; `None` if one of them is not valid.
    pub fn key_headers(&self) -> Option<Vec<HeaderName>> {
        let Some(names) = &self.key_headers else { return Some(vec![self.dialect.key_header()]) };
        names.iter().map(|name| name.parse().ok()).collect()
    }

    /// Returns the URL that is asked before each replay.
    ///
    /// # Errors
    /// It is no URL.
    pub fn authorize(&self) -> Result<Option<Uri>, String> {
        let Some(url) = &self.authorize else { return Ok(None) };
        let uri = url.parse::<Uri>().ok().filter(|uri| {
            let is_http = uri.scheme_str().is_some_and(|scheme| ["http", "https"].contains(&scheme));
            is_http && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
        });
        uri.map(Some).ok_or_else(|| format!("{url:?} is no URL; write one like \"http://10.0.0.9:9100/may-replay\""))
    }

    /// Reports if its `authorize` can be used, with the authorities of its upstream.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn check_authorize(&self, upstream: &UpstreamOptions) -> Result<(), String> {
        Authorizer::new(self, upstream).map(drop)
    }

    /// Returns the fields that are stored.
    ///
    /// # Errors
    /// Says which name is wrong, and why.
    pub fn stored_fields(&self) -> Result<StoredFields, String> {
        StoredFields::new(&self.store_with, &self.store_without)
    }
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
