//! Notifications through the server: the end of a claim reaches its waiters, and a lost connection or right costs only that.

use oncegate_core::claim::Outcome;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Channel, Claims as _, Records as _, Subscription};
use tokio::time::timeout;

use super::*;

async fn live(redis: &Redis, request: &ClaimRequest) -> Subscription {
    let channel = Channel::of_claim(&request.key);
    let mut subscription = redis.subscribe(&channel).await;
    soon("notifications", async || {
        subscription = redis.subscribe(&channel).await;
        subscription.is_live()
    })
    .await;
    subscription
}

fn waiting(request: &ClaimRequest) -> ClaimRequest {
    ClaimRequest { waits: true, ..again(request) }
}

async fn duplicate(redis: &Redis, request: &ClaimRequest) {
    assert!(is_duplicate(redis, request).await);
}

async fn fails(redis: &Redis, request: &ClaimRequest) {
    redis.settle(&settle(request, Outcome::Failure), DEADLINE).await.unwrap();
}

async fn is_notified(subscription: &mut Subscription) -> bool {
    timeout(Duration::from_secs(15), subscription.notified()).await.is_ok()
}

#[tokio::test]
async fn the_end_of_a_claim_reaches_another_gateway() {
    let Some(server) = RedisServer::start().await else { return };
    let (holder, waiter) = (open(&server.url()), open(&server.url()));
    let request = fresh_claim();
    granted(&holder, &request).await;
    let mut subscription = live(&waiter, &request).await;
    duplicate(&waiter, &waiting(&request)).await;
    fails(&holder, &request).await;
    assert!(is_notified(&mut subscription).await);
}

#[tokio::test]
async fn only_a_claim_that_is_waited_for_is_marked() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let value = |request: &ClaimRequest| server.query::<String>(&format!("GET {}", name(request)));
    let ttl = |request: &ClaimRequest| server.query::<i64>(&format!("PEXPIRETIME {}", name(request)));
    let request = fresh_claim();
    granted(&redis, &request).await;
    duplicate(&redis, &again(&request)).await;
    let (plain, ends_at) = (value(&request), ttl(&request));
    assert!(!plain.contains(" w "), "{plain}");
    duplicate(&redis, &waiting(&request)).await;
    let marked = plain.replacen(" 1p ", " 1p w ", 1);
    assert_eq!((value(&request), ttl(&request)), (marked.clone(), ends_at));
    duplicate(&redis, &waiting(&request)).await;
    assert_eq!((value(&request), ttl(&request)), (marked, ends_at), "it is marked once");
}

#[tokio::test]
async fn a_server_that_is_full_grants_nothing_to_those_who_wait() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let request = fresh_claim();
    granted(&redis, &request).await;
    server.query::<String>("CONFIG SET maxmemory 1");
    assert!(redis.claim(&ClaimRequest { waits: true, ..fresh_claim() }, DEADLINE).await.is_err());
    duplicate(&redis, &waiting(&request)).await;
    server.query::<String>("CONFIG SET maxmemory 0");
}

#[tokio::test]
async fn a_missing_right_costs_the_notification_and_not_the_outcome() {
    let Some(server) = RedisServer::start().await else { return };
    server.query::<String>("ACL SETUSER mute on >hunter2 ~og:* +@all -spublish resetchannels");
    let mute = open(&server.url().replace("redis://", "redis://mute:hunter2@"));
    let redis = open(&server.url());
    let request = fresh_claim();
    granted(&redis, &request).await;
    duplicate(&mute, &waiting(&request)).await;
    assert!(!mute.subscribe(&Channel::of_claim(&request.key)).await.is_live());
    fails(&mute, &request).await;
    granted(&mute, &again(&request)).await;
}

#[tokio::test]
async fn after_a_lost_connection_the_next_subscription_is_notified() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let request = fresh_claim();
    granted(&redis, &request).await;
    let lost = live(&redis, &request).await;
    duplicate(&redis, &waiting(&request)).await;
    server.query::<i64>("CLIENT KILL TYPE pubsub");
    soon("the loss", async || !lost.is_live()).await;
    let mut subscription = live(&redis, &request).await;
    fails(&redis, &request).await;
    assert!(is_notified(&mut subscription).await);
}

#[tokio::test]
async fn no_subscription_is_left_at_the_server() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let request = fresh_claim();
    drop(live(&redis, &request).await);
    let channels = || server.query::<Vec<String>>("PUBSUB SHARDCHANNELS");
    soon("no channel", async || channels().is_empty()).await;
    let _subscription = live(&redis, &request).await;
    assert_eq!(channels(), [name(&request)]);
}

#[tokio::test]
async fn a_subscription_stays_while_its_connection_is_good() {
    let Some(server) = RedisServer::start().await else { return };
    let redis = open(&server.url());
    let subscription = live(&redis, &fresh_claim()).await;
    // Longer than two heartbeats, which look after the connection.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(subscription.is_live());
    assert_eq!(server.query::<i64>("CLIENT KILL TYPE pubsub"), 1);
}

#[tokio::test]
async fn a_subscription_that_is_refused_begins_again_and_disturbs_no_other() {
    let Some(server) = RedisServer::start().await else { return };
    let (allowed, refused) = (fresh_claim(), fresh_claim());
    let channels = |request: &ClaimRequest| format!("ACL SETUSER few &{}", name(request));
    server.query::<String>("ACL SETUSER few on >hunter2 ~og:* +@all resetchannels");
    server.query::<String>(&channels(&allowed));
    let redis = open(&server.url().replace("redis://", "redis://few:hunter2@"));
    let other = live(&redis, &allowed).await;
    let early = redis.subscribe(&Channel::of_claim(&refused.key)).await;
    assert!(!early.is_live() && other.is_live());
    server.query::<String>(&channels(&refused));
    // While the early one is still there.
    let _later = live(&redis, &refused).await;
    assert!(other.is_live());
    drop(early);
}
