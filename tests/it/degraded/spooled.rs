//! No accepted outcome is lost, none is overtaken, and none is granted again.

use std::sync::Arc;
use std::time::Duration;

use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::{TIMEOUT, again, delivered, durable_redis, out, policy, setup};
use crate::support::caller::caller;
use crate::support::exposition::Page;

/// Number of outcome calls, and of callers.
const OUTCOMES: usize = 10_000;
const CALLERS: usize = 64;
const BATCH: usize = 1000;

/// Longest time of their delivery: a second or two, and a margin for a busy machine.
const MANY_DELIVERED: Duration = Duration::from_mins(1);

/// Time after the recovery of the store until service is back (L3).
const BACK: Duration = Duration::from_secs(1);

fn batches(items: &[Value]) -> impl Iterator<Item = Value> {
    items.chunks(BATCH).map(|items| json!({ "items": items }))
}

async fn claimed(client: &Client, asks: &[Value]) -> Vec<Value> {
    let mut answers = Vec::new();
    for batch in batches(asks) {
        let text = client.post_unchecked("/v1/claims/batch", &batch).await;
        let body: Value = serde_json::from_str(&text).unwrap();
        answers.extend(body["items"].as_array().unwrap().iter().cloned());
    }
    answers
}

/// Claims all, and repeats them with the same nonces until the store has answered all: on a busy machine it answers some too late. The
/// digit sets these nonces apart from others.
async fn answered_by_the_store(client: &Client, asks: &[Value], digit: &str) -> Vec<Value> {
    let with_nonce = |(number, ask): (usize, &Value)| {
        let mut ask = ask.clone();
        ask["attempt_nonce"] = format!("{digit}{number:015x}").into();
        ask
    };
    let asks: Vec<_> = asks.iter().enumerate().map(with_nonce).collect();
    let mut answers = Vec::new();
    until("the store answers all", TIMEOUT, async || {
        answers = claimed(client, &asks).await;
        answers.iter().all(|answer| answer["status"] != 503)
    })
    .await;
    answers
}

/// The store is killed, ten thousand outcomes are posted, the gateway is killed, and both are started. All outcomes are
/// delivered, those of one key in their order.
#[tokio::test]
async fn of_ten_thousand_accepted_outcomes_none_is_lost() {
    let Some(mut server) = durable_redis().await else { return };
    let mut gateway = setup(server.url()).start().await;
    let client = caller(&gateway, "spooling");
    let asks: Vec<_> =
        (0..OUTCOMES).map(|number| json!({ "contents": { "number": number }, "lease": "10m" })).collect();
    let granted = Arc::new(answered_by_the_store(&client, &asks, "a").await);
    server.kill();
    out(&gateway).await;
    let posting = (0..CALLERS).map(|first| {
        let (client, granted) = (client.clone(), granted.clone());
        tokio::spawn(async move {
            for number in (first..OUTCOMES).step_by(CALLERS) {
                let item = &granted[number];
                let path = format!("/v1/claims/{}/outcome", item["global_id"].as_str().unwrap());
                let attempt = &item["attempt"];
                // Every tenth was not known at first: the later word counts, so order does.
                if number % 10 == 0 {
                    let report = json!({ "attempt": attempt, "outcome": "unknown" });
                    assert_eq!(client.post_status(&path, report.to_string()).await, Ok(202));
                }
                let outcome = if number % 100 == 50 { "failure" } else { "success" };
                let mut report = json!({ "attempt": attempt, "outcome": outcome });
                if outcome == "success" {
                    report["result"] = json!(number);
                }
                assert_eq!(client.post_status(&path, report.to_string()).await, Ok(202), "{number}");
            }
        })
    });
    for posted in futures_util::future::join_all(posting).await {
        posted.unwrap();
    }
    gateway.kill();
    server.restart().await;
    let gateway = setup(server.url()).data_dir(gateway.data_dir()).start().await;
    let admin = gateway.admin_client();
    until("all is delivered", MANY_DELIVERED, async || Page::get(&admin).await.sum("oncegate_spool_entries", &[]) == 0)
        .await;
    let client = caller(&gateway, "spooling");
    for (number, answer) in answered_by_the_store(&client, &asks, "b").await.iter().enumerate() {
        if number % 100 == 50 {
            assert_eq!(answer["status"], 201, "{number} had failed: {answer}");
        } else {
            assert_eq!((&answer["state"], &answer["result"]), (&json!("succeeded"), &json!(number)), "{answer}");
        }
    }
}

