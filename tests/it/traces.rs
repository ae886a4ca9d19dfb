//! Traces reach a collector, belong to the caller's trace, contain no secrets, and delay no call.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use oncegate_core::hex;
use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::{answered_within, until};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;

use crate::support::collector::{Collector, TakenSpan};
use crate::support::exposition::Page;
use crate::support::gateway;

const SOON: Duration = Duration::from_secs(10);
const DROPPED: &str = "oncegate_trace_spans_dropped_total";
const SECRET: &str = "canary_secret_0123456789abcdef";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

async fn traced(endpoint: &str, ratio: &str) -> Gateway {
    let digest = hex::encode(&Sha256::digest(SECRET));
    let setup = gateway::on_memory().config(&format!("[apps.shop]\nsecrets = [\"sha256:{digest}\"]\n"));
    let setup = setup.env("ONCEGATE_TRACES__ENDPOINT", endpoint).env("ONCEGATE_TRACES__SAMPLE_RATIO", ratio);
    setup.start().await
}

fn shop(gateway: &Gateway) -> Client {
    gateway.client().with_credential(&format!("shop.{SECRET}"))
}

/// Sends a request of the caller's trace.
async fn send(client: &Client, path: &str, body: &Value, trace: &str, flags: &str) -> Answer {
    let parent = format!("00-{trace}-{CALLER}-{flags}");
    let headers = [("content-type", "application/json"), ("traceparent", parent.as_str())];
    client.send("POST", path, &headers, body.to_string()).await
}

fn find<'a>(spans: &'a [TakenSpan], name: &str) -> &'a TakenSpan {
    spans.iter().find(|taken| taken.span.name == name).unwrap_or_else(|| panic!("no span {name}: {spans:?}"))
}

#[tokio::test]
async fn a_claim_is_three_spans_of_the_callers_trace() {
    let collector = Collector::start().await;
    let gateway = traced(&collector.endpoint(), "0.0").await;
    let client = shop(&gateway);
    client.claim(fresh::contents()).await.expect(201);
    let body = json!({ "operation": "order.submit", "contents": "A-1" });
    send(&client, "/v1/claims", &body, &"1".repeat(32), "00").await.expect(201);
    let again = send(&client, "/v1/claims", &body, TRACE, "01").await.expect(409);

    until("the trace is there", SOON, async || collector.trace(TRACE).len() >= 3).await;
    assert_eq!(collector.spans().len(), 3, "what is not sampled is not traced: {:?}", collector.spans());
    let spans = collector.trace(TRACE);
    let [request, claim, store] = ["POST /v1/claims", "claim", "store"].map(|name| find(&spans, name));
    assert_eq!(request.parent_id(), CALLER);
    assert_eq!(claim.parent_id(), request.id());
    assert_eq!(store.parent_id(), claim.id());
    assert_eq!(request.service, "oncegate");
    let id = again.headers["x-request-id"].to_str().unwrap();
    for (span, key, value) in [
        (request, "http.route", "/v1/claims"),
        (request, "http.response.status_code", "409"),
        (request, "oncegate.app", "shop"),
        (request, "oncegate.request_id", id),
        (claim, "oncegate.operation", "order.submit"),
        (claim, "oncegate.global_id", again.body["global_id"].as_str().unwrap()),
        (claim, "oncegate.result", "duplicate_in_progress"),
        (store, "oncegate.engine", "primary"),
        (store, "oncegate.call", "claim"),
        (store, "oncegate.result", "ok"),
    ] {
        assert_eq!(span.attribute(key).as_deref(), Some(value), "{key}: {span:?}");
    }
    // Server and client.
    assert_eq!((request.span.kind, store.span.kind), (2, 3));
}

