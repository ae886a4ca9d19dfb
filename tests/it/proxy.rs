//! The Idempotency-Key proxy in front of an API that misbehaves on request and counts its effects.

mod belief;
mod bounds;
mod dialects;
mod drain;
mod engines;
mod expect;
mod faults;
mod forget;
mod framing;
mod http2;
mod jdk;
mod json_bodies;
mod keys;
mod leases;
mod lost_replies;
mod principals;
mod realm;
mod records;
mod repeats;
mod routes;
mod running;
mod servers;
mod settings;
mod tokens;
mod uploads;
mod websockets;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::support::gateway;

const SOON: Duration = Duration::from_secs(10);

/// Bytes of the largest response that a route may store.
const LARGE: usize = 1 << 20;

/// An API with one effect, which it counts.
pub(crate) struct Upstream {
    effects: AtomicUsize,
    requests: AtomicUsize,
    /// Responses to requests for `/orders/slow` wait for a permit.
    pub(crate) gate: Semaphore,
}

impl Upstream {
    /// Starts it; returns its port.
    pub(crate) async fn start() -> (Arc<Self>, u16) {
        let upstream =
            Arc::new(Self { effects: AtomicUsize::new(0), requests: AtomicUsize::new(0), gate: Semaphore::new(0) });
        let router = Router::new().fallback(respond).with_state(upstream.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (upstream, port)
    }

    pub(crate) fn effects(&self) -> usize {
        self.effects.load(Ordering::SeqCst)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

async fn respond(State(upstream): State<Arc<Upstream>>, request: Request) -> Response {
    upstream.requests.fetch_add(1, Ordering::SeqCst);
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else { return Response::new(Body::from("torn")) };
    let body = body.to_bytes();
    let seen = |name| format!("{:?}", head.headers.get(name));
    let build = Response::builder().header("x-seen-connection", seen("x-hop"));
    let build = build.header("x-seen-repeat", seen("oncegate-repeat"));
    let build = build.header("x-seen-degraded", seen("oncegate-degraded"));
    let behaviour = head.uri.path().rsplit('/').next().unwrap_or_default();
    if behaviour == "busy" {
        return build.status(429).body(Body::from("later")).unwrap();
    }
    if let Some(status) = behaviour.strip_prefix("status-") {
        return build.status(status.parse::<u16>().unwrap()).body(Body::from(body)).unwrap();
    }
    let effect = upstream.effects.fetch_add(1, Ordering::SeqCst) + 1;
    match behaviour {
        "slow-nothing" => {
            upstream.gate.acquire().await.unwrap().forget();
            return build.status(500).header("oncegate-outcome", "failure").body(Body::from("nothing")).unwrap();
        }
        "slow-broken" => {
            upstream.gate.acquire().await.unwrap().forget();
            return build.status(500).body(Body::from("broken")).unwrap();
        }
        "slow" | "late" => upstream.gate.acquire().await.unwrap().forget(),
        "broken" => return build.status(500).body(Body::from("broken")).unwrap(),
        "nothing" => {
            return build.status(500).header("oncegate-outcome", "failure").body(Body::from("nothing")).unwrap();
        }
        "torn" => {
            let pieces = futures_util::stream::unfold(0, async |piece| {
                // The server sends the available bytes when the next piece is not ready.
                tokio::task::yield_now().await;
                let pieces = [Ok(Bytes::from("first")), Err(std::io::Error::other("planted"))];
                Some((pieces.into_iter().nth(piece)?, piece + 1))
            });
            return build.status(201).body(Body::from_stream(pieces)).unwrap();
        }
        "large" | "slow-large" | "larger" => {
            if behaviour == "slow-large" {
                upstream.gate.acquire().await.unwrap().forget();
            }
            let body = large(if behaviour == "larger" { LARGE + 1 } else { LARGE });
            return build.status(201).header("location", "/large/1").body(Body::from(body)).unwrap();
        }
        "big" => return build.status(201).header("location", "/big/1").body(Body::from(vec![b'x'; 100_000])).unwrap(),
        "private-in-pieces" => {
            let pieces = futures_util::stream::unfold(0, async |piece| {
                // The server sends the available bytes when the next piece is not ready.
                tokio::task::yield_now().await;
                let pieces = ["sec", "ret"].map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece)));
                Some((pieces.into_iter().nth(piece)?, piece + 1))
            });
            return build.status(201).header("cache-control", "no-store").body(Body::from_stream(pieces)).unwrap();
        }
        "private" => return build.status(201).header("cache-control", "no-store").body(Body::from("secret")).unwrap(),
        "stalls" => {
            let first = futures_util::stream::once(async { Ok::<_, std::io::Error>(Bytes::from("first")) });
            let pieces = futures_util::StreamExt::chain(first, futures_util::stream::pending());
            return build.status(201).body(Body::from_stream(pieces)).unwrap();
        }
        "empty" => return build.status(204).body(Body::empty()).unwrap(),
        _ => {}
    }
    let build =
        build.status(201).header("location", format!("/orders/{effect}")).header("set-cookie", "session=secret");
    build.header("x-twice", "1").header("x-twice", "2").body(Body::from([b"order ", &body[..]].concat())).unwrap()
}

