//! A store that stops and later executes calls that their callers no longer wait for: SIGSTOP and SIGCONT, the first
//! call in its socket.

use std::time::Duration;

use oncegate_testkit::client::Answer;
use oncegate_testkit::gateway::Gateway;
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::tcp_proxy::TcpProxy;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{again, alice, delivered, durable_redis, out, policy, setup};
use crate::support::caller::caller;
use crate::support::exposition::Page;

/// The lease of the first call, which the store grants late. While the disk is busy, fsyncs of the journal take seconds.
const LEASE: Duration = Duration::from_secs(12);

/// Beyond every lease that the store has granted late.
const ENDED: Duration = Duration::from_millis(12_200);

const APPS: [&str; 2] = ["local", "lenient"];

/// A claim of each app that a policy grants and then renews, with the store frozen before.
async fn granted_and_renewed(gateway: &Gateway) -> Vec<(&'static str, Answer)> {
    let mut granted = Vec::new();
    for app in APPS {
        let client = caller(gateway, app);
        let claim = json!({ "contents": "renewed", "lease": format!("{}ms", LEASE.as_millis()) });
        let answer = client.granted(&claim).await;
        assert!(policy(&answer).is_some(), "{}", answer.text);
        // As callers do: an answer of "unknown", because the journal's disk was slow, is repeated.
        let mut renewed = None;
        until("the lease is renewed", LEASE, async || {
            let answer = client.renew(&answer, Some("1m")).await;
            assert!(answer.status == 200 || answer.code() == (503, "outcome_unknown"), "{}", answer.text);
            renewed = (answer.status == 200).then_some(answer);
            renewed.is_some()
        })
        .await;
        let renewed = renewed.expect("a renewal");
        assert!(renewed.body["lease_ms"].as_u64().unwrap() > 50_000, "{}", renewed.text);
        granted.push((app, answer));
    }
    granted
}

/// Its holder has the claim for a minute, with any lease that the store gave it at first.
async fn assert_held(gateway: &Gateway, granted: &[(&str, Answer)]) {
    delivered(gateway).await;
    sleep(ENDED).await;
    for (app, answer) in granted {
        let client = caller(gateway, app);
        let duplicate = again(&client, &json!("renewed")).await.expect(409);
        assert_eq!((policy(&duplicate), &duplicate.body["state"]), (None, &json!("in_progress")), "{app}");
        let settled = client.settle(answer, "success").await.expect(200);
        assert_eq!(settled.body["late"], false, "{}", settled.text);
    }
    let overlaps = alice(gateway).get("/admin/v1/overlaps").await.expect(200);
    assert_eq!(overlaps.body["overlaps"], json!([]), "there was no other attempt");
}

#[tokio::test]
async fn a_renewal_by_a_policy_outlasts_a_claim_that_redis_executes_late() {
    let Some(server) = durable_redis().await else { return };
    let gateway = setup(server.url()).start().await;
    server.freeze();
    let granted = granted_and_renewed(&gateway).await;
    server.thaw();
    assert_held(&gateway, &granted).await;
}

