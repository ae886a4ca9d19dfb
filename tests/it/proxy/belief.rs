//! Trust of the proxy in a request, on every path through it: with a key, without, unprotected, observed, as a
//! WebSocket, to upstreams of both protocols. Each rule has a test over all paths where it can hold:
//!
//! | Rule | Tests |
//! | --- | --- |
//! | the proxy's own realm | `realm`: keys of each engine; no other way has records |
//! | one target | `a_host_has_one_name_on_every_way`, `hosts` |
//! | one spelling, no keyed request in silence | `what_servers_could_take_for_another_request_…` |
//! | fields of untrusted peers, also as trailers | `fields_of_peers_that_are_not_trusted_…`, `fields_of_trusted_peers_…` |
//! | an empty principal is none | `nobody_is_a_caller_on_no_way`, `hosts` |
//! | framing | `framing`, for both directions |
//! | encryption | `records`: stored responses; no other way has any |
//! | bounds for every sender | `bounds` |

mod framing;
mod hosts;

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http_body_util::BodyExt as _;
use hyper::HeaderMap;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use tokio::net::TcpListener;

use super::address;
use super::framing::exchange;
use crate::support::gateway;

/// A request as the upstream got it.
struct Seen {
    target: String,
    headers: HeaderMap,
    trailers: HeaderMap,
}

/// An upstream that records its requests, and answers 201.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Seen>>>);

impl Recorder {
    /// Starts it; returns its port.
    async fn start(is_http2: bool) -> (Self, u16) {
        let recorder = Self::default();
        let router = Router::new().fallback(record).with_state(recorder.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            if !is_http2 {
                return axum::serve(listener, router).await.unwrap();
            }
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(router.clone());
                let serving = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
                tokio::spawn(serving);
            }
        });
        (recorder, port)
    }

    fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

async fn record(State(recorder): State<Recorder>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let trailers = body.collect().await.ok().and_then(|body| body.trailers().cloned()).unwrap_or_default();
    let target = format!("{} {}", head.method, head.uri.path_and_query().unwrap());
    recorder.0.lock().unwrap().push(Seen { target, headers: head.headers, trailers });
    Response::builder().status(201).header("location", "/orders/1").body(Body::from("done")).unwrap()
}

/// Returns the configuration of a proxy with a route for each kind.
fn config(port: u16, is_http2: bool, is_observed: bool, of_proxy: &str) -> String {
    let route = |name: &str, more: &str| {
        format!(
            "[[proxy.routes]]\nname = \"{name}\"\napp = \"default\"\npath = \"/{name}\"\nmethods = [\"POST\"]\nupstream = \"u\"\n{more}"
        )
    };
    let principal = "principal = [\"authorization\"]\n";
    let routes = [
        route("orders", principal),
        route("optional", "key = \"optional\"\nprincipal = [\"trusted:x-user\"]\n"),
        route("off", &format!("key = \"off\"\n{principal}")),
    ];
    let mode = if is_observed { "[defaults]\nmode = \"observe\"\n" } else { "" };
    format!(
        "{mode}[proxy]\nlisten = \"127.0.0.1:0\"\nunmatched = \"u\"\n{of_proxy}[proxy.upstreams.u]\nhttp2 = {is_http2}\n\
         urls = [\"http://127.0.0.1:{port}\"]\n{}",
        routes.concat()
    )
}

