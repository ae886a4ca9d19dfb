//! Redis that is frozen, killed, loading, demoted, full, locked, cut off or slow.

use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};
use oncegate_testkit::wait::{answered_within, times_count, until};
use serde_json::json;

use super::{BACK, Load, NOTICED, breaker, outage, served};
use crate::support::gateway;

async fn on(server: &RedisServer) -> Gateway {
    gateway::on(server.url()).start().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_frozen_comes_back() {
    let Some(server) = RedisServer::start().await else { return };
    let gateway = on(&server).await;
    outage(&gateway, "frozen", async || server.freeze(), async || server.thaw()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_killed_comes_back_with_what_it_had() {
    let Some(mut server) = RedisServer::start_with(&["appendonly yes", "appendfsync always"]).await else { return };
    let gateway = on(&server).await;
    let held = gateway.client().granted(&json!({ "contents": "held", "lease": "10m" })).await;
    let server = tokio::sync::Mutex::new(&mut server);
    outage(&gateway, "killed", async || server.lock().await.kill(), async || server.lock().await.restart().await).await;
    assert_eq!(gateway.client().claim(json!("held")).await.code(), (409, "duplicate"));
    gateway.client().settle(&held, "success").await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loads_for_long_comes_back() {
    let Some(mut server) = RedisServer::start_with(&["enable-debug-command yes"]).await else { return };
    let gateway = on(&server).await;
    server.query::<String>("DEBUG POPULATE 10000");
    server.query::<String>("SAVE");
    let server = tokio::sync::Mutex::new(&mut server);
    let load = async || {
        // Five seconds' worth of keys, at half a millisecond each.
        server.lock().await.restart_with(&["key-load-delay 500", "loading-process-events-interval-bytes 1024"]);
    };
    let loaded = async || assert!(server.lock().await.is_ready().await);
    outage(&gateway, "loading", load, loaded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_made_a_replica_and_a_master_again_comes_back() {
    let Some(server) = RedisServer::start().await else { return };
    let gateway = on(&server).await;
    let demoted = async || drop(server.query::<String>("REPLICAOF 127.0.0.1 1"));
    let promoted = async || drop(server.query::<String>("REPLICAOF NO ONE"));
    outage(&gateway, "demoted", demoted, promoted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_password_was_revoked_comes_back_with_it() {
    let Some(server) = RedisServer::start().await else { return };
    server.query_words::<String>(&["ACL", "SETUSER", "gateway", "on", ">hunter2", "~*", "+@all"]);
    let url = server.url().replace("redis://", "redis://gateway:hunter2@");
    let gateway = gateway::on(url).start().await;
    let revoked = async || {
        server.query_words::<String>(&["ACL", "SETUSER", "gateway", "resetpass"]);
        server.query_words::<i64>(&["CLIENT", "KILL", "USER", "gateway"]);
    };
    let given_back = async || drop(server.query_words::<String>(&["ACL", "SETUSER", "gateway", ">hunter2"]));
    outage(&gateway, "revoked", revoked, given_back).await;
    assert!(!gateway.log().contains("hunter2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_no_writes_because_it_cannot_save_comes_back() {
    let Some(server) = RedisServer::start_with(&["save 3600 100000"]).await else { return };
    let gateway = on(&server).await;
    let broken = async || {
        server.break_saving();
        until("saving has failed", NOTICED, async || {
            let _ = RedisServer::try_query::<String>(&server.url(), &["BGSAVE"]);
            server.query::<String>("INFO persistence").contains("rdb_last_bgsave_status:err")
        })
        .await;
    };
    // A store that answers probes and refuses claims keeps the breaker from closing.
    let mended = async || drop(server.query::<String>("CONFIG SET stop-writes-on-bgsave-error no"));
    outage(&gateway, "cannot save", broken, mended).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_refuses_swallows_or_holds_back_comes_back() {
    let Some(server) = RedisServer::start().await else { return };
    let proxy = TcpProxy::start(server.address()).await;
    let gateway = gateway::on(format!("redis://{}", proxy.address())).start().await;
    let proxy = tokio::sync::Mutex::new(proxy);
    let heal = async || proxy.lock().await.heal().await;
    outage(&gateway, "refused", async || proxy.lock().await.refuse().await, heal).await;
    for mode in [Mode::Blackhole, Mode::HalfOpen] {
        outage(&gateway, &format!("{mode:?}"), async || proxy.lock().await.set(mode), heal).await;
    }
}

#[tokio::test]
async fn a_full_server_is_no_outage_and_takes_claims_again_at_once() {
    let Some(server) = RedisServer::start().await else { return };
    let gateway = on(&server).await;
    served(&gateway, NOTICED).await;
    server.query::<String>("CONFIG SET maxmemory 1");
    let client = gateway.client();
    for _ in 0..50 {
        assert_eq!(client.claim(oncegate_testkit::fresh::contents()).await.code(), (503, "store_full"));
    }
    assert_eq!(breaker(&gateway).await, 0);
    server.query::<String>("CONFIG SET maxmemory 0");
    client.claim(json!("new")).await.expect(201);
}

/// Idle connections whose other end has disappeared without a close.
#[tokio::test]
async fn an_idle_gateway_replaces_lost_connections_before_the_next_call() {
    let Some(server) = RedisServer::start().await else { return };
    let mut proxy = TcpProxy::start(server.address()).await;
    let gateway = gateway::on(format!("redis://{}", proxy.address())).start().await;
    served(&gateway, NOTICED).await;
    let before = proxy.accepted();
    proxy.set(Mode::HalfOpen);
    until("it tries again", NOTICED, async || proxy.accepted() >= before + 2).await;
    proxy.heal().await;
    served(&gateway, BACK).await;
}

/// A connection that stops answering during a call is replaced, and the call is resolved by its repeat.
#[tokio::test]
async fn a_call_whose_connection_went_silent_is_answered_all_the_same() {
    let Some(server) = RedisServer::start().await else { return };
    let mut proxy = TcpProxy::start(server.address()).await;
    // On a busy machine, a repeat may take longer than the default of a second allows.
    let deadline = if times_count() { "1s" } else { "4s" };
    let setup = gateway::on(format!("redis://{}?connections=1", proxy.address()));
    let gateway = setup.env("ONCEGATE_DEFAULTS__DEADLINE", deadline).start().await;
    served(&gateway, NOTICED).await;
    let client = gateway.client();
    for round in 0..3 {
        // Only this connection: the next one is good.
        proxy.set(Mode::HalfOpen);
        let before = proxy.accepted();
        let heal = async {
            until("it tries again", NOTICED, async || proxy.accepted() > before).await;
            proxy.heal().await;
        };
        let claim = answered_within(Duration::from_millis(1100), client.claim(json!({ "round": round })));
        let (answer, ()) = tokio::join!(claim, heal);
        answer.expect(201);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_brown_out_does_not_turn_into_an_outage() {
    let Some(server) = RedisServer::start().await else { return };
    let proxy = TcpProxy::start(server.address()).await;
    // A busy machine adds to the delay.
    let deadline = if times_count() { "1s" } else { "4s" };
    let setup = gateway::on(format!("redis://{}", proxy.address()));
    let gateway = setup.env("ONCEGATE_DEFAULTS__DEADLINE", deadline).start().await;
    served(&gateway, NOTICED).await;
    let asked = || {
        let stats = server.query::<String>("INFO commandstats");
        let sets = stats.lines().find(|line| line.starts_with("cmdstat_set:")).unwrap_or_default();
        sets.split(['=', ',']).nth(1).and_then(|calls| calls.parse::<usize>().ok()).unwrap_or(0)
    };
    let before = asked();
    proxy.set(Mode::Delay(Duration::from_millis(110)));
    let load = Load::on(&gateway, 32);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let response = load.end().await;
    let granted = response.iter().filter(|(status, _)| *status == 201).count();
    // The looks at the server's health set a marker, too.
    let (offered, asked) = (response.len(), asked() - before - 2);
    assert!(granted * 10 >= offered * 9, "{granted} of {offered}");
    assert!(asked * 10 <= offered * 11 + 100, "{asked} tries for {offered} calls");
    assert_eq!(breaker(&gateway).await, 0);
}