#[tokio::test]
async fn a_renewal_by_a_policy_outlasts_the_gateway_and_a_claim_that_redis_executes_late() {
    let Some(server) = durable_redis().await else { return };
    let mut gateway = setup(server.url()).start().await;
    server.freeze();
    let granted = granted_and_renewed(&gateway).await;
    gateway.kill();
    server.thaw();
    let gateway = setup(server.url()).data_dir(gateway.data_dir()).start().await;
    assert_held(&gateway, &granted).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_renewal_by_a_policy_outlasts_a_claim_that_postgres_executes_late() {
    let Some(server) = PostgresServer::start().await else { return };
    let gateway = setup(server.url()).start().await;
    server.freeze();
    let granted = granted_and_renewed(&gateway).await;
    server.thaw();
    assert_held(&gateway, &granted).await;
}

/// A caller without an answer repeats its claim with the same nonce at another gateway; both gateways are cut off.
#[tokio::test]
async fn a_nonce_that_two_gateways_granted_is_one_try() {
    let Some(server) = durable_redis().await else { return };
    let mut proxies = [TcpProxy::start(server.address()).await, TcpProxy::start(server.address()).await];
    let gateways = [
        setup(format!("redis://{}", proxies[0].address())).start().await,
        setup(format!("redis://{}", proxies[1].address())).start().await,
    ];
    for (proxy, gateway) in proxies.iter_mut().zip(&gateways) {
        proxy.refuse().await;
        proxy.drop_connections();
        out(gateway).await;
    }
    let mut last = Vec::new();
    for app in APPS {
        let claim = json!({ "contents": "twice", "attempt_nonce": format!("nonce-of-the-try-of-{app}") });
        let [first, second] = [&gateways[0], &gateways[1]].map(|gateway| caller(gateway, app));
        let first = first.post("/v1/claims", &claim).await.expect(201);
        let second = second.post("/v1/claims", &claim).await.expect(201);
        assert_ne!(first.body["attempt"], second.body["attempt"], "each gateway issues its own");
        last.push((app, second));
    }
    for (proxy, gateway) in proxies.iter_mut().zip(&gateways) {
        proxy.heal().await;
        delivered(gateway).await;
    }
    for (app, granted) in last {
        let client = caller(&gateways[0], app);
        let settled = client.report(&granted, json!({ "outcome": "success", "result": 7 })).await.expect(200);
        assert_eq!(settled.body["state"], "succeeded", "{}", settled.text);
        let duplicate = again(&caller(&gateways[1], app), &json!("twice")).await.expect(409);
        assert_eq!((&duplicate.body["state"], &duplicate.body["result"]), (&json!("succeeded"), &json!(7)));
    }
    for gateway in &gateways {
        let overlaps = alice(gateway).get("/admin/v1/overlaps").await.expect(200);
        assert_eq!(overlaps.body["overlaps"], json!([]), "one try");
    }
}

/// `local`: one attempt fails, and the next one is granted at once; an attempt takes over the unknown outcome of
/// another.
#[tokio::test]
async fn one_after_another_at_one_gateway_is_no_overlap() {
    let Some(mut server) = durable_redis().await else { return };
    let gateway = setup(server.url()).start().await;
    let client = caller(&gateway, "local");
    server.kill();
    out(&gateway).await;
    for number in 1..=20 {
        let contents = json!({ "number": number });
        let failed = client.claim(contents.clone()).await.expect(201);
        client.settle(&failed, "failure").await.expect(200);
        let unknown = client.claim(contents.clone()).await.expect(201);
        client.settle(&unknown, "unknown").await.expect(200);
        let request = json!({ "contents": contents, "take_over": true });
        let granted = client.post("/v1/claims", &request).await.expect(201);
        assert_eq!(granted.body["taken_over"], true);
        client.settle(&granted, if number % 2 == 0 { "success" } else { "failure" }).await.expect(200);
    }
    server.restart().await;
    delivered(&gateway).await;
    let overlaps = alice(&gateway).get("/admin/v1/overlaps").await.expect(200);
    assert_eq!(overlaps.body["overlaps"], json!([]));
}

/// If the store has another attempt, a spooled success is an overlap and a suspected double execution, like a success
/// that its caller reports.
#[tokio::test]
async fn a_spooled_success_that_meets_another_attempt_is_suspected() {
    let Some(server) = durable_redis().await else { return };
    let mut proxy = TcpProxy::start(server.address()).await;
    let cut_off = setup(format!("redis://{}", proxy.address())).start().await;
    let other = setup(server.url()).start().await;
    let here = caller(&cut_off, "spooling");
    let short = |contents: Value| json!({ "contents": contents, "lease": "3s" });
    let mut granted = Vec::new();
    for outcome in ["success", "unknown", "failure"] {
        granted.push((outcome, here.granted(&short(json!(outcome))).await));
    }
    proxy.refuse().await;
    proxy.drop_connections();
    out(&cut_off).await;
    sleep(Duration::from_millis(3100)).await;
    for (outcome, answer) in &granted {
        again(&caller(&other, "spooling"), &json!(outcome)).await.expect(201);
        here.settle(answer, outcome).await.expect(202);
    }
    proxy.heal().await;
    delivered(&cut_off).await;
    let metrics = Page::get(&cut_off.admin_client()).await;
    assert_eq!(metrics.sum("oncegate_suspected_double_executions_total", &[("app", "spooling")]), 2);
    assert_eq!(metrics.sum("oncegate_overlaps_total", &[("app", "spooling")]), 2);
    for (kind, count) in [("double", 2), ("overlap", 2), ("double,overlap", 4)] {
        let suspects = alice(&cut_off).get(&format!("/admin/v1/suspects?app=spooling&kind={kind}")).await.expect(200);
        assert_eq!(suspects.body["suspects"].as_array().unwrap().len(), count, "{}", suspects.text);
    }
}
