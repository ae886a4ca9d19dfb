//! The log never blocks the gateway, has the lines that operators need, and no app can flood it.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use oncegate_core::hex;
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
#[cfg(feature = "redis")]
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::{answered_within, until};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::exposition::Page;
use crate::support::gateway;

const SOON: Duration = Duration::from_secs(10);
const DROPPED: &str = "oncegate_log_lines_dropped_total";

#[tokio::test]
async fn an_unread_log_delays_no_request_and_no_shutdown() {
    let setup = gateway::on_memory().env("ONCEGATE_LOG__LEVEL", "trace").env("ONCEGATE_LOG__BUFFER_BYTES", 16384);
    let mut gateway = setup.log_unread().start().await;
    let (admin, client) = (gateway.admin_client(), gateway.client());
    let dropped = async || Page::get(&admin).await.sum(DROPPED, &[("reason", "full")]);
    until("lines are dropped", Duration::from_mins(1), async || {
        for _ in 0..100 {
            answered_within(SOON, client.claim(fresh::contents())).await.expect(201);
        }
        dropped().await > 0
    })
    .await;
    // With a pipe and a buffer that are full.
    for _ in 0..100 {
        answered_within(SOON, client.claim(fresh::contents())).await.expect(201);
    }
    gateway.signal("TERM");
    assert!(answered_within(SOON, gateway.ended()).await.success());
}

#[test]
fn a_failed_start_exits_although_its_log_is_not_read() {
    let (_unread, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&vec![b'.'; 64 << 10]).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.args(["serve", "--listen", "nowhere"]).stdout(Stdio::null()).stderr(writer);
    let mut child = command.spawn().unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    let pid = child.id();
    std::thread::spawn(move || done.send(child.wait().unwrap()));
    let status = ended.recv_timeout(SOON);
    if status.is_err() {
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
    }
    assert_eq!(status.expect("it ends").code(), Some(2));
}

#[tokio::test]
async fn a_flood_of_suspected_double_executions_is_a_few_lines() {
    let mut gateway = gateway::on_memory().start().await;
    let client = gateway.client();
    let granted = client.claim(json!(1)).await.expect(201);
    let now = granted.body["timestamp"].as_u64().unwrap();
    let invented = |number: u64| {
        let attempt = format!("{}-0123456789abcdef", now - number);
        json!({ "global_id": granted.body["global_id"], "attempt": attempt, "outcome": "success" })
    };
    let items: Vec<Value> = (1..=1000).map(invented).collect();
    let answers = client.post("/v1/outcomes/batch", &json!({ "items": items })).await.expect(200);
    assert_eq!(answers.body["items"][999]["code"], "superseded", "{}", answers.text);
    gateway.signal("TERM");
    assert!(gateway.ended().await.success());
    let lines = lines(&gateway);
    let of = |message: &str| lines.iter().filter(|line| line["message"].as_str().unwrap().contains(message)).count();
    assert_eq!(of("a suspected double execution"), 20);
    let summaries: Vec<_> = lines.iter().filter(|line| line["message"] == "Log lines left out").collect();
    let left_out: u64 = summaries.iter().map(|line| line["log.left_out"].as_u64().unwrap()).sum();
    assert_eq!(left_out, 980, "{summaries:?}");
    assert_eq!(summaries[0]["app.key"], "default");
}

