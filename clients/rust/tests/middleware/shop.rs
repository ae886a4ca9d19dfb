//! A service of the tests, and how they call it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{Request, Response, StatusCode, Uri};
use axum::response::IntoResponse as _;
use axum::routing::any;
use http_body_util::BodyExt as _;
use oncegate_client::testing::MemoryGateway;
use oncegate_client::tower::IdempotencyLayer;
use oncegate_client::{Client, Options};
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

/// Answers with the status that the path ends with, and counts.
#[derive(Clone)]
pub(crate) struct Shop {
    ran: Arc<AtomicUsize>,
    /// Gate that paths with `slow` wait for.
    pub(crate) gate: Arc<Semaphore>,
}

impl Shop {
    pub(crate) fn new() -> Self {
        Self { ran: Arc::new(AtomicUsize::new(0)), gate: Arc::new(Semaphore::new(0)) }
    }

    pub(crate) fn runs(&self) -> usize {
        self.ran.load(Ordering::SeqCst)
    }

    pub(crate) fn router(&self) -> Router {
        Router::new().fallback(any(order)).with_state(self.clone())
    }

    /// Waits until the handler has run so often.
    pub(crate) async fn until_run(&self, times: usize) {
        until("it runs", async || self.runs() >= times).await;
    }
}

async fn order(State(shop): State<Shop>, uri: Uri, body: Bytes) -> Response<Body> {
    let number = shop.ran.fetch_add(1, Ordering::SeqCst) + 1;
    if uri.path().contains("slow") {
        drop(shop.gate.acquire().await);
    }
    let status = uri.path().rsplit('/').next().and_then(|status| status.parse().ok());
    let status = status.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or(StatusCode::CREATED);
    (status, format!("order {number} of {} bytes", body.len())).into_response()
}

/// Waits until this is true.
pub(crate) async fn until(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_true().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.expect(what);
}

pub(crate) fn account(head: &Parts) -> Option<String> {
    head.headers.get("authorization")?.to_str().ok().map(str::to_owned)
}

/// Returns a client of the gateway that the environment names, or of a gateway in memory.
pub(crate) fn client(options: Options) -> Client {
    static MEMORY: LazyLock<MemoryGateway> = LazyLock::new(MemoryGateway::new);
    if std::env::var("ONCEGATE_URL").is_err() {
        return MEMORY.client(options);
    }
    Client::from_env(options).expect("a client")
}

pub(crate) fn layer() -> IdempotencyLayer {
    IdempotencyLayer::new(client(Options::default()), "middleware.test", account)
}

/// Returns a layer whose gateway is not there.
pub(crate) fn offline() -> IdempotencyLayer {
    let client = Client::new(["http://127.0.0.1:9"], Options::default().claim_within(Duration::from_millis(50)));
    IdempotencyLayer::new(client.expect("a client"), "middleware.test", account)
}

/// Returns a fresh key.
pub(crate) fn key(name: &str) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    format!("{name}-{}", now.as_nanos())
}

pub(crate) fn request(path: &str, fields: &[(&str, &str)], body: impl Into<Body>) -> Request<Body> {
    let mut request = Request::post(path);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(body.into()).expect("a request")
}

/// A response that was read.
#[derive(PartialEq, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) is_replay: bool,
    pub(crate) fields: axum::http::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn code(&self) -> String {
        let document: serde_json::Value = serde_json::from_str(&self.text).unwrap_or_default();
        document["code"].as_str().unwrap_or_default().to_owned()
    }
}

pub(crate) async fn read(response: Response<Body>) -> Answer {
    let (head, body) = response.into_parts();
    let text = body.collect().await.expect("a whole body").to_bytes();
    Answer {
        status: head.status.as_u16(),
        is_replay: head.headers.contains_key("idempotent-replayed"),
        fields: head.headers,
        text: String::from_utf8(text.into()).expect("text"),
    }
}

pub(crate) async fn send(router: &Router, request: Request<Body>) -> Answer {
    read(router.clone().oneshot(request).await.expect("an answer")).await
}

/// Sends a keyed request of Alice.
pub(crate) async fn post(router: &Router, path: &str, key: &str, body: &str) -> Answer {
    send(router, request(path, &[("authorization", "alice"), ("idempotency-key", key)], body.to_owned())).await
}
