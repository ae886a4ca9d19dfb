//! Changes of routes that change identities: a repeat of a request from before would not find the claim of its first try.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::{HeaderName, Method};
use oncegate_core::terms::Retention;
use serde::Serialize;

use super::options::{FingerprintPart, KeyRequirement, ProxyOptions, REFUSE, RouteOptions};
use super::principal_source::PrincipalSource;
use super::route::pick;
use super::target::plain_host;

/// Segment of samples where a path has a parameter. No route has such a segment.
const ANY_SEGMENT: &str = "any-0f83";

/// The host of samples that no route names.
const ANY_HOST: &str = "";

/// Effect of a change on the repeat of an earlier request.
const RUNS_AGAIN: &str = "runs again";
const HAS_NO_KEY: &str = "is refused, as it has no key";
const IS_ANOTHER: &str = "is refused, as if it were another request with the same key";
const IS_REFUSED: &str = "is refused";

/// Destination of the requests of a route.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Way<'a> {
    Protected(&'a str),
    Unprotected,
    Refused,
}

/// Returns the changes from the old routes to the new ones that change identities: a sentence for each, for a person to read.
///
/// Which route takes a request is compared for samples: each path of both lists at each host and with each method of both.
pub fn changes(old: &ProxyOptions, new: &ProxyOptions) -> Vec<String> {
    if old.listen.is_none() {
        return Vec::new();
    }
    let protected = old.routes.iter().filter(|route| route.key != KeyRequirement::Off);
    let both = protected.filter_map(|route| Some((route, new.routes.iter().find(|now| now.name == route.name)?)));
    let mut changes: Vec<_> = both.flat_map(|(route, now)| changes_of(route, now)).collect();
    changes.extend(moves(old, new));
    changes
}

/// Returns the changes of a route.
fn changes_of(old: &RouteOptions, new: &RouteOptions) -> Vec<String> {
    let mut changes = Vec::new();
    let mut add = |what: &str, was: String, is: String, effect: &str| {
        changes.push(sentence(old, &format!("its {what} changes from {was} to {is}"), effect));
    };
    if old.app != new.app {
        add("app", toml(&old.app), toml(&new.app), RUNS_AGAIN);
    }
    let [was, is] = [old, new].map(RouteOptions::principal_sources);
    if same_when_present(&was) != same_when_present(&is) {
        add("principal", toml(&was), toml(&is), RUNS_AGAIN);
    }
    let [names, still] = [old, new].map(places_of_key);
    if !names.iter().all(|name| still.contains(name)) {
        let effect = if new.key == KeyRequirement::Required { HAS_NO_KEY } else { RUNS_AGAIN };
        add("place of the key", listed(&names), listed(&still), effect);
    }
    let [was, is] = [old, new].map(fingerprint);
    if was != is {
        add("fingerprint", listed(&was), listed(&is), IS_ANOTHER);
    }
    changes
}

/// Returns a sentence for each other way that requests of a route take.
fn moves(old: &ProxyOptions, new: &ProxyOptions) -> Vec<String> {
    let all = || old.routes.iter().chain(&new.routes);
    let paths: BTreeMap<_, _> = all().map(|route| (sample(&route.path), &route.path)).collect();
    let named = all().flat_map(|route| &route.hosts).map(|host| plain_host(host));
    let hosts: BTreeSet<_> = named.chain([ANY_HOST.to_owned()]).collect();
    let methods: BTreeSet<_> = all().flat_map(|route| &route.methods).collect();
    let (old_routes, new_routes) = (Pattern::of(&old.routes), Pattern::of(&new.routes));
    let mut found: BTreeMap<(&str, Way), String> = BTreeMap::new();
    for (path, pattern) in paths {
        let (before, after) = (on_path(&old_routes, &path), on_path(&new_routes, &path));
        for host in &hosts {
            for name in &methods {
                let Ok(method) = Method::from_bytes(name.as_bytes()) else { continue };
                let Way::Protected(route) = way(&before, host, &method, &old.unmatched) else { continue };
                let now = way(&after, host, &method, &new.unmatched);
                if now != Way::Protected(route) {
                    let at = if host == ANY_HOST { String::new() } else { format!(" at {host}") };
                    found.entry((route, now)).or_insert_with(|| format!("{name} {pattern}{at}"));
                }
            }
        }
    }
    let text = |((name, now), example): ((&str, Way), String)| {
        let route = old.routes.iter().find(|route| route.name == name)?;
        let (where_to, effect) = match now {
            Way::Protected(other) => (format!("take the route `{other}`"), RUNS_AGAIN),
            Way::Unprotected => ("are forwarded without protection".to_owned(), RUNS_AGAIN),
            Way::Refused => ("have no route".to_owned(), IS_REFUSED),
        };
        Some(sentence(route, &format!("its requests such as {example} {where_to} now"), effect))
    };
    found.into_iter().filter_map(text).collect()
}

