//! Chains of several engines: switches by hand while gateways serve, and stores that come back empty.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use oncegate_core::clock::{Clock, SystemClock};
use oncegate_testkit::client::{Answer, Client};
#[cfg(feature = "etcd")]
use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::{Gateway, Setup};
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::tcp_proxy::TcpProxy;
use oncegate_testkit::wait::{in_time, until};
#[cfg(feature = "zookeeper")]
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;
use serde_json::{Value, json};

use crate::admin::{TOKEN, alice, operators};
use crate::support::caller::{app, caller};
use crate::support::chain::{chain, comes_to, granted_within, order, switch};
use crate::support::command::oncegate_with;
use crate::support::exposition::Page;
use crate::support::gateway;

/// Time until a gateway knows a change by another one, with a margin for a busy machine.
const FOLLOWED: Duration = Duration::from_secs(5);

/// Time since these tests began.
fn now() -> Duration {
    static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::new);
    CLOCK.monotonic()
}

/// Chains may share an engine.
#[tokio::test]
async fn a_switch_counts_the_claims_of_the_apps_of_its_chain() {
    let config = format!(
        "{}[engines]\nprimary = \"memory:\"\nspare = \"memory:\"\n[chains.default]\nengines = [\"primary\", \"spare\"]\n\
         [chains.other]\nengines = [\"primary\"]\n{}{}chain = \"other\"\n",
        operators(),
        app("bank"),
        app("shop")
    );
    let gateway = gateway::on_configured().config(&config).start().await;
    for (key, claims) in [("bank", 2), ("shop", 3)] {
        for number in 0..claims {
            caller(&gateway, key).claim(json!(number)).await.expect(201);
        }
    }
    let order = json!({ "to": "spare", "reason": "INC-1" });
    let refused = alice(&gateway).post("/admin/v1/chains/default/switch", &order).await;
    assert!(refused.text.contains("2 claims are stored on `primary`"), "{}", refused.text);
}

/// A gateway with a chain over these engines. The first one is active.
fn over(engines: &[(&str, String)]) -> Setup {
    let names: Vec<_> = engines.iter().map(|(name, _)| *name).collect();
    let urls: Vec<_> = engines.iter().map(|(name, url)| format!("{name} = {url:?}\n")).collect();
    let urls = urls.concat();
    gateway::on_configured().config(&format!("{}[engines]\n{urls}[chains.default]\nengines = {names:?}\n", operators()))
}

async fn granted(gateway: &Gateway) -> Answer {
    granted_within(gateway, FOLLOWED).await
}

/// Returns true if this server has the claim.
fn holds(server: &RedisServer, claim: &Answer) -> bool {
    let id = claim.body["global_id"].as_str().unwrap();
    server.query::<Vec<String>>(&format!("KEYS *{id}*")).len() == 1
}

async fn two() -> Option<(RedisServer, RedisServer)> {
    Some((RedisServer::start().await?, RedisServer::start().await?))
}

/// Grants of callers, by contents, and their times.
type Grants = Arc<Mutex<HashMap<u128, Vec<Duration>>>>;

/// Claims the current contents, which change every few milliseconds and are the same for all callers, until `stop`.
async fn ask_on(client: Client, started: Duration, grants: Grants, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let current = now().saturating_sub(started).as_millis() / 10;
        let body = json!({ "contents": { "n": u64::try_from(current).unwrap() }, "lease": "10m" });
        let answer = client.post("/v1/claims", &body).await;
        if answer.status == 201 {
            grants.lock().unwrap().entry(current).or_default().push(now());
        } else {
            assert!([409, 503].contains(&answer.status), "{}", answer.text);
        }
    }
}

