//! Requests of reqwest with one key per operation: against the middleware of a service whose answers get lost, and
//! against the proxy of the gateway that `ONCEGATE_BIN` names.
#![cfg(all(feature = "axum", feature = "reqwest", feature = "testing"))]

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use oncegate_client::sender::IdempotencyKeys;
use oncegate_client::testing::MemoryGateway;
use oncegate_client::tower::IdempotencyLayer;
use oncegate_client::{Options, Outcome};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tokio::net::TcpListener;

/// Requests and effects of the service.
#[derive(Clone, Default)]
struct Service {
    runs: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<(String, Bytes)>>>,
}

impl Service {
    /// Serves `handler` behind the middleware. The first answers to each key are replaced by these.
    async fn start(self, lost: &'static [Lost]) -> String {
        let runs = Arc::clone(&self.runs);
        let handler = async move |body: Bytes| {
            runs.fetch_add(1, Ordering::SeqCst);
            body
        };
        let gateway = MemoryGateway::new();
        let layer = IdempotencyLayer::shared_keys(gateway.client(Options::default()), "invoice.send");
        let unlucky = async |body: Bytes| {
            let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
            response.extensions_mut().insert(Outcome::Unknown);
            drop(body);
            response
        };
        let service = self.clone();
        let losing = from_fn(move |request: Request, next: Next| lose(service.clone(), lost, request, next));
        let router = Router::new().route("/send", any(handler)).route("/unlucky", any(unlucky));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, router.layer(layer).layer(losing)).await });
        url
    }
}

#[derive(Clone, Copy)]
enum Lost {
    /// The connection breaks after the service has answered.
    Reply,
    /// The service does not get the request.
    Status(u16, &'static str),
}

async fn lose(service: Service, lost: &[Lost], request: Request, next: Next) -> Result<Response, Infallible> {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
    let key = head.headers.get("idempotency-key").map(|key| key.to_str().expect("text").to_owned());
    let position = {
        let mut requests = service.requests.lock().expect("no panic");
        requests.push((key.unwrap_or_default(), body.clone()));
        requests.len() - 1
    };
    match lost.get(position) {
        Some(Lost::Status(status, after)) => {
            let mut headers = HeaderMap::new();
            if !after.is_empty() {
                headers.insert("retry-after", after.parse().expect("a value"));
            }
            Ok((StatusCode::from_u16(*status).expect("a status"), headers).into_response())
        }
        Some(Lost::Reply) => {
            drop(next.run(Request::from_parts(head, body.into())).await);
            std::panic::resume_unwind(Box::new("the connection breaks"))
        }
        None => Ok(next.run(Request::from_parts(head, body.into())).await),
    }
}

fn http(keys: IdempotencyKeys) -> ClientWithMiddleware {
    ClientBuilder::new(reqwest::Client::new()).with(keys).build()
}

#[tokio::test]
async fn one_operation_has_one_key_and_one_effect_over_lost_replies() {
    let service = Service::default();
    let lost = &[Lost::Reply, Lost::Status(503, ""), Lost::Status(429, "1"), Lost::Status(425, "0"), Lost::Reply];
    let (url, begin) = (service.clone().start(lost).await, Instant::now());
    let response =
        http(IdempotencyKeys::new()).post(format!("{url}/send")).body("one").send().await.expect("an answer");
    assert!(begin.elapsed() >= Duration::from_secs(1), "it obeys Retry-After");
    assert_eq!((response.status().as_u16(), response.headers()["idempotent-replayed"].as_bytes()), (200, &b"true"[..]));
    assert_eq!(response.text().await.expect("a body"), "one");
    let requests = service.requests.lock().expect("no panic").clone();
    assert_eq!((requests.len(), service.runs.load(Ordering::SeqCst)), (6, 1));
    assert!(requests.iter().all(|request| *request == requests[0]), "{requests:?}");
    assert_eq!(requests[0].0.len(), 32);
}

#[tokio::test]
async fn the_next_operation_has_another_key_and_a_safe_one_has_none() {
    let service = Service::default();
    let (url, http) = (service.clone().start(&[]).await, http(IdempotencyKeys::new()));
    for _ in 0..2 {
        http.post(format!("{url}/send")).body("one").send().await.expect("an answer");
    }
    http.post(format!("{url}/send")).header("idempotency-key", "mine").body("one").send().await.expect("an answer");
    http.get(format!("{url}/send")).send().await.expect("an answer");
    let keys: Vec<_> = service.requests.lock().expect("no panic").iter().map(|(key, _)| key.clone()).collect();
    assert_ne!(keys[0], keys[1]);
    assert_eq!((&*keys[2], &*keys[3]), ("mine", ""));
}

#[tokio::test]
async fn an_unknown_outcome_is_an_answer() {
    let service = Service::default();
    let (url, http) = (service.clone().start(&[]).await, http(IdempotencyKeys::new()));
    for status in [500, 409] {
        let request = http.post(format!("{url}/unlucky")).header("idempotency-key", "k").body("one");
        assert_eq!(request.send().await.expect("an answer").status(), status);
    }
    assert_eq!(service.requests.lock().expect("no panic").len(), 2, "neither is repeated");
}

#[tokio::test]
async fn answers_are_repeated_as_in_every_language() {
    let shared: serde_json::Value = serde_json::from_str(include_str!("../../vectors/shared.json")).expect("JSON");
    let sending = &shared["sending"];
    let within = Duration::from_secs(sending["within_s"].as_u64().expect("a number"));
    assert!(format!("{:?}", IdempotencyKeys::new()).contains(&format!("{within:?}")));
    for vector in sending["answers"].as_array().expect("a list") {
        let tries = Arc::new(AtomicUsize::new(0));
        let (count, answer) = (Arc::clone(&tries), vector.clone());
        let handler = async move || {
            if count.fetch_add(1, Ordering::SeqCst) > 0 {
                return StatusCode::CREATED.into_response();
            }
            let status = u16::try_from(answer["status"].as_u64().expect("a number")).expect("a status");
            let mut headers = HeaderMap::new();
            if let Some(after) = answer["retry_after"].as_str() {
                headers.insert("retry-after", after.parse().expect("a value"));
            }
            let body = answer["body"].as_str().unwrap_or_default().to_owned();
            (StatusCode::from_u16(status).expect("a status"), headers, body).into_response()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, Router::new().route("/", any(handler))).await });
        let response = http(IdempotencyKeys::new()).post(&url).body("one").send().await.expect("an answer");
        assert_eq!(response.url().as_str(), url);
        let status = u64::from(response.status().as_u16());
        let text = response.text().await.expect("a body");
        let tries = tries.load(Ordering::SeqCst);
        if vector["repeated"] == true {
            assert_eq!((status, tries), (201, 2), "{vector}");
        } else {
            let body = vector["body"].as_str().unwrap_or_default();
            assert_eq!((Some(status), &*text, tries), (vector["status"].as_u64(), body, 1), "{vector}");
        }
    }
}

