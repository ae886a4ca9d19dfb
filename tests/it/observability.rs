//! Observability for operators: correct metrics with bounded labels, and logs without secrets.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use oncegate_core::hex;
use oncegate_testkit::client::Client;
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::{Gateway, Setup};
use oncegate_testkit::missing;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::exposition::Page;
use crate::support::gateway;

const CLAIMS: &str = "oncegate_claims_total";
const OUTCOMES: &str = "oncegate_outcomes_total";
const SUSPECTED: &str = "oncegate_suspected_double_executions_total";
const SECRET: &str = "canary_secret_0123456789abcdef";

fn shop() -> String {
    let digest = hex::encode(&Sha256::digest(SECRET));
    format!(
        "[apps.shop]\nsecrets = [\"sha256:{digest}\"]\n[apps.shop.operations.\"order.submit\"]\nlease = \"1m\"\n\
         [apps.shop.operations.\"report.send\"]\nmode = \"observe\"\n[apps.quiet]\ndisabled = true\n"
    )
}

fn shop_client(gateway: &Gateway) -> Client {
    gateway.client().with_credential(&format!("shop.{SECRET}"))
}

#[tokio::test]
async fn the_metrics_of_the_contract_are_there_from_the_start() {
    let gateway = gateway::on_memory().start().await;
    let granted = gateway.client().claim(json!(1)).await.expect(201);
    gateway.client().settle(&granted, "success").await.expect(200);
    let page = Page::get(&gateway.admin_client()).await;
    for (name, kind) in [
        (CLAIMS, "counter"),
        (OUTCOMES, "counter"),
        ("oncegate_claim_duration_seconds", "histogram"),
        ("oncegate_http_request_duration_seconds", "histogram"),
        ("oncegate_engine_call_duration_seconds", "histogram"),
        ("oncegate_engine_up", "gauge"),
        (SUSPECTED, "counter"),
        ("oncegate_engine_data_lost_total", "counter"),
        ("oncegate_build_info", "gauge"),
        ("process_resident_memory_bytes", "gauge"),
        ("process_open_fds", "gauge"),
    ] {
        assert!(page.0.contains(&format!("# TYPE {name} {kind}\n")), "{name}: {}", page.0);
        assert!(page.0.contains(&format!("# HELP {name} ")), "{name}");
    }
    assert_eq!(page.sum("oncegate_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1);
    assert_eq!(page.sum("oncegate_engine_up", &[("engine", "primary")]), 1);
    // The counter of an event that must never happen is 0, not absent: an alert on its increase must see the first
    // event. Series of claims and outcomes exist only for results that happened.
    for (name, labels) in [(SUSPECTED, 1), ("oncegate_engine_data_lost_total", 1), (CLAIMS, 1), (OUTCOMES, 1)] {
        assert_eq!(page.series(name).count(), labels, "{name}");
    }
    let bounds: Vec<_> = page
        .series("oncegate_claim_duration_seconds_bucket")
        .filter_map(|(labels, _)| labels.iter().find(|(name, _)| *name == "le").map(|(_, bound)| bound.to_string()))
        .collect();
    assert_eq!((bounds.first().unwrap().as_str(), bounds.last().unwrap().as_str()), ("0.0001", "+Inf"));
}

#[tokio::test]
async fn a_short_scenario_is_counted_correctly() {
    let gateway = gateway::on_memory().config(&shop()).start().await;
    let shop = shop_client(&gateway);
    let order = |order: &str| json!({ "operation": "order.submit", "contents": order });
    let first = shop.post("/v1/claims", &order("A-1")).await.expect(201);
    shop.post("/v1/claims", &order("A-1")).await.expect(409);
    shop.report(&first, json!({ "outcome": "success", "operation": "order.submit" })).await.expect(200);
    shop.post("/v1/claims", &order("A-1")).await.expect(409);
    shop.post("/v1/claims", &order("A-1")).await.expect(409);

    let nonce = json!({ "operation": "unheard.of", "contents": 1, "attempt_nonce": "0123456789abcdef" });
    let second = shop.post("/v1/claims", &nonce).await.expect(201);
    shop.post("/v1/claims", &nonce).await.expect(201);
    let altered = json!({ "operation": "unheard.of", "contents": 1, "fingerprint": 2 });
    shop.post("/v1/claims", &altered).await.expect(422);
    shop.settle(&second, "unknown").await.expect(200);
    let other = json!({ "operation": "unheard.of", "contents": 1 });
    shop.post("/v1/claims", &other).await.expect(409);
    let taken = json!({ "operation": "unheard.of", "contents": 1, "take_over": true });
    let third = shop.post("/v1/claims", &taken).await.expect(201);
    // The superseded attempt reports a success three times, and a failure once.
    for outcome in ["success", "success", "unknown", "failure"] {
        assert_eq!(shop.settle(&second, outcome).await.code(), (409, "superseded"));
    }
    shop.settle(&third, "failure").await.expect(200);
    shop.settle(&third, "failure").await.expect(200);

    let observed = json!({ "operation": "report.send", "contents": 7 });
    shop.post("/v1/claims", &observed).await.expect(201);
    let through = shop.post("/v1/claims", &observed).await.expect(201);
    let report = json!({ "outcome": "success", "operation": "report.send" });
    assert_eq!(shop.report(&through, report).await.expect(200).body["state"], "observed");

    let page = Page::get(&gateway.admin_client()).await;
    for (operation, result, count) in [
        ("order.submit", "granted", 1),
        ("order.submit", "duplicate_in_progress", 1),
        ("order.submit", "duplicate_succeeded", 2),
        ("unheard.of", "granted", 1),
        ("unheard.of", "repeated", 1),
        ("unheard.of", "fingerprint_mismatch", 1),
        ("unheard.of", "duplicate_unknown", 1),
        ("unheard.of", "taken_over", 1),
        ("report.send", "granted", 1),
        ("report.send", "observed_duplicate", 1),
    ] {
        let labels = [("app", "shop"), ("operation", operation), ("result", result)];
        assert_eq!(page.sum(CLAIMS, &labels), count, "{labels:?}");
    }
    assert_eq!(page.sum(CLAIMS, &[]), 11, "and nothing else");
    for (operation, outcome, result, count) in [
        ("order.submit", "success", "recorded", 1),
        ("other", "unknown", "recorded", 1),
        ("other", "success", "superseded", 2),
        ("other", "unknown", "superseded", 1),
        ("other", "failure", "superseded", 1),
        ("other", "failure", "recorded", 1),
        ("other", "failure", "late", 1),
        ("report.send", "success", "observed", 1),
    ] {
        let labels = [("operation", operation), ("outcome", outcome), ("result", result)];
        assert_eq!(page.sum(OUTCOMES, &labels), count, "{labels:?}");
    }
    assert_eq!(page.sum(OUTCOMES, &[]), 9, "and nothing else");
    assert_eq!(page.sum(SUSPECTED, &[("app", "shop")]), 1, "once for each attempt, however often it reports");
    assert_eq!(page.sum(SUSPECTED, &[]), 1);
    let duration = |labels| page.sum("oncegate_http_request_duration_seconds_count", labels);
    assert_eq!(duration(&[("endpoint", "claim"), ("status", "409")]), 4);
    assert_eq!(duration(&[("endpoint", "outcome"), ("status", "409")]), 4);
    assert_eq!(page.sum("oncegate_claim_duration_seconds_count", &[("app", "shop")]), 11);
    let calls = [("engine", "primary"), ("call", "claim"), ("result", "ok")];
    assert_eq!(page.sum("oncegate_engine_call_duration_seconds_count", &calls), 11);
}

/// The page of an app with three operations is short enough to be read.
#[tokio::test]
async fn a_page_shows_what_happened_and_nothing_else() {
    let gateway = gateway::on_memory().start().await;
    let client = gateway.client();
    for operation in ["order.submit", "order.cancel", "coupon.redeem"] {
        let body = json!({ "operation": operation, "contents": 1 });
        let granted = client.post("/v1/claims", &body).await.expect(201);
        client.post("/v1/claims", &body).await.expect(409);
        client.report(&granted, json!({ "outcome": "success", "operation": operation })).await.expect(200);
    }
    let page = Page::get(&gateway.admin_client()).await;
    let of_operations = page.series(CLAIMS).count() + page.series(OUTCOMES).count();
    assert_eq!(of_operations, 3 * (2 + 1), "a series for each thing that happened");
    assert!(page.sum(CLAIMS, &[("operation", "order.submit"), ("result", "granted")]) == 1, "{}", page.0);
    let lines = page.0.lines().count();
    assert!(lines < 260, "{lines} lines: {}", page.0);
}

#[tokio::test]
async fn callers_cannot_make_labels() {
    let setup = gateway::on_memory().config(&shop()).env("ONCEGATE_LIMITS__METRIC_OPERATIONS", 10);
    let gateway = setup.start().await;
    let shop = shop_client(&gateway);
    shop.post("/v1/claims", &json!({ "operation": "order.submit", "contents": 0 })).await.expect(201);
    shop.get("/nowhere").await.expect(404);
    let before = Page::get(&gateway.admin_client()).await;
    for number in 0..50 {
        let body = json!({ "operation": format!("operation.{number}"), "contents": number });
        let granted = shop.post("/v1/claims", &body).await.expect(201);
        let report = json!({ "outcome": "success", "operation": format!("operation.{number}") });
        shop.report(&granted, report).await.expect(200);
        shop.get(&granted.path("")).await.expect(200);
        shop.get(&format!("/{number}")).await.expect(404);
        shop.send(&format!("METHOD{number}"), "/v1/claims", &[], "").await.expect(405);
        gateway.client().with_credential(&format!("app{number}.{SECRET}")).get("/v1/claims/x").await.expect(401);
    }
    let after = Page::get(&gateway.admin_client()).await;
    let new: Vec<_> = after.labels().difference(&before.labels()).cloned().collect();
    let operations: Vec<_> =
        new.iter().filter(|(name, _)| name == "operation").map(|(_, value)| value.as_str()).collect();
    let first: Vec<_> = (0..10).map(|number| format!("operation.{number}")).collect();
    assert_eq!(operations, [&first.iter().map(String::as_str).collect::<Vec<_>>()[..], &["other"]].concat());
    // All others are from fixed lists.
    let fixed = ["call", "endpoint", "le", "operation", "outcome", "result", "status", "throttled"];
    assert!(new.iter().all(|(name, _)| fixed.contains(&name.as_str())), "{new:?}");
    assert!(after.0.len() < before.0.len() + 16 * 1024);
}

#[tokio::test]
async fn promtool_finds_nothing_wrong() {
    let gateway = gateway::on_memory().config(&shop()).start().await;
    shop_client(&gateway).claim(json!(1)).await.expect(201);
    let page = Page::get(&gateway.admin_client()).await;
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut promtool) = promtool.spawn() else { return missing::skip("promtool") };
    promtool.stdin.take().unwrap().write_all(page.0.as_bytes()).unwrap();
    let said = promtool.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success() && out.is_empty() && err.is_empty(), "{}: {out}{err}", said.status);
}