/// Names and heads of the ways: method, path, and the fields that choose it.
const WAYS: [(&str, &str, &str, &str); 7] = [
    ("a key", "POST", "/orders", "idempotency-key: {key}\r\n"),
    ("no key", "POST", "/optional", ""),
    ("off", "POST", "/off", "idempotency-key: {key}\r\n"),
    ("unmatched", "POST", "/elsewhere", ""),
    ("another method", "PUT", "/orders", ""),
    ("a safe method", "GET", "/orders", ""),
    (
        "a WebSocket",
        "GET",
        "/orders",
        "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    ),
];

/// Gateways in front of a recorder, for each protocol of the upstream and each mode.
async fn gateways(of_proxy: &str) -> Vec<(String, Recorder, Gateway)> {
    let mut all = Vec::new();
    for is_http2 in [false, true] {
        for is_observed in [false, true] {
            let (recorder, port) = Recorder::start(is_http2).await;
            let config = config(port, is_http2, is_observed, of_proxy);
            let gateway = gateway::on_memory().config(&config).start().await;
            all.push((format!("http2 {is_http2}, observed {is_observed}"), recorder, gateway));
        }
    }
    all
}

/// Sends a request on a way, with more fields, and trailers where the method has a body. Returns the answer.
async fn send(gateway: &Gateway, way: (&str, &str, &str, &str), fields: &str, trailers: &str) -> String {
    let (name, method, path, own) = way;
    let own = own.replace("{key}", &name.replace(' ', "-"));
    let body = match (method, trailers) {
        ("GET", _) => "\r\n".to_owned(),
        (_, "") => "content-length: 1\r\n\r\nx".to_owned(),
        (_, trailers) => format!("transfer-encoding: chunked\r\n{trailers}"),
    };
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: shop.example\r\nauthorization: alice\r\n{own}{fields}{body}");
    exchange(&address(gateway), &request).await
}

const SPOOFED: [&str; 24] = [
    "Forwarded",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "X-Forwarded-Port",
    "X-Forwarded-Prefix",
    "X-Forwarded-User",
    "X-Forwarded-Client-Cert",
    "X-Forwarded-Uri",
    "X-Forwarded-Method",
    "X_Forwarded_For",
    "X_Forwarded-Host",
    "X-Real-IP",
    "X_Real_IP",
    "X-Original-URL",
    "X-Rewrite-URL",
    "Client-Cert",
    "Client_Cert",
    "Client-Cert-Chain",
    "X-User",
    "X_User",
    "True-Client-IP",
    "Oncegate-Repeat",
    "Oncegate_Degraded",
];

/// Returns lines of fields with the names of all these, and their values.
fn spoofed(value: &str) -> String {
    let lines: Vec<_> = SPOOFED.iter().map(|name| format!("{name}: {value}\r\n")).collect();
    lines.concat()
}

fn has(fields: &HeaderMap, value: &str) -> Vec<String> {
    fields.iter().filter(|(_, it)| it.as_bytes() == value.as_bytes()).map(|(name, _)| name.to_string()).collect()
}

#[tokio::test]
async fn fields_of_peers_that_are_not_trusted_reach_the_upstream_on_no_way() {
    let settings = "trusted_peers = [\"192.0.2.0/24\"]\nstrip_fields = [\"True-Client-IP\"]\n";
    for (case, recorder, gateway) in gateways(settings).await {
        for way in WAYS {
            let names = SPOOFED.join(", ");
            let trailers = format!(
                "trailer: x-sum, {names}, authorization, idempotency-key, host\r\n\r\n1\r\nx\r\n0\r\n{}\
                 authorization: spoofed\r\nidempotency-key: spoofed\r\nhost: spoofed\r\nx-sum: 7\r\n\r\n",
                spoofed("spoofed")
            );
            let answer = send(&gateway, way, &spoofed("spoofed"), &trailers).await;
            assert!(answer.starts_with("HTTP/1.1 201"), "{case}, {}: {answer}", way.0);
            let seen = recorder.take();
            let [seen] = &seen[..] else { panic!("{case}, {}: {}", way.0, seen.len()) };
            assert_eq!(has(&seen.headers, "spoofed"), [""; 0], "{case}, {}", way.0);
            assert_eq!(has(&seen.trailers, "spoofed"), [""; 0], "{case}, {}", way.0);
            let is_streamed = way.1 != "GET" && way.0 != "a key";
            assert_eq!(seen.trailers.contains_key("x-sum"), is_streamed, "{case}, {}", way.0);
            for (name, value) in
                [("x-forwarded-for", "127.0.0.1"), ("x-forwarded-host", "shop.example"), ("x-forwarded-proto", "http")]
            {
                assert_eq!(seen.headers.get_all(name).iter().collect::<Vec<_>>(), [value], "{case}, {}", way.0);
            }
        }
        let lines = || {
            let log = gateway.log();
            log.lines()
                .filter(|line| line.contains("A peer that is not trusted sends"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        until("it is logged", super::SOON, async || !lines().is_empty()).await;
        let lines = lines();
        assert_eq!(lines.len(), 1, "{case}");
        assert!(lines[0].contains(r#"trusted_peers = [\"192.0.2.0/24\", \"127.0.0.1\"]"#), "{}", lines[0]);
    }
}

#[tokio::test]
async fn fields_of_trusted_peers_reach_the_upstream_on_every_way_but_not_as_trailers() {
    let names = "x-forwarded-for: 10.0.0.1\r\nx-forwarded-port: 443\r\nx-user: bob\r\n";
    for (case, recorder, gateway) in gateways("trusted_peers = [\"127.0.0.1\"]\n").await {
        for way in WAYS {
            let trailers = "trailer: x-user\r\n\r\n1\r\nx\r\n0\r\nx-user: eve\r\n\r\n";
            let answer = send(&gateway, way, names, trailers).await;
            assert!(answer.starts_with("HTTP/1.1 201"), "{case}, {}: {answer}", way.0);
            let seen = recorder.take().remove(0);
            assert_eq!(seen.headers["x-forwarded-port"], "443", "{case}, {}", way.0);
            assert_eq!(seen.headers.get_all("x-user").iter().collect::<Vec<_>>(), ["bob"], "{case}, {}", way.0);
            assert_eq!(seen.headers["x-forwarded-for"], "10.0.0.1", "{case}, {}: it is the first", way.0);
            assert!(seen.trailers.is_empty(), "{case}, {}, {}: {:?}", way.0, seen.target, seen.trailers);
        }
        assert!(!gateway.log().contains("A peer that is not trusted"), "{case}");
    }
}

/// Returns the code of a refusal, or the status.
fn code(answer: &str) -> &str {
    let code = answer.split_once("\"code\":\"").and_then(|(_, rest)| rest.split('"').next());
    code.unwrap_or_else(|| answer.split(' ').nth(1).unwrap_or_default())
}

#[tokio::test]
async fn what_servers_could_take_for_another_request_is_refused_and_forwarded_only_if_all_is_observed() {
    for (case, recorder, gateway) in gateways("trusted_peers = [\"192.0.2.0/24\"]\n").await {
        let key = "idempotency-key: k-1\r\n";
        for (method, path, fields, refused) in [
            ("POST", "/%6frders", key, "201"),
            ("POST", "/x/..;/orders", key, "ambiguous_target"),
            ("GET", "/x/%2e%2e/orders", "", "ambiguous_target"),
            ("POST", "/orders%00", "", "ambiguous_target"),
            ("POST", "/orders;x=1", key, "ambiguous_target"),
            ("GET", "/orders;x=1", "", "201"),
            ("POST", "/a//b", "", "ambiguous_target"),
            ("POST", "/a%2Fb", "", "ambiguous_target"),
            ("post", "/orders", key, "ambiguous_target"),
            ("GET", "/orders", "idempotency-key: k-1\r\nx-http-method-override: POST\r\n", "ambiguous_target"),
            ("POST", "/orders", "idempotency-key: k-1\r\nx-http-method-override: PATCH\r\n", "fingerprint_mismatch"),
            ("PUT", "/orders", "idempotency-key: k-1\r\nx-http-method-override: POST\r\n", "no_route_for_key"),
            ("DELETE", "/orders", "idempotency-key: k-1\r\nx-method-override: POST\r\n", "no_route_for_key"),
            ("PUT", "/orders", "x-http-method-override: POST\r\n", "201"),
            ("POST", "/orders/", key, "no_route_for_key"),
            ("POST", "/Orders", key, "no_route_for_key"),
            ("PATCH", "/orders", key, "no_route_for_key"),
            ("POST", "/elsewhere", key, "no_route_for_key"),
            ("POST", "/elsewhere", "idempotency_key: k-1\r\n", "no_route_for_key"),
            ("POST", "/elsewhere", "", "201"),
            ("PUT", "/orders", key, "201"),
            ("POST", "/off", key, "201"),
        ] {
            let answer = send(&gateway, ("a way", method, path, ""), fields, "").await;
            let expected = if case.ends_with("true") { "201" } else { refused };
            assert_eq!(code(&answer), expected, "{case}, {method} {path}: {answer}");
            let seen: Vec<_> = recorder.take().into_iter().map(|seen| seen.target).collect();
            let forwarded = if expected == "201" { vec![format!("{method} {path}")] } else { Vec::new() };
            assert_eq!(seen, forwarded, "{case}: the target is forwarded unchanged");
        }
    }
}

/// Some servers decode the escapes of a path before they choose what to run, and others do not.
#[tokio::test]
async fn a_path_that_takes_another_route_once_it_is_decoded_is_refused() {
    let route = |name: &str, path: &str, more: &str| {
        format!(
            "[[proxy.routes]]\nname = \"{name}\"\napp = \"default\"\npath = \"{path}\"\nmethods = [\"POST\"]\nupstream = \"u\"\n\
             principal = [\"authorization\"]\n{more}"
        )
    };
    let batch = route("batch", "/v1/orders:batch", "");
    let siblings = [
        ("a sibling", route("kind", "/v1/{kind}", ""), ["ambiguous_target", "201"]),
        ("unprotected", route("kind", "/v1/{kind}", "key = \"off\"\n"), ["ambiguous_target", "201"]),
        ("none", String::new(), ["ambiguous_target", "no_route_for_key"]),
    ];
    for (case, sibling, [batched, other]) in siblings {
        for is_observed in [false, true] {
            let (recorder, port) = Recorder::start(false).await;
            let mode = if is_observed { "[defaults]\nmode = \"observe\"\n" } else { "" };
            let config = format!(
                "{mode}[proxy]\nlisten = \"127.0.0.1:0\"\nunmatched = \"u\"\n[proxy.upstreams.u]\nurls = [\"http://127.0.0.1:{port}\"]\n{}{batch}{}{sibling}",
                route("cafe", "/v1/caf%C3%A9/{id}", ""),
                route("escaped", "/v1/a%3Ab", "")
            );
            let gateway = gateway::on_memory().config(&config).start().await;
            for (method, path, key, expected) in [
                ("POST", "/v1/orders:batch", "k-1", "201"),
                ("POST", "/v1/orders%3Abatch", "k-1", batched),
                ("POST", "/v1/orders%3abatch", "", batched),
                ("PUT", "/v1/orders%3Abatch", "", batched),
                ("GET", "/v1/orders%3Abatch", "", "201"),
                ("POST", "/v1/a%3Ab", "k-2", "201"),
                ("POST", "/v1/a:b", "k-2", batched),
                ("POST", "/v1/caf%c3%a9/a%3Ab%25", "k-3", "201"),
                ("POST", "/v1/x%3Ay", "k-4", other),
            ] {
                let key = if key.is_empty() { String::new() } else { format!("idempotency-key: {key}\r\n") };
                let request = format!(
                    "{method} {path} HTTP/1.1\r\nhost: a\r\nauthorization: alice\r\n{key}content-length: 1\r\nconnection: close\r\n\r\nx"
                );
                let answer = exchange(&address(&gateway), &request).await;
                let expected = if is_observed { "201" } else { expected };
                assert_eq!(code(&answer), expected, "{case}, observed {is_observed}, {method} {path}: {answer}");
                assert_eq!(recorder.take().len(), usize::from(expected == "201"), "{case}, {method} {path}");
            }
        }
    }
}

/// Other servers read the target as that of another, protected route.
#[tokio::test]
async fn an_observed_route_lets_no_target_through_that_could_be_anothers() {
    let (recorder, port) = Recorder::start(false).await;
    let route = |name: &str, app: &str| {
        format!(
            "[[proxy.routes]]\nname = \"{name}\"\napp = \"{app}\"\npath = \"/{name}/{{id}}\"\nmethods = [\"POST\"]\nupstream = \"u\"\n\
             principal = [\"authorization\"]\n"
        )
    };
    let config = format!(
        "[apps.watched]\nsecrets = [\"sha256:{}\"]\nmode = \"observe\"\n[proxy]\nlisten = \"127.0.0.1:0\"\n[proxy.upstreams.u]\nurls = [\"http://127.0.0.1:{port}\"]\n{}{}",
        "0f".repeat(32),
        route("watched", "watched"),
        route("orders", "orders")
    ) + &format!("[apps.orders]\nsecrets = [\"sha256:{}\"]\n", "0e".repeat(32));
    let gateway = gateway::on_memory().config(&config).start().await;
    let send = async |path: &str| {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nauthorization: alice\r\nidempotency-key: k-1\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx"
        );
        let answer = exchange(&address(&gateway), &request).await;
        (code(&answer).to_owned(), recorder.take().len())
    };
    assert_eq!(send("/watched/%2e%2e").await, ("ambiguous_target".to_owned(), 0));
    assert_eq!(send("/watched/a").await, ("201".to_owned(), 1));
}

#[tokio::test]
async fn an_observed_route_lets_no_request_through_that_an_enforced_one_of_its_paths_would_refuse() {
    let (recorder, port) = Recorder::start(false).await;
    let route = |name: &str, path: &str, method: &str| {
        format!(
            "[[proxy.routes]]\nname = \"{name}\"\napp = \"default\"\npath = \"{path}\"\nmethods = [\"{method}\"]\nupstream = \"u\"\n\
             principal = [\"authorization\"]\n"
        )
    };
    let observed = |name: &str| format!("[apps.default.operations.\"proxy:{name}\"]\nmode = \"observe\"\n");
    let config = [
        format!("[proxy]\nlisten = \"127.0.0.1:0\"\n[proxy.upstreams.u]\nurls = [\"http://127.0.0.1:{port}\"]\n"),
        route("put", "/v1/orders", "PUT"),
        route("orders", "/v1/orders", "POST"),
        route("rest", "/v1/{*rest}", "POST"),
        format!("[apps.default]\nsecrets = [\"sha256:{}\"]\n", "0f".repeat(32)),
        observed("put"),
        observed("rest"),
    ];
    let gateway = gateway::on_memory().config(&config.concat()).start().await;
    for (method, path, expected) in [
        ("POST", "/v1/orders;x=1", "ambiguous_target"),
        ("POST", "/v1//orders", "ambiguous_target"),
        ("POST", "/v1/%2Forders", "ambiguous_target"),
        ("post", "/v1/orders", "ambiguous_target"),
        ("PATCH", "/v1/orders", "no_route_for_key"),
        ("POST", "/v1/other;x=1", "201"),
        ("post", "/v1/other", "201"),
        ("PATCH", "/v1/other", "201"),
    ] {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: a\r\nauthorization: alice\r\nidempotency-key: k-1\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx"
        );
        let answer = exchange(&address(&gateway), &request).await;
        assert_eq!(code(&answer), expected, "{method} {path}: {answer}");
        assert_eq!(recorder.take().len(), usize::from(expected == "201"), "{method} {path}");
    }
}

#[tokio::test]
async fn a_host_has_one_name_on_every_way() {
    for (case, recorder, gateway) in gateways("trusted_peers = [\"192.0.2.0/24\"]\n").await {
        for way in WAYS {
            for host in ["%61pi.shop.example", "a@shop", "a\r\nhost: b"] {
                let (name, method, path, own) = way;
                let own = own.replace("{key}", name);
                let request = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: alice\r\n{own}\r\n");
                let answer = exchange(&address(&gateway), &request).await;
                assert_eq!(code(&answer), "invalid_request", "{case}, {name}: {request} {answer}");
            }
            let (name, method, path, own) = way;
            for pathless in ["shop.example", "shop.example:80"] {
                let own = own.replace("{key}", name);
                let request =
                    format!("{method} {pathless} HTTP/1.1\r\nhost: shop.example\r\nauthorization: alice\r\n{own}\r\n");
                let answer = exchange(&address(&gateway), &request).await;
                assert_eq!(code(&answer), "invalid_request", "{case}, {name}: {request} {answer}");
            }
            let own = own.replace("{key}", "absolute");
            let request = format!(
                "{method} http://Other.example:1{path} HTTP/1.1\r\nhost: shop.example\r\nauthorization: alice\r\n{own}\r\n"
            );
            let answer = exchange(&address(&gateway), &request).await;
            assert!(answer.starts_with("HTTP/1.1 201"), "{case}, {name}: {answer}");
            let seen = recorder.take().remove(0);
            assert_eq!(seen.headers["x-forwarded-host"], "Other.example:1", "{case}, {name}");
        }
    }
}

#[tokio::test]
async fn nobody_is_a_caller_on_no_way() {
    const PRINCIPALS: [(&str, &str, &[&str]); 4] = [
        (
            "authorization",
            "authorization: Bearer a",
            &[
                "",
                "authorization:",
                "authorization: \t ",
                "authorization: Digest username=\"a\"",
                "authorization: dpop a",
            ],
        ),
        (
            "cookie:sid",
            "cookie: x=1; sid=a",
            &["", "cookie: x=1", "cookie: sid=", "cookie: sid = ;x=1", "cookie: sid=\"\""],
        ),
        ("trusted:x-user", "x-user: a", &["", "x-user:", "x-user: a\r\nx-user: a"]),
        ("client-cert", "client-cert: :AQID:", &["", "client-cert:", "client-cert: ::"]),
    ];
    for is_observed in [false, true] {
        let (recorder, port) = Recorder::start(false).await;
        let mode = if is_observed { "[defaults]\nmode = \"observe\"\n" } else { "" };
        let mut config = format!(
            "{mode}[proxy]\nlisten = \"127.0.0.1:0\"\ntrusted_peers = [\"127.0.0.1\"]\n[proxy.upstreams.u]\nurls = [\"http://127.0.0.1:{port}\"]\n"
        );
        for (place, (principal, ..)) in PRINCIPALS.iter().enumerate() {
            for (key, dialect) in [("required", "ietf"), ("optional", "stripe")] {
                let route = format!(
                    "[[proxy.routes]]\nname = \"{key}-{place}\"\napp = \"default\"\npath = \"/{key}/{place}\"\nmethods = [\"POST\"]\n\
                     upstream = \"u\"\nprincipal = [\"{principal}\"]\nkey = \"{key}\"\ndialect = \"{dialect}\"\n"
                );
                config.push_str(&route);
            }
        }
        let gateway = gateway::on_memory().config(&config).start().await;
        for (place, (principal, named, anonymous_fields)) in PRINCIPALS.iter().enumerate() {
            for key in ["required", "optional"] {
                let send = async |field: &str| {
                    let line = if field.is_empty() { String::new() } else { format!("{field}\r\n") };
                    let head = format!(
                        "POST /{key}/{place} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n"
                    );
                    exchange(&address(&gateway), &format!("{head}idempotency-key: k\r\n{line}\r\n")).await
                };
                let is_replay = |answer: &str| answer.contains("idempotent-replayed: true");
                for anonymous in *anonymous_fields {
                    let what = format!("{principal} {key} {anonymous:?} observed {is_observed}");
                    for _ in 0..2 {
                        let answer = send(anonymous).await;
                        let expected = if is_observed { "HTTP/1.1 201" } else { "HTTP/1.1 400" };
                        assert!(answer.starts_with(expected) && !is_replay(&answer), "{what}: {answer}");
                        assert_eq!(recorder.take().len(), usize::from(is_observed), "{what}");
                    }
                }
                assert!(send(named).await.starts_with("HTTP/1.1 201"), "{principal} {key}");
                assert_eq!(is_replay(&send(named).await), !is_observed, "{principal} {key}");
                recorder.take();
            }
        }
    }
}
