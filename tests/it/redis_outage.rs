//! Calls to a gateway while its Redis is slow, down, full, misconfigured or has unreadable values.

use std::time::Duration;

use oncegate_testkit::client::global_id;
use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};
use oncegate_testkit::wait::{answered_within, until};
use serde_json::{Value, json};

use crate::support::caller;
use crate::support::gateway;

/// The default deadline of a call, plus the delay of a busy machine.
const DEADLINE: Duration = Duration::from_millis(1500);
/// Longest time until service is back: a second, and a margin for a busy machine.
const BACK: Duration = Duration::from_secs(2);
/// Interval of the engine's checks of the server, and a margin.
const HEALTH: Duration = Duration::from_secs(8);

/// A gateway that reaches this server through a proxy, over one connection.
async fn behind_proxy(server: &RedisServer) -> (TcpProxy, Gateway) {
    let proxy = TcpProxy::start(server.address()).await;
    let gateway = gateway::on(format!("redis://{}?connections=1", proxy.address())).start().await;
    served(&gateway, BACK).await;
    (proxy, gateway)
}

/// Waits until the engine answers over all of its connections, and something new is granted.
async fn served(gateway: &Gateway, timeout: Duration) {
    let (admin, client) = (gateway.admin_client(), gateway.client());
    until("service", timeout, async || {
        client.claim(fresh::contents()).await.status == 201
            && admin.get("/readyz?verbose").await.expect(200).body["engines"]["primary"]["up"] == true
    })
    .await;
}

/// Repeats the call until the store has answered. Each response is in time and true.
async fn resolved(client: &Client, path: &str, body: &Value) -> Answer {
    let mut body = body.clone();
    let mut last = None;
    until("it is known what became of the call", Duration::from_secs(10), async || {
        let answer = answered_within(DEADLINE, client.post(path, &body)).await;
        match answer.code() {
            (503, "outcome_unknown") => {
                assert!(answer.headers.contains_key("retry-after"));
                if path == "/v1/claims" {
                    body["attempt_nonce"] = answer.body["attempt_nonce"].clone();
                    assert!(body["attempt_nonce"].is_string(), "{}", answer.text);
                }
                false
            }
            // Certainly not done; and a later try may follow one whose fate is not known, so the nonce is kept.
            (503, "store_unavailable") => false,
            _ => {
                last = Some(answer);
                true
            }
        }
    })
    .await;
    last.expect("an answer")
}

/// Ways to lose a reply to the gateway.
const LOSSES: [fn(&TcpProxy); 4] = [
    TcpProxy::lose_next_reply,
    |proxy| proxy.swallow_reply_after(0),
    |proxy| proxy.swallow_reply_after(1),
    |proxy| proxy.cut_after(60),
];

#[tokio::test]
async fn a_node_of_a_cluster_behind_the_url_of_one_server_grants_nothing_and_the_url_to_write_is_named() {
    let Some(server) = RedisServer::start_with(&["cluster-enabled yes", "cluster-port 0"]).await else { return };
    // It owns all keys, so it would serve each of them.
    server.query::<()>("CLUSTER ADDSLOTSRANGE 0 16383");
    until("the node takes commands", Duration::from_secs(20), async || {
        server.query::<String>("CLUSTER INFO").contains("cluster_state:ok")
    })
    .await;
    let gateway = gateway::on(server.url()).patient().start().await;
    let client = gateway.client();
    let says = |text: &str| text.contains("write redis+cluster:// in place of redis://");
    let answers = [
        client.claim(fresh::contents()).await,
        client.post("/v1/claims", &json!({ "contents": "waits", "wait": "1s" })).await,
        client.post("/v1/locks/free/holds", &json!({})).await,
        client.get(&format!("/v1/claims/{}", "0".repeat(32))).await,
    ];
    for answer in answers {
        assert_eq!(answer.code(), (503, "store_incompatible"), "{}", answer.text);
    }
    let ready = gateway.admin_client().get("/readyz?verbose").await.expect(200);
    let engine = &ready.body["engines"]["primary"];
    assert!(engine["up"] == false && says(engine["detail"].as_str().unwrap()), "{}", ready.text);
    until("the log says it", Duration::from_secs(20), async || says(&gateway.log())).await;
}