#[tokio::test]
async fn a_switch_under_load_reaches_every_gateway_and_nothing_is_granted_twice() {
    let Some((a, b)) = two().await else { return };
    let setup = over(&[("a", a.url()), ("b", b.url())]);
    let (here, there) = (setup.start().await, setup.start().await);
    granted(&here).await;
    granted(&there).await;
    let (started, grants, stop) = (now(), Grants::default(), Arc::new(AtomicBool::new(false)));
    let callers: Vec<_> = [&here, &there, &here, &there]
        .map(|gateway| tokio::spawn(ask_on(gateway.client(), started, grants.clone(), stop.clone())))
        .into();
    until("they are granted claims", FOLLOWED, async || grants.lock().unwrap().len() > 20).await;
    let asked_at = now();
    let switched = switch(&here, "b").await.expect(200);
    let switched_at = now();
    assert_eq!(switched.body, json!({ "chain": "default", "from": "a", "active": "b", "epoch": 1 }));
    comes_to(&there, "b", FOLLOWED).await;
    let later = || grants.lock().unwrap().values().filter(|at| at[0] > switched_at).count();
    until("they are granted claims again", FOLLOWED, async || later() > 10).await;
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    let grants = std::mem::take(&mut *grants.lock().unwrap());
    let twice: Vec<_> = grants.iter().filter(|(_, at)| at.len() > 1).collect();
    assert!(twice.is_empty(), "granted by both: {twice:?}");
    let (before, after) = (
        grants.values().filter(|at| at[0] < asked_at).count(),
        grants.values().filter(|at| at[0] > switched_at).count(),
    );
    assert!(before > 10 && after > 10, "{before} before the switch, {after} after it");
    let mut all: Vec<_> = grants.values().map(|at| at[0]).collect();
    all.sort_unstable();
    let pause = all.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap();
    println!(
        "no caller was granted anything for {pause:?}; the operator was answered after {:?}",
        switched_at.saturating_sub(asked_at)
    );
    assert!(pause > Duration::from_millis(400), "{pause:?}");
    in_time("the pause between the grants of two engines", pause, FOLLOWED);
    assert!(holds(&b, &granted(&there).await) && holds(&b, &granted(&here).await));
    let page = Page::get(&there.admin_client()).await;
    assert_eq!(page.sum("oncegate_chain_active", &[("engine", "b")]), 1);
    assert_eq!((page.sum("oncegate_chain_active", &[("engine", "a")]), page.sum("oncegate_chain_epoch", &[])), (0, 1));
}

#[tokio::test]
async fn while_a_chain_closes_claims_are_refused_and_outcomes_accepted() {
    let Some((a, b)) = two().await else { return };
    let setup = over(&[("a", a.url()), ("b", b.url())]);
    let (here, there) = (setup.start().await, setup.start().await);
    let held = granted(&there).await;
    let old = granted(&there).await;
    let lock = |name: &str, call: &str| format!("/v1/locks/{name}/{call}");
    let locked = there.client().post(&lock("held", "holds"), &json!({ "lease": "10m" })).await.expect(201);
    let own = json!({ "attempt": locked.body["attempt"] });
    let operator = alice(&here);
    let switching = tokio::spawn(async move { operator.post("/admin/v1/chains/default/switch", &order("b")).await });
    until("the other gateway sees it", FOLLOWED, async || chain(&there).await["phase"] == "closing").await;
    let refused = there.client().claim(fresh::contents()).await;
    assert_eq!(refused.code(), (503, "store_unavailable"));
    assert!(refused.body["detail"].as_str().unwrap().contains("chain `default` is being switched to engine `b`"));
    assert!(refused.headers.contains_key("retry-after"));
    let settled = there.client().settle(&held, "success").await.expect(200);
    assert_eq!((&settled.body["late"], holds(&a, &held), holds(&b, &held)), (&json!(false), true, false));
    let refused = there.client().post(&lock("other", "holds"), &json!({})).await;
    assert_eq!(refused.code(), (503, "store_unavailable"), "{}", refused.text);
    there.client().post(&lock("held", "renewal"), &own).await.expect(200);
    let other = alice(&there).post("/admin/v1/chains/default/switch", &order("a")).await;
    assert_eq!(other.code(), (409, "switch_under_way"), "{}", other.text);
    switching.await.unwrap().expect(200);
    // Outcomes of earlier claims are recorded as late on the new engine, which all callers use from now on.
    comes_to(&there, "b", FOLLOWED).await;
    let late = there.client().settle(&old, "success").await.expect(200);
    assert_eq!((&late.body["late"], holds(&b, &old)), (&json!(true), true));
    // The new engine does not know the lock.
    let next = there.client().post(&lock("held", "holds"), &json!({})).await.expect(201);
    assert!(next.body["fence"].as_u64() > locked.body["fence"].as_u64());
    assert_eq!(there.client().post(&lock("held", "release"), &own).await.code(), (409, "not_held"));
}

