//! Framing and fields of one connection, in both directions: an ambiguous message is refused, or is sent on in an
//! unambiguous form.

use std::sync::{Arc, Mutex};

use oncegate_testkit::gateway::Gateway;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{Answer, Caller, SOON, Upstream, address, proxy};

/// A server that answers each connection's first request with given bytes, closes, and records the bytes that it
/// received.
pub(super) struct RawUpstream {
    requests: Mutex<Vec<String>>,
    answer: Mutex<Vec<u8>>,
}

pub(super) const OK: &str = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";

impl RawUpstream {
    pub(super) async fn start() -> (Arc<Self>, u16) {
        let upstream = Arc::new(Self { requests: Mutex::default(), answer: Mutex::new(OK.into()) });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = upstream.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(server.clone().serve(stream));
            }
        });
        (upstream, port)
    }

    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
        // The proxy sends a body in one piece with its length.
        while !is_whole(&request) {
            match stream.read(&mut buffer).await {
                Ok(count) if count > 0 => request.extend_from_slice(&buffer[..count]),
                _ => break,
            }
        }
        self.requests.lock().unwrap().push(String::from_utf8_lossy(&request).to_lowercase());
        let answer = self.answer.lock().unwrap().clone();
        let _ = stream.write_all(&answer).await;
        let _ = stream.shutdown().await;
    }

    /// Sets the answer to further requests.
    pub(super) fn answer(&self, answer: &str) {
        *self.answer.lock().unwrap() = answer.into();
    }

    /// Returns the requests since the last time, in small letters.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    if head.contains("transfer-encoding: chunked") {
        return body.ends_with("0\r\n\r\n");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    body.len() >= length
}

async fn start() -> (Arc<RawUpstream>, Gateway, Caller) {
    let (upstream, port) = RawUpstream::start().await;
    let (gateway, caller) = proxy(port, "").await;
    (upstream, gateway, caller)
}

