//! Request bodies that are too long to be read before a claim, with their `Content-Digest`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oncegate_testkit::fresh;
use oncegate_testkit::wait::until;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::bounds::waiting;
use super::framing::exchange;
use super::{Answer, Caller, SOON, Upstream, address, proxy};

/// Limits under which the bodies are long.
pub(super) const LIMITS: &str = "[limits]\nbody_bytes = 65536\ncontents_bytes = 1024\nresult_bytes = 1024\n";

pub(super) async fn upload(caller: &Caller, key: &str, digest_of: &str, body: &str) -> Answer {
    let digest = self::digest_of(digest_of);
    let fields = [("idempotency-key", key), ("authorization", "alice"), ("content-digest", &*digest)];
    caller.send("POST", "/orders/a", &fields, body).await
}

fn digest_of(body: &str) -> String {
    format!("sha-256=:{}:", STANDARD.encode(Sha256::digest(body)))
}

/// A client that sends all of its body before it reads anything.
#[tokio::test]
async fn a_client_that_sends_on_reads_why_its_body_is_refused() {
    let (upstream, port) = Upstream::start().await;
    let (gateway, _caller) = proxy(port, LIMITS).await;
    for length in [80_000, 1 << 20] {
        let mut client = TcpStream::connect(address(&gateway)).await.unwrap();
        let head = format!(
            "POST /orders/a HTTP/1.1\r\nhost: a\r\nidempotency-key: k-1\r\nauthorization: alice\r\ncontent-length: {length}\r\n\r\n"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(&vec![b'x'; length]).await.expect("the gateway listens on");
        client.shutdown().await.expect("no reset");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("no reset");
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    }
    assert_eq!(upstream.requests(), 0);
}

/// Nothing listens at the upstream. The rest of the body would be read as the next request.
#[tokio::test]
async fn an_answer_before_the_end_of_a_body_says_that_the_connection_closes() {
    let (gateway, _caller) = proxy(fresh::port(), LIMITS).await;
    let digest = digest_of("any");
    let keyed = format!("idempotency-key: k-1\r\nauthorization: alice\r\ncontent-digest: {digest}\r\n");
    for (method, fields) in [("POST", &*keyed), ("PUT", "")] {
        let mut client = TcpStream::connect(address(&gateway)).await.unwrap();
        let head = format!("{method} /orders/a HTTP/1.1\r\nhost: a\r\n{fields}content-length: 300000\r\n\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(&vec![b'x'; 80_000]).await.unwrap();
        let (mut answer, mut buffer) = (String::new(), [0; 4096]);
        while !answer.contains("\r\n\r\n") {
            let count = client.read(&mut buffer).await.unwrap();
            assert_ne!(count, 0, "{method}: {answer}");
            answer.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        assert!(
            answer.starts_with("HTTP/1.1 502") && answer.contains("\r\nconnection: close\r\n"),
            "{method}: {answer}"
        );
    }
}

#[tokio::test]
async fn a_long_body_runs_once_if_it_has_its_digest() {
    let (upstream, port) = Upstream::start().await;
    let (gateway, caller) = proxy(port, &format!("response_bytes = \"1MiB\"\n{LIMITS}")).await;
    let (body, other) = ("x".repeat(300_000), "y".repeat(300_000));
    let head = "POST /orders/a HTTP/1.1\r\nhost: a\r\nidempotency-key: k-1\r\nauthorization: alice\r\ncontent-length: 300000\r\n\r\n";
    let without = exchange(&address(&gateway), head).await;
    assert!(without.starts_with("HTTP/1.1 413") && without.contains("Content-Digest"), "{without}");
    assert_eq!(upstream.requests(), 0);
    let first = upload(&caller, "k-1", &body, &body).await;
    assert_eq!((first.status, first.is_replay()), (201, false));
    let repeat = upload(&caller, "k-1", &body, &body).await;
    assert_eq!(
        (repeat.status, repeat.is_replay(), &repeat.headers["location"]),
        (201, true, &first.headers["location"])
    );
    let lie = upload(&caller, "k-1", &body, &other).await;
    assert_eq!(
        (lie.status, &lie.json()["code"]),
        (400, &Value::from("invalid_request")),
        "only its sender knows the body"
    );
    let mismatch = upload(&caller, "k-1", &other, &other).await;
    assert_eq!((mismatch.status, &mismatch.json()["code"]), (422, &Value::from("fingerprint_mismatch")));
    assert_eq!(upstream.effects(), 1);
}

/// The part of an upload that was read before its caller began to wait counts as well.
#[tokio::test]
async fn an_upload_that_waits_for_the_same_one_is_still_compared_with_its_digest() {
    let (upstream, port) = Upstream::start().await;
    let (gateway, _) = proxy(port, &format!("wait = \"20s\"\nresponse_bytes = \"1MiB\"\n{LIMITS}")).await;
    let (digest, key) = (digest_of(&"x".repeat(300_000)), "k-1");
    // Without a length, so the beginning of the body is read before its claim.
    let send = |body: String| {
        let request = format!(
            "POST /orders/slow HTTP/1.1\r\nhost: a\r\nidempotency-key: {key}\r\nauthorization: alice\r\ncontent-digest: {digest}\r\n\
             transfer-encoding: chunked\r\nconnection: close\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        let address = address(&gateway);
        tokio::spawn(async move { exchange(&address, &request).await })
    };
    let first = send("x".repeat(300_000));
    until("the upstream has it", SOON, async || upstream.effects() == 1).await;
    let (repeat, lie) = (send("x".repeat(300_000)), send("y".repeat(300_000)));
    until("both wait", SOON, async || waiting(&gateway).await == 2).await;
    upstream.gate.add_permits(1);
    let [first, repeat, lie] = [first.await.unwrap(), repeat.await.unwrap(), lie.await.unwrap()];
    assert!(first.starts_with("HTTP/1.1 201") && !first.contains("idempotent-replayed"), "{first:.200}");
    assert!(repeat.starts_with("HTTP/1.1 201") && repeat.contains("idempotent-replayed"), "{repeat:.200}");
    assert!(lie.starts_with("HTTP/1.1 400"), "only its sender knows the body: {lie:.200}");
    assert_eq!(upstream.effects(), 1);
}

/// A server that answers as soon as it has a head, and reads on. Returns its port.
async fn answers_early() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = vec![0; 65536];
                if stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {
                    drop(stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 5\r\n\r\nearly").await);
                }
                while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
            });
        }
    });
    port
}

