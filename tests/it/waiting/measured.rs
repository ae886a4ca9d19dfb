//! What waiting costs, measured on real servers: memory, the time to an answer at another gateway, calls of the store. Quoted in
//! `docs/performance.md`; run with `make measure-waiting`.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "measurements read the clock and print figures")]

use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{claim, waiting};
use crate::support::exposition::Page;
use crate::support::gateway;

const LONG: Duration = Duration::from_mins(2);

/// Sends a claim call that waits, over a connection of its own.
async fn send(gateway: &Gateway, contents: &str, wait: &str) -> TcpStream {
    let body = json!({ "contents": contents, "wait": wait }).to_string();
    let head = "POST /v1/claims HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length";
    let mut connection = TcpStream::connect(gateway.api()).await.unwrap();
    connection.write_all(format!("{head}: {}\r\n\r\n{body}", body.len()).as_bytes()).await.unwrap();
    connection
}

/// Reads the answer of a connection.
async fn read(mut connection: TcpStream) -> (u16, String) {
    let mut text = vec![0; 4096];
    let length = connection.read(&mut text).await.unwrap();
    let text = String::from_utf8_lossy(&text[..length]).into_owned();
    (text.get(9..12).and_then(|status| status.parse().ok()).unwrap_or_default(), text)
}

fn resident_bytes(gateway: &Gateway) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: ten thousand connections"]
async fn memory_of_ten_thousand_callers_on_one_key_and_on_as_many_keys() {
    const CALLERS: usize = 10_000;
    for keys in [1, CALLERS] {
        let setup = gateway::on_memory().env("ONCEGATE_LIMITS__CONNECTIONS", 12_000);
        let gateway = setup.env("ONCEGATE_LIMITS__WAITING", 2 * CALLERS).start().await;
        for key in 0..keys {
            // Held for longer than the callers wait.
            let held = json!({ "contents": format!("key-{key}"), "lease": "10m" });
            gateway.client().post("/v1/claims", &held).await.expect(201);
        }
        let idle = resident_bytes(&gateway);
        let began = Instant::now();
        let mut connections = Vec::new();
        for caller in 0..CALLERS {
            connections.push(send(&gateway, &format!("key-{}", caller % keys), "30s").await);
        }
        until("all wait", LONG, async || waiting(&gateway).await == CALLERS as u64).await;
        let (entered, bytes) = (began.elapsed(), resident_bytes(&gateway) - idle);
        let mut answers = JoinSet::new();
        for connection in connections {
            answers.spawn(read(connection));
        }
        let answers = tokio::time::timeout(LONG, answers.join_all()).await.unwrap();
        let answered = began.elapsed();
        assert!(answers.iter().all(|(status, text)| *status == 409 && text.contains("waited_ms")));
        println!(
            "{CALLERS} callers on {keys} keys: {} MiB above idle; entered in {entered:?}, all answered after {answered:?}",
            bytes >> 20
        );
        assert!(bytes <= 120 << 20, "{bytes} bytes");
    }
}

async fn time_to_an_answer_at_another_gateway(name: &str, url: &str) {
    let (here, there) = (gateway::on(url).start().await, gateway::on(url).start().await);
    let client = here.client();
    let mut times = Vec::new();
    for number in 0..300 {
        let contents = format!("key-{number}");
        let held = claim(&client, &contents).await.expect(201);
        let connection = send(&there, &contents, "10s").await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        let began = Instant::now();
        let (answer, _) = tokio::join!(
            async {
                let answer = read(connection).await;
                (answer.0, began.elapsed())
            },
            client.settle(&held, "success")
        );
        assert_eq!(answer.0, 409);
        times.push(answer.1);
    }
    let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    println!("{name}: outcome to answer at another gateway: p50 {p50:?}, p99 {p99:?}, slowest {:?}", times[299]);
    assert!(p50 <= Duration::from_millis(3) && p99 <= Duration::from_millis(20), "p50 {p50:?}, p99 {p99:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: needs a quiet machine"]
async fn time_from_an_outcome_to_an_answer_on_redis() {
    let Some(server) = RedisServer::start().await else { return };
    time_to_an_answer_at_another_gateway("redis", &server.url()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: needs a quiet machine"]
async fn time_from_an_outcome_to_an_answer_on_postgres() {
    let Some(server) = PostgresServer::start().await else { return };
    time_to_an_answer_at_another_gateway("postgres", &server.url()).await;
}

async fn store_calls(gateway: &Gateway) -> u64 {
    Page::get(&gateway.admin_client()).await.sum("oncegate_engine_call_duration_seconds_count", &[])
        - Page::get(&gateway.admin_client())
            .await
            .sum("oncegate_engine_call_duration_seconds_count", &[("call", "probe")])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: two thousand connections"]
async fn store_calls_for_each_release_with_two_thousand_callers_on_one_key() {
    const CALLERS: usize = 2_000;
    const RELEASES: u64 = 200;
    let Some(server) = RedisServer::start().await else { return };
    let gateways = [gateway::on(server.url()).start().await, gateway::on(server.url()).start().await];
    let held = claim(&gateways[0].client(), "hot").await.expect(201);
    let mut answers = JoinSet::new();
    for caller in 0..CALLERS {
        let connection = send(&gateways[caller % 2], "hot", "30s").await;
        answers.spawn(async move { (caller % 2, read(connection).await) });
    }
    for gateway in &gateways {
        until("all wait", LONG, async || waiting(gateway).await == CALLERS as u64 / 2).await;
    }
    let calls = async || store_calls(&gateways[0]).await + store_calls(&gateways[1]).await;
    let (before, began) = (calls().await, Instant::now());
    let mut path = format!("/v1/claims/{}/outcome", held.body["global_id"].as_str().unwrap());
    let (mut at, mut attempt) = (0, held.body["attempt"].clone());
    for _ in 0..RELEASES {
        let outcome = json!({ "attempt": attempt, "outcome": "failure" });
        gateways[at].client().post(&path, &outcome).await.expect(200);
        let (gateway, (status, text)) = answers.join_next().await.unwrap().unwrap();
        assert_eq!(status, 201, "one is granted");
        let body: serde_json::Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
        (at, attempt) = (gateway, body["attempt"].clone());
        path = format!("/v1/claims/{}/outcome", body["global_id"].as_str().unwrap());
    }
    let (took, calls) = (began.elapsed(), calls().await - before);
    let each = calls / RELEASES;
    println!("{CALLERS} callers, {RELEASES} releases in {took:?}: {calls} store calls, {each} for each release");
    assert!(calls <= 4 * RELEASES, "{calls} calls for {RELEASES} releases");
}
