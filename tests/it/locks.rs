//! Locks over HTTP: through two gateways that share a store, over restarts, and with invalid requests.

mod faults;
mod operators;

use std::time::Duration;

use futures_util::future::join_all;
use oncegate_core::clock::{Clock, SystemClock};
use oncegate_testkit::client::{Answer, Client};
#[cfg(feature = "etcd")]
use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
#[cfg(feature = "zookeeper")]
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::admin::{alice, operated};
use crate::support::gateway;

/// Longer than a wait that ends for a reason, shorter than a test may take.
const SOON: Duration = Duration::from_secs(15);

async fn hold(client: &Client, name: &str, body: Value) -> Answer {
    client.post(&format!("/v1/locks/{name}/holds"), &body).await
}

async fn release(client: &Client, name: &str, held: &Answer) -> Answer {
    client.post(&format!("/v1/locks/{name}/release"), &json!({ "attempt": held.body["attempt"] })).await
}

fn fence(held: &Answer) -> u64 {
    held.body["fence"].as_u64().expect("a fence")
}

async fn waiting(client: &Client, name: &str) -> u64 {
    client.get(&format!("/v1/locks/{name}")).await.body["waiting"].as_u64().unwrap_or_default()
}

/// Starts a fair request that waits, and returns once it is in the queue.
async fn queue(gateway: &Gateway, name: &'static str) -> JoinHandle<Answer> {
    let client = gateway.client();
    let before = waiting(&client, name).await;
    let waits = tokio::spawn(async move { hold(&client, name, json!({ "fair": true, "wait": "25s" })).await });
    until("it queues", SOON, async || waiting(&gateway.client(), name).await > before || waits.is_finished()).await;
    waits
}

/// A lock with a limit has at most that many holds, requested at any gateway. Waiting requests get the next ones.
async fn permits_at_two_gateways_are_as_many_as_the_limit(url: &str) {
    let (here, there) = (gateway::on(url).patient().start().await, gateway::on(url).patient().start().await);
    let permit = |limit: u64| json!({ "mode": "shared", "limit": limit });
    let first = hold(&here.client(), "permits", permit(2)).await.expect(201);
    hold(&there.client(), "permits", permit(2)).await.expect(201);
    let full = hold(&there.client(), "permits", permit(2)).await;
    assert_eq!((full.code(), &full.body["holders"]), ((409, "lock_held"), &json!(2)));
    for wait in ["1ms", "25s"] {
        let other = hold(&here.client(), "permits", json!({ "mode": "shared", "limit": 3, "wait": wait })).await;
        assert_eq!((other.code(), &other.body["limit"]), ((409, "limit_differs"), &json!(2)));
    }
    assert_eq!(hold(&here.client(), "permits", json!({ "mode": "shared" })).await.code(), (409, "lock_held"));
    assert_eq!(here.client().get("/v1/locks/permits").await.expect(200).body["limit"], 2);
    let client = there.client();
    let waits = tokio::spawn(async move {
        hold(&client, "permits", json!({ "mode": "shared", "limit": 2, "fair": true, "wait": "25s" })).await
    });
    until("it queues", SOON, async || waiting(&here.client(), "permits").await > 0 || waits.is_finished()).await;
    release(&here.client(), "permits", &first).await.expect(200);
    answered(waits).await.expect(201);
}

async fn answered(waits: JoinHandle<Answer>) -> Answer {
    tokio::time::timeout(SOON, waits).await.expect("it is answered").expect("no panic")
}

