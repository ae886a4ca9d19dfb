//! Calls to the store without a reply. A repeat after a lost reply is the same claim; if the repeat fails, the claim
//! stays uncertain. An exchange that is under way keeps its claim.

use std::sync::Arc;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::{Caller, SOON, Upstream, at, config};
use crate::admin::{alice, operated};
use crate::support::gateway;

/// Texts in commands of Redis that claim: for the proxy, the API, a lock.
const PROXY: &str = "ogp:{";
const API: &str = "og:{";
const LOCK: &str = "og:lock:";

/// A gateway with a proxy, and its store behind a network that loses replies.
async fn start(server: &RedisServer, port: u16) -> (TcpProxy, Gateway, Caller) {
    start_with(server, port, "").await
}

async fn start_with(server: &RedisServer, port: u16, of_route: &str) -> (TcpProxy, Gateway, Caller) {
    let network = TcpProxy::start(server.address()).await;
    let url = format!("redis://{}?connections=1", network.address());
    let gateway = gateway::on(url).config(&config("", &at(port), of_route)).start().await;
    let caller = Caller::of(&gateway);
    until("the store answers", SOON, async || {
        caller.post("/orders/a", &format!("warm-{}", oncegate_testkit::fresh::port()), "one").await.status == 201
    })
    .await;
    (network, gateway, caller)
}

/// The guard of the engine repeats a call. If it is still uncertain, the proxy repeats it.
#[tokio::test]
async fn a_claim_whose_reply_was_lost_is_granted_to_its_nonce_at_the_proxy() {
    let Some(server) = RedisServer::start().await else { return };
    let (upstream, port) = Upstream::start().await;
    let (network, _gateway, caller) = start(&server, port).await;
    for lost in [1, 2] {
        let before = upstream.effects();
        network.lose_replies_to(PROXY, lost, false);
        let key = format!("lost-{lost}");
        let answer = caller.post("/orders/a", &key, "one").await;
        assert!(network.has_lost_replies());
        assert_eq!((answer.status, answer.is_replay()), (201, false), "{lost}: {:?}", answer.body);
        assert!(caller.post("/orders/a", &key, "one").await.is_replay());
        assert_eq!(upstream.effects(), before + 1);
    }
}

#[tokio::test]
async fn what_was_uncertain_stays_uncertain_if_its_repeat_certainly_fails() {
    let Some(server) = RedisServer::start().await else { return };
    let (upstream, port) = Upstream::start().await;
    for way in ["proxy", "claim", "batch", "lock"] {
        let (network, gateway, caller) = start(&server, port).await;
        let client = gateway.client();
        let before = upstream.requests();
        // Two for the proxy: the guard's repeat is lost too, and then the proxy's own fails.
        let (text, lost) = match way {
            "proxy" => (PROXY, 2),
            "lock" => (LOCK, 1),
            _ => (API, 1),
        };
        if way == "lock" {
            // The gateway knows the lock then, and begins with a change.
            let held = client.post("/v1/locks/a/holds", &json!({})).await.expect(201);
            client.post("/v1/locks/a/release", &json!({ "attempt": held.body["attempt"] })).await.expect(200);
        }
        network.lose_replies_to(text, lost, true);
        let (status, body): (u16, Value) = match way {
            "proxy" => {
                let answer = caller.post("/orders/a", "k-1", "one").await;
                (answer.status, answer.json())
            }
            "batch" => {
                let items = json!({ "items": [{ "contents": way }] });
                let answer = client.post("/v1/claims/batch", &items).await;
                let item = answer.body["items"][0].clone();
                (u16::try_from(item["status"].as_u64().unwrap()).unwrap(), item)
            }
            "lock" => {
                let answer = client.post("/v1/locks/a/holds", &json!({})).await;
                (answer.status, answer.body)
            }
            _ => {
                let answer = client.claim(json!(way)).await;
                (answer.status, answer.body)
            }
        };
        assert!(network.has_lost_replies(), "{way}");
        assert_eq!((status, &body["code"]), (503, &Value::from("outcome_unknown")), "{way}: {body}");
        let detail = body["detail"].as_str().unwrap();
        assert!(detail.contains("may have taken") && !detail.contains("Nothing was changed"), "{way}: {detail}");
        assert_eq!(upstream.requests(), before, "{way}: nothing was forwarded");
    }
}

