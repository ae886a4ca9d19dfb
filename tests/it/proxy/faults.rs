//! Clients that repeat their requests while replies are lost on both sides and the gateway is killed. The upstream counts its
//! effects: never two for one key.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::tcp_proxy::TcpProxy;
use oncegate_testkit::wait::until;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::address;
use crate::support::gateway;

const KEYS: usize = 150;
const CALLERS: usize = 12;

/// The next misbehaviour of the upstream: each has its turn.
const TURNS: usize = 7;

/// An API whose effects are numbered, by the key of their requests.
#[derive(Default)]
struct Shop {
    effects: Mutex<HashMap<String, Vec<usize>>>,
    requests: AtomicUsize,
}

impl Shop {
    async fn start() -> (Arc<Self>, u16) {
        let shop = Arc::new(Self::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = shop.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(server.clone().serve(stream));
            }
        });
        (shop, port)
    }

    /// Serves requests until one of them ends the connection.
    async fn serve(self: Arc<Self>, mut stream: TcpStream) -> Option<()> {
        loop {
            let key = key_of_next(&mut stream).await?;
            let turn = self.requests.fetch_add(1, Ordering::SeqCst);
            if turn.is_multiple_of(TURNS) {
                return None;
            }
            let effect = turn.to_string();
            self.effects.lock().unwrap().entry(key).or_default().push(turn);
            let length = effect.len();
            let answer = match turn % TURNS {
                1 => return None,
                2 => format!("HTTP/1.1 201 Created\r\ncontent-length: {}\r\n\r\n{effect}", length + 9),
                3 => "HTTP/1.1 500 Broken\r\ncontent-length: 0\r\n\r\n".to_owned(),
                4 => format!("HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n{length}\r\n{effect}\r\n"),
                _ => format!("HTTP/1.1 201 Created\r\ncontent-length: {length}\r\n\r\n{effect}"),
            };
            stream.write_all(answer.as_bytes()).await.ok()?;
            if [2, 4].contains(&(turn % TURNS)) {
                return None;
            }
        }
    }

    fn effects_of(&self, key: &str) -> Vec<usize> {
        self.effects.lock().unwrap().get(key).cloned().unwrap_or_default()
    }
}

/// Reads a request with an empty body; returns its key.
async fn key_of_next(stream: &mut TcpStream) -> Option<String> {
    let (head, _) = read_head(stream).await?;
    head.lines().find_map(|line| Some(line.strip_prefix("idempotency-key: ")?.to_owned()))
}

/// Reads a head, and what came of the body with it.
async fn read_head(stream: &mut TcpStream) -> Option<(String, String)> {
    let (mut read, mut buffer) = (Vec::new(), [0; 2048]);
    loop {
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            return Some((text(&read[..end]).to_lowercase(), text(&read[end + 4..])));
        }
        let count = stream.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
        read.extend_from_slice(&buffer[..count]);
    }
}

/// Sends one request; returns the status and the body if they are whole.
async fn post(gateway: SocketAddr, key: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(gateway).await.ok()?;
    let request = format!(
        "POST /orders/a HTTP/1.1\r\nhost: a\r\nauthorization: alice\r\nidempotency-key: {key}\r\ncontent-length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let (head, mut body) = read_head(&mut stream).await?;
    let length: usize = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())?;
    let mut buffer = [0; 2048];
    while body.len() < length {
        let count = stream.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
        body.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    Some((head.split(' ').nth(1)?.parse().ok()?, body))
}

/// Repeats a request until it is answered for good; returns the number of the effect if the answer has it.
async fn post_until_answered(gateway: SocketAddr, key: &str) -> Option<usize> {
    loop {
        let answer = tokio::time::timeout(Duration::from_secs(5), post(gateway, key)).await.ok().flatten();
        match answer {
            Some((201, effect)) => return Some(effect.parse().unwrap()),
            Some((409, body)) => match &serde_json::from_str::<Value>(&body).unwrap()["state"] {
                Value::String(state) if state == "in_progress" => {}
                state => {
                    assert_eq!(state, "unknown", "{body}");
                    return None;
                }
            },
            // A lost answer, a gateway that is down, an upstream that broke off.
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn start(folder: &std::path::Path, port: u16) -> (Gateway, SocketAddr) {
    let config = format!(
        "[proxy]\nlisten = \"127.0.0.1:0\"\n[proxy.upstreams.orders]\nurls = [\"http://127.0.0.1:{port}\"]\n\
         [[proxy.routes]]\nname = \"orders.create\"\napp = \"default\"\npath = \"/orders/{{kind}}\"\nmethods = [\"POST\"]\n\
         upstream = \"orders\"\nprincipal = [\"authorization\"]\nlease = \"1s\"\n"
    );
    let gateway = gateway::on_disk(folder).config(&config).start().await;
    let address = address(&gateway).parse().unwrap();
    (gateway, address)
}

#[tokio::test]
async fn no_key_has_two_effects_while_replies_are_lost_and_gateways_are_killed() {
    let (shop, port) = Shop::start().await;
    let folder = tempfile::tempdir().unwrap();
    let (mut gateway, at) = start(folder.path(), port).await;
    // Loses replies on the way to the callers.
    let network = TcpProxy::start(at).await;
    let callers_at = network.address();
    let callers = tokio::spawn(async move {
        let keys = futures_util::stream::iter(0..KEYS);
        let answers = keys.map(async |key| (key, post_until_answered(callers_at, &format!("k-{key}")).await));
        answers.buffer_unordered(CALLERS).collect::<Vec<_>>().await
    });
    for round in 1..=2 {
        until("the upstream is busy", 3 * super::SOON, async || {
            network.lose_next_reply();
            shop.requests.load(Ordering::SeqCst) >= round * KEYS / 3
        })
        .await;
        gateway.kill();
        let (next, at) = start(folder.path(), port).await;
        network.redirect_to(at);
        gateway = next;
    }
    let answers = tokio::time::timeout(6 * super::SOON, callers).await.expect("all callers are answered").unwrap();
    let mut answered = 0;
    for (key, answer) in answers {
        let effects = shop.effects_of(&format!("k-{key}"));
        assert!(effects.len() <= 1, "k-{key} has {effects:?}");
        if let Some(effect) = answer {
            assert_eq!(effects, [effect], "k-{key}");
            answered += 1;
        }
    }
    assert!(answered > KEYS / 4, "{answered} of {KEYS} keys have an answer");
}
