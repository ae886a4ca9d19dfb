//! Checks of the table `[proxy]`, and the terms of its routes.

use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::{LeaseEnd, Retention, Span};
use oncegate_gateway::tenants::OperationTerms;
use oncegate_proxy::options::{self, FingerprintPart, KeyRequirement, PrincipalSource, REFUSE, RouteOptions};

use super::Config;
use super::path::KeyPath;
use super::problem::Problem;

/// Largest body that a route may store.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

impl Config {
    /// Returns the operations of the routes of an app, with their terms. A lease that ends leaves an unknown outcome: the
    /// request was forwarded.
    pub fn proxy_operations(&self, app: Option<&AppKey>) -> impl Iterator<Item = (Operation, OperationTerms)> {
        let routes = self.proxy.routes.iter().filter(move |route| app.is_none_or(|app| route.app == *app));
        routes.filter_map(move |route| {
            let operation = route.operation()?;
            let mut terms = self.terms_of(app, Some(&operation));
            terms.terms.lease = route.lease.0;
            terms.terms.retention = route.retention;
            terms.terms.unknown_retention = route.retention;
            terms.terms.on_lease_end = LeaseEnd::Unknown;
            Some((operation, terms))
        })
    }

    /// Returns the problems of the table `[proxy]`.
    pub(super) fn check_proxy(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let proxy = &self.proxy;
        let table = KeyPath::of(["proxy"]);
        if let Err(why) = proxy.encryption.read() {
            problems.push(Problem::of_key(KeyPath::of(["proxy", "encryption", "keys"]), why));
        }
        let mut add = |key: &str, message: String| problems.push(Problem::of_key(table.child(key), message));
        let is_upstream = |name: &str| proxy.upstreams.contains_key(name);
        if let Some(listen) = proxy.listen {
            for (name, other) in [("listen", self.server.listen), ("admin_listen", self.server.admin_listen)] {
                if super::validate::overlap(listen, other) {
                    add(
                        "listen",
                        format!("{listen} and server.{name} ({other}) are the same address; give each its own port"),
                    );
                }
            }
        }
        if proxy.unmatched != REFUSE && !is_upstream(&proxy.unmatched) {
            add(
                "unmatched",
                format!(
                    "there is no upstream `{}` in [proxy.upstreams]; name one, or write \"refuse\"",
                    proxy.unmatched
                ),
            );
        }
        if let Err(wrong) = proxy.cors_origins() {
            add("cors_origins", format!("{wrong:?} is no origin; write one like \"https://shop.example\""));
        }
        if let Err(wrong) = proxy.strip_fields() {
            add("strip_fields", wrong);
        }
        let (total, parts) = (proxy.request_bytes_total.0, if proxy.payers().len() > 1 { 2 } else { 1 });
        let responses = proxy.routes.iter().map(|route| route.response_bytes.0.min(RESPONSE_BYTES_MAX));
        let longest = responses.fold(self.limits.body_bytes, usize::max);
        // Long bodies leave an eighth to others.
        let least = (longest.saturating_mul(parts) / 7).saturating_mul(8).saturating_add(8 * parts);
        if total < least {
            let whose = if parts > 1 { ", and one of several apps has half of it" } else { "" };
            add(
                "request_bytes_total",
                format!(
                    "{total} is too little for the longest body, {longest} by limits.body_bytes or the response_bytes of a \
                     route{whose}; write at least {least}"
                ),
            );
        }
        for (place, issuer) in proxy.issuers.iter().enumerate() {
            if let Err(why) = issuer.check() {
                add("issuers", why);
            }
            if proxy.issuers[..place].iter().any(|other| other.issuer == issuer.issuer) {
                add("issuers", format!("`{}` occurs twice; name each issuer once", issuer.issuer));
            }
        }
        for (name, options) in &proxy.upstreams {
            let wrong = options.urls.iter().find(|url| options::server_of(url).is_none());
            if options.urls.is_empty() {
                add("upstreams", format!("`{name}` has no urls; write urls = [\"http://10.0.0.7:9000\"]"));
            } else if let Some(url) = wrong {
                add(
                    "upstreams",
                    format!(
                        "`{name}`: {url:?} is not http://<host>[:<port>] or https://<host>[:<port>]; leave out paths"
                    ),
                );
            } else if options.exchanges < 2 {
                add(
                    "upstreams",
                    format!("`{name}`: exchanges is 2 at least, since one of several apps has half of it"),
                );
            } else if let Err(why) = options.authorities() {
                add("upstreams", format!("`{name}`: {why}"));
            }
        }
        for (place, route) in proxy.routes.iter().enumerate() {
            let before = &proxy.routes[..place];
            for message in self.route_problems(route, before) {
                add("routes", format!("route {} (`{}`): {message}", place + 1, route.name));
            }
        }
        problems
    }

