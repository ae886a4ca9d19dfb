//! Attacks over real sockets: clients that never read, that guess credentials, that pretend to be another app, or that
//! send ambiguous requests.

use std::io;
use std::time::Duration;

use oncegate_core::hex;
use oncegate_testkit::certificates::Authority;
use oncegate_testkit::client::Client;
use oncegate_testkit::gateway::{Gateway, Setup};
use oncegate_testkit::openapi::Spec;
use oncegate_testkit::wait::until;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::{answer, connect};
use crate::support::gateway;

const SOON: Duration = Duration::from_secs(10);
const CONNECTIONS: usize = 4;
/// Nothing is there, so each answer is a problem of some 400 bytes.
const NOTHING: &str = "/v1/claims/00000000000000000000000000000000";
const LOOKUP: &str = "GET /v1/claims/00000000000000000000000000000000 HTTP/1.1\r\nhost: localhost\r\n";
/// A secret of no app.
const WRONG: &str = "0123456789abcdefABCDEF9876543210";

/// A gateway with few connections, whose clients have little time to read.
fn impatient() -> Setup {
    let setup = gateway::on_memory().env("ONCEGATE_LIMITS__CONNECTIONS", CONNECTIONS);
    setup.env("ONCEGATE_LIMITS__WRITE_TIMEOUT", "300ms").env("ONCEGATE_LOG__LEVEL", "info,oncegate_transport=debug")
}

/// A connection whose client takes little at once.
async fn narrow(address: std::net::SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(address).await.unwrap()
}

/// Takes all connections there are, sends the request many times over each and reads nothing. Ends when the gateway has closed
/// them all.
async fn never_read<Io: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    connect: impl AsyncFn() -> io::Result<Io>,
    request: &str,
    times: usize,
) {
    let mut writers = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = connect().await.unwrap();
        let requests = request.repeat(times);
        writers.push(tokio::spawn(async move {
            while stream.write_all(requests.as_bytes()).await.and(stream.flush().await).is_ok() {}
        }));
    }
    for writer in writers {
        timeout(SOON, writer).await.expect("the connection is closed").unwrap();
    }
}

/// Waits until a call is answered. A client sees the end of its connection before its place is free.
async fn is_answered(client: &Client, path: &str, status: u16) {
    let called = async || client.try_send("GET", path, &[], "").await.is_ok_and(|answer| answer.status == status);
    until("a place is free", SOON, called).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_give_their_connections_back() {
    let gateway = impatient().start().await;
    for request in [format!("{LOOKUP}\r\n"), format!("{LOOKUP}expect: nothing\r\n\r\n")] {
        never_read(async || Ok(narrow(gateway.api()).await), &request, 2000).await;
        is_answered(&gateway.client(), NOTHING, 404).await;
    }
    never_read(async || Ok(narrow(gateway.admin()).await), "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n", 50)
        .await;
    is_answered(&gateway.admin_client(), "/livez", 200).await;
    let is_logged = async || gateway.log().contains("the client did not read its response in time");
    until("it is logged", SOON, is_logged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_give_their_connections_back_over_tls() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::generate());
    authority.issue().write(folder.path());
    let path = folder.path().display();
    let table = format!("[server.tls]\ncertificate = \"{path}/tls.crt\"\nkey = \"{path}/tls.key\"\n");
    let gateway = impatient().config(&table).start().await;
    let config = authority.client_config(None);
    let tls = tokio_rustls::TlsConnector::from(config.clone());
    let shake = async || tls.connect("localhost".try_into().unwrap(), narrow(gateway.api()).await).await;
    never_read(shake, &format!("{LOOKUP}\r\n"), 2000).await;
    is_answered(&Client::over_tls(gateway.api(), config), NOTHING, 404).await;
}

/// Stored contents may look like the end of a response and the start of another one.
#[tokio::test]
async fn a_stored_result_that_looks_like_an_answer_stays_in_its_own() {
    let gateway = gateway::on_memory().start().await;
    let client = gateway.client();
    let granted = client.claim(json!("A-1")).await.expect(201);
    let result = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n".repeat(1000);
    client.report(&granted, json!({ "outcome": "success", "result": result })).await.expect(200);
    for unusual in ["", "expect: nothing\r\n"] {
        let mut stream = narrow(gateway.api()).await;
        let body = "{\"contents\":\"A-1\"}";
        let head =
            format!("POST /v1/claims HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{unusual}");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.repeat(20).as_bytes()).await.unwrap();
        let mut stream = BufReader::new(stream);
        for _ in 0..20 {
            let (mut head, mut line) = (String::new(), String::new());
            while line != "\r\n" {
                line.clear();
                stream.read_line(&mut line).await.unwrap();
                head.push_str(&line);
            }
            assert!(head.starts_with("HTTP/1.1 409 ") && head.len() < 300, "{head:.300}");
            let (_, length) = head.split_once("content-length: ").unwrap();
            let mut body = vec![0; length.lines().next().unwrap().parse().unwrap()];
            stream.read_exact(&mut body).await.unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert!(body["result"] == result, "it is as it was stored");
        }
    }
}