fn sentence(route: &RouteOptions, change: &str, effect: &str) -> String {
    let age = match route.retention {
        Retention::For(_) => format!("up to {} old", route.retention),
        Retention::Forever => "however old".to_owned(),
    };
    format!("route `{}`: {change}; a repeat of a request from before, {age}, {effect}", route.name)
}

/// A route, ready to be compared with paths.
struct Pattern<'a> {
    route: &'a RouteOptions,
    path: matchit::Router<()>,
    methods: Vec<Method>,
}

impl<'a> Pattern<'a> {
    /// Returns those of the routes that are valid.
    fn of(routes: &'a [RouteOptions]) -> Vec<Self> {
        let pattern =
            |route: &'a RouteOptions| Some(Self { route, path: route.matcher().ok()?, methods: route.methods()? });
        routes.iter().filter_map(pattern).collect()
    }
}

fn on_path<'p, 'a>(patterns: &'p [Pattern<'a>], path: &str) -> Vec<&'p Pattern<'a>> {
    patterns.iter().filter(|pattern| pattern.path.at(path).is_ok()).collect()
}

/// Returns the way of a request, as the proxy chooses it.
fn way<'a>(on_path: &[&Pattern<'a>], host: &str, method: &Method, unmatched: &str) -> Way<'a> {
    let matching = on_path.iter().filter(|pattern| pattern.route.has_host(host));
    match pick(matching, |pattern| pattern.methods.contains(method)) {
        Some((pattern, true)) if pattern.route.key != KeyRequirement::Off => Way::Protected(&pattern.route.name),
        None if unmatched == REFUSE => Way::Refused,
        Some(_) | None => Way::Unprotected,
    }
}

/// Returns a path that a pattern matches.
fn sample(pattern: &str) -> String {
    let (mut sample, mut rest) = (String::new(), pattern);
    while let Some(at) = rest.find(['{', '}']) {
        sample.push_str(&rest[..at]);
        let braces = &rest[at..];
        // A doubled brace is an escaped one.
        if let Some((brace, after)) =
            [("{", "{{"), ("}", "}}")].iter().find_map(|(brace, two)| Some((brace, braces.strip_prefix(two)?)))
        {
            sample.push_str(brace);
            rest = after;
        } else {
            sample.push_str(ANY_SEGMENT);
            rest = braces.split_once('}').map_or("", |(_, after)| after);
        }
    }
    sample + rest
}

/// Returns the sources with optional fields as required ones: if the field is present, both make the same principal.
fn same_when_present(sources: &[PrincipalSource]) -> Vec<PrincipalSource> {
    let present = |source: &PrincipalSource| match source {
        PrincipalSource::OptionalField(name) => PrincipalSource::Field(name.clone()),
        other => other.clone(),
    };
    sources.iter().map(present).collect()
}

/// Returns the fields that may have the key, and the member of the body.
fn places_of_key(route: &RouteOptions) -> Vec<String> {
    let fields = route.key_headers().unwrap_or_default().into_iter().map(|name| name.to_string());
    fields.chain(route.key_in_body.iter().map(|pointer| format!("body {pointer}"))).collect()
}

/// Returns the names of the parts, which make the same fingerprint in any order.
fn fingerprint(route: &RouteOptions) -> BTreeSet<String> {
    let without = &route.fingerprint_without;
    let name = |part: &FingerprintPart| match part {
        // Without a member, a body is compared by value.
        FingerprintPart::Body if !without.is_empty() => name_of(FingerprintPart::BodyJson),
        part => name_of(*part),
    };
    let without = without.iter().map(|pointer| format!("without {pointer}"));
    let also = route.dialect.fingerprint_field().map(HeaderName::to_string);
    let host = route.hosts.is_empty().then(|| "host".to_owned());
    route.fingerprint.iter().map(name).chain(without).chain(also).chain(host).collect()
}

fn name_of(part: FingerprintPart) -> String {
    toml(&part).trim_matches('"').to_owned()
}

fn listed<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    toml(&items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>())
}

