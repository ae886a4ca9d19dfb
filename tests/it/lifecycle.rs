//! Start, health and shutdown of a gateway.

use std::time::Duration;

use oncegate_core::clock::{Clock as _, SystemClock};
use oncegate_testkit::client::Client;
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::{Gateway, Setup};
use oncegate_testkit::wait::{answered_within, until};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::support::gateway;

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_gateway_in_service_is_alive_and_ready() {
    let gateway = gateway::on_memory().start().await;
    let admin = gateway.admin_client();
    assert_eq!(admin.get("/livez").await.expect(200).body, json!({ "status": "alive" }));
    assert_eq!(admin.get("/readyz").await.expect(200).body, json!({ "status": "ready" }));
    let verbose = admin.get("/readyz?verbose").await.expect(200);
    assert_eq!(verbose.body["engines"]["primary"]["up"], true, "{}", verbose.text);
}

#[tokio::test]
async fn a_store_that_is_out_does_not_take_the_gateway_out() {
    let gateway = gateway::on(format!("redis://127.0.0.1:{}", fresh::port())).start().await;
    let admin = gateway.admin_client();
    admin.get("/livez").await.expect(200);
    admin.get("/readyz").await.expect(200);
    let verbose = admin.get("/readyz?verbose").await.expect(200);
    let engine = &verbose.body["engines"]["primary"];
    assert_eq!(engine["up"], false, "{}", verbose.text);
    assert!(engine["detail"].as_str().unwrap().contains("refuses connections"), "{}", verbose.text);
    let answer = gateway.client().claim(json!(1)).await;
    assert_eq!(answer.code(), (503, "store_unavailable"), "{}", answer.text);
    assert_eq!(answer.headers["retry-after"], "1");
}

#[tokio::test]
async fn more_connections_than_files_that_may_be_open_are_warned_of() {
    for (connections, is_warned) in [(900_000_000, true), (100, false)] {
        let gateway = gateway::on_memory().env("ONCEGATE_LIMITS__CONNECTIONS", connections).start().await;
        gateway.admin_client().get("/readyz").await.expect(200);
        let warned = gateway.log().contains("may need more files than this process may open");
        assert_eq!(warned, is_warned, "{connections}: {}", gateway.log());
    }
}

#[tokio::test]
async fn a_drain_is_announced_while_new_requests_are_still_served() {
    // Fewer connections than any machine's limit of open files: the gateway warns if there could be more.
    let setup = gateway::on_memory().env("ONCEGATE_LIMITS__CONNECTIONS", 500).env("ONCEGATE_SERVER__DRAIN_DELAY", "5s");
    let mut gateway = setup.start().await;
    let (admin, client) = (gateway.admin_client(), gateway.client());
    gateway.signal("TERM");
    announced(&admin).await;
    admin.get("/livez").await.expect(200);
    // Over the open connections, and over new ones.
    for client in [client, gateway.client()] {
        let claim = json!({ "operation": "order.submit", "contents": fresh::contents() });
        let granted = client.post("/v1/claims", &claim).await.expect(201);
        client.settle(&granted, "success").await.expect(200);
    }
    assert!(gateway.ended().await.success());
    assert!(TcpStream::connect(gateway.api()).await.is_err());
    assert!(!gateway.log().contains("\"WARN\"") && !gateway.log().contains("\"ERROR\""), "{}", gateway.log());
}

#[tokio::test]
async fn requests_in_flight_are_answered_before_the_shutdown() {
    let mut gateway = gateway::on_memory().start().await;
    let mut idle = TcpStream::connect(gateway.api()).await.unwrap();
    let mut in_flight = half_a_claim(&gateway).await;
    gateway.signal("TERM");
    announced(&gateway.admin_client()).await;
    until("no new connections", SOON, async || TcpStream::connect(gateway.api()).await.is_err()).await;
    // The gateway does not wait for connections without a request.
    let closed = timeout(SOON, idle.read(&mut [0; 1])).await.expect("idle connections are closed");
    assert!(matches!(closed, Ok(0) | Err(_)));
    in_flight.write_all(b"ents\":1}").await.unwrap();
    let mut answer = String::new();
    timeout(SOON, in_flight.read_to_string(&mut answer)).await.expect("answered, then closed").unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    assert!(gateway.ended().await.success());
}

#[tokio::test]
async fn a_drain_has_a_time_limit() {
    let mut gateway = gateway::on_memory().env("ONCEGATE_SERVER__DRAIN_TIMEOUT", "200ms").start().await;
    let _in_flight = half_a_claim(&gateway).await;
    gateway.signal("INT");
    assert!(answered_within(SOON, gateway.ended()).await.success());
    assert!(gateway.log().contains("Drain timeout"), "{}", gateway.log());
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    for second in ["TERM", "INT"] {
        let mut gateway = gateway::on_memory().env("ONCEGATE_SERVER__DRAIN_DELAY", "1h").start().await;
        gateway.signal("TERM");
        announced(&gateway.admin_client()).await;
        tokio::time::sleep(Duration::from_millis(1100)).await;
        gateway.signal(second);
        let status = answered_within(SOON, gateway.ended()).await;
        assert_eq!(status.code(), Some(1), "{status}");
        assert!(gateway.log().contains(&format!("Stopped by a second SIG{second}")), "{}", gateway.log());
    }
}

