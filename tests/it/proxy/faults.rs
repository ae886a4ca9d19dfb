//! Clients that repeat their requests while replies are lost on both sides, and gateways and the upstream are killed. The upstream
//! counts its effects: never two for one key.

mod shop;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt as _;
use oncegate_testkit::gateway::{Gateway, Setup};
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::tcp_proxy::TcpProxy;
use oncegate_testkit::wait::until;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use self::shop::Shop;
use super::{address, at, config};
use crate::support::gateway;

/// Size of a run.
struct Plan {
    /// Clients. Each has its own key.
    clients: usize,
    /// Clients that send at the same time.
    at_once: usize,
    gateways: usize,
    /// Every third kills the upstream, the others a gateway.
    kills: usize,
    /// Limit of the run.
    time: Duration,
}

/// Final answers of clients.
#[derive(Default, Debug)]
#[expect(dead_code, reason = "printed")]
struct Counts {
    /// The response, with the number of its effect.
    answered: usize,
    /// 409, `state: unknown`.
    unknown: usize,
    /// Keys with an effect.
    effects: usize,
    /// Requests, and those among them without a whole response.
    requests: usize,
    lost: usize,
}

/// Final answer of one client, and its number of requests until then.
#[derive(Default)]
struct Ended {
    effect: Option<String>,
    requests: usize,
    lost: usize,
}

#[tokio::test]
async fn no_key_has_two_effects_while_replies_are_lost_and_processes_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { clients: 150, at_once: 12, gateways: 1, kills: 3, time: 6 * super::SOON };
    let counts = run(&plan, &gateway::on_disk(folder.path())).await;
    assert!(counts.answered > plan.clients / 4, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: ten thousand clients; `make faults-proxy`"]
async fn no_key_of_ten_thousand_clients_has_two_effects() {
    let Some(server) = RedisServer::start().await else { return };
    let plan = Plan { clients: 10_000, at_once: 1000, gateways: 2, kills: 24, time: Duration::from_mins(20) };
    let counts = run(&plan, &gateway::on(server.url())).await;
    println!("{counts:?}");
    assert!(counts.answered > plan.clients / 4, "{counts:?}");
}

/// Lets all clients repeat until they are answered, and checks the answers with the effects that the upstream has counted.
async fn run(plan: &Plan, setup: &Setup) -> Counts {
    let mut shop = Shop::start().await;
    // Loses replies to the gateways; those of `networks` lose what clients send and get.
    let before_shop = TcpProxy::start(shop.address()).await;
    let setup = setup.clone().config(&config("", &at(before_shop.address().port()), "lease = \"1s\"\n"));
    let (mut gateways, mut networks) = (Vec::new(), Vec::new());
    for _ in 0..plan.gateways {
        let gateway = setup.start().await;
        networks.push(TcpProxy::start(proxy_of(&gateway)).await);
        gateways.push(gateway);
    }
    let callers_at: Vec<_> = networks.iter().map(TcpProxy::address).collect();
    let (clients, at_once) = (plan.clients, plan.at_once);
    let callers = tokio::spawn(async move {
        let keys = futures_util::stream::iter(0..clients);
        let answers = keys.map(async |key| (key, post_until_answered(&callers_at, key).await));
        answers.buffer_unordered(at_once).collect::<Vec<_>>().await
    });
    for kill in 1..=plan.kills {
        before_shop.lose_reply_after(kill);
        networks[kill % plan.gateways].cut_after(100 * kill);
        until("the upstream is busy", plan.time, async || {
            networks.iter().for_each(TcpProxy::lose_next_reply);
            shop.effects() >= kill * plan.clients / (2 * plan.kills)
        })
        .await;
        if kill % 3 == 0 {
            shop.kill();
            shop.restart().await;
        } else {
            let place = kill % plan.gateways;
            gateways[place].kill();
            gateways[place] = setup.start().await;
            networks[place].redirect_to(proxy_of(&gateways[place]));
        }
    }
    let answers = tokio::time::timeout(plan.time, callers).await.expect("all callers are answered").unwrap();
    check(&answers, &shop.effects_by_key())
}

fn check(answers: &[(usize, Ended)], effects: &HashMap<String, Vec<String>>) -> Counts {
    let mut counts = Counts { effects: effects.len(), ..Counts::default() };
    for (key, ended) in answers {
        let effects = effects.get(&key_of(*key)).map_or(&[][..], Vec::as_slice);
        assert!(effects.len() <= 1, "key {key} has {effects:?}");
        match &ended.effect {
            Some(effect) => {
                assert_eq!(effects, std::slice::from_ref(effect), "key {key}: the response is that of its effect");
                counts.answered += 1;
            }
            None => counts.unknown += 1,
        }
        counts.requests += ended.requests;
        counts.lost += ended.lost;
    }
    counts
}

fn proxy_of(gateway: &Gateway) -> SocketAddr {
    address(gateway).parse().unwrap()
}

fn key_of(number: usize) -> String {
    format!("k-{number}")
}

/// Repeats a request at one gateway after the other until the answer is final. Returns its effect if the answer has it.
async fn post_until_answered(gateways: &[SocketAddr], key: usize) -> Ended {
    let mut ended = Ended::default();
    let mut pause = Duration::from_millis(10);
    loop {
        let gateway = gateways[(key + ended.requests) % gateways.len()];
        let answer = tokio::time::timeout(super::SOON, post(gateway, &key_of(key))).await.ok().flatten();
        ended.requests += 1;
        match answer {
            Some((201, body)) => {
                ended.effect = Some(shop::effect_of(&body).unwrap_or_else(|| panic!("a torn response: {body:.80}")));
                return ended;
            }
            Some((409, body)) => match &serde_json::from_str::<Value>(&body).unwrap()["state"] {
                Value::String(state) if state == "in_progress" => {}
                state => {
                    assert_eq!(state, "unknown", "{body}");
                    return ended;
                }
            },
            // The upstream broke off, or an app has too many requests.
            Some(_) => {}
            // A lost answer, or a gateway that is down.
            None => ended.lost += 1,
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(Duration::from_millis(500));
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
    let mut buffer = [0; 8192];
    while body.len() < length {
        let count = stream.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
        body.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    Some((head.split(' ').nth(1)?.parse().ok()?, body))
}

/// Reads a head, and what came of the body with it.
async fn read_head(stream: &mut TcpStream) -> Option<(String, String)> {
    let (mut read, mut buffer) = (Vec::new(), [0; 8192]);
    loop {
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            return Some((text(&read[..end]).to_lowercase(), text(&read[end + 4..])));
        }
        let count = stream.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
        read.extend_from_slice(&buffer[..count]);
    }
}
