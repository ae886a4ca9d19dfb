//! Runs of handlers: callers that go, storms of clicks, errors, panics, bounds, and the end of a server.

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use futures_util::stream;
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use oncegate_client::testing::MemoryGateway;
use oncegate_client::tower::{IdempotencyLayer, RequestBody};
use oncegate_client::{Grant, OnUnavailable, Options, Outcome};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tower::{BoxError, ServiceExt as _, service_fn};
use tower_layer::Layer as _;

use crate::shop::{Shop, account, key, layer, post, read, request, until};

const ALICE: (&str, &str) = ("authorization", "alice");

#[tokio::test]
async fn a_gateway_that_is_back_after_an_unprotected_run_records_its_response() {
    let (gateway, shop) = (MemoryGateway::new(), Shop::new());
    let options = Options::default().claim_within(Duration::from_millis(100)).on_unavailable(OnUnavailable::Proceed);
    let router = shop.router().layer(IdempotencyLayer::new(gateway.client(options), "middleware.test", account));
    gateway.unavailable(true);
    let unprotected = router.clone();
    let running = tokio::spawn(async move { post(&unprotected, "/slow/201", "k-1", "one").await });
    shop.until_run(1).await;
    gateway.unavailable(false);
    shop.gate.add_permits(1);
    let first = running.await.expect("an answer");
    assert_eq!((first.fields["oncegate-degraded"].as_bytes(), first.is_replay), (b"caller".as_slice(), false));
    let second = post(&router, "/slow/201", "k-1", "one").await;
    assert_eq!((second.text, second.is_replay, shop.runs()), (first.text, true, 1));
}

#[tokio::test]
async fn fifty_clicks_run_once() {
    let layer = layer();
    let (shop, key) = (Shop::new(), key("storm"));
    shop.gate.add_permits(50);
    let router = shop.router().layer(layer.wait(Duration::from_secs(20)));
    let clicks: Vec<_> = (0..50)
        .map(|_| {
            let (router, key) = (router.clone(), key.clone());
            tokio::spawn(async move { post(&router, "/slow/201", &key, "one").await })
        })
        .collect();
    let mut replays = 0;
    for click in clicks {
        let answer = click.await.expect("an answer");
        assert_eq!((answer.status, &*answer.text), (201, "order 1 of 3 bytes"));
        replays += usize::from(answer.is_replay);
    }
    assert_eq!((shop.runs(), replays), (1, 49));
}

#[tokio::test]
async fn a_caller_that_goes_changes_nothing_and_the_end_of_a_server_waits() {
    let layer = layer();
    let (shop, key) = (Shop::new(), key("gone"));
    let router = shop.router().layer(layer.clone());
    let first = post(&router, "/slow/201", &key, "one");
    tokio::select! {
        _ = first => panic!("it waits for the gate"),
        () = shop.until_run(1) => {}
    }
    assert_eq!(post(&router, "/slow/201", &key, "one").await.code(), "duplicate");
    assert!(!layer.drain(Duration::from_millis(1)).await, "it runs");
    shop.gate.add_permits(10);
    assert!(layer.drain(Duration::from_secs(30)).await);
    let repeat = post(&router, "/slow/201", &key, "one").await;
    assert_eq!((repeat.is_replay, shop.runs()), (true, 1));
}

#[tokio::test]
async fn a_handler_ends_with_its_caller_if_that_is_chosen() {
    let layer = layer();
    let (shop, key) = (Shop::new(), key("stopped"));
    let router = shop.router().layer(layer.stop_when_gone());
    tokio::select! {
        _ = post(&router, "/slow/201", &key, "one") => panic!("it waits for the gate"),
        () = shop.until_run(1) => {}
    }
    until("it is unknown", async || post(&router, "/slow/201", &key, "one").await.text.contains("\"unknown\"")).await;
    assert_eq!(shop.runs(), 1);
}

#[tokio::test]
async fn a_handler_learns_that_its_caller_has_gone() {
    let layer = layer();
    let (seen, mut gone) = mpsc::unbounded_channel();
    let service = layer.layer(service_fn(move |request: Request<RequestBody>| {
        let (grant, seen) = (request.extensions().get::<Grant>().cloned().expect("a grant"), seen.clone());
        async move {
            seen.send(grant.is_caller_gone()).expect("a test");
            grant.until_caller_gone().await;
            seen.send(grant.is_caller_gone()).expect("a test");
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    }));
    let key = key("learns");
    let calling = service.oneshot(request("/", &[ALICE, ("idempotency-key", &*key)], ""));
    tokio::select! {
        _ = calling => panic!("it waits for its caller to go"),
        before = gone.recv() => assert_eq!(before, Some(false)),
    }
    assert_eq!(gone.recv().await, Some(true));
}

#[derive(Debug)]
struct StockError;

impl fmt::Display for StockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of stock")
    }
}