#[tokio::test]
async fn a_dead_engine_is_left_from_the_command_line_and_learns_of_it_when_it_is_back() {
    let Some((mut a, b)) = two().await else { return };
    let setup = over(&[("a", a.url()), ("b", b.url())]);
    let (here, there) = (setup.start().await, setup.start().await);
    granted(&here).await;
    granted(&there).await;
    a.kill();
    let admin = format!("http://{}", here.admin());
    let run = tokio::task::spawn_blocking(move || {
        let folder = tempfile::tempdir().unwrap();
        let words = ["chain", "switch", "default", "b", "--accept-loss", "--reason", "INC-42", "--admin", &admin];
        oncegate_with(folder.path(), &words, &[("ONCEGATE_ADMIN_TOKEN", TOKEN)])
    });
    let ended = run.await.unwrap();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.starts_with("Chain `default` was switched from a to b (epoch 1).\n"), "{}", ended.out);
    assert!(ended.out.ends_with("Locks that are held on a are free on b: stop their holders.\n"), "{}", ended.out);
    comes_to(&there, "b", FOLLOWED).await;
    assert!(holds(&b, &granted(&there).await));
    // It must know of the switch before a gateway reads only its metadata.
    a.restart().await;
    until("it is reported", FOLLOWED, async || {
        a.query::<Option<String>>("GET og:metadata:chain.default").is_some_and(|note| note.contains("\"active\":\"b\""))
    })
    .await;
    let restarted = setup.start().await;
    assert!(holds(&b, &granted(&restarted).await));
    assert_eq!(chain(&restarted).await["active"], "b");
}

#[tokio::test]
async fn a_switch_that_may_not_or_cannot_be_made_changes_nothing() {
    let Some((a, mut b)) = two().await else { return };
    let gateway = over(&[("a", a.url()), ("b", b.url())]).start().await;
    let alice = alice(&gateway);
    granted(&gateway).await;
    let switch = async |body: Value| alice.post("/admin/v1/chains/default/switch", &body).await;
    let refused = switch(json!({ "to": "b", "reason": "INC-42" })).await;
    assert_eq!(refused.code(), (409, "loss_not_accepted"));
    assert!(refused.text.contains("How many claims are stored on `a` is not known"), "{}", refused.text);
    assert!(refused.text.contains("It does not know the locks that are held on `a` either"), "{}", refused.text);
    let refused = switch(order("c")).await;
    assert_eq!(refused.code(), (400, "invalid_request"));
    assert!(refused.text.contains("it has: a, b"), "{}", refused.text);
    assert_eq!(switch(order("a")).await.code(), (409, "already_active"));
    assert_eq!(switch(json!({ "to": "b", "accept_loss": true })).await.code(), (400, "invalid_request"), "no reason");
    let refused = alice.post("/admin/v1/chains/other/switch", &order("b")).await;
    assert_eq!(refused.code(), (404, "not_found"));
    assert_eq!(gateway.admin_client().post("/admin/v1/chains/default/switch", &order("b")).await.status, 401);

    b.kill();
    let refused = switch(order("b")).await;
    assert_eq!(refused.code(), (503, "store_unavailable"));
    assert!(refused.text.contains("engine `b` does not answer"), "{}", refused.text);
    b.restart().await;
    b.freeze();
    let refused = switch(order("b")).await;
    assert_eq!(refused.code(), (503, "store_unavailable"), "{}", refused.text);
    b.thaw();
    let stands = chain(&gateway).await;
    assert_eq!((&stands["active"], &stands["phase"], &stands["epoch"]), (&json!("a"), &json!("open"), &json!(0)));
    assert!(holds(&a, &granted(&gateway).await));

    let trail = alice.get("/admin/v1/audit").await.expect(200).body["entries"].clone();
    let response: Vec<_> = trail.as_array().unwrap().iter().map(|entry| entry["result"].as_str().unwrap()).collect();
    assert_eq!(response, ["store_unavailable", "store_unavailable"], "a call refused before its start is no grant");
    assert_eq!(trail[0]["action"], "chain.switch");
    assert_eq!(trail[0]["detail"], "chain: default, from: a, to: b, accept_loss");
}

