//! Tests of watches, and of the loss of the member that serves them.

use std::time::Duration;

use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Channel, Claims as _, Engine, Subscription};
use oncegate_core::record::Key;

use super::{Cluster, engine, granted, serves_again, settle, soon, success};

/// Longest time until a notification arrives, also on a busy machine.
const NOTIFIED_WITHIN: Duration = Duration::from_secs(20);

/// Subscribes until the subscription is live.
async fn subscribed(engine: &impl Engine, key: &Key) -> Subscription {
    let mut live = None;
    soon("a live subscription", async || {
        let subscription = engine.subscribe(&Channel::of_claim(key)).await;
        live = subscription.is_live().then_some(subscription);
        live.is_some()
    })
    .await;
    live.unwrap()
}

/// Freezes the member that a subscription is at. The others still have a quorum.
async fn freeze_member_of(subscription: &Subscription, cluster: &Cluster) {
    for member in 0..cluster.size() {
        cluster.freeze(member);
        for _ in 0..100 {
            if !subscription.is_live() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        cluster.thaw(member);
    }
    panic!("the subscription is at no member");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_ends_with_its_member_and_the_next_one_is_at_another() {
    let Some(cluster) = Cluster::start().await else { return };
    let engine = engine::open(&cluster.url(), engine::Options::default()).unwrap();
    serves_again(&engine).await;
    let request = fresh_claim();
    granted(&engine, &request).await;
    let subscription = subscribed(&engine, &request.key).await;
    freeze_member_of(&subscription, &cluster).await;
    drop(subscription);
    // On a busy machine, a further one may end with a late heartbeat.
    for _ in 0..10 {
        let request = fresh_claim();
        granted(&engine, &request).await;
        let mut subscription = subscribed(&engine, &request.key).await;
        soon("the outcome is stored", async || engine.settle(&settle(&request, success("1")), DEADLINE).await.is_ok())
            .await;
        if tokio::time::timeout(NOTIFIED_WITHIN, subscription.notified()).await.is_ok() {
            return;
        }
        assert!(!subscription.is_live(), "the outcome is notified");
    }
    panic!("no subscription lasts");
}