/// Returns this many bytes, of all values, which repeat at no power of two.
fn large(length: usize) -> Vec<u8> {
    (0..=u8::MAX).chain(0..=100).cycle().take(length).collect()
}

/// A caller of the proxy.
pub(crate) struct Caller {
    http: Client<HttpConnector, Full<Bytes>>,
    address: String,
}

pub(crate) struct Answer {
    /// 0 if there was no response.
    pub(crate) status: u16,
    headers: hyper::HeaderMap,
    /// `None` if it broke off.
    body: Option<Bytes>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(self.body.as_ref().unwrap()).unwrap()
    }

    fn is_replay(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
    }
}

impl Caller {
    pub(crate) fn of(gateway: &Gateway) -> Self {
        Self { http: Client::builder(TokioExecutor::new()).build_http(), address: address(gateway) }
    }

    pub(crate) async fn send(&self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> Answer {
        let mut request = hyper::Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap();
        // The connection breaks when a response breaks off before anything of it was sent on.
        let Ok(response) = self.http.request(request).await else {
            return Answer { status: 0, headers: hyper::HeaderMap::new(), body: None };
        };
        let (head, body) = response.into_parts();
        let body = body.collect().await.ok().map(http_body_util::Collected::to_bytes);
        Answer { status: head.status.as_u16(), headers: head.headers, body }
    }

    pub(crate) async fn post(&self, path: &str, key: &str, body: &str) -> Answer {
        self.send("POST", path, &[("idempotency-key", key), ("authorization", "alice")], body).await
    }
}

/// A gateway with a proxy in front of the upstream at this port; `more` is for the route.
async fn proxy(port: u16, more: &str) -> (Gateway, Caller) {
    start("", &format!("urls = [\"http://127.0.0.1:{port}\"]\ntimeout = \"30s\"\n"), more).await
}

/// The same with more settings of the proxy, and an upstream with a timeout of three seconds.
async fn proxy_with(port: u16, of_proxy: &str, more: &str) -> (Gateway, Caller) {
    start(of_proxy, &format!("urls = [\"http://127.0.0.1:{port}\"]\ntimeout = \"3s\"\n"), more).await
}

async fn start(of_proxy: &str, of_upstream: &str, more: &str) -> (Gateway, Caller) {
    let gateway = gateway::on_memory().config(&config(of_proxy, of_upstream, more)).start().await;
    let caller = Caller::of(&gateway);
    (gateway, caller)
}

/// Returns the configuration of a proxy with one route.
pub(crate) fn config(of_proxy: &str, of_upstream: &str, more: &str) -> String {
    format!(
        "[proxy]\nlisten = \"127.0.0.1:0\"\n{of_proxy}[proxy.upstreams.orders]\n{of_upstream}\
         [[proxy.routes]]\nname = \"orders.create\"\napp = \"default\"\npath = \"/orders/{{kind}}\"\nmethods = [\"POST\"]\n\
         upstream = \"orders\"\nprincipal = [\"authorization\"]\n{more}"
    )
}

/// Returns the settings of an upstream at this port.
pub(crate) fn at(port: u16) -> String {
    // Half of the shortest lease here.
    format!("urls = [\"http://127.0.0.1:{port}\"]\nconnect_timeout = \"500ms\"\n")
}

pub(crate) fn address(gateway: &Gateway) -> String {
    let log = gateway.log();
    let line = log.lines().find(|line| line.contains("proxy_listen")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    let find = |value: &Value| value["proxy_listen"].as_str().map(str::to_owned);
    find(&line).or_else(|| find(&line["fields"])).unwrap()
}

#[tokio::test]
async fn a_repeat_gets_the_response_of_the_first_request_and_runs_nothing() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "").await;
    let first = caller.post("/orders/a", "k-1", "one").await;
    assert_eq!((first.status, first.body.as_deref()), (201, Some(&b"order one"[..])));
    assert!(!first.is_replay());
    assert!(first.headers.contains_key("set-cookie"));
    for key in ["k-1", "\"k-1\""] {
        let repeat = caller.post("/orders/a", key, "one").await;
        assert_eq!((repeat.status, &repeat.body), (201, &first.body));
        assert!(repeat.is_replay());
        assert_eq!(repeat.headers["location"], "/orders/1");
        assert_eq!(repeat.headers.get_all("x-twice").iter().count(), 2);
        assert!(!repeat.headers.contains_key("set-cookie"), "it belongs to the first client");
    }
    assert_eq!(upstream.effects(), 1);
    // Another request with the key is refused, another key and another caller are not.
    let other = caller.post("/orders/a", "k-1", "two").await;
    assert_eq!((other.status, &other.json()["code"]), (422, &Value::from("fingerprint_mismatch")));
    assert_eq!(caller.post("/orders/a", "k-2", "one").await.status, 201);
    let bob = caller.send("POST", "/orders/a", &[("idempotency-key", "k-1"), ("authorization", "bob")], "one").await;
    assert!(bob.status == 201 && !bob.is_replay(), "keys belong to their caller");
    assert_eq!(upstream.effects(), 3);
    // An empty response is stored as well.
    assert_eq!(caller.post("/orders/empty", "k-3", "").await.status, 204);
    assert!(caller.post("/orders/empty", "k-3", "").await.is_replay());
    assert_eq!(upstream.effects(), 4);
}

