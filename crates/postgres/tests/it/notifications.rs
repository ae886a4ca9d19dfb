//! Notifications through the server: the end of a claim reaches its waiters, and a lost session costs only that.

use oncegate_core::claim::Outcome;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Channel, Engine as _, Subscription};
use oncegate_testkit::postgres_server::PostgresServer;
use tokio::time::timeout;

use super::*;

async fn live(engine: &Postgres, request: &ClaimRequest) -> Subscription {
    let channel = Channel::of_claim(&request.key);
    let mut subscription = engine.subscribe(&channel).await;
    soon("notifications", async || {
        subscription = engine.subscribe(&channel).await;
        subscription.is_live()
    })
    .await;
    subscription
}

fn waiting(request: &ClaimRequest) -> ClaimRequest {
    ClaimRequest { waits: true, ..again(request) }
}

async fn is_notified(subscription: &mut Subscription) -> bool {
    timeout(Duration::from_secs(15), subscription.notified()).await.is_ok()
}

#[tokio::test]
async fn the_end_of_a_claim_reaches_another_gateway() {
    let Some(server) = PostgresServer::start().await else { return };
    let (holder, waiter) = (open(&server.url()), open(&server.url()));
    for outcome in [success("1"), Outcome::Failure, Outcome::Unknown] {
        let request = fresh_claim();
        granted(&holder, &request).await;
        let mut subscription = live(&waiter, &request).await;
        assert!(is_duplicate(&waiter, &waiting(&request)).await);
        holder.settle(&settle(&request, outcome), DEADLINE).await.unwrap();
        assert!(is_notified(&mut subscription).await);
    }
}

#[tokio::test]
async fn only_a_claim_that_is_waited_for_is_marked_and_nothing_else_of_it_changes() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = open(&server.url());
    let request = fresh_claim();
    granted(&engine, &request).await;
    assert!(is_duplicate(&engine, &again(&request)).await);
    let stored = async || server.query(&format!("SELECT convert_from(value, 'UTF8') FROM {}", row(&request))).await;
    let rest = async || {
        let columns = "concat_ws(' ', fence, state, expires_at, sweep_at)";
        server.query(&format!("SELECT {columns} FROM {}", row(&request))).await
    };
    let (plain, others) = (stored().await, rest().await);
    assert!(!plain.contains(" w "), "{plain}");
    for _ in 0..2 {
        assert!(is_duplicate(&engine, &waiting(&request)).await);
        assert_eq!((stored().await, rest().await), (plain.replacen(" 1p ", " 1p w ", 1), others.clone()));
    }
}

#[tokio::test]
async fn after_a_lost_session_the_next_subscription_is_notified() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = open(&server.url());
    let request = fresh_claim();
    granted(&engine, &request).await;
    let lost = live(&engine, &request).await;
    assert!(is_duplicate(&engine, &waiting(&request)).await);
    let listening = "query LIKE 'LISTEN%' OR query LIKE 'SELECT pg_is_in_recovery()'";
    server
        .query(&format!("SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity WHERE {listening}"))
        .await;
    soon("the loss", async || !lost.is_live()).await;
    let mut subscription = live(&engine, &request).await;
    engine.settle(&settle(&request, Outcome::Failure), DEADLINE).await.unwrap();
    assert!(is_notified(&mut subscription).await);
}