impl std::error::Error for StockError {}

#[derive(Debug)]
struct Caused(StockError);

impl fmt::Display for Caused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("who knows")
    }
}

impl std::error::Error for Caused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[tokio::test]
async fn an_error_that_is_declared_harmless_releases_the_key() {
    let layer = layer();
    let layer = layer.nothing_happened_if(|_: &StockError| true);
    let plain = layer.clone().layer(service_fn(async |_| Err::<Response<Body>, _>(StockError)));
    let boxed = layer.clone().layer(service_fn(async |_| Err::<Response<Body>, BoxError>(StockError.into())));
    let caused = layer.clone().layer(service_fn(async |_| Err::<Response<Body>, BoxError>(Caused(StockError).into())));
    let other = layer.layer(service_fn(async |_| Err::<Response<Body>, BoxError>("who knows".into())));
    let working = Shop::new();
    let repeat = working.router();
    for (name, status) in [("plain", 201), ("boxed", 201), ("caused", 409), ("other", 409)] {
        let key = key(name);
        let request = request("/201", &[ALICE, ("idempotency-key", &*key)], "");
        match name {
            "plain" => drop(plain.clone().oneshot(request).await.expect_err("the error of the service")),
            "boxed" => drop(boxed.clone().oneshot(request).await.expect_err("the error of the service")),
            "caused" => drop(caused.clone().oneshot(request).await.expect_err("the error of the service")),
            _ => drop(other.clone().oneshot(request).await.expect_err("the error of the service")),
        }
        let repeat = repeat.clone().layer(crate::shop::layer());
        assert_eq!(post(&repeat, "/201", &key, "").await.status, status, "{name}");
    }
}

#[tokio::test]
async fn a_response_says_its_outcome_before_its_grant() {
    let layer = layer();
    let service = layer.layer(service_fn(async |request: Request<RequestBody>| {
        request.extensions().get::<Grant>().expect("a grant").mark(Outcome::Success);
        let mut response = Response::new(Body::empty());
        response.extensions_mut().insert(Outcome::Failure);
        Ok::<_, Infallible>(response)
    }));
    let key = key("extension");
    for _ in 0..2 {
        let request = request("/", &[ALICE, ("idempotency-key", &*key)], "");
        let response = service.clone().oneshot(request).await.expect("an answer");
        assert!(!response.headers().contains_key("idempotent-replayed"));
    }
}

#[tokio::test]
async fn a_panic_goes_on_when_its_outcome_is_recorded() {
    let reported = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&reported);
    let options = Options::default().on_event(move |event| {
        seen.fetch_or(event.name == "reported", Ordering::SeqCst);
    });
    let gateway = MemoryGateway::new();
    let layer = IdempotencyLayer::new(gateway.client(options), "middleware.test", account);
    let panicking = layer.clone().layer(service_fn(move |_: Request<RequestBody>| {
        // The report needs a second try.
        gateway.fail_next(503, "store_unavailable");
        async { std::panic::resume_unwind(Box::new("of the handler")) as Result<Response<Body>, Infallible> }
    }));
    let key = key("panic");
    let fields = [ALICE, ("idempotency-key", &*key)];
    let call = tokio::spawn(panicking.oneshot(request("/201", &fields, "")));
    let panic = call.await.expect_err("a panic").into_panic();
    assert!(reported.load(Ordering::SeqCst), "before the connection breaks");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the handler"));
    let answer = post(&Shop::new().router().layer(layer), "/201", &key, "").await;
    assert!(answer.text.contains("\"unknown\""), "{}", answer.text);
}

