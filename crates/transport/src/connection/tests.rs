//! Compares the fast path with the library: a client must not see which of them answered.

mod attacks;
mod callers;
mod closes;
mod streaming;
mod timeouts;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::http::Version;
use axum::http::uri::Authority;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::io::{DuplexStream, duplex};
use tokio::task::{JoinHandle, yield_now};

use super::*;
use crate::fast_path::BYTES_MAX;

/// Answers a request with its own text, if its head is valid.
#[derive(Clone, Default)]
struct Echo {
    calls: Arc<AtomicU32>,
}

impl HttpService for Echo {
    type Connection = ();

    async fn call(&self, request: Request<Incoming>, _connection: &Arc<()>) -> Response {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some((status, why)) = invalid_head(&request) {
            return refusal(status, why);
        }
        let (head, body) = request.into_parts();
        let body = axum::body::to_bytes(Body::new(body), usize::MAX).await;
        let mut echo = format!("{} {}\n", head.method, head.uri);
        let mut headers: Vec<_> = head.headers.iter().map(|(name, value)| format!("{name}: {value:?}\n")).collect();
        headers.sort();
        echo.extend(headers);
        let mut response = match body {
            Ok(body) => Response::new(Body::from([echo.as_bytes(), &body].concat())),
            Err(_) => Response::new(Body::from("broken off")),
        };
        if head.uri.path() == "/slow" {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        if head.uri.path() == "/empty" {
            *response.status_mut() = StatusCode::NO_CONTENT;
            *response.body_mut() = Body::empty();
        }
        if head.uri.path() == "/close" {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    fn reject(&self, rejection: Rejection) -> Response {
        match rejection {
            Rejection::TooManyConnections => refusal(StatusCode::SERVICE_UNAVAILABLE, "too many connections"),
            Rejection::TlsRequired => refusal(StatusCode::BAD_REQUEST, "HTTPS only"),
            Rejection::HeadTooLarge => refusal(StatusCode::BAD_REQUEST, "the head is too large"),
            Rejection::UnknownTransferCoding => refusal(StatusCode::NOT_IMPLEMENTED, "only chunked is decoded"),
            Rejection::TwoFramings => refusal(StatusCode::BAD_REQUEST, "two framings"),
            Rejection::Http2 => refusal(StatusCode::BAD_REQUEST, "no HTTP/2"),
            Rejection::MalformedHead => refusal(StatusCode::BAD_REQUEST, "the head could not be read as HTTP/1.1"),
        }
    }
}

/// Returns the error of a head. It has the kinds of rules that the gateway's services have: each refuses a request
/// before its body is read. The exact rules, and their tests, are in `web::head` of the program.
fn invalid_head(request: &Request<Incoming>) -> Option<(StatusCode, &'static str)> {
    let headers = request.headers();
    let codings: Vec<_> = headers.get_all(header::TRANSFER_ENCODING).iter().collect();
    let hosts = headers.get_all(header::HOST).iter().count();
    let chunked = |coding: &&HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    let is_host = |text: &str| text.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@'));
    let host_is_good = headers.get(header::HOST).is_none_or(|host| host.to_str().is_ok_and(is_host));
    if headers.len() > limits().header_fields {
        Some((StatusCode::BAD_REQUEST, "the head is too large"))
    } else if codings.len() > 1 || !codings.iter().all(chunked) {
        Some((StatusCode::NOT_IMPLEMENTED, "only chunked is decoded"))
    } else if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
        Some((StatusCode::BAD_REQUEST, "send one Host field"))
    } else if !host_is_good {
        Some((StatusCode::BAD_REQUEST, "the Host field is malformed"))
    } else if request.uri().authority().is_some_and(|host| !is_host(host.as_str())) {
        Some((StatusCode::BAD_REQUEST, "the host in the target is malformed"))
    } else if headers.contains_key(header::CONTENT_ENCODING) {
        Some((StatusCode::UNSUPPORTED_MEDIA_TYPE, "send no Content-Encoding"))
    } else {
        None
    }
}

fn refusal(status: StatusCode, why: &'static str) -> Response {
    let mut response = Response::new(Body::from(why));
    *response.status_mut() = status;
    response
}

fn limits() -> Limits {
    Limits {
        connections: 10_000,
        header_fields: 64,
        head_bytes: 16 << 10,
        body_bytes: 1 << 20,
        head_timeout: Duration::from_secs(10),
        body_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_mins(1),
        write_timeout: Duration::from_secs(10),
        unread_bytes: 64 << 20,
    }
}

fn server(stop: CancellationToken) -> ConnectionServer<Echo> {
    ConnectionServer::new(None, Echo::default(), limits(), stop)
}

/// A connection that is served by both, or by the library alone.
fn connect(by_library_alone: bool, stop: &CancellationToken) -> DuplexStream {
    connect_to(&Arc::new(server(stop.clone())), by_library_alone, 1 << 20).0
}

/// Connects to a given server, with room for so many bytes on their way. Returns the end of the connection too.
fn connect_to(
    server: &Arc<ConnectionServer<Echo>>,
    by_library_alone: bool,
    room: usize,
) -> (DuplexStream, JoinHandle<()>) {
    let (client, stream) = duplex(room);
    let server = server.clone();
    let connection = tokio::spawn(async move {
        if by_library_alone {
            let (progress, state) = (Arc::new(Progress::default()), Arc::new(()));
            let socket =
                TimedSocket::new(stream, progress.clone(), server.limits, server.unread.clone(), state.clone());
            let call = |request| server.call(request, &state, &progress);
            drop(server.serve_by_library(socket, &progress, call).await);
        } else {
            server.serve_http(stream, Peer { address: ([127, 0, 0, 1], 1).into(), certificate: None }).await;
        }
    });
    (client, connection)
}

/// Sends these pieces one by one; the answers, and whether the connection was closed behind them. Leaves out the parts
/// of answers that may differ: the order of headers, the time, and the name of the server.
async fn answers(pieces: &[&[u8]], by_library_alone: bool) -> (Vec<String>, bool) {
    let mut client = connect(by_library_alone, &CancellationToken::new());
    for piece in pieces {
        if client.write_all(piece).await.is_err() {
            break;
        }
        for _ in 0..8 {
            yield_now().await;
        }
    }
    read_all(&mut client).await
}

/// The answers, and whether the connection is closed after them.
async fn read_all(client: &mut (impl AsyncRead + Unpin)) -> (Vec<String>, bool) {
    let (mut read, mut closed) = (Vec::new(), false);
    // Time stops until there is no other work.
    while let Ok(more) = timeout(Duration::from_secs(3), client.read_buf(&mut read)).await {
        if more.unwrap_or(0) == 0 {
            closed = true;
            break;
        }
    }
    (split(&read), closed)
}

fn split(mut read: &[u8]) -> Vec<String> {
    let mut answers = Vec::new();
    while let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
        let head = String::from_utf8(read[..end].to_vec()).unwrap();
        let mut lines: Vec<_> = head.split("\r\n").map(str::to_ascii_lowercase).collect();
        let length = lines.iter().find_map(|line| line.strip_prefix("content-length: "));
        // The answer to HEAD has none either, but what follows it is the next answer then.
        let length = length.map_or(0, |length| length.parse().unwrap()).min(read.len() - end - 4);
        lines.retain(|line| !line.starts_with("date: ") && !line.starts_with("x-request-id: "));
        lines.sort();
        let body = String::from_utf8_lossy(&read[end + 4..end + 4 + length]);
        answers.push(format!("{}\n\n{}", lines.join("\n"), nameless(&body)));
        read = &read[end + 4 + length..];
    }
    if !read.is_empty() {
        answers.push(nameless(&String::from_utf8_lossy(read)));
    }
    answers
}

/// A body without the ID that its request was given.
fn nameless(body: &str) -> String {
    body.split_once("\"request_id\"").map_or(body, |(before, _)| before).to_owned()
}

async fn assert_same(pieces: &[&[u8]]) {
    let (ours, library) = (answers(pieces, false).await, answers(pieces, true).await);
    let pieces: Vec<_> = pieces.iter().map(|piece| piece.escape_ascii().to_string()).collect();
    assert_eq!(ours, library, "{pieces:#?}");
}

/// Answered with a text that holds a refusal, and then something else.
const ECHO: &str =
    "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n";

const CLAIM: &str = "POST /v1/claims HTTP/1.1\r\nhost: localhost\r\ncontent-length: 14\r\n\r\n{\"contents\":1}";

#[expect(clippy::too_many_lines, reason = "a list of requests")]
fn requests() -> Vec<Vec<u8>> {
    let post = |fields: &str, body: &str| format!("POST /a?b=c HTTP/1.1\r\nhost: x\r\n{fields}\r\n{body}").into_bytes();
    let bare = |line: &str, fields: &str| format!("{line}\r\n{fields}\r\n").into_bytes();
    let start = |line: &str| format!("{line}\r\nhost: x\r\n\r\n").into_bytes();
    let fields = |count| "x: y\r\n".repeat(count);
    let long = |bytes| "z".repeat(bytes);
    // Bytes that are left for one field in a head of the greatest length.
    let head_room = limits().head_bytes - post("long: \r\n", "").len();
    let of_length = |bytes| post(&format!("content-length: {bytes}\r\n"), &long(bytes));
    let mut all = vec![
        CLAIM.into(),
        post("", ""),
        post("content-length: 0\r\n", ""),
        post("Content-Length: 3\r\nX-A: 1\r\nx-a: 2\r\n", "abc"),
        post("content-length:3\r\nempty:\r\nspaces:   a  b  \r\ntab:\tc\t\r\n", "abc"),
        post("content-length: 3\r\nlatin: caf\u{e9}\r\n", "abc"),
        post("content-length: 3\r\nconnection: Keep-Alive\r\n", "abc"),
        post("content-length: 3\r\nconnection: close\r\n", "abc"),
        post("content-length: 3\r\nconnection: keep-alive\r\nconnection: close\r\n", "abc"),
        post("content-length: 3\r\nconnection: keep-alive, te\r\n", "abc"),
        post("content-length: 3\r\nexpect: 100-continue\r\n", "abc"),
        post("content-length: 3\r\nupgrade: h2c\r\nconnection: upgrade\r\n", "abc"),
        post("transfer-encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"),
        post("transfer-encoding: chunked\r\ncontent-length: 3\r\n", "3\r\nabc\r\n0\r\n\r\n"),
        post("content-length: 3\r\ntransfer-encoding: chunked\r\n", "abc"),
        post("content-length: 3\r\ntransfer-encoding: identity\r\n", "abc"),
        post("content-length: 9999999999999999999999\r\n", "abc"),
        post("content-length: 18446744073709551615\r\n", "abc"),
        post("no colon\r\n", ""),
        post("space : before\r\n", ""),
        post("a: b\r\n folded\r\n", ""),
        post("a: b\0c\r\n", ""),
        post("a\u{7f}: b\r\n", ""),
        post(": nameless\r\n", ""),
        post(&fields(30), ""),
        post(&fields(31), ""),
        post(&fields(32), ""),
        post(&fields(63), ""),
        post(&fields(64), ""),
        post(&fields(100), ""),
        post(&fields(300), ""),
        post(&format!("long: {}\r\n", long(30_000)), ""),
        post(&format!("long: {}\r\n", long(300_000)), ""),
        b"POST /a HTTP/1.1\nhost: x\ncontent-length: 1\n\nz".to_vec(),
        b"\r\n\r\nPOST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nz".to_vec(),
        bare("GET / HTTP/1.1", ""),
        bare("GET / HTTP/1.0", ""),
        bare("GET / HTTP/1.1", "host:\r\n"),
        bare("GET / HTTP/1.1", "host: a b\r\n"),
        bare("GET / HTTP/1.1", "host: x\r\nhost: x\r\n"),
        bare("GET / HTTP/1.1", "host: x\r\nHOST: y\r\n"),
        bare("GET / HTTP/1.0", "host: x\r\nhost: x\r\n"),
        bare("GET http://a@b/ HTTP/1.1", "host: x\r\n"),
        bare("GET /close HTTP/1.1", "host: x\r\n"),
        bare("GET /close HTTP/1.0", "host: x\r\n"),
        bare("HEAD /close HTTP/1.1", "host: x\r\n"),
        post("content-encoding: gzip\r\ncontent-length: 3\r\n", "abc"),
        post("transfer-encoding: gzip\r\n", "abc"),
        post("transfer-encoding: gzip, chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"),
        post("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"),
        post(&format!("long: {}\r\n", long(head_room)), ""),
        post(&format!("long: {}\r\n", long(head_room + 1)), ""),
        b"hello\r\n\r\n".to_vec(),
        of_length(BYTES_MAX - 100),
        of_length(BYTES_MAX),
        of_length(100_000),
    ];
    for length in ["+3", "-3", "3 ", " 3", "03", "3, 3", "3,4", "0x3", "3.0", "", "three", "\u{663}"] {
        all.push(post(&format!("content-length: {length}\r\n"), "abc"));
    }
    for twice in ["3\r\ncontent-length: 3", "3\r\ncontent-length: 2", "3\r\ncontent-length: x"] {
        all.push(post(&format!("content-length: {twice}\r\n"), "abc"));
    }
    for host in [
        "a:",
        "SHOP:80",
        "10.0.0.1:8080",
        "[::2]",
        "a_b",
        "%41",
        ":80",
        "a/b",
        "a@b",
        "a:b",
        "a:80:90",
        "[::1",
        "::1",
        "[x]",
        "[::1]x",
        "[::1]:x",
        "a\tb",
        "a?",
        "a#b",
        "caf\u{e9}",
        "a, b",
        "http://a",
    ] {
        all.push(bare("GET / HTTP/1.1", &format!("host: {host}\r\n")));
        all.push(format!("POST /a HTTP/1.1\r\nhost: {host}\r\ncontent-length: 3\r\n\r\nabc").into_bytes());
    }
    for target in [
        "http://x/a?b",
        "HTTP://X/a",
        "https://x",
        "http://x?b",
        "http://x:80/",
        "http://x:/",
        "http://x:y/",
        "http://u@x/",
        "http://u:p@x/",
        "http://[::1]/",
        "http://[::1/",
        "http:///a",
        "http://",
        "http:/a",
        "ftp://x/",
        "x:1",
        "//x/a",
        "*",
    ] {
        all.push(start(&format!("GET {target} HTTP/1.1")));
        all.push(bare(&format!("GET {target} HTTP/1.0"), ""));
        all.push(format!("POST {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc").into_bytes());
    }
    for coding in ["gzip", "identity", "", "GZIP, br", "gzip\r\ncontent-encoding: br"] {
        let coding = format!("Content-Encoding: {coding}\r\n");
        all.push(bare("GET / HTTP/1.1", &format!("host: x\r\n{coding}")));
        all.push(post(&format!("{coding}content-length: 3\r\n"), "abc"));
        all.push(post(&format!("{coding}content-length: 3\r\nexpect: 100-continue\r\n"), "abc"));
        all.push(post(&format!("{coding}content-length: 3\r\nconnection: close\r\n"), "abc"));
        all.push(post(&format!("{coding}transfer-encoding: chunked\r\n"), "3\r\nabc\r\n0\r\n\r\n"));
        all.push(post(&format!("{coding}content-length: {BYTES_MAX}\r\n"), &long(BYTES_MAX)));
    }
    for line in [
        "GET / HTTP/1.1",
        "GET /empty HTTP/1.1",
        "GET /slow HTTP/1.1",
        "HEAD / HTTP/1.1",
        "DELETE /a HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "get / HTTP/1.1",
        "P\u{f6}ST / HTTP/1.1",
        "GET / HTTP/1.0",
        "GET / HTTP/2.0",
        "GET /",
        "GET  / HTTP/1.1",
        "GET http://x/a HTTP/1.1",
        "GET x HTTP/1.1",
        "GET //a HTTP/1.1",
        "GET /%zz HTTP/1.1",
        "GET /a#b HTTP/1.1",
        "GET /a b HTTP/1.1",
        "GET /\"<>\\^`{|} HTTP/1.1",
        "GET /\u{e9} HTTP/1.1",
        "CONNECT x:1 HTTP/1.1",
        "PRI * HTTP/2.0",
    ] {
        all.push(start(line));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn the_fast_path_answers_requests_as_the_library_does() {
    for request in requests() {
        assert_same(&[&request]).await;
        // Behind a plain one, and before one.
        assert_same(&[CLAIM.as_bytes(), &request, CLAIM.as_bytes()]).await;
        assert_same(&[&[&request, CLAIM.as_bytes()].concat()]).await;
        // In two pieces, and what breaks off.
        let (first, second) = request.split_at(request.len() / 2);
        assert_same(&[first, second]).await;
        assert_same(&[first]).await;
    }
    let pieces: Vec<_> = CLAIM.as_bytes().chunks(1).collect();
    assert_same(&pieces).await;
}

#[tokio::test(start_paused = true)]
async fn the_fast_path_answers_damaged_requests_as_the_library_does() {
    let requests: Vec<_> = requests().into_iter().filter(|request| request.len() < 1000).collect();
    for seed in 0..4000 {
        let random = &mut SmallRng::seed_from_u64(seed);
        let mut sent = Vec::new();
        for _ in 0..random.random_range(1..=3) {
            sent.extend(&requests[random.random_range(0..requests.len())]);
        }
        for _ in 0..random.random_range(0..=3) {
            let at = random.random_range(0..=sent.len().saturating_sub(1));
            match random.random_range(0..4) {
                _ if sent.is_empty() => {}
                0 => sent[at] = random.random(),
                1 => sent.insert(at, b" \r\n:,\t0"[random.random_range(0..7)]),
                2 => drop(sent.remove(at)),
                _ => sent.truncate(at + 1),
            }
        }
        let cut = random.random_range(0..=sent.len());
        let (first, second) = sent.split_at(cut);
        // The library looks again at what came in pieces once its head seems to have ended.
        assert_same(&[first, second, b"\r\n\r\n"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_arrives_in_many_pieces_is_left_to_the_library() {
    let mut client = connect(false, &CancellationToken::new());
    client.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 300\r\n\r\n").await.unwrap();
    // For longer than a head may take, with short pauses only.
    for _ in 0..300 {
        tokio::time::sleep(Duration::from_millis(40)).await;
        client.write_all(b"z").await.unwrap();
    }
    let mut read = Vec::new();
    while !read.ends_with(&[b'z'; 300]) {
        assert!(client.read_buf(&mut read).await.unwrap() > 0, "{read:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_the_request_in_service_be_answered_and_closes_after_it() {
    let stop = CancellationToken::new();
    let (mut waits, mut works) = (connect(false, &stop), connect(false, &stop));
    waits.write_all(CLAIM.as_bytes()).await.unwrap();
    assert!(waits.read(&mut [0; 1024]).await.unwrap() > 0);
    works.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    for _ in 0..8 {
        yield_now().await;
    }
    stop.cancel();
    let mut text = String::new();
    // Within the time of the slow request, long before any timeout.
    timeout(Duration::from_millis(100), waits.read_to_string(&mut text)).await.expect("closed at once").unwrap();
    assert_eq!(text, "");
    timeout(Duration::from_secs(2), works.read_to_string(&mut text)).await.expect("closed after it").unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("connection: close\r\n"), "{text}");
}

/// Sends the bytes, closes the sending half, and reads.
async fn half_closed(sent: &[u8], by_library_alone: bool) -> (Vec<String>, bool) {
    let mut client = connect(by_library_alone, &CancellationToken::new());
    let _ = client.write_all(sent).await;
    let _ = client.shutdown().await;
    read_all(&mut client).await
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_no_more_is_still_answered() {
    for sent in requests() {
        let (ours, library) = (half_closed(&sent, false).await, half_closed(&sent, true).await);
        assert_eq!(ours, library, "{}", sent.escape_ascii());
        assert!(ours.1, "{}", sent.escape_ascii());
    }
    let slow = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n";
    for by_library_alone in [false, true] {
        let (answers, _) = half_closed(slow, by_library_alone).await;
        assert!(answers[0].contains("http/1.1 200 ok"), "{answers:?}");
    }
}

/// Sends everything while it reads, over a connection that takes so many bytes at once.
async fn through(sent: &[u8], by_library_alone: bool, room: usize) -> (Vec<String>, bool) {
    let server = Arc::new(server(CancellationToken::new()));
    let (mut incoming, mut outgoing) = tokio::io::split(connect_to(&server, by_library_alone, room).0);
    let sent = sent.to_vec();
    let sends = tokio::spawn(async move { drop(outgoing.write_all(&sent).await) });
    let read = read_all(&mut incoming).await;
    sends.abort();
    read
}

/// The rest of a body whose request was refused is skipped up to the limit, and the connection continues. A client that announces
/// more, or that waits for `100 Continue` first, is not read any further.
#[tokio::test(start_paused = true)]
async fn an_unread_body_is_skipped_up_to_its_limit() {
    let most = limits().body_bytes;
    for (fields, bytes, goes_on) in [("", most, true), ("", most + 1, false), ("expect: 100-continue\r\n", 3, false)] {
        let head =
            format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-encoding: gzip\r\n{fields}content-length: {bytes}\r\n\r\n");
        let sent = [head.as_bytes(), &vec![b'z'; bytes], CLAIM.as_bytes()].concat();
        for by_library_alone in [false, true] {
            let (answers, _) = through(&sent, by_library_alone, 1 << 16).await;
            assert!(answers[0].contains("send no content-encoding") || answers[0].contains("415"), "{answers:?}");
            assert_eq!(
                (answers.len() == 2, answers[0].contains("connection: close")),
                (goes_on, !goes_on),
                "{answers:?}"
            );
        }
    }
}