/// Guesses over one connection until it is closed; how many were answered.
async fn guess(address: std::net::SocketAddr, path: &str, unusual: &str) -> usize {
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer shop.{WRONG}\r\n{unusual}\r\n");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (mut reader, mut writer) = stream.split();
    let guesses = request.repeat(2000);
    let write = async { drop(writer.write_all(guesses.as_bytes()).await) };
    let mut response = Vec::new();
    let read = async { timeout(3 * SOON, reader.read_to_end(&mut response)).await.expect("it is closed").unwrap() };
    tokio::join!(write, read);
    let response = String::from_utf8(response).unwrap();
    let answers: Vec<_> = response.split("HTTP/1.1 401 ").skip(1).collect();
    let closing = answers.iter().filter(|answer| answer.contains("connection: close\r\n")).count();
    assert_eq!(closing, 1, "the answer with this field is the last");
    answers.len()
}

/// The answer that says `Connection: close` is the last one, however much was sent behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_outlives_too_many_guesses() {
    let digest = |secret: &str| hex::encode(&Sha256::digest(secret));
    let (right, token) = ("right_secret_0123456789abcdef", "token_of_alice_0123456789abcdef");
    let apps = format!("[apps.shop]\nsecrets = [\"sha256:{}\"]\n", digest(right));
    let operators = format!("[admin.tokens]\nalice = \"sha256:{}\"\n", digest(token));
    let gateway = gateway::on_memory().config(&apps).config(&operators).start().await;
    for (address, path) in [(gateway.api(), "/v1/claims/x"), (gateway.admin(), "/admin/v1/audit")] {
        // 500 at once, and one more each 10 ms.
        let first = guess(address, path, "").await;
        assert!((500..1500).contains(&first), "{first} guesses were answered");
        for unusual in ["", "expect: nothing\r\n"] {
            let more = guess(address, path, unusual).await;
            assert!(more < 500, "{more} more guesses were answered");
        }
    }
    // Neither the right secret nor the right token waits for the guesses.
    let shop = gateway.client().with_credential(&format!("shop.{right}"));
    let alice = gateway.admin_client().with_credential(token);
    shop.get("/v1/claims/00000000000000000000000000000000").await.expect(404);
    alice.get("/admin/v1/audit").await.expect(200);
}

