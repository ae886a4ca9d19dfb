//! Servers that die, freeze, start late or load for long, and networks that fail. Answers arrive at once, and separate
//! certain from uncertain failures. Service is back within a second of the server.

use std::time::Duration;

use oncegate_core::claim::Outcome;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Determinate, EngineError, Topology as _};
use oncegate_core::operator::ReleaseRequest;
use oncegate_core::record::ClaimState;
use oncegate_redis::{Options, Redis};
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};
use tokio::time::timeout;

use super::{
    RedisServer, again, behind_proxy, behind_proxy_with, granted, impatient, is_duplicate, is_uncertain, open, options,
    renew, serves_again, settle, soon, success, unavailable,
};

/// Checks that calls are refused without a try to connect: each may take a second.
async fn at_once(redis: &Redis) {
    let calls = async {
        for _ in 0..20 {
            unavailable(redis.claim(&fresh_claim(), DEADLINE).await);
        }
    };
    timeout(Duration::from_secs(10), calls).await.expect("at once");
}

#[tokio::test]
async fn an_engine_opens_before_its_server_is_up() {
    let Some(mut server) = RedisServer::start().await else { return };
    server.kill();
    let redis = open(&server.url());
    let why = unavailable(redis.claim(&fresh_claim(), DEADLINE).await);
    assert!(why.contains("refuses connections"), "{why}");
    server.restart().await;
    serves_again(&redis).await;
}

#[tokio::test]
async fn a_killed_server_that_kept_its_data_takes_up_where_it_was() {
    let Some(mut server) = RedisServer::start_with(&["appendonly yes", "appendfsync always"]).await else { return };
    let redis = open(&server.url());
    let (held, done) = (fresh_claim(), fresh_claim());
    granted(&redis, &held).await;
    granted(&redis, &done).await;
    redis.settle(&settle(&done, success("1")), DEADLINE).await.unwrap();
    server.kill();
    soon("it is certain that nothing happens", async || {
        matches!(
            redis.claim(&fresh_claim(), DEADLINE).await,
            Err(EngineError::Determinate(Determinate::Unavailable(_)))
        )
    })
    .await;
    // An idle connection detects it at the next health check. From then on calls fail at once.
    tokio::time::sleep(Duration::from_millis(150)).await;
    at_once(&redis).await;
    server.restart().await;
    serves_again(&redis).await;
    assert!(is_duplicate(&redis, &again(&held)).await && is_duplicate(&redis, &again(&done)).await);
    assert_eq!(redis.data_lost(), 0);
}

#[tokio::test]
async fn a_frozen_server_makes_calls_uncertain_and_then_certain() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = Redis::open(&format!("{}?connections=1", server.url()), impatient()).unwrap();
    granted(&redis, &fresh_claim()).await;
    server.freeze();
    let request = fresh_claim();
    let bound = Duration::from_secs(10);
    let answer = timeout(bound, redis.claim(&request, DEADLINE)).await.expect("within the response timeout");
    assert!(is_uncertain(&answer), "{answer:?}");
    // The next calls wait for one try to open a new connection; later ones do not wait.
    let answer = timeout(bound, redis.claim(&fresh_claim(), DEADLINE)).await;
    unavailable(answer.expect("within the connect timeout"));
    at_once(&redis).await;
    server.thaw();
    serves_again(&redis).await;
    // The claim sent into the frozen server was taken after all.
    soon("the frozen claim is found", async || granted(&redis, &request).await.lease_left.is_some()).await;
}

#[tokio::test]
async fn a_loading_server_is_unavailable_until_it_has_loaded() {
    let Some(mut server) = RedisServer::start_with(&["enable-debug-command yes"]).await else { return };
    let redis = open(&server.url());
    let request = fresh_claim();
    granted(&redis, &request).await;
    server.query::<String>("DEBUG POPULATE 10000");
    server.query::<String>("SAVE");
    server.kill();
    // Slow enough to be seen, 10,000 keys at half a millisecond each.
    server.restart_with(&["key-load-delay 500", "loading-process-events-interval-bytes 1024"]);
    soon("it is reported to be loading", async || {
        redis.claim(&again(&request), DEADLINE).await.is_err_and(|why| why.to_string().contains("LOADING"))
    })
    .await;
    soon("the claim is found again", async || is_duplicate(&redis, &again(&request)).await).await;
    assert_eq!(redis.data_lost(), 0);
}

