//! Pieces of a call, with their setup. The setup must not depend on the number of repetitions: the difference between
//! two counts is the result.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use futures_util::FutureExt as _;
use oncegate_api::{Api, ApiService, ClaimBody, ConcurrencyLimit, granted, success};
use oncegate_core::attempt::{Attempt, Entropy, Issuer};
use oncegate_core::call::Answered;
use oncegate_core::canonical::{Canonical, canonicalize};
use oncegate_core::claim::{ClaimRequest, ClaimResponse, Outcome, OutcomeRequest, OutcomeResponse};
use oncegate_core::clock::{Clock, ManualClock, SystemClock, Timestamp};
use oncegate_core::engine::conformance::DEADLINE;
use oncegate_core::engine::memory::{BYTES_MAX_DEFAULT, Memory};
use oncegate_core::engine::{Claims as _, Topology as _, value};
use oncegate_core::global_id::GlobalId;
use oncegate_core::limits::Limits;
use oncegate_core::record::{Key, LiveClaim, Realm, Record};
use oncegate_core::terms::{LeaseEnd, Retention, Terms};
use oncegate_gateway::claim::{ClaimAnswer, ClaimCall, Granted};
use oncegate_gateway::tenants::auth_throttle::AuthThrottle;
use oncegate_gateway::tenants::{App, CachedCredential, Registry};
use oncegate_gateway::{ClaimView, Engines, Gateway};
use oncegate_redis::{Options, Redis};
use oncegate_telemetry::metrics::Metrics;
use oncegate_telemetry::metrics::tenants::AuthenticationMetrics;
use oncegate_telemetry::traces::Traces;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_transport::listener;
use oncegate_web::body::JsonBytes;
use oncegate_web::problem::ProblemBase;
use oncegate_web::recent::Recent;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Largest number of repetitions: so many claims are prepared.
pub(crate) const TIMES_MAX: usize = 500;

/// Number of apps of the registry.
const APPS: usize = 100;

/// Piece of a call.
pub(crate) struct Piece {
    /// Name in the table of counts.
    pub(crate) name: &'static str,
    /// Runs the piece a number of times.
    pub(crate) run: fn(usize),
}

/// Name and function of a piece.
type Named = (&'static str, fn(usize));

/// Returns all pieces.
pub(crate) fn all() -> impl Iterator<Item = Piece> {
    const PIECES: [Named; 20] = [
        ("canonical.small", canonical_small),
        ("canonical.large", canonical_large),
        ("global_id", global_id),
        ("claim_body", claim_body),
        ("attempt", attempt),
        ("authenticate.first", authenticate_first),
        ("authenticate.again", authenticate_again),
        ("authenticate.wrong", authenticate_wrong),
        ("value.encode", value_encode),
        ("value.decode", value_decode),
        ("answer.granted", answer_granted),
        ("answer.duplicate", answer_duplicate),
        ("memory.claim", memory_claim),
        ("memory.duplicate", memory_duplicate),
        ("memory.settle", memory_settle),
        ("redis.claim", redis_claim),
        ("redis.duplicate", redis_duplicate),
        ("gateway.claim", gateway_claim),
        ("request.claim", request_claim),
        ("request.duplicate", request_duplicate),
    ];
    PIECES.into_iter().map(|(name, run)| Piece { name, run })
}

/// Contents as in the examples.
const SMALL: &str = r#"{"order_id":"A-1001","customer":4711}"#;

/// Contents with everything that is expensive: unordered keys, escapes, all kinds of numbers, nested arrays and
/// objects.
const LARGE: &str = r#"{
    "order": {"id": "A-1001", "placed_at": "2026-11-21T18:15:00Z", "channel": "caf\u00e9 \ud83d\ude00 web"},
    "lines": [
        {"sku": "0815-a", "quantity": 2, "price": 19.90, "note": "first \"quoted\" line\nsecond line"},
        {"sku": "0815-b", "quantity": 1, "price": 1e3, "note": null},
        {"sku": "4711", "quantity": 12, "price": 0.015, "note": "Stra\u00dfe \\ Gr\u00f6\u00dfe"}
    ],
    "discounts": {"new customer": -5, "black friday": -12.5, "Z": true, "a": false, "\u20ac": [1, 2, [3, [4]]]},
    "address": {"zip": "10117", "city": "Berlin", "street": "Unter den Linden 1"}
}"#;

const BODY: &str = r#"{"operation":"order.submit","contents":{"order_id":"A-1001","customer":4711},"attempt_nonce":"6f1c2a9e-5d0b-4b1e-9a53-0c7f1d2e3b4a","lease":"45s","retention":"48h"}"#;

const SECRET: &str = "0123456789abcdefABCDEF0123456789";

fn canonical_small(times: usize) {
    for _ in 0..times {
        black_box(canonicalize(black_box(SMALL.as_bytes()))).expect("it is canonical JSON");
    }
}