/// Sends bytes, and returns the answer: all bytes until the proxy closes, or sends no more.
pub(super) async fn exchange(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    let _ = stream.write_all(request.as_bytes()).await;
    let _ = stream.shutdown().await;
    let read = async {
        while let Ok(count) = stream.read(&mut buffer).await {
            if count == 0 {
                break;
            }
            answer.extend_from_slice(&buffer[..count]);
        }
    };
    tokio::time::timeout(SOON, read).await.expect("the proxy closes");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_request_that_readers_could_frame_differently_is_not_forwarded() {
    let (upstream, gateway, _) = start().await;
    let address = address(&gateway);
    for method in ["POST", "PUT"] {
        for (case, framing) in [
            ("two lengths", "content-length: 1\r\ncontent-length: 2\r\n\r\nab"),
            ("lengths in a list", "content-length: 1, 2\r\n\r\nab"),
            ("a sign", "content-length: +1\r\n\r\na"),
            ("no number", "content-length: 0x1\r\n\r\na"),
            ("another coding", "transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
            ("chunked twice", "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
            ("chunked is not last", "transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
            ("a space before the colon", "content-length : 1\r\n\r\na"),
            ("a folded field", "transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
            ("a chunk without a size", "transfer-encoding: chunked\r\n\r\nx\r\na\r\n0\r\n\r\n"),
            ("two hosts", "host: b\r\ncontent-length: 1\r\n\r\na"),
        ] {
            let request = format!(
                "{method} /orders/a HTTP/1.1\r\nhost: a\r\nidempotency-key: {case}\r\nauthorization: alice\r\n{framing}"
            );
            let request =
                request.replace("idempotency-key: ", "idempotency-key: k-").replace(&format!("k-{case}"), "k-1");
            let answer = exchange(&address, &request).await;
            let is_refused = answer.is_empty() || answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.1 5");
            assert!(is_refused, "{method} {case}: {answer}");
            let complete = upstream.take().into_iter().filter(|request| is_whole(request.as_bytes()));
            assert_eq!(complete.count(), 0, "{method} {case}");
        }
    }
}

#[tokio::test]
async fn a_request_is_forwarded_with_one_framing_and_without_fields_of_its_connection() {
    let (upstream, gateway, _) = start().await;
    let address = address(&gateway);
    let hops = "connection: x-hop, keep-alive, Upgrade, HTTP2-Settings\r\nhttp2-settings: AAMAAABk\r\nrange: bytes=0-1\r\nif-range: a\r\naccept-encoding: br\r\nx-hop: 1\r\nkeep-alive: 1\r\nte: gzip, trailers\r\nproxy-authorization: x\r\n\
                upgrade: h2c\r\noncegate-repeat: unknown\r\nx-end: 1\r\n";
    for (count, (method, framing)) in [
        ("PUT", "content-length: 2\r\n\r\nab"),
        ("PUT", "transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"),
        ("PUT", "transfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n2\r\nab\r\n0\r\n\r\n"),
        ("POST", "transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"),
    ]
    .into_iter()
    .enumerate()
    {
        let request = format!(
            "{method} /orders/a HTTP/1.1\r\nhost: a\r\nidempotency-key: k{count}\r\nauthorization: alice\r\n{hops}{framing}"
        );
        let answer = exchange(&address, &request).await;
        let forwarded = upstream.take();
        if answer.starts_with("HTTP/1.1 4") {
            assert!(forwarded.is_empty() && framing.contains("content-length: 1"), "{method} {framing}: {answer}");
            continue;
        }
        assert!(answer.starts_with("HTTP/1.1 201"), "{method} {framing}: {answer}");
        let [forwarded] = &forwarded[..] else { panic!("{forwarded:?}") };
        let framings = ["content-length:", "transfer-encoding:"].map(|name| forwarded.matches(name).count());
        assert_eq!(framings.iter().sum::<usize>(), 1, "{forwarded}");
        // Some servers read no body without a length. That of a request with a key is known.
        let has_length = method == "POST" || framing.starts_with("content-length");
        assert_eq!(forwarded.contains("content-length: 2\r\n"), has_length, "{method} {framing}: {forwarded}");
        for gone in ["x-hop", "keep-alive", "proxy-authorization", "upgrade", "http2-settings", "oncegate-repeat"] {
            assert!(!forwarded.contains(gone), "{gone}: {forwarded}");
        }
        // A partial response would fit no other caller.
        assert_eq!(forwarded.contains("range:"), method == "PUT", "{forwarded}");
        assert_eq!(forwarded.contains("accept-encoding: identity"), method == "POST", "{forwarded}");
        for kept in [
            "x-end: 1",
            "\r\nte: trailers\r\n",
            "via: 1.1 oncegate-",
            "x-forwarded-for: 127.0.0.1",
            "x-forwarded-proto: http",
        ] {
            assert!(forwarded.contains(kept), "{kept}: {forwarded}");
        }
        assert!(forwarded.ends_with("ab") || forwarded.ends_with("2\r\nab\r\n0\r\n\r\n"), "{forwarded}");
    }
}

/// The end of the connection would be the end of the response, and such a caller would take half of it for all.
#[tokio::test]
async fn a_broken_response_to_a_caller_of_http_1_0_ends_with_a_reset() {
    let (upstream, gateway, _) = start().await;
    upstream.answer("HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n");
    for (way, head) in [
        ("keyed", "POST /orders/a HTTP/1.0\r\nidempotency-key: k\r\nauthorization: alice\r\n"),
        ("plain", "PUT /orders/a HTTP/1.0\r\n"),
    ] {
        let mut stream = TcpStream::connect(address(&gateway)).await.unwrap();
        stream.write_all(format!("{head}host: a\r\ncontent-length: 0\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await.expect("the proxy closes");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert_eq!(read.map_err(|error| error.kind()), Err(std::io::ErrorKind::ConnectionReset), "{way}: {answer}");
    }
}

/// Some servers answer 411 to a POST without one.
#[tokio::test]
async fn an_empty_body_is_forwarded_with_its_length() {
    let (upstream, gateway, _) = start().await;
    let keyed = "idempotency-key: k\r\nauthorization: alice\r\n";
    for (method, fields, has_length) in
        [("POST", keyed, true), ("PUT", keyed, true), ("PATCH", "", true), ("DELETE", "", false), ("GET", "", false)]
    {
        let length = if has_length { "content-length: 0\r\n" } else { "" };
        let request = format!("{method} /orders/a HTTP/1.1\r\nhost: a\r\n{fields}{length}\r\n");
        let answer = exchange(&address(&gateway), &request).await;
        assert!(answer.starts_with("HTTP/1.1 201"), "{method}: {answer}");
        let forwarded = upstream.take().concat();
        assert_eq!(
            forwarded.matches("content-length: 0\r\n").count(),
            usize::from(has_length),
            "{method}: {forwarded}"
        );
        assert!(!forwarded.contains("transfer-encoding"), "{method}: {forwarded}");
    }
}

#[tokio::test]
async fn a_response_that_is_not_whole_is_neither_stored_nor_run_again() {
    let (upstream, _gateway, caller) = start().await;
    for (case, answer) in [
        ("nothing", ""),
        ("no HTTP", "SSH-2.0-OpenSSH\r\n\r\n"),
        ("half a head", "HTTP/1.1 201 Created\r\ncontent-le"),
        ("too short", "HTTP/1.1 201 Created\r\ncontent-length: 5\r\n\r\nab"),
        ("two lengths", "HTTP/1.1 201 Created\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"),
        ("lengths in a list", "HTTP/1.1 201 Created\r\ncontent-length: 3, 5\r\n\r\nabcde"),
        ("another coding", "HTTP/1.1 201 Created\r\ntransfer-encoding: gzip\r\n\r\nab"),
        ("an unasked switch", "HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"),
        ("an unasked switch to nothing", "HTTP/1.1 101 X\r\n\r\nHTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n"),
        ("a wrong length", "HTTP/1.1 201 Created\r\ncontent-length: -1\r\n\r\nab"),
        ("no end of chunks", "HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n"),
        ("no size of a chunk", "HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\nx\r\nab\r\n0\r\n\r\n"),
        ("a status that is none", "HTTP/1.1 99 What\r\ncontent-length: 0\r\n\r\n"),
    ] {
        *upstream.answer.lock().unwrap() = answer.into();
        let key = case.replace(' ', "-");
        let first = caller.post("/orders/a", &key, "one").await;
        assert!(first.status == 502 || first.body.is_none(), "{case}: {}", first.status);
        assert_eq!(upstream.take().len(), 1, "{case}: only the caller repeats a request");
        let repeat = caller.post("/orders/a", &key, "one").await;
        assert_eq!((repeat.status, &repeat.json()["state"]), (409, &Value::from("unknown")), "{case}");
        assert_eq!(upstream.take().len(), 0, "{case}");
    }
}

#[tokio::test]
async fn a_whole_response_is_replayed_without_fields_of_its_connection() {
    let (upstream, _gateway, caller) = start().await;
    for (key, framing) in [
        ("length", "content-length: 2\r\n\r\nok"),
        ("zeros", "content-length: 002\r\n\r\nok"),
        ("list", "content-length: 2, 2\r\n\r\nok"),
        ("twice", "content-length: 2\r\ncontent-length: 2\r\n\r\nok"),
        ("both", "content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
        ("both-long", "transfer-encoding: chunked\r\ncontent-length: 9\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
        ("chunked", "transfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n"),
        ("closed", "\r\nok"),
        ("interim", "content-length: 2\r\n\r\nok"),
    ] {
        let interim = if key == "interim" { "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" } else { "" };
        let answer = format!(
            "{interim}HTTP/1.1 201 Created\r\nconnection: close, x-hop\r\nx-hop: 1\r\nkeep-alive: 1\r\nproxy-authenticate: x\r\n\
             idempotent-replayed: true\r\noncegate-outcome: success\r\nset-cookie: a=1\r\nx-end: 1\r\n{framing}"
        );
        *upstream.answer.lock().unwrap() = answer.into();
        for is_replay in [false, true] {
            let answer = caller.post("/orders/a", key, "one").await;
            assert_eq!((answer.status, answer.body.as_deref()), (201, Some(&b"ok"[..])), "{key}");
            assert_eq!(answer.is_replay(), is_replay, "{key}");
            assert_eq!(answer.headers.contains_key("set-cookie"), !is_replay, "{key}");
            assert_eq!(answer.headers["x-end"], "1");
            for gone in ["x-hop", "keep-alive", "proxy-authenticate", "oncegate-outcome"] {
                assert!(!answer.headers.contains_key(gone), "{key}: {gone}");
            }
        }
        assert_eq!(upstream.take().len(), 1, "{key}");
    }
}

#[tokio::test]
async fn trailers_are_forwarded_and_replayed_to_callers_that_read_them() {
    let (upstream, gateway, _) = start().await;
    let answer = "HTTP/1.1 201 Created\r\nconnection: close\r\ntrailer: x-sum, oncegate-x\r\ntransfer-encoding: chunked\r\n\r\n\
                  2\r\nok\r\n0\r\nx-sum: 7\r\noncegate-x: 1\r\nx-unannounced: 1\r\n\r\n";
    *upstream.answer.lock().unwrap() = answer.into();
    let reads = "te: trailers\r\n";
    for (key, te, is_replay) in [("k-1", "", false), ("k-1", reads, true), ("k-2", reads, false)] {
        let request = format!(
            "POST /orders/a HTTP/1.1\r\nhost: a\r\nconnection: te\r\n{te}idempotency-key: {key}\r\nauthorization: alice\r\n\
             content-length: 2\r\n\r\nab"
        );
        let answer = exchange(&address(&gateway), &request).await;
        assert!(answer.starts_with("HTTP/1.1 201") && answer.contains("ok"), "{answer}");
        assert_eq!(answer.contains("idempotent-replayed: true"), is_replay, "{answer}");
        assert_eq!(answer.ends_with("0\r\nx-sum: 7\r\n\r\n"), !te.is_empty(), "{answer}");
        assert!(!answer.contains("oncegate-x: 1"), "{answer}");
    }
    assert_eq!(upstream.take().len(), 2);
}

/// On all listeners, and on all ways through the proxy.
#[tokio::test]
async fn what_is_no_request_is_answered_by_a_problem_and_ends_the_connection() {
    let (upstream, gateway, _) = start().await;
    let [proxy, api, admin] = [address(&gateway), gateway.api().to_string(), gateway.admin().to_string()];
    let after = "GET /after HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(20_000));
    for (address, path) in [(&proxy, "/orders/a"), (&proxy, "/unprotected"), (&api, "/v1/claims"), (&admin, "/livez")] {
        let post = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: a\r\nidempotency-key: k-1\r\n");
        for (case, request, detail) in [
            (
                "a length, then a coding",
                format!("{post}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
                "Send one of them",
            ),
            (
                "a coding, then a length",
                format!("{post}transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
                "Send one of them",
            ),
            ("a line that is none", "hello\r\n\r\n".to_owned(), "RFC 9112"),
            ("a field that is none", format!("{post}a b: c\r\n\r\n"), "RFC 9112"),
            ("a long target", long.clone(), "bytes in all"),
        ] {
            let answer = exchange(address, &format!("{request}{after}")).await;
            let is_problem = answer.starts_with("HTTP/1.1 400 ") && answer.contains("application/problem+json");
            assert!(is_problem && answer.contains(detail), "{path}, {case}: {answer}");
            assert_eq!(answer.matches("HTTP/1.1 4").count(), 1, "{path}, {case}: {answer}");
        }
    }
    assert_eq!(upstream.take(), Vec::<String>::new());
}

#[tokio::test]
async fn no_cache_keeps_what_the_gateway_says_itself() {
    let (_upstream, port) = Upstream::start().await;
    let (gateway, caller) = proxy(port, "").await;
    let (_stripe, by_dialect) = proxy(port, "dialect = \"stripe\"\n").await;
    let is_kept_from_caches = |answer: &Answer| answer.headers.get("cache-control").is_some_and(|it| it == "no-store");
    for (path, key, body, status) in [
        ("/orders/a", "k-1", "one", 201),
        ("/orders/a", "k-1", "one", 201),
        ("/orders/a", "k-1", "two", 422),
        ("/orders/broken", "k-2", "one", 500),
        ("/orders/broken", "k-2", "one", 409),
        ("/orders/big", "k-3", "one", 201),
        ("/orders/big", "k-3", "one", 409),
        ("/orders/a", "", "one", 400),
        ("/orders//a", "k-4", "one", 400),
        ("/elsewhere", "k-5", "one", 404),
    ] {
        let answer = caller.post(path, key, body).await;
        assert_eq!(answer.status, status, "{path}, {key}");
        let is_upstreams = status == 201 || status == 500;
        assert_ne!(is_kept_from_caches(&answer), is_upstreams, "{path}, {key}: {:?}", answer.headers);
    }
    // Without a key, on a route and beside it.
    for (method, path, status) in [("PUT", "/orders/a", 201), ("PUT", "/orders//a", 400)] {
        let answer = caller.send(method, path, &[], "one").await;
        assert_eq!((answer.status, is_kept_from_caches(&answer)), (status, status != 201), "{method} {path}");
    }
    let refused = by_dialect.post("/orders/a", "", "one").await;
    assert!(refused.status == 400 && is_kept_from_caches(&refused), "{:?}", refused.headers);
    let refused = exchange(&address(&gateway), "hello\r\n\r\n").await;
    assert!(refused.contains("\r\ncache-control: no-store\r\n"), "{refused}");
}