#[tokio::test]
async fn a_network_that_refuses_drops_or_swallows_everything_heals() {
    let Some(server) = RedisServer::start().await else { return };
    let (mut proxy, redis) = behind_proxy_with(&server, impatient()).await;
    let request = fresh_claim();
    granted(&redis, &request).await;

    proxy.refuse().await;
    soon("it is certain", async || {
        redis.claim(&fresh_claim(), DEADLINE).await.is_err_and(|why| why.to_string().contains("refuses"))
    })
    .await;
    proxy.heal().await;
    serves_again(&redis).await;

    for mode in [Mode::Blackhole, Mode::HalfOpen] {
        proxy.set(mode);
        let answer = redis.claim(&fresh_claim(), DEADLINE).await;
        assert!(is_uncertain(&answer), "{mode:?}: {answer:?}");
        unavailable(redis.claim(&fresh_claim(), DEADLINE).await);
        proxy.heal().await;
        serves_again(&redis).await;
    }

    for _ in 0..5 {
        proxy.drop_connections();
        soon("it serves again", async || redis.claim(&fresh_claim(), DEADLINE).await.is_ok()).await;
    }
    proxy.set(Mode::Delay(Duration::from_millis(50)));
    assert!(is_duplicate(&redis, &again(&request)).await, "slow is not broken");
}

/// Each kind of call that changes something is uncertain without its reply.
#[tokio::test]
async fn a_change_whose_reply_is_lost_is_uncertain() {
    let Some(server) = RedisServer::start().await else { return };
    let (proxy, redis) = behind_proxy(&server).await;
    for outcome in [success("1"), Outcome::Failure, Outcome::Unknown] {
        let request = fresh_claim();
        granted(&redis, &request).await;
        proxy.lose_next_reply();
        let response = redis.settle(&settle(&request, outcome.clone()), DEADLINE).await;
        assert!(is_uncertain(&response), "{outcome:?}: {response:?}");
        soon("it serves again", async || redis.probe().await.is_ok()).await;
        let state = redis.read(&request.key).await.unwrap().map(|held| held.record.state);
        assert_ne!(state, Some(ClaimState::InProgress), "it did happen");
    }
    let request = fresh_claim();
    granted(&redis, &request).await;
    proxy.lose_next_reply();
    assert!(is_uncertain(&redis.renew(&renew(&request, None), DEADLINE).await));
    soon("it serves again", async || redis.probe().await.is_ok()).await;
    proxy.lose_next_reply();
    let release = ReleaseRequest { key: request.key.clone(), attempt: request.attempt.clone(), result: None };
    assert!(is_uncertain(&redis.release(&release).await));
    soon("it serves again", async || redis.probe().await.is_ok()).await;
    assert_eq!(redis.read(&request.key).await, Ok(None), "it did happen");
    proxy.lose_next_reply();
    unavailable(redis.read(&request.key).await);
}

#[tokio::test]
async fn an_unresolvable_name_and_another_kind_of_server_are_reported() {
    let redis = open("redis://nowhere.invalid");
    unavailable(timeout(Duration::from_secs(10), redis.claim(&fresh_claim(), DEADLINE)).await.expect("bounded"));
    // A listener that accepts connections and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://me:hunter2@{}", silent.local_addr().unwrap());
    let redis = Redis::open(&url, Options { connect_timeout: Duration::from_millis(100), ..options() }).unwrap();
    let why = unavailable(redis.claim(&fresh_claim(), DEADLINE).await);
    assert!(why.contains("100ms") && !why.contains("hunter2"), "{why}");
}

#[tokio::test]
async fn a_closed_engine_answers_what_is_under_way_and_refuses_the_rest() {
    let Some(server) = RedisServer::start().await else { return };
    let proxy = TcpProxy::start(server.address()).await;
    let redis = std::sync::Arc::new(open(&format!("redis://{}?connections=1", proxy.address())));
    redis.probe().await.unwrap();
    proxy.set(Mode::Delay(Duration::from_millis(50)));
    let under_way = {
        let redis = redis.clone();
        tokio::spawn(async move { redis.claim(&fresh_claim(), DEADLINE).await })
    };
    tokio::time::sleep(Duration::from_millis(20)).await;
    timeout(Duration::from_secs(10), redis.close()).await.expect("it closes");
    assert!(under_way.await.unwrap().is_ok());
    assert!(unavailable(redis.claim(&fresh_claim(), DEADLINE).await).contains("closed"));
    unavailable(redis.probe().await.map(drop));
    let ours = || server.query::<String>("CLIENT LIST TYPE normal").matches("name=oncegate").count();
    soon("it lets go of the server", async || ours() == 0).await;
}
