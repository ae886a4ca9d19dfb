//! Waiting for a claim in progress: through two gateways that share a store, and through all faults in the meantime.

use std::time::Duration;

use oncegate_core::clock::{Clock as _, SystemClock};
use oncegate_testkit::client::{Answer, Client};
#[cfg(feature = "etcd")]
use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::gateway::Gateway;
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::{in_time, until};
#[cfg(feature = "zookeeper")]
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::admin::{alice, operated};
use crate::support::exposition::Page;
use crate::support::gateway;

/// Longer than a wait that ends for a reason, shorter than a test may take.
const SOON: Duration = Duration::from_mins(1);

async fn waiting(gateway: &Gateway) -> u64 {
    Page::get(&gateway.admin_client()).await.sum("oncegate_claims_waiting", &[])
}

async fn waits_ended(gateway: &Gateway, end: &str) -> u64 {
    Page::get(&gateway.admin_client()).await.sum("oncegate_claim_waits_total", &[("end", end)])
}

/// Starts a claim call that waits, and returns once it does.
async fn wait_for(gateway: &Gateway, contents: &str, wait: &str) -> JoinHandle<Answer> {
    let before = waiting(gateway).await;
    let (client, body) = (gateway.client(), json!({ "contents": contents, "wait": wait }));
    let waits = tokio::spawn(async move { client.post("/v1/claims", &body).await });
    until("the call waits", SOON, async || waiting(gateway).await > before || waits.is_finished()).await;
    waits
}

async fn answered(waits: JoinHandle<Answer>) -> Answer {
    tokio::time::timeout(SOON, waits).await.expect("it is answered").expect("no panic")
}

async fn claim(client: &Client, contents: &str) -> Answer {
    client.claim(json!(contents)).await
}