#[tokio::test]
async fn an_engine_that_does_not_answer_is_down_until_it_does() {
    let Some(mut redis) = RedisServer::start().await else { return };
    let gateway = gateway::on(redis.url()).start().await;
    let (admin, client) = (gateway.admin_client(), gateway.client());
    let timeout = Duration::from_secs(10);
    let up = async || Page::get(&admin).await.sum("oncegate_engine_up", &[("engine", "primary")]) > 0;
    until("the engine is up", timeout, &up).await;
    // Without calls, the gateway detects it with its health check.
    redis.freeze();
    until("a frozen store is down", timeout, async || !up().await).await;
    redis.thaw();
    until("it is up again", timeout, &up).await;
    redis.kill();
    // A caller notices sooner than the health check of the gateway.
    until("a killed store is down", timeout, async || client.claim(json!(1)).await.status == 503 && !up().await).await;
    redis.restart().await;
    until("it is up again", timeout, async || client.claim(fresh::contents()).await.status == 201 && up().await).await;
    let page = Page::get(&admin).await;
    let failed = ["store_unavailable", "outcome_unknown"].map(|result| page.sum(CLAIMS, &[("result", result)]));
    assert!(failed.iter().sum::<u64>() > 0);
    until("both changes are logged", timeout, async || gateway.log().matches("answers again").count() >= 2).await;
    let log = gateway.log();
    for word in ["does not answer", "answers again"] {
        assert!((2..=6).contains(&log.matches(word).count()), "said once for each change: {log}");
    }
}