#[tokio::test]
async fn the_next_engine_of_a_chain_must_meet_its_requirements() {
    let Some(mut a) = RedisServer::start_with(&["appendonly yes", "appendfsync always"]).await else { return };
    let Some(b) = RedisServer::start().await else { return };
    let gateway = over(&[("a", a.url()), ("b", b.url())]).config("requires = [\"durable\"]\n").start().await;
    granted(&gateway).await;
    let refused = switch(&gateway, "b").await;
    assert_eq!(refused.code(), (503, "store_incompatible"));
    assert!(refused.text.contains("requires `durable`"), "{}", refused.text);
    a.kill();
    assert_eq!(switch(&gateway, "b").await.code(), (503, "store_incompatible"), "not even in need");
}

#[tokio::test]
async fn a_switch_whose_gateway_was_killed_is_finished_by_another() {
    let Some((a, b)) = two().await else { return };
    let setup = over(&[("a", a.url()), ("b", b.url())]);
    let (mut here, there) = (setup.start().await, setup.start().await);
    granted(&here).await;
    granted(&there).await;
    let operator = alice(&here);
    let switching = tokio::spawn(async move {
        let headers = [("content-type", "application/json")];
        operator.try_send("POST", "/admin/v1/chains/default/switch", &headers, order("b").to_string()).await
    });
    until("the switch has started", FOLLOWED, async || chain(&there).await["phase"] == "closing").await;
    here.kill();
    assert!(switching.await.unwrap().is_err(), "no caller is answered that it was done");
    assert_eq!(there.client().claim(fresh::contents()).await.code(), (503, "store_unavailable"));
    comes_to(&there, "b", Duration::from_secs(15)).await;
    assert!(holds(&b, &granted(&there).await));
    there.logged("Completed a switch that another gateway had started", 1).await;
}

#[tokio::test]
async fn a_gateway_that_stood_still_during_the_switch_grants_nothing_on_the_old_engine() {
    let Some((a, b)) = two().await else { return };
    let setup = over(&[("a", a.url()), ("b", b.url())]);
    let (here, there) = (setup.start().await, setup.start().await);
    granted(&here).await;
    granted(&there).await;
    there.signal("STOP");
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let client = there.client();
            tokio::spawn(async move { client.claim(fresh::contents()).await })
        })
        .collect();
    switch(&here, "b").await.expect(200);
    there.signal("CONT");
    for waiting in waiting {
        let answer = waiting.await.unwrap();
        assert!(answer.status == 503 || answer.status == 201 && holds(&b, &answer), "{}", answer.text);
    }
    assert!(holds(&b, &granted(&there).await));
}