/// The status and the code of the answer to these bytes on either listener.
async fn response(gateway: &Gateway, admin: bool, request: &str) -> (u16, String) {
    let address = if admin { gateway.admin() } else { gateway.api() };
    let mut stream = TcpStream::connect(address).await.unwrap();
    let _ = stream.write_all(request.as_bytes()).await;
    let (head, body) = answer(&mut stream).await;
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    if status < 400 {
        return (status, String::new());
    }
    Spec::load().check_problem(status, &body).unwrap();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    (status, body["code"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_request_names_one_host_and_on_loopback_this_machine() {
    let gateway = gateway::on_memory().start().await;
    let secret = format!("[apps.shop]\nsecrets = [\"sha256:{}\"]\n", hex::encode(&Sha256::digest(WRONG)));
    let closed = gateway::on_memory().config(&secret).start().await;
    for line in ["", "expect: nothing\r\n"] {
        for hosts in [
            "",
            "host:\r\n",
            "host: localhost\r\nhost: localhost\r\n",
            "host: localhost, evil.example\r\n",
            "host: a/b\r\n",
        ] {
            let request = format!("GET /livez HTTP/1.1\r\n{hosts}{line}\r\n");
            for (gateway, admin) in [(&gateway, false), (&gateway, true), (&closed, false), (&closed, true)] {
                let response = response(gateway, admin, &request).await;
                assert_eq!(response, (400, "invalid_request".into()), "{request}");
            }
        }
        let elsewhere = format!("GET /livez HTTP/1.1\r\nhost: evil.example\r\n{line}\r\n");
        assert_eq!(response(&gateway, false, &elsewhere).await.0, 400);
        assert_eq!(response(&gateway, true, &elsewhere).await.0, 400);
        assert_eq!(response(&closed, false, &elsewhere).await.0, 404, "a gateway with apps has its own names");
        let here = format!("GET /livez HTTP/1.1\r\nhost: localhost:1\r\n{line}\r\n");
        assert_eq!(response(&gateway, true, &here).await.0, 200);
    }
    let old = "GET /livez HTTP/1.0\r\n\r\n";
    assert_eq!(response(&gateway, false, old).await.0, 400);
    assert_eq!(response(&gateway, true, old).await.0, 400);
    assert_eq!(response(&closed, false, old).await.0, 404, "HTTP/1.0 knows no Host");
    let absolute = "GET http://evil.example/livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    assert_eq!(response(&gateway, true, absolute).await.0, 400);
}

#[tokio::test]
async fn bodies_have_no_coding_but_chunked() {
    let gateway = gateway::on_memory().start().await;
    let chunked = "d\r\n{\"contents\":1\r\n1\r\n}\r\n0\r\n\r\n";
    let cases = [
        ("transfer-encoding: gzip", "abc", 501, "not_supported"),
        ("transfer-encoding: identity", "abc", 501, "not_supported"),
        ("transfer-encoding: chunked, gzip", "abc", 501, "not_supported"),
        ("transfer-encoding: gzip, chunked", chunked, 501, "not_supported"),
        ("transfer-encoding: chunked\r\ntransfer-encoding: chunked", chunked, 501, "not_supported"),
        ("transfer-encoding: chunked\r\ncontent-encoding: gzip", chunked, 415, "unsupported_media_type"),
        ("content-length: 14\r\ncontent-encoding: gzip", "{\"contents\":1}", 415, "unsupported_media_type"),
    ];
    for (fields, body, status, code) in cases {
        for (admin, path) in [(false, "/v1/claims"), (true, "/admin/v1/claims/show")] {
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{fields}\r\n\r\n"
            );
            assert_eq!(
                response(&gateway, admin, &format!("{head}{body}")).await,
                (status, code.to_owned()),
                "{fields}"
            );
        }
    }
    let plain = "POST /v1/claims HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    assert_eq!(response(&gateway, false, &format!("{plain}transfer-encoding: chunked\r\n\r\n{chunked}")).await.0, 201);
    let old = plain.replace("1.1", "1.0");
    let refused = response(&gateway, false, &format!("{old}transfer-encoding: gzip\r\n\r\nabc")).await;
    assert_eq!(refused, (400, "invalid_request".into()));
}

/// A head is refused at the first byte beyond its limit.
#[tokio::test]
async fn a_head_that_never_ends_costs_its_bound() {
    let gateway = gateway::on_memory().start().await;
    for first in ["GET / HTTP/1.1\r\nhost: localhost\r\nx: ", "GET /", "POST / HTTP/1.1\r\nexpect: x\r\nx: "] {
        let head = |bytes: usize| format!("{first}{}", "a".repeat(bytes - first.len()));
        let mut stream = connect(&gateway, head(16_000).as_bytes()).await;
        let early = timeout(Duration::from_millis(200), stream.readable()).await;
        assert!(early.is_err(), "a head within its bound is waited for");
        stream.write_all("a".repeat(384).as_bytes()).await.unwrap();
        let (head, body) = timeout(Duration::from_secs(10), answer(&mut stream)).await.expect("it is refused at once");
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
        Spec::load().check_problem(400, &body).unwrap();
        assert!(String::from_utf8(body).unwrap().contains("16384 bytes"));
    }
}

/// Connections are dealt with one by one: what one client does with its own harms no other.
#[tokio::test]
async fn a_client_that_says_no_more_is_answered() {
    let gateway = gateway::on_memory().start().await;
    for unusual in ["", "expect: nothing\r\n"] {
        let mut stream = connect(&gateway, format!("{LOOKUP}{unusual}\r\n").as_bytes()).await;
        stream.shutdown().await.unwrap();
        let (head, _) = answer(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
        until("it is closed", SOON, async || stream.read(&mut [0; 16]).await.is_ok_and(|read| read == 0)).await;
    }
}
