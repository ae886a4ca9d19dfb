//! Framing on every way through the proxy (rule 7): a message that readers could understand in two ways is forwarded in neither direction.

use std::sync::Arc;
use std::sync::Mutex;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{WAYS, address, config, exchange, gateways};
use crate::support::gateway;

#[tokio::test]
async fn a_request_with_two_framings_is_forwarded_on_no_way() {
    for (case, recorder, gateway) in gateways("trusted_peers = [\"192.0.2.0/24\"]\n").await {
        for (name, method, path, own) in WAYS {
            for (status, framing) in [
                (400, "content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"),
                (400, "transfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n1\r\nx\r\n0\r\n\r\n"),
                (400, "content-length: 1\r\ncontent-length: 2\r\n\r\nxy"),
                (400, "content-length: +1\r\n\r\nx"),
                (501, "transfer-encoding: gzip\r\n\r\nx"),
            ] {
                let own = own.replace("{key}", "two-framings");
                let head = format!("{method} {path} HTTP/1.1\r\nhost: shop.example\r\nauthorization: alice\r\n{own}");
                let answer = exchange(&address(&gateway), &format!("{head}{framing}")).await;
                assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{case}, {name}, {framing:?}: {answer}");
                assert!(answer.contains("application/problem+json"), "{case}, {name}, {framing:?}: {answer}");
                assert_eq!(recorder.take().len(), 0, "{case}, {name}, {framing:?}");
            }
        }
    }
}

/// Readers that take a line feed alone, or sizes of any length, find another end of such a body, and other requests after it.
#[tokio::test]
async fn nothing_after_a_body_that_is_not_chunked_correctly_is_forwarded_on_any_way() {
    let head = |method: &str, path: &str| {
        format!("{method} {path} HTTP/1.1\r\nhost: shop.example\r\nauthorization: alice\r\n")
    };
    let two_framings =
        head("POST", "/hidden") + "content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    let inside = format!("{}content-length: {}\r\n\r\n{two_framings}", head("POST", "/hidden"), two_framings.len());
    let plain = head("GET", "/hidden") + "\r\n";
    for (case, recorder, gateway) in gateways("trusted_peers = [\"192.0.2.0/24\"]\n").await {
        for (number, end) in ["0\r\n\n", "0\r\nx: a\n\r\n", "00000000000000000\r\n\r\n"].into_iter().enumerate() {
            for after in [&two_framings, &inside, &plain] {
                for (name, method, path, own) in WAYS.into_iter().filter(|way| way.0 != "a WebSocket") {
                    let what = format!("{case}, {name}, {end:?}, {after:?}");
                    let own = own.replace("{key}", &format!("hidden-{number}-{}", after.len()));
                    let first = head(method, path) + &own + "transfer-encoding: chunked\r\n\r\n1\r\nx\r\n";
                    let answer = exchange(&address(&gateway), &[&*first, end, after, &plain].concat()).await;
                    assert!(answer.starts_with("HTTP/1.1 400"), "{what}: {answer}");
                    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{what}: {answer}");
                    let seen: Vec<_> = recorder.take().into_iter().map(|seen| seen.target).collect();
                    assert!(!seen.concat().contains("hidden"), "{what}: {seen:?}");
                }
            }
        }
    }
}