#[tokio::test]
async fn a_gateway_that_cannot_reach_the_new_engine_grants_nothing_rather_than_on_the_old_one() {
    let Some((a, b)) = two().await else { return };
    let mut way = TcpProxy::start(b.address()).await;
    let here = over(&[("a", a.url()), ("b", b.url())]).start().await;
    let there = over(&[("a", a.url()), ("b", format!("redis://{}", way.address()))]).start().await;
    granted(&here).await;
    granted(&there).await;
    way.refuse().await;
    switch(&here, "b").await.expect(200);
    // The old engine reports it, which others could reach.
    comes_to(&there, "b", FOLLOWED).await;
    assert_eq!(there.client().claim(fresh::contents()).await.code(), (503, "store_unavailable"));
    way.heal().await;
    assert!(holds(&b, &granted(&there).await));
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_chain_is_switched_from_redis_to_postgres_and_back() {
    let (Some(redis), Some(server)) = (RedisServer::start().await, PostgresServer::start().await) else { return };
    a_chain_is_switched_from_redis_and_back(&redis, server.database("chain").await).await;
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn a_chain_is_switched_from_redis_to_etcd_and_back() {
    let (Some(redis), Some(cluster)) = (RedisServer::start().await, EtcdCluster::start_one().await) else { return };
    a_chain_is_switched_from_redis_and_back(&redis, cluster.url()).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn a_chain_is_switched_from_redis_to_zookeeper_and_back() {
    let (Some(redis), Some(cluster)) = (RedisServer::start().await, ZooKeeperCluster::start_one().await) else {
        return;
    };
    a_chain_is_switched_from_redis_and_back(&redis, cluster.url()).await;
}

/// To an engine with fences, which can list its claims.
#[cfg(any(feature = "etcd", feature = "postgres", feature = "zookeeper"))]
async fn a_chain_is_switched_from_redis_and_back(redis: &RedisServer, url: String) {
    let setup = over(&[("fast", redis.url()), ("other", url)]);
    let (here, there) = (setup.start().await, setup.start().await);
    granted(&here).await;
    switch(&here, "other").await.expect(200);
    comes_to(&there, "other", FOLLOWED).await;
    assert!(granted(&there).await.body["fence"].is_u64());
    let asked = json!({ "to": "fast", "reason": "INC-42" });
    let refused = alice(&there).post("/admin/v1/chains/default/switch", &asked).await;
    assert_eq!(refused.code(), (409, "loss_not_accepted"));
    // On a busy machine a claim without an answer in time may be stored too.
    assert!(refused.text.contains(" stored on `other`"), "{}", refused.text);
    assert_eq!(switch(&there, "fast").await.expect(200).body["epoch"], 2);
    comes_to(&here, "fast", FOLLOWED).await;
    assert!(holds(redis, &granted(&here).await));
}

#[tokio::test]
async fn a_chain_that_holds_grants_nothing_for_a_lease_after_its_store_came_back_empty() {
    let Some(mut server) = RedisServer::start().await else { return };
    let config = "on_data_loss = \"freeze\"\n[defaults]\nlease = \"6s\"\n";
    let gateway = over(&[("a", server.url())]).config(config).start().await;
    let client = gateway.client();
    // It might be an emptied one.
    assert!(client.claim(fresh::contents()).await.text.contains("or is new"));
    until("a new store is known to be new", FOLLOWED, async || client.claim(fresh::contents()).await.status == 201)
        .await;
    let held = granted(&gateway).await;
    client.granted(&json!({ "contents": "longer", "lease": "12s" })).await;
    let lost_at = now();
    server.kill();
    server.restart_empty().await;
    let mut refused = None;
    until("the store is back, and empty", FOLLOWED, async || {
        let answer = client.claim(fresh::contents()).await;
        assert_ne!(answer.status, 201, "granted though something may be going on");
        let response = answer.text.contains("has lost its data");
        refused = Some(answer);
        response
    })
    .await;
    assert_eq!(refused.unwrap().code(), (503, "store_unavailable"));
    let held_ms = chain(&gateway).await["held_ms"].as_u64().unwrap();
    assert!((1000..=12_000).contains(&held_ms), "{held_ms}");
    // Another one, which starts only now.
    let late = over(&[("a", server.url())]).config(config).start().await;
    assert!(late.client().claim(fresh::contents()).await.text.contains("has lost its data"));
    let at_hold = Page::get(&gateway.admin_client()).await;
    assert_eq!(at_hold.sum("oncegate_chain_grants_frozen", &[("chain", "default")]), 1);
    // The earlier claims are reported, and cannot run again.
    assert_eq!(client.settle(&held, "success").await.expect(200).body["late"], true);
    let mut first = None;
    until("it grants again", Duration::from_secs(10), async || {
        let answer = client.claim(fresh::contents()).await;
        first = (answer.status == 201).then(now);
        first.is_some()
    })
    .await;
    assert!(first.unwrap() >= lost_at + Duration::from_secs(12), "not before the longest lease is over");
    assert_eq!(chain(&gateway).await["held_ms"], Value::Null);

    // Emptied under an open connection: noticed half a second later, plus the delay of a busy machine.
    server.query::<String>("FLUSHALL");
    until("it is noticed", Duration::from_secs(10), async || chain(&gateway).await["held_ms"].is_u64()).await;
    assert_eq!(client.claim(fresh::contents()).await.code(), (503, "store_unavailable"));
}