#[tokio::test]
async fn of_requests_at_the_same_time_one_runs_and_the_others_are_conflicts() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "").await;
    let caller = Arc::new(caller);
    let first = tokio::spawn({
        let caller = caller.clone();
        async move { caller.post("/orders/slow", "k-1", "one").await }
    });
    until("the upstream has it", SOON, async || upstream.effects() == 1).await;
    let second = caller.post("/orders/slow", "k-1", "one").await;
    assert_eq!((second.status, &second.json()["state"]), (409, &Value::from("in_progress")));
    assert!(second.headers.contains_key("retry-after"));
    upstream.gate.add_permits(1);
    assert_eq!(first.await.unwrap().status, 201);
    assert!(caller.post("/orders/slow", "k-1", "one").await.is_replay());
    assert_eq!(upstream.effects(), 1);
}

#[tokio::test]
async fn a_caller_that_hangs_up_gets_the_response_with_its_repeat() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "").await;
    let caller = Arc::new(caller);
    let first = tokio::spawn({
        let caller = caller.clone();
        async move { caller.post("/orders/slow", "k-1", "one").await.status }
    });
    until("the upstream has it", SOON, async || upstream.effects() == 1).await;
    first.abort();
    assert!(first.await.is_err(), "it has hung up");
    upstream.gate.add_permits(1);
    until("the response is stored", SOON, async || {
        let repeat = caller.post("/orders/slow", "k-1", "one").await;
        repeat.status == 201 && repeat.is_replay()
    })
    .await;
    assert_eq!(upstream.effects(), 1);
}

#[tokio::test]
async fn what_may_have_happened_is_not_forwarded_again() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "").await;
    for (path, key) in [("/orders/broken", "k-1"), ("/orders/torn", "k-2")] {
        let before = upstream.effects();
        let first = caller.post(path, key, "one").await;
        assert!(first.status == 500 || first.body.is_none(), "{path}");
        let repeat = caller.post(path, key, "one").await;
        assert_eq!((repeat.status, &repeat.json()["state"]), (409, &Value::from("unknown")), "{path}");
        assert_eq!(upstream.effects(), before + 1, "{path}");
    }
}

#[tokio::test]
async fn what_certainly_did_not_happen_frees_the_key() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "").await;
    for (path, status) in [("/orders/busy", 429), ("/orders/nothing", 500)] {
        let before = upstream.requests();
        for _ in 0..3 {
            assert_eq!(caller.post(path, path, "one").await.status, status);
        }
        assert_eq!(upstream.requests(), before + 3, "{path}");
    }
    // Nothing listens there.
    let (_gateway, caller) = proxy(fresh::port(), "").await;
    for _ in 0..2 {
        let refused = caller.post("/orders/a", "k-1", "one").await;
        assert_eq!((refused.status, &refused.json()["code"]), (502, &Value::from("upstream_unavailable")));
    }
}