#[tokio::test]
async fn a_long_conflict_is_an_answer_that_can_be_read() {
    let service =
        Router::new().route("/", any(async || (StatusCode::CONFLICT, [("retry-after", "0")], "x".repeat(300_000))));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, service).await });
    let response = http(IdempotencyKeys::new()).post(&url).body("one").send().await.expect("an answer");
    assert_eq!((response.status().as_u16(), response.text().await.expect("a body")), (409, "x".repeat(300_000)));
}

#[tokio::test]
async fn time_ends_the_tries_and_a_stream_is_sent_once() {
    let service = Service::default();
    let url = service.clone().start(&[Lost::Status(503, "3600"), Lost::Status(503, "")]).await;
    let http = http(IdempotencyKeys::new());
    let last = http.post(format!("{url}/send")).body("one").send().await.expect("the last answer");
    assert_eq!(last.status(), 503);
    let body = reqwest::Body::wrap(http_body_util::Full::new(Bytes::from_static(b"one")));
    assert_eq!(http.post(format!("{url}/send")).body(body).send().await.expect("an answer").status(), 503);
    assert_eq!(service.requests.lock().expect("no panic").len(), 2);
}

/// The proxy of a real gateway. It stops with the test.
struct Proxy {
    url: String,
    process: std::process::Child,
    folder: std::path::PathBuf,
}

impl Proxy {
    /// Starts one before this service. `None` without a gateway to start.
    async fn before(service: &str) -> Option<Self> {
        let program = std::env::vars().find(|(name, _)| name == "ONCEGATE_BIN")?.1;
        let ports = [(); 3].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("a port"));
        let [listen, api, admin] = ports.map(|port| port.local_addr().expect("an address"));
        let folder = std::env::temp_dir().join(format!("oncegate-sender-{}", listen.port()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let config = format!(
            "[proxy]\nlisten = \"{listen}\"\n[proxy.upstreams.app]\nurls = [\"{service}\"]\n[[proxy.routes]]\nname = \"invoices.send\"\n\
             app = \"default\"\npath = \"/send\"\nmethods = [\"POST\"]\nupstream = \"app\"\nprincipal = [\"authorization\"]\n"
        );
        std::fs::write(folder.join("oncegate.toml"), config).expect("a file");
        let mut command = std::process::Command::new(program);
        command.args(["serve", "--engine", "memory:", "--config"]).arg(folder.join("oncegate.toml"));
        command.arg("--data-dir").arg(folder.join("data"));
        command.args(["--listen", &api.to_string(), "--admin-listen", &admin.to_string()]);
        let log = std::fs::File::create(folder.join("log")).expect("a file");
        let process = command.stdout(log.try_clone().expect("a file")).stderr(log).spawn().expect("a gateway");
        let starting = async {
            while tokio::net::TcpStream::connect(listen).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), starting).await.expect("the gateway starts");
        Some(Self { url: format!("http://{listen}"), process, folder })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop((self.process.kill(), self.process.wait()));
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

#[tokio::test]
async fn a_try_that_times_out_finds_its_response_behind_the_proxy() {
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let slow = async move |body: Bytes| {
        count.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(700)).await;
        body
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let service = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/send", any(slow))).await });
    let Some(proxy) = Proxy::before(&service).await else {
        eprintln!("skipped: ONCEGATE_BIN names no gateway");
        return;
    };
    let impatient = reqwest::Client::builder().timeout(Duration::from_millis(200)).build().expect("a client");
    let http = ClientBuilder::new(impatient).with(IdempotencyKeys::new()).build();
    let request = http.post(format!("{}/send", proxy.url)).header("authorization", "alice").body("one");
    let response = request.send().await.expect("an answer");
    assert_eq!((response.status().as_u16(), ran.load(Ordering::SeqCst)), (200, 1));
    assert_eq!(response.headers()["idempotent-replayed"], "true");
    assert_eq!(response.text().await.expect("a body"), "one");
}
