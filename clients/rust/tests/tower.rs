//! The tower layer against a real gateway: `scripts/with-gateway cargo test --features tower --test tower`. Without one it is skipped.
#![cfg(feature = "tower")]

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use oncegate_client::tower::{Idempotency, IdempotencyLayer};
use oncegate_client::{Client, Grant, Options};
use tokio::sync::Semaphore;
use tower_layer::Layer as _;
use tower_service::Service;

/// Answers with the status that the path names, and counts.
#[derive(Clone)]
struct Orders {
    ran: Arc<AtomicUsize>,
    /// What slow requests wait for.
    gate: Arc<Semaphore>,
}

impl Service<Request<Full<Bytes>>> for Orders {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let number = self.ran.fetch_add(1, Ordering::SeqCst) + 1;
        let path = request.uri().path();
        let response = Response::builder().status(&path[1..4]).header("location", number).header("set-cookie", "a=b");
        let response = if path.ends_with("failed") { response.header("oncegate-outcome", "failure") } else { response };
        let body = if path.ends_with("long") { "x".repeat(46 << 10) } else { format!("order {number}") };
        let has_grant = request.extensions().get::<Grant>().is_some();
        let response = response.header("granted", has_grant.to_string()).body(Full::from(body)).expect("a response");
        let (is_slow, gate) = (path.ends_with("slow"), self.gate.clone());
        Box::pin(async move {
            if is_slow {
                drop(gate.acquire().await);
            }
            Ok(response)
        })
    }
}

fn account(head: &Parts) -> Option<String> {
    head.headers.get("authorization")?.to_str().ok().map(str::to_owned)
}

type Shop = Idempotency<Orders, fn(&Parts) -> Option<String>>;

/// Returns a service, and what it has run.
fn shop(required: bool) -> Option<(Shop, Orders)> {
    let option = |name: &str| std::env::vars().find(|(known, _)| known == name).map(|(_, value)| value);
    let Some(url) = option("ONCEGATE_URL") else {
        eprintln!("skipped: there is no gateway; run it with scripts/with-gateway");
        return None;
    };
    let options = Options::default().credential(option("ONCEGATE_CREDENTIAL").unwrap_or_default());
    let client = Client::new([url], options).expect("a client");
    let layer = IdempotencyLayer::new(client, "tower.test", account as fn(&Parts) -> Option<String>).body_bytes_max(64);
    let orders = Orders { ran: Arc::new(AtomicUsize::new(0)), gate: Arc::new(Semaphore::new(0)) };
    let layer = if required { layer.required() } else { layer };
    Some((layer.layer(orders.clone()), orders))
}

fn key(name: &str) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    format!("{name}-{}", now.as_nanos())
}

async fn post(shop: &Shop, path: &str, fields: &[(&str, &str)], body: &str) -> Response<String> {
    let mut request = Request::post(path);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::from(body.to_owned())).expect("a request");
    let (head, body) = shop.clone().call(request).await.expect("an answer").into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    Response::from_parts(head, String::from_utf8(body.into()).expect("text"))
}

fn is_replay(response: &Response<String>) -> bool {
    response.headers().contains_key("idempotent-replayed")
}