/// `timeout` and some supervisors send the signal to the process, and then to its process group.
#[tokio::test]
async fn a_signal_that_is_repeated_within_a_second_does_not_cut_the_drain() {
    let clock = SystemClock::new();
    let (mut gateway, mut in_flight) = loop {
        let gateway = gateway::on_memory().start().await;
        let in_flight = half_a_claim(&gateway).await;
        let first = clock.monotonic();
        gateway.signal("TERM");
        announced(&gateway.admin_client()).await;
        gateway.signal("TERM");
        // On a busy machine, the second one may come too late.
        if clock.monotonic().saturating_sub(first) < Duration::from_millis(800) {
            break (gateway, in_flight);
        }
    };
    until("no new connections", SOON, async || TcpStream::connect(gateway.api()).await.is_err()).await;
    in_flight.write_all(b"ents\":1}").await.unwrap();
    let mut answer = String::new();
    timeout(SOON, in_flight.read_to_string(&mut answer)).await.expect("answered, then closed").unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    assert!(gateway.ended().await.success());
}

#[tokio::test]
async fn answered_claims_are_on_disk_after_an_orderly_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let setup = gateway::on_disk(&folder.path().join("claims"));
    let mut gateway = setup.start().await;
    let client = gateway.client();
    let done = client.claim(json!("done")).await.expect(201);
    client.report(&done, json!({ "outcome": "success", "result": [1, null] })).await.expect(200);
    let started = client.claim(json!("begun")).await.expect(201);
    gateway.signal("TERM");
    assert!(gateway.ended().await.success());

    let gateway = setup.start().await;
    let client = gateway.client();
    assert_eq!(client.claim(json!("done")).await.expect(409).body["result"], json!([1, null]));
    assert_eq!(client.claim(json!("begun")).await.expect(409).body["state"], "in_progress");
    client.settle(&started, "success").await.expect(200);
}

/// An error that prevents the start is logged once, and sets the exit code.
#[tokio::test]
async fn a_start_that_fails_says_why() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let taken_address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "no directory").unwrap();
    let under_a_file = format!("{}", file.join("claims").display());
    let failing: [(Setup, i32, &[&str]); 8] = [
        (gateway::on_memory().listen(&taken_address), 1, &["Cannot listen on", &taken_address, "server.listen"]),
        (gateway::on(format!("disk:{under_a_file}")), 1, &["primary", &under_a_file, "is not a directory"]),
        (gateway::on_disk(&file), 1, &["primary", "is not a directory"]),
        (gateway::on("memry:"), 2, &["primary", "an engine is written as memory:"]),
        (
            gateway::on_memory().config("[server]\nlisten_adress = \"127.0.0.1:0\"\n"),
            2,
            &["oncegate.toml", "server.listen_adress", "did you mean `listen`"],
        ),
        (
            gateway::on_memory().config("[defaults]\nlease = \"30\"\n"),
            2,
            &["oncegate.toml", "defaults.lease", "\"30s\""],
        ),
        (gateway::on_memory().config("[limits\n"), 2, &["oncegate.toml"]),
        (gateway::on_memory().env("ONCEGATE_LIMITS__HEADRES", 1), 2, &["ONCEGATE_LIMITS__HEADRES", "headers"]),
    ];
    for (setup, code, words) in failing {
        let (status, log) = setup.try_start().await.err().expect("it does not start");
        assert_eq!(status.code(), Some(code), "{log}");
        for word in words {
            assert!(log.contains(word), "no {word:?} in: {log}");
        }
        assert!(!log.contains("panicked"), "{log}");
    }
}

/// Waits until the gateway says that it is draining.
async fn announced(admin: &Client) {
    until("readyz says draining", SOON, async || {
        let answer = admin.get("/readyz").await;
        if answer.status == 200 {
            return false;
        }
        assert_eq!((answer.code(), &answer.body["title"]), ((503, "draining"), &json!("Draining")));
        assert!(answer.headers.contains_key("retry-after"));
        true
    })
    .await;
}

/// A claim with a complete head; the gateway waits for its body.
async fn half_a_claim(gateway: &Gateway) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.api()).await.unwrap();
    let head = b"POST /v1/claims HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: 14\r\n\r\n";
    stream.write_all(head).await.unwrap();
    // It sends `100 Continue` when its handler reads the body.
    let mut go_on = [0; 25];
    timeout(SOON, stream.read_exact(&mut go_on)).await.expect("it wants the body").unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"{\"cont").await.unwrap();
    stream
}
