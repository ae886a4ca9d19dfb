//! Upstreams that speak HTTP/2: an ordinary one, over TCP and over TLS, and one with given frames as its answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use oncegate_testkit::certificates::Authority;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::{Caller, Upstream, respond, start};

/// Connections that a server has accepted.
type Accepted = Arc<AtomicUsize>;

/// Serves the API over HTTP/2 only; returns its port.
pub(super) async fn serve(tls: Option<TlsAcceptor>) -> (Arc<Upstream>, Accepted, u16) {
    serve_limited(tls, usize::MAX, None).await
}

/// The same, with so many connections, and streams on each.
async fn serve_limited(
    tls: Option<TlsAcceptor>,
    connections: usize,
    streams: Option<u32>,
) -> (Arc<Upstream>, Accepted, u16) {
    let (upstream, _) = Upstream::start().await;
    let router = Router::new()
        .route(
            "/orders/host",
            axum::routing::post(async |request: Request| {
                format!("{} {:?}", request.uri().authority().unwrap(), request.headers().get("host"))
            }),
        )
        .fallback(respond)
        .with_state(upstream.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepted = Accepted::default();
    let count = accepted.clone();
    tokio::spawn(async move {
        while count.load(Ordering::SeqCst) < connections {
            let Ok((stream, _)) = listener.accept().await else { return };
            count.fetch_add(1, Ordering::SeqCst);
            let (router, tls) = (router.clone(), tls.clone());
            tokio::spawn(async move {
                match tls {
                    None => serve_connection(stream, router, streams).await,
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            serve_connection(stream, router, streams).await;
                        }
                    }
                }
            });
        }
    });
    (upstream, accepted, port)
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    streams: Option<u32>,
) {
    let service = TowerToHyperService::new(router);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.max_concurrent_streams(streams.unwrap_or(200));
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

async fn in_front_of(url: &str, more: &str) -> (Gateway, Caller) {
    start("", &format!("urls = [\"{url}\"]\nhttp2 = true\n{more}"), "").await
}

#[tokio::test]
async fn an_upstream_may_speak_http2() {
    let (upstream, accepted, port) = serve(None).await;
    let (_gateway, caller) = in_front_of(&format!("http://127.0.0.1:{port}"), "").await;
    let first = caller.post("/orders/a", "k-1", "one").await;
    assert_eq!((first.status, first.body.as_deref()), (201, Some(&b"order one"[..])));
    let repeat = caller.post("/orders/a", "k-1", "one").await;
    assert!(repeat.is_replay() && repeat.body == first.body);
    assert_eq!(upstream.effects(), 1);
    // Without protection, and larger than the windows of the protocol.
    let long = "x".repeat(1 << 20);
    assert_eq!(caller.send("PUT", "/orders/a", &[], &long).await.body.unwrap().len(), "order ".len() + long.len());
    assert_eq!(caller.post("/orders/large", "k-2", "one").await.body.unwrap().len(), super::LARGE);
    let torn = caller.post("/orders/torn", "k-3", "one").await;
    assert!(torn.body.is_none(), "{}", torn.status);
    assert_eq!(caller.post("/orders/torn", "k-3", "one").await.json()["state"], "unknown");
    // The host that the caller asked for is the authority, and there is no second name.
    let host = [("host", "shop.example"), ("idempotency-key", "k-4"), ("authorization", "alice")];
    let host = caller.send("POST", "/orders/host", &host, "").await;
    assert_eq!(host.body.as_deref(), Some(&b"shop.example None"[..]));
    assert_eq!(accepted.load(Ordering::SeqCst), 1, "all requests share a connection");
}

#[tokio::test]
async fn requests_on_one_connection_do_not_wait_for_each_other() {
    let (upstream, accepted, port) = serve(None).await;
    let (_gateway, caller) = in_front_of(&format!("http://127.0.0.1:{port}"), "").await;
    let caller = Arc::new(caller);
    let slow = tokio::spawn({
        let caller = caller.clone();
        async move { caller.post("/orders/slow", "k-1", "one").await.status }
    });
    until("the upstream has it", super::SOON, async || upstream.effects() == 1).await;
    assert_eq!(caller.post("/orders/a", "k-2", "one").await.status, 201);
    upstream.gate.add_permits(1);
    assert_eq!(slow.await.unwrap(), 201);
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
}

/// Begins requests with bodies that do not end, each on a stream of the server.
async fn take_streams(gateway: &Gateway, upstream: &Upstream, count: usize) -> Vec<TcpStream> {
    let mut requests = Vec::new();
    for number in 1..=count {
        let mut request = TcpStream::connect(super::address(gateway)).await.unwrap();
        let head = "PUT /orders/a HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nx";
        request.write_all(head.as_bytes()).await.unwrap();
        requests.push(request);
        until("the upstream has it", super::SOON, async || upstream.requests() == number).await;
    }
    requests
}

#[tokio::test]
async fn with_all_streams_in_use_a_request_opens_another_connection() {
    let (upstream, accepted, port) = serve_limited(None, usize::MAX, Some(2)).await;
    let (gateway, caller) = in_front_of(&format!("http://127.0.0.1:{port}"), "").await;
    let streams = take_streams(&gateway, &upstream, 2).await;
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
    for key in ["k-1", "k-2"] {
        assert_eq!(caller.post("/orders/a", key, "one").await.status, 201);
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 2, "the second connection is shared");
    drop(streams);
}

#[tokio::test]
async fn with_all_streams_in_use_and_no_further_connection_nothing_is_sent() {
    let (upstream, _, port) = serve_limited(None, 1, Some(2)).await;
    let (gateway, caller) = in_front_of(&format!("http://127.0.0.1:{port}"), "idle = \"1m\"\n").await;
    let streams = take_streams(&gateway, &upstream, 2).await;
    let refused = caller.post("/orders/a", "k-1", "one").await;
    assert_eq!((refused.status, &refused.json()["code"]), (502, &Value::from("upstream_unavailable")));
    assert_eq!(upstream.effects(), 0);
    drop(streams);
    until("a stream is free", super::SOON, async || caller.post("/orders/a", "k-1", "one").await.status == 201).await;
    assert!(caller.post("/orders/a", "k-1", "one").await.is_replay());
    assert_eq!(upstream.effects(), 1, "the key was free");
}

#[tokio::test]
async fn a_connection_that_was_idle_is_replaced() {
    let (upstream, accepted, port) = serve(None).await;
    let (_gateway, caller) = in_front_of(&format!("http://127.0.0.1:{port}"), "idle = \"1ms\"\n").await;
    for key in ["k-1", "k-2"] {
        assert_eq!(caller.post("/orders/a", key, "one").await.status, 201);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!((upstream.effects(), accepted.load(Ordering::SeqCst)), (2, 2));
}

#[tokio::test]
async fn an_upstream_over_tls_speaks_http2_if_it_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::generate();
    let identity = authority.issue().write(folder.path());
    let file = authority.write(&folder.path().join("authority"));
    for (protocol, status) in [("h2", 201), ("http/1.1", 502)] {
        let certificates = CertificateDer::pem_file_iter(&identity.certificate).unwrap().map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_no_client_auth().with_single_cert(certificates, key).unwrap();
        config.alpn_protocols = vec![protocol.into()];
        let (upstream, _, port) = serve(Some(Arc::new(config).into())).await;
        let (_gateway, caller) =
            in_front_of(&format!("https://127.0.0.1:{port}"), &format!("ca_file = {file:?}\n")).await;
        let answer = caller.post("/orders/a", "k-1", "one").await;
        assert_eq!(answer.status, status, "{protocol}: {:?}", answer.body);
        assert_eq!(upstream.effects(), usize::from(status == 201));
    }
}

/// Frames that answer a stream.
type Answer = fn(u32) -> Vec<u8>;

/// A server that answers each stream with the next of some frames.
struct Frames {
    connections: AtomicUsize,
    streams: AtomicUsize,
    answers: Mutex<Vec<Answer>>,
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const REFUSED_STREAM: u32 = 7;
const INTERNAL_ERROR: u32 = 2;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn goaway(last: u32, error: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last.to_be_bytes(), error.to_be_bytes()].concat())
}