fn canonical_large(times: usize) {
    for _ in 0..times {
        black_box(canonicalize(black_box(LARGE.as_bytes()))).expect("it is canonical JSON");
    }
}

fn global_id(times: usize) {
    let request = request(0);
    for _ in 0..times {
        black_box(GlobalId::of(black_box(&request.key.app), &request.operation, &request.contents).to_string());
    }
}

/// From the bytes of a body to the request of the use case.
fn claim_body(times: usize) {
    let limits = Limits::default();
    let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    let body = within_runtime(JsonBytes::receive(&headers, Body::from(BODY), &limits)).expect("it is a body");
    for _ in 0..times {
        let body: ClaimBody<'_> = black_box(&body).parse().expect("it is a claim");
        black_box(body.into_request(&limits)).expect("it is within all bounds");
    }
}

/// Created, formatted, parsed.
fn attempt(times: usize) {
    let clock = Arc::new(ManualClock::at(NOON));
    let issuer = Issuer::new(clock, Arc::new(Counting::default()));
    for _ in 0..times {
        let attempt = black_box(&issuer).issue(None);
        black_box(black_box(attempt.to_string()).parse::<Attempt>()).expect("it is an attempt");
    }
}

/// The first request of a connection.
fn authenticate_first(times: usize) {
    let (registry, credentials) = (registry(), credentials(|number| format!("Bearer shop-{}.{SECRET}", number % APPS)));
    for credential in &credentials[..times] {
        let admitted =
            registry.authenticate(Some(black_box(credential.as_bytes())), &CachedCredential::default(), NOON);
        black_box(admitted).expect("it is right");
    }
}

/// Further requests of a connection.
fn authenticate_again(times: usize) {
    let (registry, credential, cached) = (registry(), format!("Bearer shop-7.{SECRET}"), CachedCredential::default());
    for _ in 0..times {
        black_box(registry.authenticate(Some(black_box(credential.as_bytes())), &cached, NOON)).expect("it is right");
    }
}

fn authenticate_wrong(times: usize) {
    let (registry, cached) = (registry(), CachedCredential::default());
    let credentials = credentials(|number| format!("Bearer shop-7.{SECRET}{number:03}"));
    for credential in &credentials[..times] {
        black_box(registry.authenticate(Some(black_box(credential.as_bytes())), &cached, NOON))
            .expect_err("it is wrong");
    }
}

fn value_encode(times: usize) {
    let record = succeeded();
    for _ in 0..times {
        black_box(value::encode(black_box(&record)));
    }
}

fn value_decode(times: usize) {
    let text = value::encode(&succeeded());
    for _ in 0..times {
        black_box(value::decode(black_box(text.as_bytes()))).expect("it was written by this release");
    }
}

/// From the result of the use case to the response's head and JSON.
fn answer_granted(times: usize) {
    let request = request(0);
    for _ in 0..times {
        let grant = Granted {
            global_id: request.key.global_id,
            attempt: request.attempt.clone(),
            fence: Some(1_700_000_000_000_001),
            repeated: false,
            taken_over: false,
            lease_ms: 29_999,
            lease_expires_at: NOON.plus(Duration::from_secs(30)),
            would_be: None,
        };
        let body = granted(black_box(Answered::by_store(ClaimAnswer::Granted(grant)))).expect("it was granted");
        black_box(success(&body));
    }
}

/// To the problem document of a duplicate of a success.
fn answer_duplicate(times: usize) {
    let (request, base) = (request(0), ProblemBase::default());
    let record = succeeded();
    for _ in 0..times {
        let (left, ends_at) = (Some(Duration::from_hours(1)), Some(NOON.plus(Duration::from_hours(1))));
        let claim = LiveClaim { record: record.clone(), left, ends_at, fence: Some(7) };
        let found = ClaimView { global_id: request.key.global_id, claim, result_omitted: false };
        let problem =
            granted(black_box(Answered::by_store(ClaimAnswer::Duplicate(found)))).err().expect("it is a duplicate");
        let mut text = Vec::with_capacity(768);
        problem.document("0123456789abcdef", &base).write(&mut text).expect("it can be written");
        black_box(text);
    }
}

fn memory_claim(times: usize) {
    let (engine, requests) = (memory(), requests());
    for request in &requests[..times] {
        let claimed = black_box(&engine).claim(request, DEADLINE).now_or_never().expect("nothing is waited for");
        assert!(matches!(black_box(claimed), Ok(ClaimResponse::Granted(_))));
    }
}

