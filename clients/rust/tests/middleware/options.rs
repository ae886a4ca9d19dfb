//! Options: wrong ones, copies, and each that the shared cases leave out.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderName, Method, Response, StatusCode, Uri};
use axum::routing::any;
use oncegate_client::middleware::{FingerprintPart, Meaning};
use oncegate_client::tower::IdempotencyLayer;
use oncegate_client::{Client, Error, FOREVER, Metrics, Options};
use serde_json::json;
use tower_layer::Layer as _;

use crate::shop::{Shop, account, client, key, layer, offline, post, request, send};

#[test]
fn a_wrong_option_is_found_when_the_layer_is_made() {
    let wrong: [(&str, IdempotencyLayer); 17] = [
        ("methods", offline().methods([])),
        ("fingerprint", offline().fingerprint([])),
        ("fingerprint", offline().fingerprint([FingerprintPart::Body, FingerprintPart::BodyJson])),
        ("body_bytes", offline().body_bytes(0)),
        ("response_bytes", offline().response_bytes(0)),
        ("operation", IdempotencyLayer::shared_keys(client_of_nothing(), " ")),
        ("methods", offline().methods([Method::GET])),
        ("store", offline().store(["2x"])),
        ("release", offline().release(["teapot"])),
        ("lease", offline().lease(Duration::ZERO)),
        ("retention", offline().retention(Duration::from_micros(1))),
        ("claim_within", offline().claim_within(Duration::ZERO)),
        ("wait is 3600.001s", offline().wait(Duration::from_millis(3_600_001))),
        ("wait", offline().wait(FOREVER)),
        ("wait", offline().wait(Duration::from_micros(1500))),
        ("store_with", offline().store_with([HeaderName::from_static("connection")])),
        ("`release`", offline().store(["2xx", "409"]).release(["409"])),
    ];
    for (name, layer) in wrong {
        let error = layer.clone().checked().expect_err(name);
        assert!(matches!(&error, Error::Argument(why) if why.contains(name)), "{name}: {error}");
        let wrapped = catch_unwind(AssertUnwindSafe(|| drop(layer.layer(Shop::new().router()))));
        assert!(wrapped.is_err(), "{name}");
    }
    assert!(offline().checked().is_ok());
    for wait in [Duration::ZERO, Duration::from_secs(3600)] {
        assert!(offline().wait(wait).checked().is_ok(), "{wait:?}");
    }
}

fn client_of_nothing() -> Client {
    Client::new(["http://127.0.0.1:9"], Options::default()).expect("a client")
}

#[tokio::test]
async fn a_copy_can_be_changed_and_the_layer_keeps_its_rules() {
    let (layer, shop) = (offline(), Shop::new());
    let strict = layer.clone().required().body_bytes(8);
    let (strict, open) = (shop.router().layer(strict), shop.router().layer(layer));
    let alice = [("authorization", "alice")];
    assert_eq!(send(&strict, request("/201", &alice, "")).await.code(), "idempotency_key_invalid");
    assert_eq!(post(&strict, "/201", "k", "longer than 8").await.code(), "body_too_large");
    assert_eq!(send(&open, request("/201", &alice, "longer than 8")).await.status, 201);
}