#[tokio::test]
async fn a_repeat_gets_the_stored_response() {
    let Some((shop, orders)) = shop(false) else { return };
    let fields = [("authorization", "alice"), ("idempotency-key", &*key("a"))];
    let first = post(&shop, "/201", &fields, "one").await;
    assert_eq!(
        (first.status().as_u16(), first.headers()["granted"].as_bytes(), is_replay(&first)),
        (201, &b"true"[..], false)
    );
    assert!(first.headers().contains_key("set-cookie"));
    let repeat = post(&shop, "/201", &fields, "one").await;
    assert_eq!((repeat.status(), repeat.body(), is_replay(&repeat)), (first.status(), first.body(), true));
    assert_eq!(repeat.headers()["location"], first.headers()["location"]);
    assert!(!repeat.headers().contains_key("set-cookie"), "it belongs to the first caller");
    assert_eq!(post(&shop, "/201", &fields, "two").await.status(), 422);
    let bob = [("authorization", "bob"), fields[1]];
    assert!(!is_replay(&post(&shop, "/201", &bob, "one").await), "another caller's key is another key");
    assert_eq!(orders.ran.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn the_status_or_the_handler_says_what_happened() {
    let Some((shop, orders)) = shop(false) else { return };
    for (path, first, repeat, runs) in [
        ("/404", 404, 404, 1),
        ("/429", 429, 429, 2),
        ("/503/failed", 503, 503, 2),
        ("/500", 500, 409, 1),
        ("/200/long", 200, 409, 1),
    ] {
        let fields = [("authorization", "alice"), ("idempotency-key", &*key("s"))];
        let before = orders.ran.load(Ordering::SeqCst);
        let answer = post(&shop, path, &fields, "").await;
        assert_eq!(
            (answer.status().as_u16(), answer.headers().contains_key("oncegate-outcome")),
            (first, false),
            "{path}"
        );
        assert_eq!(post(&shop, path, &fields, "").await.status(), repeat, "{path}");
        assert_eq!(orders.ran.load(Ordering::SeqCst) - before, runs, "{path}");
    }
}

#[tokio::test]
async fn a_request_without_key_or_caller_is_passed_on_or_refused() {
    let Some((shop, orders)) = shop(false) else { return };
    assert_eq!(post(&shop, "/201", &[], "").await.headers()["granted"], "false");
    let (key, alice) = (key("r"), ("authorization", "alice"));
    let keyed = ("idempotency-key", &*key);
    for (fields, body, status) in [
        (&[keyed][..], "", 400),
        (&[alice, ("idempotency-key", "two words")], "", 400),
        (&[alice, keyed, keyed], "", 400),
        (&[alice, keyed], &*"x".repeat(65), 413),
    ] {
        assert_eq!(post(&shop, "/201", fields, body).await.status(), status, "{fields:?}");
    }
    assert_eq!(orders.ran.load(Ordering::SeqCst), 1);
    let Some((strict, orders)) = self::shop(true) else { return };
    assert_eq!(post(&strict, "/201", &[alice], "").await.status(), 400);
    assert_eq!(orders.ran.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_copy_of_a_layer_can_be_changed_and_the_layer_keeps_its_rules() {
    let client = Client::new(["http://127.0.0.1:9"], Options::default()).expect("a client");
    let layer = IdempotencyLayer::new(client, "tower.copy", account as fn(&Parts) -> Option<String>);
    let strict = layer.clone().required().body_bytes_max(8);
    let orders = Orders { ran: Arc::new(AtomicUsize::new(0)), gate: Arc::new(Semaphore::new(0)) };
    let alice = ("authorization", "alice");
    assert_eq!(post(&strict.layer(orders.clone()), "/201", &[alice], "").await.status(), 400);
    let keyed = [alice, ("idempotency-key", "k")];
    assert_eq!(post(&strict.layer(orders.clone()), "/201", &keyed, "longer than 8").await.status(), 413);
    assert_eq!(post(&layer.layer(orders), "/201", &[alice], "longer than 8").await.status(), 201);
}

#[tokio::test]
async fn a_caller_that_hangs_up_changes_nothing() {
    let Some((shop, orders)) = shop(false) else { return };
    let fields = [("authorization", "alice"), ("idempotency-key", &*key("h"))];
    let first = post(&shop, "/201/slow", &fields, "one");
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        tokio::select! {
            _ = first => panic!("it waits for the gate"),
            () = async { while orders.ran.load(Ordering::SeqCst) == 0 { tokio::task::yield_now().await } } => {}
        }
    });
    waited.await.expect("it runs");
    assert_eq!(post(&shop, "/201/slow", &fields, "one").await.status(), 409, "it is still running");
    orders.gate.add_permits(10);
    let replayed = async { while !is_replay(&post(&shop, "/201/slow", &fields, "one").await) {} };
    tokio::time::timeout(Duration::from_secs(20), replayed).await.expect("its response is stored");
    assert_eq!(orders.ran.load(Ordering::SeqCst), 1);
}