#[tokio::test]
async fn a_lost_reply_never_makes_a_holder_its_own_duplicate() {
    let Some(server) = RedisServer::start().await else { return };
    let (mut proxy, gateway) = behind_proxy(&server).await;
    let client = gateway.client();
    for round in 0..12 {
        LOSSES[round % LOSSES.len()](&proxy);
        let contents = json!({ "round": round });
        let granted = resolved(&client, "/v1/claims", &json!({ "contents": contents })).await.expect(201);
        proxy.heal().await;
        let other = resolved(&client, "/v1/claims", &json!({ "contents": contents })).await;
        assert_eq!((other.code(), &other.body["timestamp"]), ((409, "duplicate"), &granted.body["timestamp"]));

        LOSSES[(round / 2) % LOSSES.len()](&proxy);
        let outcome = if round % 2 == 0 { "success" } else { "failure" };
        let mut report = json!({ "attempt": granted.body["attempt"], "outcome": outcome });
        if outcome == "success" {
            report["result"] = json!(round);
        }
        let settled = resolved(&client, &granted.path("/outcome"), &report).await.expect(200);
        proxy.heal().await;
        let next = resolved(&client, "/v1/claims", &json!({ "contents": contents })).await;
        if outcome == "success" {
            assert_eq!((&settled.body["state"], &settled.body["late"]), (&json!("succeeded"), &json!(false)));
            assert_eq!((next.status, &next.body["result"]), (409, &json!(round)));
        } else {
            assert_eq!(settled.body["state"], "released", "{}", settled.text);
            assert_eq!(next.status, 201, "{}", next.text);
        }
    }
}

#[tokio::test]
async fn a_reply_that_stays_away_is_unknown_until_the_nonce_resolves_it() {
    let Some(server) = RedisServer::start().await else { return };
    let (mut proxy, gateway) = behind_proxy(&server).await;
    let client = gateway.client();
    proxy.set(Mode::HalfOpen);
    let lost = answered_within(DEADLINE, client.claim(json!("A-1"))).await;
    assert_eq!(lost.code(), (503, "outcome_unknown"), "{}", lost.text);
    proxy.heal().await;
    let again = json!({ "contents": "A-1", "attempt_nonce": lost.body["attempt_nonce"] });
    let granted = resolved(&client, "/v1/claims", &again).await.expect(201);
    assert!(granted.body["attempt"].as_str().unwrap().ends_with(lost.body["attempt_nonce"].as_str().unwrap()));
    assert!(granted.body["lease_ms"].as_u64().unwrap() <= 30_000);
    client.settle(&granted, "success").await.expect(200);
}

#[tokio::test]
async fn a_killed_server_is_missed_at_once_and_used_again_at_once() {
    let Some(mut server) = RedisServer::start_with(&["appendonly yes", "appendfsync always"]).await else { return };
    let gateway = gateway::on(server.url()).start().await;
    let client = gateway.client();
    served(&gateway, BACK).await;
    for crash in 0..3 {
        let held = client.claim(json!({ "held": crash })).await.expect(201);
        server.kill();
        // A call in flight may have taken effect. Once the loss is noticed, no further call is sent.
        until("the loss is noticed", DEADLINE, async || {
            let response = [
                answered_within(DEADLINE, client.claim(json!({ "new": crash }))).await,
                answered_within(DEADLINE, client.settle(&held, "success")).await,
            ];
            for answer in &response {
                assert!(matches!(answer.code(), (503, "store_unavailable" | "outcome_unknown")), "{}", answer.text);
                assert!(answer.headers.contains_key("retry-after"));
            }
            response.iter().all(|answer| answer.code() == (503, "store_unavailable"))
        })
        .await;
        assert_eq!(answered_within(DEADLINE, client.get(&held.path(""))).await.code(), (503, "store_unavailable"));
        server.restart().await;
        served(&gateway, BACK).await;
        assert_eq!(client.claim(json!({ "held": crash })).await.code(), (409, "duplicate"));
        client.settle(&held, "success").await.expect(200);
    }
}