#[derive(Default, Clone)]
struct Counts(Arc<Mutex<BTreeMap<&'static str, usize>>>);

impl Metrics for Counts {
    fn request(&self, _: &'static str, _: &str, _: Duration) {}
    fn event(&self, _: &'static str, _: &str) {}
    fn answered(&self, operation: &str, result: &'static str) {
        assert_eq!(operation, "middleware.test");
        *self.0.lock().expect("no panic").entry(result).or_default() += 1;
    }
}

#[tokio::test]
async fn requests_are_counted_under_the_same_names_in_every_language() {
    let shared: serde_json::Value = serde_json::from_str(include_str!("../../../vectors/shared.json")).expect("JSON");
    let counts = Counts::default();
    let layer = IdempotencyLayer::new(client(Options::default().metrics(counts.clone())), "middleware.test", account);
    let (layer, shop, fresh) = (layer.methods([Method::POST]), Shop::new(), key(""));
    let routers = [layer.clone(), layer.clone().required(), layer.observe()].map(|layer| shop.router().layer(layer));
    let answer = Answer::default();
    let other = Options::default().metrics(counts.clone()).claim_within(Duration::from_secs(1));
    let other = Client::new([scripted(answer.clone()).await], other).expect("a client");
    let other = shop.router().layer(IdempotencyLayer::new(other, "middleware.test", account));
    for vector in shared["counted"].as_array().expect("a list") {
        let key = vector["key"].as_str().map(|key| format!("{key}{fresh}"));
        let mut fields = vec![("authorization", "alice")];
        fields.extend(key.as_deref().map(|key| ("idempotency-key", key)));
        let mut request = request("/201", &fields, "");
        if let Some(method) = vector["method"].as_str() {
            *request.method_mut() = Method::try_from(method).expect("a method");
        }
        counts.0.lock().expect("no panic").clear();
        let at = if vector["required"] == true { 1 } else { 2 * usize::from(vector["observe"] == true) };
        vector["gateway"].clone_into(&mut answer.lock().expect("no panic"));
        send(if vector["gateway"].is_null() { &routers[at] } else { &other }, request).await;
        let expected = vector["result"].as_str().map(|result| (result, 1)).into_iter().collect();
        assert_eq!(*counts.0.lock().expect("no panic"), expected, "{vector}");
    }
}

/// The answer of a gateway to claims: `status` and `body`.
type Answer = Arc<Mutex<serde_json::Value>>;

/// Starts a gateway that gives this answer to each claim, and accepts each outcome. Returns its URL.
async fn scripted(answer: Answer) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let router = Router::new().fallback(any(async move |uri: Uri| {
        let outcome = uri.path().strip_suffix("/outcome").and_then(|path| path.rsplit('/').next());
        let released = outcome.map(|id| json!({ "status": 200, "body": { "global_id": id, "state": "released" } }));
        let answer = released.unwrap_or_else(|| answer.lock().expect("no panic").clone());
        let status = answer["status"].as_u64().and_then(|status| u16::try_from(status).ok()).expect("a status");
        (StatusCode::from_u16(status).expect("a status"), answer["body"].to_string())
    }));
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

#[tokio::test]
async fn what_is_left_out_passes_and_is_counted() {
    let counts = Counts::default();
    let options = Options::default().metrics(counts.clone());
    let client = client(options);
    let layer = IdempotencyLayer::new(client, "middleware.test", account).methods([Method::POST]);
    let layer = layer.when(|head| !head.uri.path().starts_with("/open"));
    let (shop, key) = (Shop::new(), key("counted"));
    let router = shop.router().layer(layer.clone());
    let fields = [("authorization", "alice"), ("idempotency-key", &*key)];
    let mut put = request("/201", &fields, "");
    *put.method_mut() = Method::PUT;
    assert_eq!(send(&router, put).await.status, 201);
    assert_eq!(post(&router, "/open/201", &key, "").await.status, 201);
    for status in [201, 201, 422] {
        assert_eq!(post(&router, "/201", &key, if status == 422 { "other" } else { "" }).await.status, status);
    }
    assert_eq!(send(&router, request("/201", &fields[..1], "")).await.status, 201);
    let expected = [("forwarded", 1), ("mismatch", 1), ("replayed", 1), ("unprotected", 3)];
    assert_eq!(*counts.0.lock().expect("no panic"), BTreeMap::from(expected));
    // In observe mode nothing is refused or replayed.
    let router = shop.router().layer(layer.observe().body_bytes(4));
    for (fields, body) in
        [(&fields[..], ""), (&fields[1..], ""), (&fields[..], "other"), (&fields[..], "longer than 4")]
    {
        let answer = send(&router, request("/201", fields, body)).await;
        assert_eq!((answer.status, answer.is_replay), (201, false), "{fields:?} {body}");
        assert!(answer.text.ends_with(&format!("of {} bytes", body.len())), "{}", answer.text);
    }
}

#[tokio::test]
async fn statuses_and_fields_can_be_chosen() {
    let layer = layer();
    let shop = Shop::new();
    let layer = layer.store(["2xx", "403"]).release(["404"]).on_5xx(Meaning::Release);
    let router = shop.router().layer(layer.store_without([HeaderName::from_static("content-type")]));
    for (status, runs) in [(201, 1), (403, 1), (404, 2), (503, 2), (410, 1)] {
        let (key, before) = (key("status"), shop.runs());
        for _ in 0..2 {
            post(&router, &format!("/{status}"), &key, "").await;
        }
        assert_eq!(shop.runs() - before, runs, "{status}");
    }
    let key = key("fields");
    assert!(post(&router, "/201", &key, "").await.fields.contains_key("content-type"));
    let replay = post(&router, "/201", &key, "").await;
    assert!(replay.is_replay && !replay.fields.contains_key("content-type"));
}

#[tokio::test]
async fn refusals_can_have_the_format_of_the_service() {
    let layer = offline().render(|problem| {
        let text = format!("{} {}", problem.code, problem.retry_after.is_some());
        Response::builder().status(problem.status).header("x-error", "1").body(Bytes::from(text)).expect("a response")
    });
    let answer = post(&Shop::new().router().layer(layer), "/201", "k", "").await;
    assert_eq!((answer.status, &*answer.text), (503, "store_unavailable true"));
    assert!(answer.fields.contains_key("x-error"));
}

#[tokio::test]
async fn keys_are_shared_only_if_that_is_said() {
    let client = client(Options::default());
    let shop = Shop::new();
    let router = shop.router().layer(IdempotencyLayer::shared_keys(client, "middleware.shared"));
    let key = key("shared");
    assert!(!send(&router, request("/201", &[("idempotency-key", &*key)], "")).await.is_replay);
    assert!(send(&router, request("/201", &[("idempotency-key", &*key)], "")).await.is_replay);
}

#[tokio::test]
async fn a_client_that_is_switched_off_claims_nothing() {
    let client = Client::new(["http://127.0.0.1:9"], Options::default().enabled(false)).expect("a client");
    let shop = Shop::new();
    let router = shop.router().layer(IdempotencyLayer::new(client.clone(), "middleware.test", account).required());
    for number in 1..3 {
        let answer = post(&router, "/201", "k", "").await;
        assert_eq!((answer.status, shop.runs()), (201, number));
    }
    let done = client.once("order.submit", "A-1", async |_| Ok(7)).await.expect("it runs");
    let oncegate_client::Once::Done(done) = done else { panic!("{done:?}") };
    assert_eq!((done.result, done.degraded.as_deref()), (7, Some("disabled")));
    let holds = [client.lock("l").acquire(Duration::ZERO).await, client.lock("l").acquire(Duration::ZERO).await];
    for hold in holds {
        let hold = hold.expect("it is granted");
        assert!(hold.is_live());
        hold.release().await.expect("it holds nothing");
    }
}