/// A response without a body. The byte is `:status: 200` of the static table (RFC 7541, appendix A).
fn ok(stream: u32) -> Vec<u8> {
    frame(HEADERS, 0b101, stream, &[0x88])
}

impl Frames {
    async fn start() -> (Arc<Self>, u16) {
        let (connections, streams) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let server = Arc::new(Self { connections, streams, answers: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serving.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        (server, port)
    }

    async fn serve(self: Arc<Self>, mut socket: TcpStream) -> std::io::Result<()> {
        const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        socket.read_exact(&mut [0; PREFACE.len()]).await?;
        socket.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
        loop {
            let mut head = [0; 9];
            socket.read_exact(&mut head).await?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            socket.read_exact(&mut payload).await?;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            match head[3] {
                SETTINGS if head[4] == 0 => socket.write_all(&frame(SETTINGS, 1, 0, &[])).await?,
                HEADERS => {
                    self.streams.fetch_add(1, Ordering::SeqCst);
                    let answer = self.answers.lock().unwrap().remove(0);
                    let answer = answer(stream);
                    socket.write_all(&answer).await?;
                    // After a GOAWAY that names this stream the server goes away without a response.
                    if answer == goaway(stream, 0) {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
    }

    fn answer(&self, answers: &[Answer]) {
        *self.answers.lock().unwrap() = answers.to_vec();
        self.streams.store(0, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_request_that_the_upstream_says_it_has_not_processed_frees_its_key() {
    let (server, port) = Frames::start().await;
    let (_gateway, caller) = in_front_of(&format!("http://127.0.0.1:{port}"), "").await;
    let refusals: [(&str, Answer); 3] = [
        ("a refused stream", |stream| frame(RST_STREAM, 0, stream, &REFUSED_STREAM.to_be_bytes())),
        ("a stream after the last", |_| goaway(0, 0)),
        ("a stream after the last of a broken server", |_| goaway(0, INTERNAL_ERROR)),
    ];
    for (case, refusal) in refusals {
        server.answer(&[refusal, ok]);
        let key = case.replace(' ', "-");
        let refused = caller.post("/orders/a", &key, "one").await;
        assert_eq!((refused.status, &refused.json()["code"]), (502, &Value::from("upstream_unavailable")), "{case}");
        assert_eq!(server.streams.load(Ordering::SeqCst), 1, "{case}: only the caller repeats a request");
        let repeat = caller.post("/orders/a", &key, "one").await;
        assert_eq!((repeat.status, repeat.is_replay()), (200, false), "{case}");
        assert!(caller.post("/orders/a", &key, "one").await.is_replay(), "{case}");
    }
}

/// Reads the beginning of each connection, and sends these bytes instead of settings.
async fn without_settings(bytes: &'static [u8]) -> (Accepted, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepted = Accepted::default();
    let count = accepted.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(bytes).await;
        }
    });
    (accepted, port)
}

#[tokio::test]
async fn a_connection_that_ends_before_the_settings_of_its_server_has_taken_no_request() {
    for bytes in [&b""[..], b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"] {
        let (accepted, broken) = without_settings(bytes).await;
        let (_gateway, caller) = in_front_of(&format!("http://127.0.0.1:{broken}"), "").await;
        for count in 1..=2 {
            let refused = caller.post("/orders/a", "k-1", "one").await;
            assert_eq!((refused.status, &refused.json()["code"]), (502, &Value::from("upstream_unavailable")));
            assert!(refused.json()["detail"].as_str().unwrap().contains("Nothing was done"), "{:?}", refused.body);
            assert_eq!(accepted.load(Ordering::SeqCst), count, "the key is free");
        }
        let (upstream, _, port) = serve(None).await;
        let urls = format!("urls = [\"http://127.0.0.1:{broken}\", \"http://127.0.0.1:{port}\"]\nhttp2 = true\n");
        let (_gateway, caller) = start("", &urls, "").await;
        assert_eq!(caller.post("/orders/a", "k-1", "one").await.status, 201, "the next server gets it");
        assert_eq!(upstream.effects(), 1);
    }
}

#[tokio::test]
async fn a_response_has_one_length_over_http2_too() {
    let (server, port) = Frames::start().await;
    let (_gateway, caller) = in_front_of(&format!("http://127.0.0.1:{port}"), "").await;
    // `content-length: 002`, a literal with a name of the static table.
    let answer: Answer = |stream| {
        let head = [&[0x88, 0x0f, 0x0d, 3][..], b"002"].concat();
        [frame(HEADERS, 0b100, stream, &head), frame(0, 1, stream, b"ok")].concat()
    };
    for (method, key) in [("POST", "k-1"), ("PUT", "k-2")] {
        server.answer(&[answer]);
        let fields = [("idempotency-key", key), ("authorization", "alice")];
        let answer = caller.send(method, "/orders/a", &fields, "").await;
        assert_eq!(answer.body.as_deref(), Some(&b"ok"[..]), "{method}");
        assert_eq!(answer.headers["content-length"], "2", "{method}");
    }
}

#[tokio::test]
async fn a_request_that_breaks_off_otherwise_is_unknown() {
    let (server, port) = Frames::start().await;
    let (_gateway, caller) = in_front_of(&format!("http://127.0.0.1:{port}"), "").await;
    let failures: [(&str, Answer); 3] = [
        ("a reset stream", |stream| frame(RST_STREAM, 0, stream, &INTERNAL_ERROR.to_be_bytes())),
        ("the last stream of a server that goes away", |stream| goaway(stream, 0)),
        ("no frames", |_| b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n".to_vec()),
    ];
    for (case, failure) in failures {
        server.answer(&[failure, ok]);
        let key = case.replace(' ', "-");
        assert_eq!(caller.post("/orders/a", &key, "one").await.status, 502, "{case}");
        let repeat = caller.post("/orders/a", &key, "one").await;
        assert_eq!((repeat.status, &repeat.json()["state"]), (409, &Value::from("unknown")), "{case}");
        assert_eq!(server.streams.load(Ordering::SeqCst), 1, "{case}");
    }
}

#[tokio::test]
async fn a_connection_without_a_response_in_time_gets_no_further_requests() {
    let (server, port) = Frames::start().await;
    let (_gateway, caller) = in_front_of(&format!("http://127.0.0.1:{port}"), "timeout = \"3s\"\n").await;
    server.answer(&[|_| Vec::new(), ok, ok]);
    assert_eq!(caller.post("/orders/a", "k-1", "one").await.status, 504);
    for key in ["k-2", "k-3"] {
        assert_eq!(caller.post("/orders/a", key, "one").await.status, 200);
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
}