#[tokio::test]
async fn calls_to_a_frozen_server_end_in_time() {
    let Some(server) = RedisServer::start().await else { return };
    let gateway = gateway::on(server.url()).start().await;
    let client = gateway.client();
    let held = client.claim(json!("held")).await.expect(201);
    server.freeze();
    let waiting = (0..40).map(|number| {
        let (client, held) = (client.clone(), held.clone());
        async move {
            match number % 4 {
                0 => client.claim(json!({ "new": number })).await,
                1 => client.settle(&held, "success").await,
                2 => client.renew(&held, None).await,
                _ => client.get(&held.path("")).await,
            }
        }
    });
    for answer in answered_within(DEADLINE, futures_util::future::join_all(waiting)).await {
        assert!(matches!(answer.code(), (503, "store_unavailable" | "outcome_unknown")), "{}", answer.text);
    }
    // A short lease shortens the deadline, or the grant would be worth nothing when it comes.
    let short = json!({ "contents": "short", "lease": "400ms" });
    let answer = answered_within(Duration::from_millis(700), client.post("/v1/claims", &short)).await;
    assert_eq!(answer.status, 503);
    server.thaw();
    served(&gateway, BACK).await;
    let settled = client.settle(&held, "success").await.expect(200);
    assert_eq!(settled.body["state"], "succeeded");
}

#[tokio::test]
async fn a_server_that_evicts_is_not_used_until_its_policy_is_changed() {
    let Some(server) = RedisServer::start_with(&["maxmemory 100mb", "maxmemory-policy allkeys-lru"]).await else {
        return;
    };
    let gateway = gateway::on(server.url()).patient().start().await;
    let client = gateway.client();
    let refused = client.claim(json!(1)).await;
    assert_eq!(refused.code(), (503, "store_incompatible"));
    assert!(!refused.text.contains("allkeys-lru"), "a caller cannot repair it: {}", refused.text);
    let ready = gateway.admin_client().get("/readyz?verbose").await.expect(200);
    let detail = ready.body["engines"]["primary"]["detail"].as_str().unwrap();
    assert!(detail.contains("allkeys-lru") && detail.contains("CONFIG SET maxmemory-policy noeviction"), "{detail}");
    assert_eq!(ready.body["engines"]["primary"]["up"], false, "{}", ready.text);
    server.query::<String>("CONFIG SET maxmemory-policy noeviction");
    served(&gateway, HEALTH).await;
}

#[tokio::test]
async fn a_full_server_accepts_outcomes_and_reports_duplicates() {
    let Some(server) = RedisServer::start().await else { return };
    let gateway = gateway::on(server.url()).patient().start().await;
    let client = gateway.client();
    let [done, failed, unknown, held] = ["done", "failed", "unknown", "held"];
    let mut granted = Vec::new();
    for contents in [done, failed, unknown, held] {
        granted.push(client.claim(json!(contents)).await.expect(201));
    }
    server.query::<String>("CONFIG SET maxmemory 1");
    let refused = client.claim(json!("new")).await;
    assert_eq!(refused.code(), (503, "store_full"), "{}", refused.text);
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(client.claim(json!(held)).await.code(), (409, "duplicate"));
    client.report(&granted[0], json!({ "outcome": "success", "result": "r" })).await.expect(200);
    client.settle(&granted[1], "failure").await.expect(200);
    client.settle(&granted[2], "unknown").await.expect(200);
    client.renew(&granted[3], Some("1h")).await.expect(200);
    assert_eq!(client.claim(json!(done)).await.expect(409).body["result"], "r");
    assert_eq!(client.claim(json!(unknown)).await.expect(409).body["state"], "unknown");
    assert_eq!(client.claim(json!(failed)).await.code(), (503, "store_full"), "it is free, and there is no room");
    server.query::<String>("CONFIG SET maxmemory 0");
    client.claim(json!(failed)).await.expect(201);
    client.claim(json!("new")).await.expect(201);
}