#[tokio::test]
async fn an_early_response_to_a_body_with_another_digest_is_not_stored() {
    let (_gateway, caller) = proxy(answers_early().await, LIMITS).await;
    let body = "x".repeat(3_000_000);
    let wrong = upload(&caller, "k-1", "other", &body).await;
    assert!([0, 201, 400].contains(&wrong.status), "{}", wrong.status);
    until("the outcome is recorded", SOON, async || {
        let repeat = upload(&caller, "k-1", "other", "other").await;
        assert_eq!((repeat.status, repeat.is_replay()), (409, false));
        repeat.json()["state"] == "unknown"
    })
    .await;
}

#[tokio::test]
async fn the_end_of_a_body_with_another_digest_is_never_forwarded() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, LIMITS).await;
    let body = "x".repeat(300_000);
    let wrong = upload(&caller, "k-1", "other", &body).await;
    assert_eq!((wrong.status, &wrong.json()["code"]), (400, &Value::from("invalid_request")));
    let repeat = upload(&caller, "k-1", "other", "other").await;
    assert_eq!((repeat.status, &repeat.json()["state"]), (409, &Value::from("unknown")));
    let lie = upload(&caller, "k-1", "other", &body).await;
    assert_eq!(
        (lie.status, &lie.json()["code"]),
        (400, &Value::from("invalid_request")),
        "on no answer it is believed"
    );
    assert_eq!((upstream.requests(), upstream.effects()), (1, 0));
}

/// A repeat may send its body slowly, and each could keep a response for that time.
#[tokio::test]
async fn a_response_that_waits_for_the_body_of_its_repeat_takes_memory() {
    let (_upstream, port) = Upstream::start().await;
    // Room for one response, and a little more.
    let (total, route) = ("request_bytes_total = \"257KiB\"\n", format!("response_bytes = \"224KiB\"\n{LIMITS}"));
    let (gateway, caller) = super::proxy_with(port, total, &route).await;
    let body = "x".repeat(200_000);
    assert_eq!(upload(&caller, "k-1", &body, &body).await.status, 201);
    let other = "y".repeat(50_000);
    let put = async || caller.send("PUT", "/orders/a", &[], &other).await;
    assert_eq!(put().await.status, 201);

    let mut repeat = TcpStream::connect(address(&gateway)).await.unwrap();
    let head = format!(
        "POST /orders/a HTTP/1.1\r\nhost: {}\r\nidempotency-key: k-1\r\nauthorization: alice\r\ncontent-digest: {}\r\n\
         content-length: 200000\r\nconnection: close\r\n\r\n",
        address(&gateway),
        digest_of(&body)
    );
    repeat.write_all(head.as_bytes()).await.unwrap();
    repeat.write_all(&body.as_bytes()[..100_000]).await.unwrap();
    until("the response takes memory", SOON, async || {
        let answer = put().await;
        answer.status == 503 && answer.json()["code"] == "overloaded"
    })
    .await;
    repeat.write_all(&body.as_bytes()[100_000..]).await.unwrap();
    let mut replay = Vec::new();
    repeat.read_to_end(&mut replay).await.unwrap();
    assert!(replay.len() > body.len() && String::from_utf8_lossy(&replay).contains("idempotent-replayed: true"));
    assert_eq!(put().await.status, 201, "it is free again");
}