    /// Returns the problems of terms that a route has, and that are written at an operation of an app.
    pub(super) fn check_terms_of_routes(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (key, app) in &self.apps {
            for (operation, own) in &app.operations {
                let Some(route) = operation.as_ref().strip_prefix(Operation::PROXY_PREFIX) else { continue };
                let path = KeyPath::of(["apps", key.as_ref(), "operations", operation.as_ref()]);
                let of_route = |term: &str| {
                    format!("has no effect here: write `{term}` in [[proxy.routes]], at the route `{route}`")
                };
                let always =
                    "has no effect here: a lease of the proxy that ends leaves an unknown outcome. Leave it out";
                for (term, is_set, message) in [
                    ("lease", own.lease.is_some(), of_route("lease")),
                    ("retention", own.retention.is_some(), of_route("retention")),
                    ("unknown_retention", own.unknown_retention.is_some(), of_route("retention")),
                    ("on_lease_end", own.on_lease_end.is_some(), always.to_owned()),
                ] {
                    if is_set {
                        problems.push(Problem::of_key(path.child(term), message));
                    }
                }
            }
        }
        problems
    }

    /// Returns the problems of who may call on a route.
    fn caller_problems(&self, route: &RouteOptions) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(Err(why)) = self.proxy.upstreams.get(&route.upstream).map(|of| route.check_authorize(of)) {
            problems.push(format!("authorize: {why}"));
        }
        let has_peers = !self.proxy.trusted_peers.is_empty();
        let tls = if self.proxy.tls.is_on() { &self.proxy.tls } else { &self.server.tls };
        let has_certificates = has_peers || !tls.client_ca.as_os_str().is_empty();
        if !has_certificates && route.principal.contains(&PrincipalSource::ClientCert) {
            problems.push(
                "no client has a certificate: set server.tls.client_ca, or proxy.tls.client_ca for this listener alone, or name the peers \
                 that pass certificates on in proxy.trusted_peers"
                    .to_owned(),
            );
        }
        if let Some(why) = self.proxy.stripped_of(route) {
            problems.push(why);
        }
        if self.proxy.issuers.is_empty() && route.principal.contains(&PrincipalSource::Token) {
            problems.push("no issuer of tokens is known; name those that are believed in [[proxy.issuers]]".to_owned());
        }
        if !has_peers && route.principal.iter().any(|source| matches!(source, PrincipalSource::Trusted(_))) {
            problems
                .push("no peer may set the trusted field of `principal`; name them in proxy.trusted_peers".to_owned());
        }
        problems
    }

    fn route_problems(&self, route: &RouteOptions, before: &[RouteOptions]) -> Vec<String> {
        let mut problems = self.caller_problems(route);
        let mut check = |holds: bool, message: String| {
            if !holds {
                problems.push(message);
            }
        };
        check(
            route.operation().is_some(),
            "the name is no part of an operation; use up to 122 letters, digits and any of `._:/-`".to_owned(),
        );
        check(
            before.iter().all(|other| other.name != route.name),
            "an earlier route has this name; names are part of the identity of keys, so choose another".to_owned(),
        );
        let is_known = if self.apps.is_empty() {
            route.app.as_ref() == "default" || self.registry.is_set()
        } else {
            self.apps.contains_key(&route.app)
        };
        check(
            is_known,
            format!("there is no app `{}`; configure [apps.{}], or `default` on an open gateway", route.app, route.app),
        );
        check(
            self.proxy.upstreams.contains_key(&route.upstream),
            format!("there is no upstream `{}` in [proxy.upstreams]", route.upstream),
        );
        if let Some(host) = route.wrong_host() {
            let advice = "write it without scheme, port, path and wildcard, like \"api.shop.example\"";
            check(false, format!("hosts has {host:?}, which is no host; {advice}"));
        }
        for problem in path_problems(route) {
            check(false, problem);
        }
        if let Some(problem) = methods_problem(route) {
            check(false, problem);
        }
        check(
            route.key_headers().is_some_and(|names| !names.is_empty()),
            "key_headers needs names of fields, such as [\"Idempotency-Key\"]".to_owned(),
        );
        check(
            route.principal.is_empty() == route.shared_keys || route.key == KeyRequirement::Off,
            "`principal` says what makes two callers different, such as [\"authorization\"]; without it a caller can get the \
             response of another, so an empty one needs shared_keys = true"
                .to_owned(),
        );
        check(
            !(route.fingerprint.contains(&FingerprintPart::Body)
                && route.fingerprint.contains(&FingerprintPart::BodyJson)),
            "the fingerprint has \"body\" and \"body:json\"; choose one".to_owned(),
        );
        check(
            route.fingerprint_without.is_empty() || route.compares_body(),
            "fingerprint_without leaves members of the body out, and `fingerprint` has no body; add \"body:json\""
                .to_owned(),
        );
        if let Some(status) = route.contradiction() {
            check(false, format!("{status} is in `store` and in `release`; write it in one of them"));
        }
        check(
            (1..=RESPONSE_BYTES_MAX).contains(&route.response_bytes.0),
            "response_bytes is from 1 to \"1MiB\"; longer responses are not replayed".to_owned(),
        );
        if let Some(why) = self.response_bytes_problem(route) {
            check(false, why);
        }
        if let Err(error) = self.limits.check_lease(route.lease.0) {
            check(false, format!("{error} (limits.lease_min, limits.lease_max)"));
        }
        let connect_timeout = self.proxy.upstreams.get(&route.upstream).map(|upstream| upstream.connect_timeout);
        if let Some(Span(connect_timeout)) = connect_timeout {
            check(
                route.lease.0 >= connect_timeout * 2,
                format!(
                    "the lease {} is shorter than twice the connect_timeout of its upstream ({}): a request is sent only if its \
                     lease outlasts a connect. Write a longer lease, or a shorter connect_timeout",
                    route.lease,
                    Span(connect_timeout)
                ),
            );
        }
        if let Err(error) = route.stored_fields() {
            check(false, error);
        }
        check(
            route.response_retention.is_none_or(|time| Retention::For(time.0) <= route.retention),
            "response_retention is longer than retention, after which the key is free".to_owned(),
        );
        if let Some(message) = self.route_retention_problem(route) {
            check(false, message);
        }
        if let Some(shadow) = before.iter().find(|other| shadows(other, route)) {
            check(false, format!("the earlier route `{}` takes all its requests; change their order", shadow.name));
        }
        problems
    }

    /// Returns the problem of a route that keeps keys for longer than its app or the limits permit.
    pub(super) fn route_retention_problem(&self, route: &RouteOptions) -> Option<String> {
        let (retention, app) = (route.retention, Some(&route.app).filter(|_| !self.apps.is_empty()));
        let is_permitted = retention <= self.retention_max_of(app) && self.limits.check_retention(retention).is_ok();
        (!is_permitted).then(|| {
            format!("the retention {retention} is beyond retention_max of its app, or limits.retention_min and _max")
        })
    }
}