/// One of its renewals gets no answer, although it is tried twice. The lease outlasts the next one by far.
#[tokio::test]
async fn a_claim_is_renewed_again_after_a_renewal_that_failed() {
    let Some(server) = RedisServer::start().await else { return };
    let (upstream, port) = Upstream::start().await;
    let (network, _gateway, caller) = start_with(&server, port, "lease = \"15s\"\n").await;
    let effects = upstream.effects();
    let call = tokio::spawn(async move { (caller.post("/orders/slow", "k-1", "one").await, caller) });
    until("the upstream has it", SOON, async || upstream.effects() > effects).await;
    network.lose_replies_to(PROXY, 2, false);
    until("both replies are lost", SOON, async || network.has_lost_replies()).await;
    let left = || {
        let keys = server.query::<Vec<String>>("KEYS ogp:*");
        keys.iter().map(|key| server.query::<i64>(&format!("PTTL {key}"))).max().expect("it is claimed")
    };
    let mut before = left();
    until("it is renewed", SOON, async || {
        let now = left();
        now > std::mem::replace(&mut before, now)
    })
    .await;
    upstream.gate.add_permits(1);
    let (first, caller) = call.await.unwrap();
    assert_eq!(first.status, 201);
    assert!(caller.post("/orders/slow", "k-1", "one").await.is_replay());
}

/// The report of its outcome gets no answer, and has not reached the store.
#[tokio::test]
async fn an_outcome_is_reported_until_the_store_has_it() {
    let Some(server) = RedisServer::start().await else { return };
    let (upstream, port) = Upstream::start().await;
    let (network, _gateway, caller) = start_with(&server, port, "lease = \"5m\"\n").await;
    let effects = upstream.effects();
    let call = tokio::spawn(async move { (caller.post("/orders/slow", "k-1", "one").await, caller) });
    until("the upstream has it", SOON, async || upstream.effects() > effects).await;
    network.set(Mode::Blackhole);
    upstream.gate.add_permits(1);
    let (first, caller) = call.await.unwrap();
    assert_eq!(first.status, 201, "its caller gets it nevertheless");
    network.drop_connections();
    network.set(Mode::Pass);
    until("the outcome is stored", SOON, async || caller.post("/orders/slow", "k-1", "one").await.is_replay()).await;
    assert_eq!(upstream.effects(), effects + 1);
}

/// The first outcome uses more of the app's rate than may be overdrawn, so the second one has to wait for it.
#[tokio::test]
async fn an_outcome_beyond_the_rate_of_its_app_is_reported_until_it_is_taken() {
    let (upstream, port) = Upstream::start().await;
    let more = "lease = \"5m\"\n[defaults.quota]\nclaim_bytes_per_second = 1000\n";
    let gateway = operated("memory:").config(&config("", &at(port), more)).start().await;
    let (caller, alice) = (Arc::new(Caller::of(&gateway)), alice(&gateway));
    let settled = async || {
        let page = alice.get("/admin/v1/claims?app=default&realm=proxy&state=succeeded").await.expect(200);
        page.body["claims"].as_array().unwrap().len()
    };
    let mut running = Vec::new();
    for (number, body) in ["x".repeat(9000), "one".to_owned()].into_iter().enumerate() {
        let caller = caller.clone();
        running
            .push(tokio::spawn(async move { caller.post("/orders/slow", &format!("k-{number}"), &body).await.status }));
        until("the upstream has it", SOON, async || upstream.effects() == number + 1).await;
    }
    for (number, call) in running.into_iter().enumerate() {
        upstream.gate.add_permits(1);
        assert_eq!(call.await.unwrap(), 201, "its caller gets it nevertheless");
        until("the outcome is stored", SOON, async || settled().await == number + 1).await;
    }
}