/// Fair requests are granted one at a time, in the order of their arrival, at any gateway.
async fn fair_requests_at_two_gateways_take_turns(url: &str) {
    let (here, there) = (gateway::on(url).patient().start().await, gateway::on(url).patient().start().await);
    let mut held = hold(&here.client(), "turns", json!({})).await.expect(201);
    let refused = hold(&there.client(), "turns", json!({})).await;
    assert_eq!((refused.code(), &refused.body["holders"]), ((409, "lock_held"), &json!(1)));
    let mut queued = Vec::new();
    for gateway in [&there, &here, &there, &here] {
        queued.push(queue(gateway, "turns").await);
    }
    while !queued.is_empty() {
        assert!(queued.iter().all(|waits| !waits.is_finished()), "the lock is held");
        release(&there.client(), "turns", &held).await.expect(200);
        let next = answered(queued.remove(0)).await.expect(201);
        assert!(fence(&next) > fence(&held), "{} after {}", fence(&next), fence(&held));
        held = next;
    }
    release(&here.client(), "turns", &held).await.expect(200);
    assert_eq!(here.client().get("/v1/locks/turns").await.code(), (404, "not_found"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis_two_gateways_take_turns_and_share_permits() {
    let Some(server) = RedisServer::start().await else { return };
    fair_requests_at_two_gateways_take_turns(&server.url()).await;
    permits_at_two_gateways_are_as_many_as_the_limit(&server.url()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_two_gateways_take_turns_and_share_permits() {
    let Some(server) = PostgresServer::start().await else { return };
    fair_requests_at_two_gateways_take_turns(&server.url()).await;
    permits_at_two_gateways_are_as_many_as_the_limit(&server.url()).await;
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_etcd_two_gateways_take_turns_and_share_permits() {
    let Some(cluster) = EtcdCluster::start_one().await else { return };
    fair_requests_at_two_gateways_take_turns(&cluster.patient_url()).await;
    permits_at_two_gateways_are_as_many_as_the_limit(&cluster.patient_url()).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_zookeeper_two_gateways_take_turns_and_share_permits() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    fair_requests_at_two_gateways_take_turns(&cluster.patient_url()).await;
    permits_at_two_gateways_are_as_many_as_the_limit(&cluster.patient_url()).await;
}

/// The clock of the store advances in steps, and may be fast, so the end of a hold is later.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
async fn a_hold_lasts_for_its_lease_by_the_clock_of_its_holder(url: &str) {
    let (here, there) = (gateway::on(url).patient().start().await, gateway::on(url).patient().start().await);
    let clock = SystemClock::new();
    for _ in 0..8 {
        // A busy machine may answer only after the lease or the deadline, which is 503.
        let (name, sent, held) = loop {
            let (name, sent) = (format!("lease{:x}", fresh::number()), clock.monotonic());
            let held = hold(&here.client(), &name, json!({ "lease": "300ms" })).await;
            match held.status {
                201 => break (name, sent, held),
                status => assert_eq!(status, 503, "{}", held.text),
            }
        };
        let lease = Duration::from_millis(held.body["lease_ms"].as_u64().unwrap());
        assert!(lease <= Duration::from_millis(300));
        hold(&there.client(), &name, json!({ "wait": "20s" })).await.expect(201);
        let lasted = clock.monotonic().saturating_sub(sent);
        assert!(lasted >= lease, "granted again after {lasted:?} of {lease:?}");
    }
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_etcd_a_hold_lasts_for_its_lease_by_the_clock_of_its_holder() {
    let Some(cluster) = EtcdCluster::start_one().await else { return };
    a_hold_lasts_for_its_lease_by_the_clock_of_its_holder(&cluster.patient_url()).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_zookeeper_a_hold_lasts_for_its_lease_by_the_clock_of_its_holder() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    a_hold_lasts_for_its_lease_by_the_clock_of_its_holder(&cluster.patient_url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_a_killed_gateway_is_granted_again_when_its_lease_ends_and_with_a_higher_fence() {
    let Some(server) = RedisServer::start().await else { return };
    let setup = gateway::on(server.url()).patient();
    let (mut dying, other) = (setup.start().await, setup.start().await);
    let held = hold(&dying.client(), "killed", json!({ "lease": "5s" })).await.expect(201);
    dying.kill();
    assert_eq!(hold(&other.client(), "killed", json!({})).await.code(), (409, "lock_held"), "its lease has not ended");
    let next = answered(queue(&other, "killed").await).await.expect(201);
    assert!(fence(&next) > fence(&held));
    assert_eq!(release(&other.client(), "killed", &held).await.code(), (409, "not_held"), "the lease is over");
    assert_eq!(hold(&other.client(), "killed", json!({})).await.code(), (409, "lock_held"), "the next one keeps it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_disk_holds_and_fences_survive_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let mut gateway = gateway::on_disk(folder.path()).start().await;
    let released = hold(&gateway.client(), "released", json!({})).await.expect(201);
    release(&gateway.client(), "released", &released).await.expect(200);
    let kept = hold(&gateway.client(), "kept", json!({ "lease": "10m" })).await.expect(201);
    gateway.kill();
    let gateway = gateway::on_disk(folder.path()).start().await;
    assert_eq!(hold(&gateway.client(), "kept", json!({})).await.code(), (409, "lock_held"));
    let again = hold(&gateway.client(), "released", json!({})).await.expect(201);
    assert!(fence(&again) > fence(&released));
    release(&gateway.client(), "kept", &kept).await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_reenter_readers_share_and_a_writer_waits_for_all_of_them() {
    let gateway = gateway::on_memory().start().await;
    let client = gateway.client();
    let owner = json!({ "owner": "owner-0123456789ab" });
    let outer = hold(&client, "again", owner.clone()).await.expect(201);
    let inner = hold(&client, "again", owner).await.expect(201);
    assert_eq!((&inner.body["holds"], fence(&inner)), (&json!(2), fence(&outer)), "held, so no new fence");
    release(&client, "again", &outer).await.expect(200);
    assert_eq!(hold(&client, "again", json!({})).await.code(), (409, "lock_held"), "until the last hold ends");
    release(&client, "again", &inner).await.expect(200);
    let nonce = json!({ "attempt_nonce": "0123456789abcdef" });
    let first = hold(&client, "again", nonce.clone()).await.expect(201);
    let repeated = hold(&client, "again", nonce).await.expect(201);
    assert_eq!((&repeated.body["attempt"], &repeated.body["repeated"]), (&first.body["attempt"], &json!(true)));
    assert_eq!(
        repeated.body["lease_expires_at"], first.body["lease_expires_at"],
        "the end of its lease is one instant"
    );

    let shared = json!({ "mode": "shared" });
    let readers = [hold(&client, "shared", shared.clone()).await, hold(&client, "shared", shared.clone()).await];
    let readers = readers.map(|reader| reader.expect(201));
    let writer = queue(&gateway, "shared").await;
    assert_eq!(
        hold(&client, "shared", shared).await.code(),
        (409, "lock_held"),
        "a writer that queues blocks new readers"
    );
    for reader in &readers {
        assert!(!writer.is_finished());
        release(&client, "shared", reader).await.expect(200);
    }
    answered(writer).await.expect(201);
}

#[tokio::test]
async fn wrong_requests_are_refused_with_a_code_and_change_nothing() {
    let gateway = gateway::on_memory().start().await;
    let client = gateway.client();
    let held = hold(&client, "mine", json!({})).await.expect(201);
    for name in ["-x", "a%20b", "%C3%A4", &"x".repeat(129)] {
        assert_eq!(hold(&client, name, json!({})).await.code(), (400, "invalid_request"), "{name}");
    }
    for body in [
        json!({ "owner": "short" }),
        json!({ "owner": "with a space in the middle" }),
        json!({ "attempt_nonce": "äääääääääääääääää" }),
        json!({ "lease": "1ms" }),
        json!({ "lease": "1000d" }),
        json!({ "lease": 5 }),
        json!({ "wait": "soon" }),
        json!({ "mode": "both" }),
        json!({ "ttl": "5s" }),
    ] {
        let refused = hold(&client, "other", body.clone()).await;
        assert_eq!(refused.code(), (400, "invalid_request"), "{body}");
    }
    assert_eq!(client.get("/v1/locks/other").await.code(), (404, "not_found"), "nothing was granted");

    let post = async |path: &str, body: Value| client.post(&format!("/v1/locks/mine/{path}"), &body).await;
    let foreign = "1792488615123456-5f0c9a7be2d14836";
    for (path, body, expected) in [
        ("release", json!({ "attempt": foreign }), (409, "not_held")),
        ("renewal", json!({ "attempt": foreign }), (409, "not_held")),
        ("release", json!({ "attempt_nonce": "never-asked-for-0" }), (409, "not_held")),
        ("release", json!({}), (400, "invalid_request")),
        ("release", json!({ "attempt": foreign, "attempt_nonce": "0123456789abcdef" }), (400, "invalid_request")),
        ("release", json!({ "attempt": "mine" }), (400, "invalid_request")),
    ] {
        assert_eq!(post(path, body.clone()).await.code(), expected, "{path} {body}");
    }
    assert_eq!(hold(&client, "mine", json!({})).await.code(), (409, "lock_held"));
    release(&client, "mine", &held).await.expect(200);
    let again = release(&client, "mine", &held).await;
    assert!(matches!(again.code(), (200, _) | (409, "not_held")), "{:?}", again.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_obey_the_limits_and_the_preference_and_a_drain_ends_them() {
    let setup = gateway::on_memory().env("ONCEGATE_LIMITS__WAITING", 2).env("ONCEGATE_LIMITS__WAIT_MAX", "20s");
    let mut gateway = setup.start().await;
    let client = gateway.client();
    hold(&client, "busy", json!({ "lease": "10m" })).await.expect(201);
    let headers = [("content-type", "application/json"), ("prefer", "wait=1")];
    let preferred = client.send("POST", "/v1/locks/busy/holds", &headers, "{}").await.expect(409);
    assert_eq!(preferred.headers["preference-applied"], "wait=1");
    assert!(preferred.body["waited_ms"].as_u64().unwrap() >= 1000);
    let free = client.send("POST", "/v1/locks/free/holds", &headers, "{}").await.expect(201);
    assert!(!free.headers.contains_key("preference-applied"), "it did not wait");

    let waits = queue(&gateway, "busy").await;
    // Half of two: the share of the app is used up.
    let over = tokio::time::timeout(SOON, hold(&client, "busy", json!({ "wait": "20s" }))).await;
    assert_eq!(over.expect("answered at once").code(), (409, "lock_held"));
    gateway.signal("TERM");
    let drained = answered(waits).await.expect(409);
    assert_eq!(
        (drained.code(), drained.headers["preference-applied"].as_bytes()),
        ((409, "lock_held"), &b"wait=20"[..])
    );
    assert!(gateway.ended().await.success());
}

/// A store that answers late is not a lock that is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_a_slow_store_grants_at_once_did_not_wait_for_the_lock() {
    let Some(server) = RedisServer::start().await else { return };
    let gateway = gateway::on(server.url()).patient().start().await;
    hold(&gateway.client(), "warm", json!({})).await.expect(201);
    server.query::<String>("CLIENT PAUSE 300 ALL");
    let granted = hold(&gateway.client(), "free", json!({ "wait": "20s" })).await.expect(201);
    assert!(granted.body["waited_ms"].as_u64().unwrap() > 0, "the store was slow: {}", granted.text);
    assert!(!granted.headers.contains_key("preference-applied"));
}

/// Twelve callers give up, and the next one waits. A second for each would add up, until the tickets end after ten.
async fn callers_that_gave_up_cost_the_next_one_a_second_together(gateways: &[Gateway]) {
    let client = |number: usize| gateways[number % gateways.len()].client();
    let clock = SystemClock::new();
    // A busy machine may take longer once, but not each time.
    for name in ["abandoned-1", "abandoned-2", "abandoned-3", "abandoned-4", "abandoned-5"] {
        let held = hold(&client(0), name, json!({})).await.expect(201);
        let clients = (0..12).map(client);
        let gave_up =
            clients.map(|client| async move { hold(&client, name, json!({ "fair": true, "wait": "400ms" })).await });
        for answer in join_all(gave_up).await {
            assert_eq!(answer.code(), (409, "lock_held"), "{}", answer.text);
        }
        until("their waits are over", SOON, async || waiting(&client(0), name).await == 0).await;
        let nonce = "polls-0123456789";
        let polls = hold(&client(1), name, json!({ "fair": true, "attempt_nonce": nonce })).await.expect(409);
        let listed = alice(&gateways[0]).get("/admin/v1/locks?app=default").await;
        if polls.body["position"] != 13 {
            // Their tickets have ended already.
            continue;
        }
        assert_eq!(polls.body["waiting"], 1, "those that gave up keep their places, and do not count: {}", polls.text);
        if let Some(locks) = listed.body["locks"].as_array() {
            let listed = locks.iter().find(|lock| lock["name"] == name).expect("it is held");
            assert_eq!(listed["waiting"], 1, "{listed}");
        }
        let withdrawal = json!({ "attempt_nonce": nonce });
        client(1).post(&format!("/v1/locks/{name}/release"), &withdrawal).await.expect(200);

        let waits = queue(&gateways[gateways.len() - 1], name).await;
        release(&client(0), name, &held).await.expect(200);
        let freed = clock.monotonic();
        answered(waits).await.expect(201);
        if clock.monotonic().saturating_sub(freed) < Duration::from_secs(5) {
            return;
        }
    }
    panic!("the next caller waits for too long each time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_memory_and_on_a_disk_callers_that_gave_up_cost_the_next_one_a_second_together() {
    let folder = tempfile::tempdir().unwrap();
    for engine in ["memory:".to_owned(), format!("disk:{}", folder.path().display())] {
        callers_that_gave_up_cost_the_next_one_a_second_together(&[operated(&engine).start().await]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis_callers_that_gave_up_cost_the_next_one_a_second_together() {
    let Some(server) = RedisServer::start().await else { return };
    let start = async || operated(&server.url()).start().await;
    callers_that_gave_up_cost_the_next_one_a_second_together(&[start().await, start().await]).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_callers_that_gave_up_cost_the_next_one_a_second_together() {
    let Some(server) = PostgresServer::start().await else { return };
    let start = async || operated(&server.url()).start().await;
    callers_that_gave_up_cost_the_next_one_a_second_together(&[start().await, start().await]).await;
}
