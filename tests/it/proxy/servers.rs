//! Upstreams with several servers: a streamed body goes to the next one only if nothing of it can have reached the one before.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::serve::ListenerExt as _;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpSocket};

use super::http2::serve;
use super::uploads::{LIMITS, upload};
use super::{Answer, Caller, Upstream, respond, start};

/// A request without protection, or one with a key and a body that is too long to be read before its claim.
async fn send(caller: &Caller, is_keyed: bool, key: &str) -> Answer {
    let body = "x".repeat(300_000);
    if is_keyed { upload(caller, key, &body, &body).await } else { caller.send("PUT", "/orders/a", &[], &body).await }
}

/// Returns the settings of an upstream with these servers.
fn servers(first: u16, second: u16, more: &str) -> String {
    format!("urls = [\"http://127.0.0.1:{first}\", \"http://127.0.0.1:{second}\"]\n{more}")
}

#[tokio::test]
async fn a_streamed_body_goes_to_the_next_server_if_the_first_accepts_no_connection() {
    // Bound and not listening: it refuses, and no one else gets the port.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let refusing = socket.local_addr().unwrap().port();
    for is_http2 in [false, true] {
        for is_keyed in [false, true] {
            let (upstream, port) = if is_http2 {
                let (upstream, _, port) = serve(None).await;
                (upstream, port)
            } else {
                Upstream::start().await
            };
            let settings = servers(refusing, port, if is_http2 { "http2 = true\n" } else { "" });
            let (_gateway, caller) = start("", &settings, LIMITS).await;
            for number in 0..3 {
                let answer = send(&caller, is_keyed, &format!("k-{number}")).await;
                assert_ne!(answer.status, 502, "http2 {is_http2}, keyed {is_keyed}");
            }
            assert_eq!(upstream.requests(), 3, "http2 {is_http2}, keyed {is_keyed}");
        }
    }
}

#[tokio::test]
async fn a_body_that_is_under_way_is_sent_to_no_other_server() {
    for is_keyed in [false, true] {
        let breaking = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let first = breaking.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = breaking.accept().await {
                // The head and a part of the body.
                stream.read_exact(&mut vec![0; 20_000]).await.unwrap();
            }
        });
        let (upstream, port) = Upstream::start().await;
        let (_gateway, caller) = start("", &servers(first, port, ""), LIMITS).await;
        let broken = send(&caller, is_keyed, "k-1").await;
        assert_eq!((broken.status, &broken.json()["code"]), (502, &Value::from("upstream_unavailable")));
        assert_eq!(broken.headers["connection"], "close", "the next request must not follow the rest of the body");
        if is_keyed {
            let repeat = send(&caller, is_keyed, "k-1").await;
            assert_eq!((repeat.status, &repeat.json()["state"]), (409, &Value::from("unknown")));
        }
        assert_eq!(upstream.requests(), 0, "keyed {is_keyed}");
    }
}

/// Starts the API; returns its port, and the number of connections that it has accepted.
async fn counting() -> (u16, Arc<AtomicUsize>) {
    let (upstream, _) = Upstream::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = accepted.clone();
    let counted = listener.tap_io(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let router = axum::Router::new().fallback(respond).with_state(upstream);
    tokio::spawn(axum::serve(counted, router).into_future());
    (port, accepted)
}

#[tokio::test]
async fn connections_are_used_again_unless_they_were_idle_for_too_long() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let requests = 4 * cores;
    for (idle, method) in [("1m", "POST"), ("1m", "PUT"), ("1ms", "POST"), ("1ms", "PUT")] {
        let (port, accepted) = counting().await;
        let settings = format!("urls = [\"http://127.0.0.1:{port}\"]\nidle = {idle:?}\n");
        let (_gateway, caller) = start("", &settings, "").await;
        for number in 0..requests {
            let fields = [("idempotency-key", &*format!("k-{number}")), ("authorization", "alice")];
            assert_eq!(caller.send(method, "/orders/a", &fields, "one").await.status, 201);
            if idle == "1ms" {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        let accepted = accepted.load(Ordering::SeqCst);
        // Connections are kept for each core.
        let expected = if idle == "1ms" { requests..=requests } else { 1..=cores };
        assert!(expected.contains(&accepted), "{method}, {idle}: {accepted} connections for {requests} requests");
    }
}