/// Starts an upstream that answers each request with the given bytes, and closes.
async fn answering(answer: Arc<Mutex<String>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = answer.lock().unwrap().clone();
            tokio::spawn(async move {
                let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
                while !request.windows(4).any(|part| part == b"\r\n\r\n") {
                    match stream.read(&mut buffer).await {
                        Ok(count @ 1..) => request.extend_from_slice(&buffer[..count]),
                        _ => return,
                    }
                }
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    port
}

#[tokio::test]
async fn a_response_has_one_framing_on_every_way() {
    let answer = Arc::new(Mutex::new(String::new()));
    let port = answering(answer.clone()).await;
    for is_observed in [false, true] {
        let config = config(port, false, is_observed, "trusted_peers = [\"192.0.2.0/24\"]\n");
        let gateway = gateway::on_memory().config(&config).start().await;
        for (number, (status, framing)) in [
            (201, "content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
            (201, "content-length: 2, 2\r\n\r\nok"),
            (201, "content-length: 002\r\n\r\nok"),
            (502, "content-length: 2, 3\r\n\r\nok"),
            (502, "content-length: 2\r\ncontent-length: 3\r\n\r\nok"),
            (502, "transfer-encoding: gzip\r\n\r\nok"),
            (502, "transfer-encoding: chunked, identity\r\n\r\nok"),
        ]
        .into_iter()
        .enumerate()
        {
            *answer.lock().unwrap() = format!("HTTP/1.1 201 Created\r\nconnection: close\r\n{framing}");
            for (name, method, path, own) in WAYS {
                let what = format!("observed {is_observed}, {name}, {framing:?}");
                let own = own.replace("{key}", &format!("{}-{number}", name.replace(' ', "-")));
                let body = if method == "GET" { "\r\n" } else { "content-length: 1\r\n\r\nx" };
                let request =
                    format!("{method} {path} HTTP/1.1\r\nhost: shop.example\r\nauthorization: alice\r\n{own}{body}");
                let got = exchange(&address(&gateway), &request).await.to_lowercase();
                assert!(got.starts_with(&format!("http/1.1 {status}")), "{what}: {got}");
                let lengths = got.matches("content-length:").count();
                let codings = got.matches("transfer-encoding:").count();
                assert_eq!(lengths + codings, 1, "{what}: {got}");
                if status == 201 {
                    let is_whole = got.ends_with("\r\n\r\nok") && got.contains("content-length: 2\r\n")
                        || got.ends_with("2\r\nok\r\n0\r\n\r\n");
                    assert!(is_whole, "{what}: {got}");
                }
            }
        }
        // An upgrade that was not requested. The path for WebSockets does request one, and gets no tunnel without its
        // key.
        *answer.lock().unwrap() =
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n".to_owned();
        for (name, method, path, own) in WAYS {
            let own = own.replace("{key}", "unasked-switch");
            let body = if method == "GET" { "\r\n" } else { "content-length: 1\r\n\r\nx" };
            let request =
                format!("{method} {path} HTTP/1.1\r\nhost: shop.example\r\nauthorization: alice\r\n{own}{body}");
            let got = exchange(&address(&gateway), &request).await;
            assert!(got.starts_with("HTTP/1.1 502"), "observed {is_observed}, {name}: {got}");
        }
    }
}

#[tokio::test]
async fn trailers_of_a_response_have_no_fields_of_its_connection_or_of_the_gateway_on_any_way() {
    let trailers = "x-sum: 7\r\nidempotent-replayed: true\r\noncegate-degraded: local\r\nkeep-alive: 1\r\nproxy-authenticate: x\r\n";
    let names = "x-sum, idempotent-replayed, oncegate-degraded, keep-alive, proxy-authenticate";
    let answer = format!(
        "HTTP/1.1 201 Created\r\nconnection: close\r\ntrailer: {names}\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n{trailers}\r\n"
    );
    let port = answering(Arc::new(Mutex::new(answer))).await;
    for is_observed in [false, true] {
        let config = config(port, false, is_observed, "trusted_peers = [\"192.0.2.0/24\"]\n");
        let gateway = gateway::on_memory().config(&config).start().await;
        for (name, method, path, own) in WAYS {
            let own = own.replace("{key}", "trailers");
            let body = if method == "GET" { "\r\n" } else { "content-length: 1\r\n\r\nx" };
            let request = format!(
                "{method} {path} HTTP/1.1\r\nhost: shop.example\r\nte: trailers\r\nauthorization: alice\r\n{own}{body}"
            );
            let got = exchange(&address(&gateway), &request).await;
            assert!(got.ends_with("\r\n0\r\nx-sum: 7\r\n\r\n"), "observed {is_observed}, {name}: {got}");
        }
    }
}