#[tokio::test]
async fn lost_data_is_counted() {
    let Some(mut redis) = RedisServer::start().await else { return };
    let gateway = gateway::on(redis.url()).start().await;
    let (admin, client) = (gateway.admin_client(), gateway.client());
    client.claim(json!(1)).await.expect(201);
    redis.restart_empty().await;
    until("the loss is counted", Duration::from_secs(15), async || {
        // Calls make it notice sooner.
        client.claim(fresh::contents()).await;
        Page::get(&admin).await.sum("oncegate_engine_data_lost_total", &[("engine", "primary")]) > 0
    })
    .await;
}

#[tokio::test]
async fn logs_give_nothing_away_on_memory() {
    nothing_is_given_away(gateway::on_memory(), None).await;
}

#[tokio::test]
async fn logs_give_nothing_away_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    nothing_is_given_away(gateway::on_disk(&folder.path().join("claims")), None).await;
}

#[tokio::test]
async fn logs_give_nothing_away_on_redis() {
    let Some(redis) = RedisServer::start_with(&["requirepass canary-password"]).await else { return };
    let url = format!("redis://:canary-password@{}", redis.address());
    nothing_is_given_away(gateway::on(url).patient(), Some(redis)).await;
}

/// Everything that must not be logged is marked with this word, in one case or the other.
const CANARY: &str = "canary";