/// A short lease ends while its outcome is spooled.
#[tokio::test]
async fn a_spooled_success_is_never_granted_again_by_the_same_gateway() {
    let Some(mut server) = durable_redis().await else { return };
    let mut gateway = setup(server.url()).start().await;
    let apps = ["spooling", "local", "lenient"];
    for app in apps {
        let client = caller(&gateway, app);
        let granted = client.post("/v1/claims", &json!({ "contents": "once", "lease": "3s" })).await.expect(201);
        if app == apps[0] {
            server.kill();
            out(&gateway).await;
        }
        let settled = client.report(&granted, json!({ "outcome": "success", "result": app })).await;
        assert!(matches!(settled.status, 200 | 202), "{}", settled.text);
    }
    let ended = tokio::time::sleep(Duration::from_millis(3100));
    ended.await;
    let is_settled = |answer: &Answer, app: &str| {
        assert_ne!(answer.status, 201, "{app}: {}", answer.text);
        let is_done = answer.status == 409;
        assert!(!is_done || (&answer.body["state"], &answer.body["result"]) == (&json!("succeeded"), &json!(app)));
        is_done
    };
    let out_of_its_own = async |gateway: &Gateway| {
        for app in apps {
            let duplicate = again(&caller(gateway, app), &json!("once")).await;
            assert!(is_settled(&duplicate, app) && policy(&duplicate).is_some(), "{app}: {}", duplicate.text);
        }
    };
    out_of_its_own(&gateway).await;
    gateway.kill();
    let gateway = setup(server.url()).data_dir(gateway.data_dir()).start().await;
    out_of_its_own(&gateway).await;
    // The store is back, and the first to ask comes before the delivery, or makes it. One connection may be back before
    // another. A call over a connection that is not back is refused if there is no policy for claims.
    server.restart().await;
    let all_are_done = async || {
        let mut response = true;
        for app in apps {
            let answer = again(&caller(&gateway, app), &json!("once")).await;
            let is_done = is_settled(&answer, app);
            assert!(is_done || app == apps[0], "{app}: {}", answer.text);
            response &= is_done;
        }
        response
    };
    for _ in 0..20 {
        all_are_done().await;
    }
    delivered(&gateway).await;
    until("all are answered", BACK, all_are_done).await;
}

/// Ended between the claim and the outcome that are brought to the store as one.
#[tokio::test]
async fn a_gateway_that_crashes_while_it_delivers_delivers_again() {
    let Some(mut server) = durable_redis().await else { return };
    let armed = setup(server.url()).env("ONCEGATE_CRASH_AT", "reconciling:2");
    let mut gateway = armed.start().await;
    let client = caller(&gateway, "local");
    server.kill();
    out(&gateway).await;
    for number in 0..4 {
        let granted = client.claim(json!(number + 1)).await.expect(201);
        client.report(&granted, json!({ "outcome": "success", "result": number })).await.expect(200);
    }
    server.restart().await;
    let _crashed = gateway.ended().await;
    let gateway = setup(server.url()).data_dir(gateway.data_dir()).start().await;
    delivered(&gateway).await;
    let client = caller(&gateway, "local");
    for number in 0..4 {
        let duplicate = again(&client, &json!(number + 1)).await.expect(409);
        assert_eq!((&duplicate.body["state"], &duplicate.body["result"]), (&json!("succeeded"), &json!(number)));
    }
    let overlaps = super::alice(&gateway).get("/admin/v1/overlaps").await.expect(200);
    assert_eq!(overlaps.body["overlaps"], json!([]), "it met itself");
}

/// Between the claim that is pushed and its outcome: the next process does both again, and the store has it once.
#[tokio::test]
async fn a_gateway_that_dies_during_a_delivery_repeats_it() {
    let Some(mut server) = durable_redis().await else { return };
    let mut gateway = setup(server.url()).env("ONCEGATE_CRASH_AT", "reconciling").start().await;
    server.kill();
    out(&gateway).await;
    let client = caller(&gateway, "lenient");
    let granted = client.claim(json!("A-1")).await.expect(201);
    assert_eq!(policy(&granted), Some("fail_open"));
    assert_eq!(client.settle(&granted, "success").await.status, 202);
    server.restart().await;
    assert!(!gateway.ended().await.success(), "it dies between the two");
    let gateway = setup(server.url()).data_dir(gateway.data_dir()).start().await;
    delivered(&gateway).await;
    let client = caller(&gateway, "lenient");
    let found = again(&client, &json!("A-1")).await.expect(409);
    assert_eq!((policy(&found), &found.body["state"]), (None, &json!("succeeded")));
    assert_eq!(found.body["timestamp"], granted.body["timestamp"], "{}", found.text);
}