/// Returns the error in the methods of a route, if there is one.
fn methods_problem(route: &RouteOptions) -> Option<String> {
    if let Some(wrong) = route.wrong_method() {
        return Some(format!(
            "methods has {wrong:?}, which is no method; write it in capital letters, such as \"POST\""
        ));
    }
    let methods = route.methods()?;
    if methods.is_empty() {
        return Some("no method is protected; write methods = [\"POST\"]".to_owned());
    }
    let is_safe = methods.iter().any(options::needs_no_key);
    let advice = "safe methods need no key, and are forwarded anyway; protect POST, PATCH, PUT or DELETE";
    is_safe.then(|| advice.to_owned())
}

/// Returns the error in the path of a route.
fn path_problems(route: &RouteOptions) -> Vec<String> {
    let mut problems = Vec::new();
    if let Err(error) = route.matcher() {
        problems.push(format!("the path {:?} is not valid: {error}", route.path));
    }
    if let Some(why) = route.path_problem() {
        problems.push(format!("the path {:?} {why}", route.path));
    }
    if !route.path.starts_with('/') {
        problems.push("the path begins with a slash: \"/v1/orders/{id}\", \"/v1/{*rest}\"".to_owned());
    }
    problems
}

/// Reports whether an earlier route takes all requests of a later one. Compares the patterns, not the paths that they match.
fn shadows(earlier: &RouteOptions, later: &RouteOptions) -> bool {
    let methods = later.methods.iter().all(|method| earlier.methods.contains(method));
    let path = earlier.path == later.path
        || earlier.matcher().is_ok_and(|matcher| {
            // A parameter takes any segment, even a segment that looks like a parameter.
            let sample = later.path.replace(['{', '}'], "").replace('*', "");
            matcher.at(&sample).is_ok()
        }) && later.path.contains('{') <= earlier.path.contains("{*");
    earlier.has_hosts_of(later) && methods && path
}
