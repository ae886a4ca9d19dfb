//! The generator against servers with one fault each: every check must be able to fail.

use std::{
    collections::HashMap,
    env,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::{Body, Bytes, to_bytes},
    extract::{Path, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::future::join_all;
use md5::{Digest as _, Md5};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Mutex};

use crate::{
    client::Target,
    cores::Cores,
    noop,
    pace::Pacing,
    report::Report,
    runner::{self, Plan},
    scenario::Scenario,
    sizes::Sizes,
    upstream,
    wire::Dialect,
};

/// Returns the gateway that was built with the tests.
pub(crate) fn built_gateway() -> Option<PathBuf> {
    Some(env::current_exe().ok()?.parent()?.with_file_name("oncegate")).filter(|path| path.is_file())
}

const ALL: [Scenario; 8] = [
    Scenario::Unique,
    Scenario::Settle,
    Scenario::Hot,
    Scenario::Batch,
    Scenario::Mixed,
    Scenario::Storm,
    Scenario::LargeStorm,
    Scenario::RunningStorm,
];

#[tokio::test]
async fn every_scenario_runs_at_its_rate() {
    let runs = ALL.map(async |scenario| {
        let report = load_for(Duration::from_secs(4), 8, noop::router(), scenario, 40, false).await;
        // On a busy machine operations are sent late or not at all. All that were due are in the report.
        let due = report.latencies.values().map(|latency| latency.count).max().unwrap_or_default();
        assert!(report.operations_per_second <= 44.0 && due >= 144, "{scenario:?}: {report}");
    });
    at_once(runs).await;
}

#[tokio::test]
async fn responses_about_other_orders_are_noticed() {
    // The reference server numbers its responses, independent of the request.
    at_once(ALL.map(async |scenario| assert_broken(&load(noop::router(), scenario, 200, true).await, "(S13)"))).await;
}

#[tokio::test]
async fn granting_everything_is_noticed() {
    let promises = [
        (Scenario::Unique, "(S1)"),
        (Scenario::Settle, "(S1, S3)"),
        (Scenario::Hot, "(S1)"),
        (Scenario::Batch, "item 99"),
        (Scenario::Mixed, "(S1, S3)"),
        (Scenario::Storm, "(S1, S3)"),
        (Scenario::RunningStorm, "(S1)"),
    ];
    let runs = promises.map(async |(scenario, promise)| {
        assert_broken(&load(server(Wrong::GrantsEverything), scenario, 200, true).await, promise);
    });
    at_once(runs).await;
}

#[tokio::test]
async fn refusing_a_first_claim_as_a_duplicate_is_noticed() {
    let promises = [(Scenario::Unique, "(S4)"), (Scenario::Hot, "never granted"), (Scenario::Batch, "(S1, S4)")];
    let runs = promises.map(async |(scenario, promise)| {
        assert_broken(&load(server(Wrong::RefusesEverything), scenario, 200, true).await, promise);
    });
    at_once(runs).await;
}

#[tokio::test]
async fn an_unknown_status_is_noticed() {
    assert_broken(&load(server(Wrong::Breaks), Scenario::Unique, 200, true).await, "answered 500");
}

#[tokio::test]
async fn a_stall_delays_all_operations_that_were_due() {
    // Every hundredth claim takes 300 ms; with one connection, some sixty others are due in that time.
    let report = load_over(1, server(Wrong::Stalls), Scenario::Unique, 200, false).await;
    let claim = &report.latencies["claim"];
    assert!(claim.p90_us > 100_000, "only the stalled call was delayed: {report}");
}

#[tokio::test]
async fn a_run_without_a_server_fails() {
    assert!(runner::run(plan("http://127.0.0.1:1", 2, Scenario::Unique, 10, true)).await.is_err());
}

#[derive(Clone, Copy, PartialEq)]
enum Wrong {
    GrantsEverything,
    RefusesEverything,
    Breaks,
    Stalls,
}

/// Serves correct global IDs with one fault.
fn server(wrong: Wrong) -> Router {
    Router::new()
        .route("/v1/claims", post(claim))
        .route("/v1/claims/batch", post(batch))
        .route("/v1/claims/{global_id}/outcome", post(settle))
        .route("/v1/claims/{global_id}", get(settle))
        .with_state(wrong)
}

async fn claim(State(wrong): State<Wrong>, Json(claim): Json<Value>) -> Response {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    if wrong == Wrong::Stalls && NUMBER.fetch_add(1, Ordering::Relaxed).is_multiple_of(100) {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let item = answer(wrong, &claim);
    let status =
        item["status"].as_u64().and_then(|it| u16::try_from(it).ok()).and_then(|it| StatusCode::from_u16(it).ok());
    (status.expect("a status"), Json(item)).into_response()
}

async fn batch(State(wrong): State<Wrong>, Json(batch): Json<Value>) -> Json<Value> {
    let claims = batch["items"].as_array().expect("no items");
    Json(json!({ "items": claims.iter().map(|claim| answer(wrong, claim)).collect::<Vec<_>>() }))
}

async fn settle(Path(global_id): Path<String>) -> Json<Value> {
    Json(json!({ "global_id": global_id, "state": "succeeded" }))
}

fn answer(wrong: Wrong, claim: &Value) -> Value {
    let operation = claim["operation"].as_str().expect("no operation");
    let digest = Md5::digest(format!("default\n{operation}\n{}", claim["contents"]));
    let global_id = format!("{:032x}", u128::from_be_bytes(digest.into()));
    match wrong {
        Wrong::GrantsEverything | Wrong::Stalls => {
            json!({ "status": 201, "global_id": global_id, "attempt": "1-0000000000000000", "state": "in_progress" })
        }
        Wrong::RefusesEverything => {
            json!({ "status": 409, "code": "duplicate", "global_id": global_id, "state": "in_progress" })
        }
        Wrong::Breaks => json!({ "status": 500, "code": "internal" }),
    }
}

fn assert_broken(report: &Report, promise: &str) {
    assert!(!report.is_sound(), "nothing was noticed: {report}");
    assert!(report.checks.examples.iter().any(|it| it.contains(promise)), "not {promise}: {report}");
}

/// Runs all at once: together they take a second.
/// Runs all of them on the heap, at the same time.
fn at_once<const N: usize>(runs: [impl Future<Output = ()>; N]) -> impl Future {
    join_all(runs)
}

async fn load(server: Router, scenario: Scenario, per_second: u64, checks: bool) -> Report {
    load_over(8, server, scenario, per_second, checks).await
}

async fn load_over(connections: u64, server: Router, scenario: Scenario, per_second: u64, checks: bool) -> Report {
    load_for(Duration::from_secs(1), connections, server, scenario, per_second, checks).await
}

async fn load_for(
    measured: Duration,
    connections: u64,
    server: Router,
    scenario: Scenario,
    per_second: u64,
    checks: bool,
) -> Report {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("no port");
    let url = format!("http://{}", listener.local_addr().expect("no address"));
    let server = tokio::spawn(async move { axum::serve(listener, server).await });
    let plan = Plan { measured, ..plan(&url, connections, scenario, per_second, checks) };
    let report = runner::run(plan).await.expect("the run failed");
    server.abort();
    report
}

#[tokio::test]
async fn a_proxy_that_replays_keeps_all_promises() {
    let report = proxied(Replays::Always, Dialect::Gateway).await;
    assert!(report.is_sound() && report.checks.unchecked == 0, "{report}");
    assert!(report.checks.held > 200, "nothing was repeated: {report}");
}

#[tokio::test]
async fn a_proxy_that_forwards_a_repeat_is_noticed() {
    assert_broken(&proxied(Replays::Never, Dialect::Gateway).await, "a repeat was not replayed");
    assert_broken(&proxied(Replays::AndForwards, Dialect::Gateway).await, "forwarded twice");
}

#[tokio::test]
async fn a_replay_of_another_response_is_noticed() {
    assert_broken(&proxied(Replays::Another, Dialect::Gateway).await, "sent for the first time");
}

#[tokio::test]
async fn a_proxy_that_decides_nothing_gets_no_repeats() {
    let report = proxied(Replays::Never, Dialect::Forwarding).await;
    assert!(report.is_sound() && report.checks.unchecked == 0, "{report}");
}

/// Responses that a proxy replays.
#[derive(Clone, Copy, PartialEq)]
enum Replays {
    Always,
    /// All, and forwards the repeats too.
    AndForwards,
    Never,
    /// The first of all, also to other keys.
    Another,
}

/// Loads the service behind a proxy that stores responses in a map.
async fn proxied(replays: Replays, dialect: Dialect) -> Report {
    let upstream = upstream::router();
    let service = TcpListener::bind("127.0.0.1:0").await.expect("no port");
    let upstream_url = format!("http://{}", service.local_addr().expect("no address"));
    let stored: Arc<Mutex<HashMap<String, Bytes>>> = Arc::default();
    let proxy = upstream.clone().layer(middleware::from_fn(move |request: Request, next: Next| {
        let stored = Arc::clone(&stored);
        async move {
            let key = request.headers().get("idempotency-key").map(|key| key.to_str().expect("no text").to_owned());
            let key = if replays == Replays::Another { "any".to_owned() } else { key.expect("no key") };
            if replays != Replays::Never
                && let Some(body) = stored.lock().await.get(&key).cloned()
            {
                if replays == Replays::AndForwards {
                    next.run(request).await;
                }
                return (StatusCode::CREATED, [("idempotent-replayed", "true")], body).into_response();
            }
            let response = next.run(request).await;
            let (head, body) = response.into_parts();
            let body = to_bytes(body, usize::MAX).await.expect("no body");
            stored.lock().await.insert(key, body.clone());
            Response::from_parts(head, Body::from(body))
        }
    }));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("no port");
    let url = format!("http://{}", listener.local_addr().expect("no address"));
    let servers = [(service, upstream), (listener, proxy)];
    let servers = servers.map(|(listener, router)| tokio::spawn(async move { axum::serve(listener, router).await }));
    let upstream = Some(Target::parse(&upstream_url, None, false).expect("a good URL"));
    let plan = Plan { upstream, dialect, ..plan(&url, 4, Scenario::Proxied, 100, true) };
    let report = runner::run(plan).await.expect("the run failed");
    servers.iter().for_each(tokio::task::JoinHandle::abort);
    report
}

fn plan(url: &str, connections: u64, scenario: Scenario, per_second: u64, checks: bool) -> Plan {
    Plan {
        target: Target::parse(url, None, false).expect("a good URL"),
        upstream: None,
        dialect: Dialect::Gateway,
        scenario,
        sizes: Sizes::of(scenario),
        pacing: Pacing::Open { per_second },
        warm_up: Duration::ZERO,
        measured: Duration::from_secs(1),
        kept_after: runner::KEPT_AFTER,
        connections,
        checks,
        watched: Vec::new(),
        cores: Cores::default(),
        progress: false,
    }
}
