//! `Expect: 100-continue` (RFC 9110, 10.1.1): a client that sends its body only after the interim response.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{SOON, Upstream, address, proxy};

const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";

/// A client that has sent a head, and no byte of the body.
struct Waiting(TcpStream);

impl Waiting {
    async fn send(address: &str, method: &str, fields: &str, length: usize) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "{method} /orders/a HTTP/1.1\r\nhost: a\r\nauthorization: alice\r\n{fields}expect: 100-continue\r\n\
             content-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        Self(stream)
    }

    /// Reads up to and with this text, and returns it all.
    async fn read_to(&mut self, end: &str) -> String {
        let (mut answer, mut buffer) = (String::new(), [0; 4096]);
        let read = async {
            while !answer.contains(end) {
                let count = self.0.read(&mut buffer).await.unwrap();
                assert!(count > 0, "the connection was closed after {answer:?}");
                answer.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
            }
        };
        tokio::time::timeout(SOON, read).await.expect("an answer comes although no body was sent");
        answer
    }
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_gets_it_and_its_body_is_forwarded_once() {
    let (upstream, port) = Upstream::start().await;
    let (gateway, _caller) = proxy(port, "").await;
    let address = address(&gateway);
    for (method, effects) in [("POST", 1), ("POST", 1), ("PUT", 2)] {
        let key = if method == "POST" { "idempotency-key: k-1\r\n" } else { "" };
        let before = upstream.effects();
        let mut client = Waiting::send(&address, method, key, 3).await;
        assert_eq!(client.read_to("\r\n\r\n").await, CONTINUE, "{method}");
        assert_eq!(upstream.effects(), before, "{method}: nothing runs without the body");
        client.0.write_all(b"one").await.unwrap();
        let answer = client.read_to("order one").await;
        assert!(answer.starts_with("HTTP/1.1 201"), "{method}: {answer}");
        assert_eq!(upstream.effects(), effects, "{method}: {answer}");
    }
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_is_told_at_once_that_its_body_is_refused() {
    let (upstream, port) = Upstream::start().await;
    let (gateway, _caller) =
        proxy(port, "[limits]\nbody_bytes = 65536\ncontents_bytes = 1024\nresult_bytes = 1024\n").await;
    for (fields, status) in [("idempotency-key: k-1\r\n", "413"), ("", "400")] {
        let mut client = Waiting::send(&address(&gateway), "POST", fields, 80_000).await;
        let answer = client.read_to("\r\n\r\n").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    assert_eq!(upstream.requests(), 0);
}