#[tokio::test]
async fn work_that_fails_after_its_response_changes_nothing() {
    for fault in ["an error", "a later error", "a later panic"] {
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let service = layer().layer(service_fn(move |_: Request<RequestBody>| {
            let seen = Arc::clone(&seen);
            let rows = stream::unfold(0, move |at| {
                let seen = Arc::clone(&seen);
                async move {
                    if at == 0 {
                        return Some((Ok(Frame::data(Bytes::from_static(b"done"))), 1));
                    }
                    if fault != "an error" {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    seen.store(true, Ordering::SeqCst);
                    if fault == "a later panic" {
                        std::panic::resume_unwind(Box::new(fault));
                    }
                    Some((Err(std::io::Error::other(fault)), 2))
                }
            });
            let body = http_body_util::StreamBody::new(Box::pin(rows));
            async { Response::builder().header("content-length", "4").body(body) }
        }));
        let key = key("after");
        for is_replay in [false, true] {
            let request = request("/", &[ALICE, ("idempotency-key", &*key)], "");
            let response = service.clone().oneshot(request).await.expect("an answer");
            assert_eq!(response.headers().contains_key("idempotent-replayed"), is_replay, "{fault}");
            let whole = response.into_body().collect().await.expect("a whole body").to_bytes();
            assert_eq!(whole, Bytes::from_static(b"done"), "{fault}");
            until("the work has ended", async || ended.load(Ordering::SeqCst)).await;
        }
    }
}

#[tokio::test]
async fn an_outcome_that_no_gateway_takes_completes_the_response_all_the_same() {
    let names = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&names);
    let options = Options::default().on_event(move |event| seen.lock().expect("a test").push(event.name));
    let gateway = MemoryGateway::new();
    let layer = IdempotencyLayer::new(gateway.client(options), "middleware.test", account);
    let away = gateway.clone();
    let service = layer.settle_within(Duration::from_millis(200)).layer(service_fn(move |_: Request<RequestBody>| {
        away.unavailable(true);
        async { Ok::<_, Infallible>(Response::new(Body::from("done"))) }
    }));
    let response = service.oneshot(request("/", &[ALICE, ("idempotency-key", "k-1")], "")).await.expect("an answer");
    assert_eq!(read(response.map(Body::new)).await.text, "done");
    assert!(names.lock().expect("a test").contains(&"not_settled"), "{names:?}");
}

#[tokio::test]
async fn a_run_has_a_bound() {
    let layer = layer();
    let (shop, key) = (Shop::new(), key("bound"));
    let router = shop.router().layer(layer.exchange_max(Duration::from_millis(100)));
    assert_eq!(post(&router, "/slow/201", &key, "").await.status, 504);
    assert!(post(&router, "/slow/201", &key, "").await.text.contains("\"unknown\""));
}

#[tokio::test]
async fn a_caller_that_reads_nothing_does_not_delay_the_record() {
    let layer = layer();
    let service = layer.layer(service_fn(async |_: Request<RequestBody>| {
        let rows = stream::unfold(0, async |at| {
            tokio::task::yield_now().await;
            (at < 40).then(|| (Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; 1000]))), at + 1))
        });
        Ok::<_, Infallible>(Response::new(http_body_util::StreamBody::new(Box::pin(rows))))
    }));
    let key = key("unread");
    let fields = [ALICE, ("idempotency-key", &*key)];
    let unread = service.clone().oneshot(request("/", &fields, "")).await.expect("a head");
    let mut replay = None;
    until("it is stored", async || {
        let response = service.clone().oneshot(request("/", &fields, "")).await.expect("an answer");
        replay = Some(response).filter(|response| response.headers().contains_key("idempotent-replayed"));
        replay.is_some()
    })
    .await;
    let whole = replay.expect("a replay").into_body().collect().await.expect("a body").to_bytes();
    assert_eq!((whole.len(), unread.into_body().collect().await.expect("a body").to_bytes()), (40_000, whole));
}

#[tokio::test]
async fn a_server_sends_no_body_where_none_belongs() {
    let layer = layer();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = Shop::new().router().layer(layer.store(["2xx", "304"]));
    tokio::spawn(async move { axum::serve(listener, router).await });
    for status in [204, 205, 304] {
        let key = key("bodyless");
        for is_replay in [false, true] {
            let mut connection = TcpStream::connect(address).await.expect("a connection");
            let head = format!(
                "POST /{status} HTTP/1.1\r\nhost: h\r\nauthorization: alice\r\nidempotency-key: {key}\r\nconnection: close\r\n\r\n"
            );
            connection.write_all(head.as_bytes()).await.expect("a request");
            let mut text = String::new();
            connection.read_to_string(&mut text).await.expect("a response");
            let (head, body) = text.split_once("\r\n\r\n").expect("a head");
            assert!(head.starts_with(&format!("HTTP/1.1 {status}")) && body.is_empty(), "{text}");
            assert_eq!(head.contains("idempotent-replayed: true"), is_replay, "{text}");
            assert!(status == 205 || !head.contains("content-length"), "{text}");
            assert!(!head.contains("transfer-encoding"), "{text}");
        }
    }
}

#[tokio::test]
async fn a_response_is_read_like_one_without_the_layer() {
    let layer = layer();
    let shop = Shop::new();
    let (plain, layered, key) = (shop.router(), shop.router().layer(layer), key("like"));
    let mut expected = read(plain.oneshot(request("/404", &[ALICE], "one")).await.expect("an answer")).await;
    expected.text = expected.text.replace("order 1", "order 2");
    assert_eq!(post(&layered, "/404", &key, "one").await, expected);
}