/// A whole scenario, with errors, at the most detailed log level.
async fn nothing_is_given_away(setup: Setup, redis: Option<RedisServer>) {
    let mut gateway = setup.config(&shop()).env("ONCEGATE_LOG__LEVEL", "trace").start().await;
    let shop = shop_client(&gateway);
    let mut attempts = Vec::new();
    let body = json!({
        "operation": "order.submit", "contents": { "canary-key": "canary contents" },
        "fingerprint": "canary fingerprint", "attempt_nonce": "canary-nonce-0001",
    });
    let granted = shop.post("/v1/claims", &body).await.expect(201);
    attempts.push(granted.body["attempt"].as_str().unwrap().to_owned());
    for fingerprint in ["canary fingerprint", "another canary"] {
        let mut other = body.clone();
        (other["fingerprint"], other["attempt_nonce"]) = (json!(fingerprint), json!("canary-nonce-0002"));
        shop.post("/v1/claims", &other).await;
    }
    shop.renew(&granted, Some("2m")).await.expect(200);
    shop.get(&granted.path("")).await.expect(200);
    let success = json!({ "outcome": "success", "result": "canary result" });
    shop.report(&granted, success).await.expect(200);
    shop.settle(&granted, "failure").await.expect(409);

    // One whose attempt reports although it was taken over: the gateway warns of it.
    let unknown = shop.claim(json!("canary taken")).await.expect(201);
    attempts.push(unknown.body["attempt"].as_str().unwrap().to_owned());
    shop.settle(&unknown, "unknown").await.expect(200);
    let taken = shop.post("/v1/claims", &json!({ "contents": "canary taken", "take_over": true })).await.expect(201);
    attempts.push(taken.body["attempt"].as_str().unwrap().to_owned());
    shop.settle(&unknown, "success").await.expect(409);
    let warned = async || gateway.log().contains("suspected double execution");
    until("the gateway warns", Duration::from_secs(10), warned).await;

    mistakes(&gateway, &shop).await;
    if let Some(mut redis) = redis {
        redis.kill();
        shop.claim(json!("canary to nobody")).await.expect(503);
        shop.report(&taken, json!({ "outcome": "success", "result": "canary too" })).await.expect(503);
    }
    gateway.signal("TERM");
    gateway.ended().await;
    let log = gateway.log();
    for line in log.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok_and(|line| line.is_object()), "no JSON object: {line}");
    }
    assert!(log.contains("\"DEBUG\""), "the level was heeded");
    assert!(!log.to_lowercase().contains(CANARY), "{log}");
    for attempt in attempts {
        let nonce = attempt.split_once('-').unwrap().1;
        assert!(!log.contains(&attempt) && !log.contains(nonce), "{log}");
    }
}

/// Wrong requests, for every error that could quote the request.
async fn mistakes(gateway: &Gateway, shop: &Client) {
    let bodies = [
        "{\"contents\":\"canary\"",
        "canary",
        "{\"contents\":\"canary\",\"canary\":1}",
        "{\"contents\":{\"canary\":1,\"canary\":2}}",
        "{\"contents\":\"canary\",\"lease\":\"canary\"}",
        "{\"contents\":\"canary\",\"operation\":\"canary canary\"}",
        "{\"contents\":\"canary\",\"attempt_nonce\":\"canary\"}",
        "{\"contents\":\"canary-canary-canary\",\"attempt_nonce\":\"canary-canary-canary\"}",
        "{\"items\":[{\"contents\":\"canary\"},{\"contents\":\"canary\",\"canary\":true}]}",
    ];
    for body in bodies {
        for path in ["/v1/claims", "/v1/claims/batch", "/v1/outcomes/batch", "/v1/global-ids"] {
            shop.post_raw(path, body).await;
        }
    }
    let id = "2ca8a31a53ad078ffd0c7c8c80158af7";
    for attempt in ["canary", "1700000000000000-canary-canary-canary"] {
        for call in ["outcome", "renewal"] {
            let body = json!({ "attempt": attempt, "outcome": "success", "contents": "canary" });
            shop.post(&format!("/v1/claims/{id}/{call}"), &body).await;
        }
    }
    shop.post("/v1/claims", &json!({ "contents": "canary".repeat(20_000) })).await.expect(413);
    shop.get("/v1/claims/canary").await.expect(400);
    shop.get("/canary?canary=canary").await.expect(404);
    shop.send("POST", "/v1/claims", &[("content-type", "canary/canary"), ("x-canary", "canary")], "canary").await;
    for credential in
        ["canary", "canary.canary", "shop.canary_secret_ffffffffffffffff", "quiet.canary_secret_0123456789"]
    {
        gateway.client().with_credential(credential).claim(json!("canary")).await.expect(401);
    }
    gateway.admin_client().get("/canary").await.expect(404);
}