/// The end of a claim at one gateway is answered at the other one: at once, so by a notification.
async fn an_outcome_at_one_gateway_answers_the_caller_at_the_other(url: &str) {
    let (here, there) = (gateway::on(url).patient().start().await, gateway::on(url).patient().start().await);
    let (clock, mut fastest) = (SystemClock::new(), Duration::MAX);
    for number in 0..5 {
        let contents = format!("success-{number}");
        let held = claim(&here.client(), &contents).await.expect(201);
        let waits = wait_for(&there, &contents, "25s").await;
        // The mark is set after the call is counted as waiting.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let reported = clock.monotonic();
        here.client().report(&held, json!({ "outcome": "success", "result": { "number": 7 } })).await.expect(200);
        let answer = answered(waits).await.expect(409);
        fastest = fastest.min(clock.monotonic().saturating_sub(reported));
        assert_eq!((answer.code(), &answer.body["result"]), ((409, "duplicate"), &json!({ "number": 7 })));
        assert!(answer.body["waited_ms"].is_u64());
    }
    in_time("an outcome at another gateway is notified, and not polled", fastest, Duration::from_millis(500));

    let held = claim(&here.client(), "failure").await.expect(201);
    let waits = [wait_for(&there, "failure", "25s").await, wait_for(&here, "failure", "25s").await];
    here.client().settle(&held, "failure").await.expect(200);
    let [first, second] = waits.map(|waits| tokio::time::timeout(SOON, waits));
    let (mut first, mut second) = (Box::pin(first), Box::pin(second));
    // One is granted, and fails in its turn; then the other.
    let (granted, other) = tokio::select! {
        granted = &mut first => (granted, second),
        granted = &mut second => (granted, first),
    };
    let granted = granted.unwrap().unwrap().expect(201);
    there.client().settle(&granted, "failure").await.expect(200);
    let last = other.await.unwrap().unwrap().expect(201);
    assert_ne!(last.body["attempt"], granted.body["attempt"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis_an_outcome_answers_callers_at_other_gateways() {
    let Some(server) = RedisServer::start().await else { return };
    an_outcome_at_one_gateway_answers_the_caller_at_the_other(&server.url()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_an_outcome_answers_callers_at_other_gateways() {
    let Some(server) = PostgresServer::start().await else { return };
    an_outcome_at_one_gateway_answers_the_caller_at_the_other(&server.url()).await;
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_etcd_an_outcome_answers_callers_at_other_gateways() {
    let Some(cluster) = EtcdCluster::start_one().await else { return };
    an_outcome_at_one_gateway_answers_the_caller_at_the_other(&cluster.patient_url()).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_zookeeper_an_outcome_answers_callers_at_other_gateways() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    an_outcome_at_one_gateway_answers_the_caller_at_the_other(&cluster.patient_url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_notification_costs_a_poll() {
    let Some(server) = RedisServer::start().await else { return };
    let gateway = gateway::on(server.url()).patient().start().await;
    let held = claim(&gateway.client(), "lost").await.expect(201);
    let waits = wait_for(&gateway, "lost", "25s").await;
    // Nothing is published any more, as if each notification were lost.
    server.query::<String>("ACL SETUSER default resetchannels");
    gateway.client().settle(&held, "failure").await.expect(200);
    answered(waits).await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_killed_takes_only_its_own_callers_with_it() {
    let Some(server) = RedisServer::start().await else { return };
    let setup = gateway::on(server.url()).patient();
    let (mut dying, other) = (setup.start().await, setup.start().await);
    let held = claim(&other.client(), "killed").await.expect(201);
    let client = dying.client();
    let lost = tokio::spawn(async move {
        let body = json!({ "contents": "killed", "wait": "25s" }).to_string();
        client.try_send("POST", "/v1/claims", &[("content-type", "application/json")], body).await.is_err()
    });
    until("it waits", SOON, async || waiting(&dying).await == 1).await;
    let waits = wait_for(&other, "killed", "25s").await;
    dying.kill();
    assert!(lost.await.unwrap(), "its connection is reset");
    other.client().settle(&held, "failure").await.expect(200);
    answered(waits).await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_hangs_up_is_not_granted() {
    let gateway = gateway::on_memory().start().await;
    let held = claim(&gateway.client(), "hung up").await.expect(201);
    for is_unusual in [false, true] {
        // With an unusual head, the request is left to the HTTP library.
        let unusual = if is_unusual { "expect: 100-continue\r\n" } else { "" };
        let body = json!({ "contents": "hung up", "wait": "20s" }).to_string();
        let fields = format!(
            "POST /v1/claims HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{unusual}content-length: {}\r\n\r\n",
            body.len()
        );
        let mut caller = TcpStream::connect(gateway.api()).await.unwrap();
        caller.write_all(format!("{fields}{body}").as_bytes()).await.unwrap();
        until("it waits", SOON, async || waiting(&gateway).await == 1).await;
        drop(caller);
        until("the hang-up is seen", SOON, async || waiting(&gateway).await == 0).await;
    }
    assert_eq!(waits_ended(&gateway, "caller_gone").await, 2);
    gateway.client().settle(&held, "failure").await.expect(200);
    claim(&gateway.client(), "hung up").await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_answers_all_who_wait() {
    let mut gateway = gateway::on_memory().start().await;
    claim(&gateway.client(), "drained").await.expect(201);
    let waits = [wait_for(&gateway, "drained", "30s").await, wait_for(&gateway, "drained", "30s").await];
    gateway.signal("TERM");
    for waits in waits {
        let answer = answered(waits).await.expect(409);
        assert_eq!(answer.body["state"], "in_progress");
        let waited_ms = answer.body["waited_ms"].as_u64().unwrap();
        assert!(waited_ms < 30_000 && answer.headers.contains_key("retry-after"), "{}", answer.text);
    }
    assert!(gateway.ended().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_wait_hold_no_permit_and_are_bounded() {
    let setup = gateway::on_memory()
        .env("ONCEGATE_LIMITS__REQUESTS_IN_FLIGHT", 2)
        .env("ONCEGATE_LIMITS__WAITING", 6)
        .env("ONCEGATE_LIMITS__WAIT_MAX", "15s");
    let gateway = setup.start().await;
    let held = claim(&gateway.client(), "bounded").await.expect(201);
    let mut waits = Vec::new();
    for _ in 0..3 {
        waits.push(wait_for(&gateway, "bounded", "1h").await);
    }
    assert_eq!(waiting(&gateway).await, 3);
    let over = answered(wait_for(&gateway, "bounded", "1h").await).await.expect(409);
    assert_eq!(over.body.get("waited_ms"), None, "the share of the app is used up");
    assert!(!over.headers.contains_key("preference-applied"), "it did not wait");
    assert_eq!(waits_ended(&gateway, "full").await, 1);
    gateway.client().settle(&held, "success").await.expect(200);
    for waits in waits {
        let answer = answered(waits).await.expect(409);
        assert_eq!(answer.headers["preference-applied"], "wait=15", "it is shortened");
        assert_eq!(answer.body["state"], "succeeded");
    }
}

/// While a call waits, no permit bounds how many bodies exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_wait_keep_no_body() {
    const CALLS: u64 = 100;
    let setup = operated("memory:").env("ONCEGATE_LIMITS__WAITING", 1000).env("ONCEGATE_LIMITS__WAIT_MAX", "5m");
    let gateway = setup.start().await;
    let client = gateway.client();
    client.post("/v1/claims", &json!({ "contents": 1, "lease": "10m" })).await.expect(201);
    client.post("/v1/locks/report/holds", &json!({ "lease": "10m" })).await.expect(201);
    let operator = alice(&gateway);
    let before = gateway.kib("VmRSS");
    let mut waits = Vec::new();
    for number in 0..CALLS {
        // White space is part of a body, and of nothing that is stored.
        let white = " ".repeat(1_000_000);
        let (path, body) = match number % 2 {
            0 => ("/v1/claims", format!("{{\"contents\": 1, \"wait\": \"5m\"{white}}}")),
            _ => ("/v1/locks/report/holds", format!("{{\"wait\": \"5m\"{white}}}")),
        };
        let client = client.clone();
        waits.push(tokio::spawn(async move { client.post_raw(path, body).await }));
        until("it waits", SOON, async || {
            operator.get("/admin/v1/waiting").await.expect(200).body["callers"].as_u64() > Some(number)
        })
        .await;
    }
    let grown = gateway.kib("VmRSS").saturating_sub(before);
    // What the allocator keeps of bodies that came and went is some of it.
    assert!(grown < CALLS * 1000 * 2 / 3, "{grown} KiB more for {CALLS} callers");
    assert!(waits.iter().all(|waits| !waits.is_finished()));
}

#[tokio::test]
async fn a_wait_can_be_asked_for_by_a_header_and_the_body_takes_precedence() {
    let gateway = gateway::on_memory().start().await;
    let client = gateway.client();
    let headers = [("content-type", "application/json"), ("prefer", "respond-async, wait=1")];
    let post = async |body: Value| client.send("POST", "/v1/claims", &headers, body.to_string()).await;
    let granted = post(json!({ "contents": "header" })).await.expect(201);
    assert!(!granted.headers.contains_key("preference-applied"), "it did not wait");
    assert_eq!(granted.headers["location"], granted.path(""));
    let by_header = post(json!({ "contents": "header" })).await.expect(409);
    assert_eq!(by_header.headers["preference-applied"], "wait=1");
    assert!(by_header.body["waited_ms"].as_u64().unwrap() >= 1000);
    let longer = [("content-type", "application/json"), ("prefer", "wait=20")];
    let body = json!({ "contents": "header", "wait": "50ms" }).to_string();
    let by_body = client.send("POST", "/v1/claims", &longer, body).await.expect(409);
    assert!((50..15_000).contains(&by_body.body["waited_ms"].as_u64().unwrap()));
    let body = json!({ "contents": "header", "wait": "soon" });
    assert_eq!(client.post("/v1/claims", &body).await.code(), (400, "invalid_request"));
    let batch = json!({ "items": [{ "contents": "x", "wait": "1s" }, { "contents": "y" }] });
    let items = client.post("/v1/claims/batch", &batch).await.expect(200).body["items"].clone();
    assert_eq!((&items[0]["status"], &items[1]["status"]), (&json!(400), &json!(201)));
}

#[tokio::test]
async fn observe_mode_does_not_wait() {
    let gateway = gateway::on_memory().env("ONCEGATE_DEFAULTS__MODE", "observe").start().await;
    claim(&gateway.client(), "observed").await.expect(201);
    let body = json!({ "contents": "observed", "wait": "20s" });
    let answer = tokio::time::timeout(SOON, gateway.client().post("/v1/claims", &body)).await.unwrap().expect(201);
    assert_eq!(answer.body["would_be"], "duplicate");
}