#[tokio::test]
async fn a_value_is_for_reading_and_begins_with_the_attempt() {
    let Some(server) = RedisServer::start().await else { return };
    let gateway = gateway::on(format!("{}?prefix=test:", server.url())).patient().start().await;
    let client = gateway.client();
    let granted = client.claim(json!({ "order_id": "A-1" })).await.expect(201);
    let key = format!("test:og:{{{}}}:default", granted.body["global_id"].as_str().unwrap());
    let attempt = granted.body["attempt"].as_str().unwrap();
    let value: String = server.query_words(&["GET", &key]);
    assert!(value.starts_with(&format!("{attempt} ")), "{value}");
    assert!(value.contains(r#"{"order_id":"A-1"}"#), "{value}");
    let left_ms: i64 = server.query_words(&["PTTL", &key]);
    assert!((1..=30_000).contains(&left_ms), "{left_ms}");
    client
        .report(&granted, json!({ "outcome": "success", "result": { "no": 7 }, "retention": "forever" }))
        .await
        .expect(200);
    let value: String = server.query_words(&["GET", &key]);
    assert!(value.starts_with(&format!("{attempt} ")) && value.contains(r#"{"no":7}"#), "{value}");
    assert_eq!(server.query_words::<i64>(&["PTTL", &key]), -1, "kept for ever");
}

#[tokio::test]
async fn an_unreadable_value_is_neither_absent_nor_overwritten() {
    let Some(server) = RedisServer::start().await else { return };
    let gateway = gateway::on(server.url()).patient().start().await;
    let client = gateway.client();
    let id = global_id("default", "1");
    let key = format!("og:{{{id}}}:default");
    let attempt = "1700000000000000-0123456789abcdef";
    let newer = format!("{attempt} 99 of a release to come");
    let foreign = ["", "not a record", &newer, attempt, "\u{1}\u{2}"];
    for value in foreign {
        server.query_words::<String>(&["SET", &key, value]);
        let take_over = json!({ "contents": 1, "take_over": true });
        let report = |outcome| json!({ "attempt": attempt, "outcome": outcome });
        let (outcome, renewal) = (format!("/v1/claims/{id}/outcome"), format!("/v1/claims/{id}/renewal"));
        for answer in [
            client.claim(json!(1)).await,
            client.post("/v1/claims", &take_over).await,
            client.get(&format!("/v1/claims/{id}")).await,
            client.post(&outcome, &report("success")).await,
            client.post(&outcome, &report("failure")).await,
            client.post(&outcome, &report("unknown")).await,
            client.post(&renewal, &json!({ "attempt": attempt })).await,
        ] {
            assert_eq!(answer.code(), (503, "store_incompatible"), "{value:?}: {}", answer.text);
        }
        assert_eq!(server.query_words::<String>(&["GET", &key]), value, "untouched");
    }
    // Neither is a key of another type.
    server.query_words::<i64>(&["DEL", &key]);
    server.query_words::<i64>(&["LPUSH", &key, "x"]);
    assert_eq!(client.claim(json!(1)).await.code(), (503, "store_incompatible"));
    assert_eq!(server.query_words::<i64>(&["LLEN", &key]), 1);
    // Other keys are not affected.
    client.claim(json!(2)).await.expect(201);
}

/// The store stands still for longer than one operation can wait, and not for as long as another can.
#[tokio::test]
async fn each_item_of_a_batch_waits_for_as_long_as_its_operation_allows() {
    let Some(server) = RedisServer::start().await else { return };
    // So short that being late is not held against the store, and no breaker opens.
    let terms = "[defaults]\ndeadline = \"110ms\"\n[apps.shop.operations.patient]\ndeadline = \"8s\"\n";
    let gateway = gateway::on(server.url()).config(&caller::app("shop")).config(terms).start().await;
    let client = caller::caller(&gateway, "shop");
    let patient = |contents| json!({ "contents": contents, "operation": "patient" });
    let mut granted = Vec::new();
    for contents in [1, 2] {
        granted.push(client.granted(&patient(contents)).await.body);
    }
    let report = |place: usize, operation| {
        let claim = &granted[place];
        json!({ "global_id": claim["global_id"], "attempt": claim["attempt"], "outcome": "success", "operation": operation })
    };
    let claims = json!({ "items": [{ "contents": 3 }, patient(4)] });
    let outcomes = json!({ "items": [report(0, None), report(1, Some("patient"))] });
    server.freeze();
    let answers =
        async { tokio::join!(client.post("/v1/claims/batch", &claims), client.post("/v1/outcomes/batch", &outcomes)) };
    let thawed = async {
        // Each has as long as the impatient items, and they came before.
        for contents in 5..8 {
            client.claim(json!(contents)).await.expect(503);
        }
        server.thaw();
    };
    let ((claimed, settled), ()) = tokio::join!(answers, thawed);
    for (answer, status) in [(claimed, 201), (settled, 200)] {
        let items = &answer.expect(200).body["items"];
        assert_eq!((&items[0]["status"], &items[1]["status"]), (&json!(503), &json!(status)), "{items}");
    }
}