#[tokio::test]
async fn an_unknown_request_is_forwarded_again_if_the_upstream_decides() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "on_unknown = \"forward\"\n").await;
    for (effects, says) in [(1, "None"), (2, "Some(\"unknown\")")] {
        let answer = caller.post("/orders/broken", "k-1", "one").await;
        assert_eq!((answer.status, upstream.effects()), (500, effects));
        assert_eq!(answer.headers["x-seen-repeat"], says, "the upstream has to know that it may be a repeat");
    }
}

#[tokio::test]
async fn a_response_that_is_too_long_leaves_a_tombstone() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "").await;
    let first = caller.post("/orders/big", "k-1", "one").await;
    assert_eq!((first.status, first.body.map(|body| body.len())), (201, Some(100_000)));
    let repeat = caller.post("/orders/big", "k-1", "one").await;
    assert_eq!((repeat.status, &repeat.json()["code"]), (409, &Value::from("response_not_stored")));
    assert_eq!(
        (&repeat.json()["response_status"], &repeat.headers["location"]),
        (&Value::from(201), &"/big/1".parse().unwrap())
    );
    assert_eq!(upstream.effects(), 1);
}

#[tokio::test]
async fn requests_without_a_usable_key_or_principal_are_refused_and_others_pass() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "").await;
    let alice = ("authorization", "alice");
    for (fields, code) in [
        (&[alice][..], "idempotency_key_invalid"),
        (&[alice, ("idempotency-key", "")], "idempotency_key_invalid"),
        (&[alice, ("idempotency-key", "a"), ("idempotency-key", "a")], "idempotency_key_invalid"),
        (&[("idempotency-key", "a")], "principal_missing"),
    ] {
        let refused = caller.send("POST", "/orders/a", fields, "one").await;
        assert_eq!((refused.status, &refused.json()["code"]), (400, &Value::from(code)));
    }
    for path in ["/orders//a", "/orders/%2e%2e", "/orders/a%2Fb"] {
        assert_eq!(caller.post(path, "k", "one").await.status, 400, "{path}");
    }
    assert_eq!(caller.post("/elsewhere", "k", "one").await.status, 404);
    assert_eq!(upstream.requests(), 0);
    // Another method on the path is not protected.
    assert_eq!(caller.send("PUT", "/orders/a", &[], "one").await.status, 201);
    assert_eq!(upstream.effects(), 1);
}

#[tokio::test]
async fn stripes_clients_get_what_they_expect() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "dialect = \"stripe\"\nkey = \"optional\"\n").await;
    assert_eq!(caller.post("/orders/broken", "k-1", "one").await.status, 500);
    let repeat = caller.post("/orders/broken", "k-1", "one").await;
    assert!(repeat.status == 500 && repeat.is_replay(), "errors of the server are stored");
    let other = caller.post("/orders/broken", "k-1", "two").await;
    assert_eq!((other.status, &other.json()["error"]["type"]), (400, &Value::from("idempotency_error")));
    assert_eq!(other.headers["stripe-should-retry"], "false");
    assert_eq!(upstream.effects(), 1);
    assert_eq!(caller.send("POST", "/orders/a", &[], "one").await.status, 201, "the key is optional");
}

#[tokio::test]
async fn a_gateway_killed_in_the_middle_leaves_the_key_unknown() {
    let (upstream, port) = Upstream::start().await;
    let folder = tempfile::tempdir().unwrap();
    let setup = gateway::on_disk(folder.path()).config(&config("", &at(port), "lease = \"5s\"\n"));
    let mut gateway = setup.start().await;
    let caller = Caller::of(&gateway);
    let call = tokio::spawn(async move { caller.post("/orders/slow", "k-1", "one").await.status });
    until("the upstream has it", SOON, async || upstream.effects() == 1).await;
    gateway.kill();
    drop(call);
    let gateway = setup.start().await;
    let caller = Caller::of(&gateway);
    until("the lease has ended", SOON, async || {
        let repeat = caller.post("/orders/slow", "k-1", "one").await;
        assert_eq!(repeat.status, 409);
        repeat.json()["state"] == "unknown"
    })
    .await;
    assert_eq!(upstream.effects(), 1);
}

#[tokio::test]
async fn a_proxy_in_front_of_itself_is_noticed() {
    let port = fresh::port();
    let config = format!(
        "[proxy]\nlisten = \"127.0.0.1:{port}\"\nunmatched = \"me\"\n[proxy.upstreams.me]\nurls = [\"http://127.0.0.1:{port}\"]\n"
    );
    let gateway = gateway::on_memory().config(&config).start().await;
    let caller = Caller::of(&gateway);
    let looped = caller.send("GET", "/", &[], "").await;
    assert_eq!((looped.status, &looped.json()["code"]), (508, &Value::from("loop_detected")));
}
