//! Upstreams with several servers: a streamed body goes to the next one only if nothing of it can have reached the one before.

use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpSocket};

use super::http2::serve;
use super::uploads::{LIMITS, upload};
use super::{Answer, Caller, Upstream, start};

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