fn memory_duplicate(times: usize) {
    let (engine, requests) = (memory(), requests());
    for request in &requests {
        black_box(engine.claim(request, DEADLINE).now_or_never());
    }
    let other: Attempt = "1700000000000001-0c7f1d2e3b4a9a53".parse().expect("it is an attempt");
    let again: Vec<_> =
        requests.iter().map(|request| ClaimRequest { attempt: other.clone(), ..request.clone() }).collect();
    for request in &again[..times] {
        let claimed = black_box(&engine).claim(request, DEADLINE).now_or_never().expect("nothing is waited for");
        assert!(matches!(black_box(claimed), Ok(ClaimResponse::Duplicate(_))));
    }
}

fn memory_settle(times: usize) {
    let (engine, requests) = (memory(), requests());
    for request in &requests {
        black_box(engine.claim(request, DEADLINE).now_or_never());
    }
    let settles: Vec<_> = requests.iter().map(|request| settled(request, r#"{"receipt":"R-1"}"#.into())).collect();
    for settle in &settles[..times] {
        let settled = black_box(&engine).settle(settle, DEADLINE).now_or_never().expect("nothing is waited for");
        assert!(matches!(black_box(settled), Ok(OutcomeResponse::Done { .. })));
    }
}

/// From the engine to a server and back, without the work of the server.
fn redis_claim(times: usize) {
    let requests = requests();
    within_runtime(async {
        let (_server, engine) = redis().await;
        for request in &requests[..times] {
            let claimed = black_box(&engine).claim(request, DEADLINE).await;
            assert!(matches!(black_box(claimed), Ok(ClaimResponse::Granted(_))));
        }
    });
}

/// Repeats of one operation that has succeeded.
fn redis_duplicate(times: usize) {
    let request = request(0);
    within_runtime(async {
        let (_server, engine) = redis().await;
        engine.claim(&request, DEADLINE).await.expect("it is granted");
        engine.settle(&settled(&request, result_of_1_kib()), DEADLINE).await.expect("it is settled");
        let other: Attempt = "1700000000000001-0c7f1d2e3b4a9a53".parse().expect("it is an attempt");
        let again = ClaimRequest { attempt: other, ..request };
        for _ in 0..times {
            let claimed = black_box(&engine).claim(&again, DEADLINE).await;
            assert!(matches!(black_box(claimed), Ok(ClaimResponse::Duplicate(_))));
        }
    });
}

async fn redis() -> (RedisServer, Redis) {
    let server = RedisServer::start().await.expect("scripts/install-test-deps installs it");
    let engine = Redis::open(&format!("redis://{}", server.address()), Options::default()).expect("it is a URL");
    while engine.probe().await.is_err() {}
    (server, engine)
}

/// The use case over the bare memory engine.
fn gateway_claim(times: usize) {
    let (gateway, app) = (gateway_over(Arc::new(memory())), app("shop", &[]));
    let requests: Vec<_> = requests().into_iter().map(asked).collect();
    within_runtime(async {
        for request in requests.into_iter().take(times) {
            let answer = black_box(&gateway).claim(&app, request).await;
            assert!(matches!(black_box(answer), Ok(Answered { answer: ClaimAnswer::Granted(_), .. })));
        }
    });
}

/// A whole request on a connection, with both ends of it: the caller only writes and reads.
fn request_claim(times: usize) {
    requested(times, "HTTP/1.1 201 ", async |_| {});
}

/// The same for an operation that has succeeded with a result of 1 KiB.
fn request_duplicate(times: usize) {
    requested(times, "HTTP/1.1 409 ", async |engine| {
        let app = app("shop-7", &[]).key;
        for request in requests() {
            let key = Key {
                global_id: GlobalId::of(&app, &request.operation, &request.contents),
                realm: Realm::Api,
                app: app.clone(),
            };
            let request = ClaimRequest { key, ..request };
            engine.claim(&request, DEADLINE).await.expect("it is granted");
            engine.settle(&settled(&request, result_of_1_kib()), DEADLINE).await.expect("it is settled");
        }
    });
}

/// Sends requests to a gateway over what `prepare` has put into its engine.
fn requested(times: usize, status: &str, prepare: impl AsyncFnOnce(&Memory)) {
    Metrics::install();
    let clock = Arc::new(SystemClock::new());
    let engine = Arc::new(memory());
    let (gateway, registry) = (Arc::new(gateway_over(engine.clone())), Arc::new(registry()));
    gateway.measure_apps(&registry.apps(), Limits::default().metric_operations);
    let limits = Limits::default();
    let service = ApiService::new(Api {
        gateway,
        registry,
        throttle: AuthThrottle::new(clock.clone(), "failures"),
        concurrency: ConcurrencyLimit::new(limits.requests_in_flight),
        limits: limits.clone(),
        problem_base: ProblemBase::default(),
        loopback_only: false,
        recent: Arc::new(Recent::new(clock.clone())),
        clock,
        entropy: Arc::new(Counting::default()),
        authentication: AuthenticationMetrics::default(),
        access: None,
        traces: Traces::default(),
    });
    let requests: Vec<_> = (0..TIMES_MAX).map(http_request).collect();
    within_runtime(async {
        prepare(&engine).await;
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = socket.local_addr().expect("its address");
        let (stop, connections) = (CancellationToken::new(), TaskTracker::new());
        let limits = oncegate_web::listener_limits(&limits);
        tokio::spawn(listener::accept(socket, None, service, limits, vec![Handle::current()], stop, connections));
        let mut caller = TcpStream::connect(address).await.expect("the server listens");
        let mut answer = Vec::with_capacity(4096);
        for request in &requests[..times] {
            caller.write_all(request).await.expect("it is read");
            answer.clear();
            // The body is one flat object, and nothing before it contains braces.
            while !answer.ends_with(b"}") {
                caller.read_buf(&mut answer).await.expect("it is answered");
            }
            assert!(answer.starts_with(status.as_bytes()), "{}", answer.escape_ascii());
        }
    });
}

const NOON: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// Random bits that differ each time and have a fixed number of digits.
#[derive(Default)]
struct Counting(AtomicU64);

impl Entropy for Counting {
    fn bits(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) | 1 << 63
    }
}

fn contents(number: usize) -> Canonical {
    canonicalize(format!(r#"{{"order_id":"A-{number:08}","customer":4711}}"#).as_bytes()).expect("it is canonical JSON")
}

fn attempt_of(number: usize) -> Attempt {
    format!("17000000{number:08}-6f1c2a9e5d0b4b1e").parse().expect("it is an attempt")
}

fn request(number: usize) -> ClaimRequest {
    let app = app("shop", &[]);
    let (operation, contents) = ("order.submit".parse().expect("it is a name"), contents(number));
    ClaimRequest {
        key: Key { global_id: GlobalId::of(&app.key, &operation, &contents), realm: Realm::Api, app: app.key },
        attempt: attempt_of(number),
        operation,
        contents,
        contents_stored_bytes: app.terms.contents_stored_bytes,
        fingerprint: None,
        terms: app.terms.terms,
        caller: None,
        take_over: false,
        waits: false,
    }
}

fn settled(request: &ClaimRequest, result: Box<str>) -> OutcomeRequest {
    OutcomeRequest {
        key: request.key.clone(),
        attempt: request.attempt.clone(),
        outcome: Outcome::Success { result: Some(result), retention: None },
        late: None,
    }
}

/// A text, so that no answer ends before its last brace.
fn result_of_1_kib() -> Box<str> {
    format!("\"{}\"", "x".repeat(1022)).into()
}

fn requests() -> Vec<ClaimRequest> {
    (0..TIMES_MAX).map(request).collect()
}

fn asked(claim: ClaimRequest) -> ClaimCall {
    let nonce = Some(claim.attempt.nonce().clone());
    ClaimCall { nonce, ..ClaimCall::plain(claim.operation, claim.contents) }
}

fn succeeded() -> Record {
    let state = oncegate_core::record::ClaimState::Succeeded;
    Record { state, result: Some(r#"{"receipt":"R-1","total":"39.80"}"#.into()), ..request(0).record() }
}

/// Returns a registry of a hundred apps, each with a secret.
/// Returns as many credentials as the largest number of repetitions. All differ: the seed of the table decides whether
/// a lookup meets a credential with the same tag, which costs several hundred instructions.
fn credentials(credential: fn(usize) -> String) -> Vec<String> {
    (0..TIMES_MAX).map(credential).collect()
}

fn registry() -> Registry {
    Registry::of((0..APPS).map(|number| app(&format!("shop-{number}"), &[SECRET])))
}

fn app(key: &str, secrets: &[&str]) -> App {
    let terms = Terms {
        lease: Duration::from_mins(10),
        retention: Retention::For(Duration::from_hours(24)),
        unknown_retention: Retention::For(Duration::from_hours(24 * 7)),
        on_lease_end: LeaseEnd::Release,
    };
    App::for_tests(key, secrets, terms, Duration::from_mins(1))
}

fn memory() -> Memory {
    Memory::new(Arc::new(SystemClock::new()), BYTES_MAX_DEFAULT)
}

fn gateway_over(engine: Arc<Memory>) -> Gateway {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let entropy = Arc::new(Counting::default());
    let engines = Engines::of_one("default", engine, &clock, entropy.clone());
    Gateway::new(engines, Issuer::new(clock.clone(), entropy), clock, &Limits::default())
}

fn http_request(number: usize) -> Vec<u8> {
    let body = format!(r#"{{"operation":"order.submit","contents":{}}}"#, contents(number).as_str());
    let head = format!(
        "POST /v1/claims HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nauthorization: Bearer shop-7.{SECRET}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head, body].concat().into_bytes()
}

fn within_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    runtime.block_on(work)
}