#[tokio::test]
async fn the_start_says_which_store_and_folder() {
    let folder = tempfile::tempdir().unwrap();
    let setup = gateway::on_configured().data_dir(folder.path());
    let gateway = setup
        .config("[engines]\nprimary = \"memory:\"\nother = \"redis://:hidden@127.0.0.1:1\"\n[chains.other]\nengines = [\"other\"]\n")
        .start()
        .await;
    let lines = lines(&gateway);
    let start = lines.iter().find(|line| line["message"] == "In service").unwrap();
    assert_eq!(start["engines"], "other=redis://:***@127.0.0.1:1 primary=memory:");
    assert_eq!(start["data_dir"], folder.path().display().to_string());
    assert_eq!(start["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn a_reload_changes_the_level() {
    let gateway = gateway::on_memory().start().await;
    let client = gateway.client();
    client.claim(json!(1)).await.expect(201);
    for (level, is_debug) in [("debug", true), ("info", false)] {
        gateway.configure(&format!("[log]\nlevel = \"{level}\"\n"));
        gateway.signal("HUP");
        let mut seen = 0;
        until("the level is in effect", SOON, async || {
            let before = debug_lines(&gateway);
            client.claim(fresh::contents()).await.expect(201);
            // The request before this one has been logged by now, if it is.
            client.claim(fresh::contents()).await.expect(201);
            seen = if (debug_lines(&gateway) > before) == is_debug { seen + 1 } else { 0 };
            seen == 3
        })
        .await;
    }
    assert!(!gateway.log().contains("need a restart"), "{}", gateway.log());
}

fn debug_lines(gateway: &Gateway) -> usize {
    gateway.log().matches("\"DEBUG\"").count()
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn a_deployment_on_redis_warns_of_nothing() {
    let Some(server) = RedisServer::start().await else { return };
    let log = log_of_a_deployment(server.url()).await;
    assert!(log.contains("Connected to the store"), "{log}");
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_deployment_on_postgres_warns_of_nothing_and_repeats_no_notices() {
    let Some(server) = PostgresServer::start().await else { return };
    for _ in 0..2 {
        let log = log_of_a_deployment(server.url()).await;
        assert!(log.contains("Connected to the store") && !log.contains("already exists"), "{log}");
    }
}

/// Starts a gateway, uses it and stops it. Returns its log, which has no line above INFO about the end.
async fn log_of_a_deployment(engine: String) -> String {
    let mut gateway = gateway::on(engine).patient().start().await;
    let client = gateway.client();
    until("it serves", SOON, async || client.claim(fresh::contents()).await.status == 201).await;
    gateway.signal("TERM");
    assert!(gateway.ended().await.success());
    let log = gateway.log();
    let (_, end) = log.split_once("\"Draining\"").unwrap();
    assert!(!end.contains("\"WARN\"") && !end.contains("\"ERROR\""), "{log}");
    log
}

fn lines(gateway: &Gateway) -> Vec<Value> {
    gateway.log().lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
}

#[tokio::test]
async fn an_access_log_has_a_line_for_each_answer_and_no_contents() {
    let secret = "canary_secret_0123456789abcdef";
    let digest = hex::encode(&Sha256::digest(secret));
    let setup = gateway::on_memory().config(&format!("[apps.shop]\nsecrets = [\"sha256:{digest}\"]\n"));
    let mut gateway = setup.env("ONCEGATE_LOG__ACCESS", "true").start().await;
    let client = gateway.client().with_credential(&format!("shop.{secret}"));
    let granted = client.claim(json!("canary")).await.expect(201);
    client.get(&granted.path("?canary")).await.expect(200);
    client.send("CANARY", "/canary?canary", &[], "").await.expect(404);
    gateway.client().claim(json!("canary")).await.expect(401);
    gateway.signal("TERM");
    assert!(gateway.ended().await.success());
    let lines = lines(&gateway);
    let access: Vec<_> = lines.iter().filter(|line| line["target"] == "access").collect();
    let shown: Vec<_> = access
        .iter()
        .map(|line| (&line["http.method"], &line["http.route"], &line["http.status"], line.get("app.key").is_some()))
        .map(|(method, route, status, app)| (method.as_str().unwrap(), route.as_str().unwrap(), status.as_u64(), app))
        .collect();
    let expected = [
        ("POST", "/v1/claims", Some(201), true),
        ("GET", "/v1/claims/{global_id}", Some(200), true),
        ("_OTHER", "other", Some(404), false),
        ("POST", "/v1/claims", Some(401), false),
    ];
    assert_eq!(shown, expected);
    assert_eq!(access[0]["request.id"], granted.headers["x-request-id"].to_str().unwrap());
    assert!(access[0]["duration_us"].is_u64() && access[0]["timestamp"].is_string());
    assert!(!gateway.log().to_lowercase().contains("canary"), "{}", gateway.log());
}