/// Returns a value as the configuration writes it.
fn toml(value: &impl Serialize) -> String {
    toml::Value::try_from(value).map(|value| value.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Dialect;

    /// The proxy of two routes, changed by this.
    fn proxy(change: impl FnOnce(&mut ProxyOptions)) -> ProxyOptions {
        let mut options: ProxyOptions = toml::from_str(
            r#"
            listen = "127.0.0.1:8081"
            trusted_peers = []
            unmatched_keyed = "refuse"
            allow_in_path = []
            strip_fields = []
            unmatched = "refuse"
            request_bytes_total = "64MiB"
            cors_origins = []
            issuers = []
            encryption = { keys = [] }
            tls = { certificate = "", key = "", client_ca = "" }
            upstreams = {}
            [[routes]]
            name = "orders"
            app = "shop"
            path = "/v1/orders/{id}"
            methods = ["POST", "PATCH"]
            upstream = "service"
            principal = ["authorization", "x-tenant"]
            [[routes]]
            name = "rest"
            app = "shop"
            hosts = ["a.example"]
            path = "/v1/{*rest}"
            methods = ["POST"]
            upstream = "service"
            principal = ["authorization"]
            retention = "forever"
            "#,
        )
        .unwrap();
        change(&mut options);
        options
    }

    fn changed(change: impl FnOnce(&mut ProxyOptions)) -> Vec<String> {
        changes(&proxy(|_| {}), &proxy(change))
    }

    fn inserted(at: usize, route: &str) -> Vec<String> {
        let common = "app = \"shop\"\nupstream = \"service\"\nprincipal = [\"authorization\"]\n";
        let route = toml::from_str(&format!("{common}{route}")).unwrap();
        changed(|proxy| proxy.routes.insert(at, route))
    }

    #[test]
    fn edits_that_keep_identities_are_no_changes() {
        let none: [fn(&mut ProxyOptions); 8] = [
            |_| {},
            |proxy| proxy.routes[0].upstream = "other".into(),
            |proxy| proxy.routes[0].retention = Retention::Forever,
            |proxy| proxy.routes[0].key = KeyRequirement::Optional,
            |proxy| proxy.routes[0].key_headers = Some(vec!["X-Key".into(), "Idempotency-Key".into()]),
            |proxy| proxy.routes[0].fingerprint.reverse(),
            |proxy| proxy.routes[0].principal[1] = "x-tenant?".parse().unwrap(),
            |proxy| proxy.routes[0].on_5xx = Some(crate::status::Meaning::Done),
        ];
        for (number, change) in none.into_iter().enumerate() {
            assert_eq!(changed(change), Vec::<String>::new(), "edit {number}");
        }
        assert_eq!(inserted(0, "name = \"carts\"\npath = \"/v2/carts\"\nmethods = [\"POST\"]"), Vec::<String>::new());
        let with = |dialect: Dialect, principal: &[&str]| {
            let principal = principal.iter().map(|source| source.parse().unwrap()).collect();
            proxy(|proxy| (proxy.routes[0].dialect, proxy.routes[0].principal) = (dialect, principal))
        };
        let named = with(Dialect::Ietf, &["authorization", "stripe-account?", "stripe-context?"]);
        assert_eq!(changes(&with(Dialect::Stripe, &["authorization"]), &named), Vec::<String>::new());
        let off = proxy(|proxy| proxy.listen = None);
        assert_eq!(changes(&off, &proxy(|proxy| proxy.routes.clear())), Vec::<String>::new());
    }

    #[test]
    fn each_part_of_the_identity_is_compared() {
        type Edit = fn(&mut RouteOptions);
        let edits: [(Edit, &str); 8] = [
            (
                |route| route.app = "other".parse().unwrap(),
                "its app changes from \"shop\" to \"other\"; a repeat of a \
                request from before, up to 1d old, runs again",
            ),
            (
                |route| route.principal = vec!["cookie:sid".parse().unwrap()],
                "its principal changes from \
                [\"authorization\", \"x-tenant\"] to [\"cookie:sid\"]; a repeat of a request from before, up to 1d old, runs again",
            ),
            (|route| route.principal.reverse(), "its principal changes"),
            (
                |route| route.dialect = Dialect::Stripe,
                "its principal changes from [\"authorization\", \"x-tenant\"] to [\"authorization\", \"x-tenant\", \
                \"stripe-account?\", \"stripe-context?\"]; a repeat of a request from before, up to 1d old, runs again",
            ),
            (
                |route| route.key_headers = Some(vec!["X-Key".into()]),
                "its place of the key changes from \
                [\"idempotency-key\"] to [\"x-key\"]; a repeat of a request from before, up to 1d old, is refused, as it has no key",
            ),
            (
                |route| {
                    route.key = KeyRequirement::Optional;
                    route.key_headers = Some(vec!["X-Key".into()]);
                },
                "[\"x-key\"]; a repeat of a request from before, up to 1d old, runs again",
            ),
            (|route| route.fingerprint.truncate(5), "its fingerprint changes from [\"body\", \"content-type\""),
            (
                |route| {
                    route.dialect = Dialect::Oasis;
                    route.key_headers = Some(vec!["Idempotency-Key".into()]);
                },
                "\"repeatability-first-sent\"]; a repeat of a request from before, up to 1d old, is refused, as if it were another",
            ),
        ];
        for (edit, wanted) in edits {
            let found = changed(|proxy| edit(&mut proxy.routes[0]));
            assert!(
                found.len() == 1 && found[0].contains(wanted) && found[0].starts_with("route `orders`: "),
                "{found:?}"
            );
        }
    }

    #[test]
    fn each_part_of_the_fingerprint_is_compared() {
        let of = |change: fn(&mut RouteOptions)| {
            let mut route = proxy(|_| {}).routes.remove(0);
            change(&mut route);
            fingerprint(&route)
        };
        let edits: [fn(&mut RouteOptions); 5] = [
            |route| route.hosts = vec!["a.example".into()],
            |route| route.fingerprint_without = vec!["/id".to_owned().try_into().unwrap()],
            |route| route.fingerprint.retain(|part| *part != FingerprintPart::IfMatch),
            |route| route.fingerprint.push(FingerprintPart::BodyJson),
            |route| route.dialect = Dialect::Oasis,
        ];
        for (number, edit) in edits.into_iter().enumerate() {
            assert_ne!(of(edit), of(|_| {}), "edit {number}");
        }
    }

    #[test]
    fn requests_that_take_another_way_are_found() {
        let again = "a repeat of a request from before, up to 1d old, runs again";
        let renamed = changed(|proxy| proxy.routes[0].name = "shop".into());
        assert_eq!(renamed.len(), 1, "{renamed:?}");
        assert!(renamed[0].starts_with("route `orders`: its requests such as "), "{renamed:?}");
        assert!(renamed[0].ends_with(&format!("take the route `shop` now; {again}")), "{renamed:?}");

        // At one host the next route takes them.
        let removed = changed(|proxy| drop(proxy.routes.remove(0)));
        assert_eq!(removed.len(), 3, "{removed:?}");
        assert!(removed[0].contains("POST /v1/orders/{id} at a.example take the route `rest` now"), "{removed:?}");
        assert!(
            removed[1].contains("PATCH /v1/orders/{id} at a.example are forwarded without protection"),
            "{removed:?}"
        );
        assert!(removed[2].contains("PATCH /v1/orders/{id} have no route now;") && removed[2].ends_with("is refused"));

        let open = changed(|proxy| {
            proxy.routes[0].path = "/v2/orders/{id}".into();
            proxy.unmatched = "service".into();
        });
        assert!(
            open.iter().any(|it| it.contains("PATCH /v1/orders/{id} are forwarded without protection")),
            "{open:?}"
        );

        let off = changed(|proxy| proxy.routes[0].key = KeyRequirement::Off);
        assert!(off.len() == 1 && off[0].contains("are forwarded without protection"), "{off:?}");

        let fewer = changed(|proxy| drop(proxy.routes[0].methods.pop()));
        assert!(fewer.len() == 1 && fewer[0].contains("PATCH /v1/orders/{id} are forwarded"), "{fewer:?}");

        let other_host = changed(|proxy| proxy.routes[1].hosts = vec!["b.example".into()]);
        assert!(other_host.len() == 1 && other_host[0].contains("however old, is refused"), "{other_host:?}");
    }

    #[test]
    fn a_new_route_takes_requests_only_from_the_routes_behind_it() {
        let special = "name = \"special\"\npath = \"/v1/orders/special\"\nmethods = [\"POST\"]";
        let before = inserted(0, special);
        assert!(
            before.len() == 1 && before[0].contains("POST /v1/orders/special take the route `special` now"),
            "{before:?}"
        );
        assert_eq!(inserted(2, special), Vec::<String>::new());
        let off = inserted(0, &format!("{special}\nkey = \"off\""));
        assert!(
            off.len() == 1 && off[0].contains("POST /v1/orders/special are forwarded without protection"),
            "{off:?}"
        );
        let swapped = changed(|proxy| proxy.routes.swap(0, 1));
        assert!(swapped.len() == 1 && swapped[0].contains("POST /v1/orders/{id} at a.example take"), "{swapped:?}");
        // Of the requests of one path, only those at its host, and with its methods.
        let host = inserted(0, "name = \"b\"\nhosts = [\"B.example\"]\npath = \"/{*all}\"\nmethods = [\"PATCH\"]");
        assert!(host.len() == 1 && host[0].contains("PATCH /v1/orders/{id} at b.example take"), "{host:?}");
    }

    #[test]
    fn a_sample_matches_its_pattern() {
        for pattern in ["/", "/v1/orders", "/v1/{id}/lines/{line}", "/v1/{*rest}", "/a{{b}}/{id}", "/v1/{id}.json"] {
            let mut router = matchit::Router::new();
            if router.insert(pattern, ()).is_ok() {
                assert!(router.at(&sample(pattern)).is_ok(), "{pattern}: {}", sample(pattern));
            }
        }
        assert_eq!(sample("/a{{b}}/{id}"), format!("/a{{b}}/{ANY_SEGMENT}"));
    }
}