#[tokio::test]
async fn spans_of_every_call_give_nothing_away() {
    let collector = Collector::start().await;
    let mut gateway = traced(&collector.endpoint(), "0.0").await;
    let client = shop(&gateway);
    let trace = async |path: &str, body: Value| send(&client, path, &body, TRACE, "01").await;
    let body = json!({
        "contents": { "canary": "canary" }, "fingerprint": "canary", "attempt_nonce": "canary-nonce-0001",
    });
    let granted = trace("/v1/claims", body.clone()).await.expect(201);
    let attempt = granted.body["attempt"].clone();
    trace(&granted.path("/renewal"), json!({ "attempt": attempt })).await.expect(200);
    let report = json!({ "attempt": attempt, "outcome": "success", "result": "canary" });
    trace(&granted.path("/outcome"), report).await.expect(200);
    trace("/v1/claims/batch", json!({ "items": [body] })).await.expect(200);
    let item = json!({ "global_id": granted.body["global_id"], "attempt": attempt, "outcome": "success" });
    trace("/v1/outcomes/batch", json!({ "items": [item] })).await.expect(200);
    trace("/v1/claims/canary?canary", json!("canary")).await.expect(405);
    client.send("CANARY", "/canary", &[("traceparent", &format!("00-{TRACE}-{CALLER}-01"))], "").await.expect(404);
    let parent = format!("00-{TRACE}-{CALLER}-01");
    client
        .send("GET", &granted.path(""), &[("traceparent", &parent), ("tracestate", "v=canary")], "")
        .await
        .expect(200);
    // The last spans are sent before the end.
    gateway.signal("TERM");
    assert!(gateway.ended().await.success());
    let spans = collector.trace(TRACE);
    let names: BTreeSet<_> = spans.iter().map(|taken| taken.span.name.as_str()).collect();
    let expected = [
        "GET /v1/claims/{global_id}",
        "POST /v1/claims",
        "POST /v1/claims/batch",
        "POST /v1/claims/{global_id}",
        "POST /v1/claims/{global_id}/outcome",
        "POST /v1/claims/{global_id}/renewal",
        "POST /v1/outcomes/batch",
        "_OTHER other",
        "claim",
        "claims",
        "lookup",
        "outcome",
        "outcomes",
        "renewal",
        "store",
    ];
    assert_eq!(names.into_iter().collect::<Vec<_>>(), expected);
    let shown = format!("{spans:?}");
    assert!(!shown.to_lowercase().contains("canary"), "{shown}");
    assert!(!shown.contains(attempt.as_str().unwrap()), "{shown}");
}

#[tokio::test]
async fn a_collector_that_hangs_costs_spans_and_nothing_else() {
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut gateway = traced(&format!("http://{}", hanging.local_addr().unwrap()), "1.0").await;
    let (admin, client) = (gateway.admin_client(), shop(&gateway));
    let dropped = async || Page::get(&admin).await.sum(DROPPED, &[("reason", "full")]);
    until("the queue is full", Duration::from_mins(1), async || {
        let claims = (0..100).map(|_| answered_within(SOON, client.claim(fresh::contents())));
        join_all(claims).await.into_iter().for_each(|claim| _ = claim.expect(201));
        dropped().await > 0
    })
    .await;
    gateway.signal("TERM");
    assert!(answered_within(SOON, gateway.ended()).await.success());
}

#[tokio::test]
async fn a_collector_that_is_away_is_logged_once() {
    let gateway = traced(&format!("http://127.0.0.1:{}", fresh::port()), "1.0").await;
    let (admin, client) = (gateway.admin_client(), shop(&gateway));
    let mut last = 0;
    for _ in 0..2 {
        client.claim(fresh::contents()).await.expect(201);
        until("spans are lost", SOON, async || Page::get(&admin).await.sum(DROPPED, &[("reason", "failed")]) > last)
            .await;
        last = Page::get(&admin).await.sum(DROPPED, &[("reason", "failed")]);
    }
    gateway.logged("the collector does not accept them", 1).await;
}

#[tokio::test]
async fn without_an_endpoint_there_are_no_traces() {
    let gateway = gateway::on_memory().start().await;
    gateway.client().claim(json!(1)).await.expect(201);
    assert!(!Page::get(&gateway.admin_client()).await.0.contains("oncegate_trace"));
}
