//! Notifications through the server: the end of a claim reaches its waiters, and a lost session costs only that.

use oncegate_core::claim::Outcome;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Channel, Claims as _, Records as _, Subscription};
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
    let listening = "query LIKE 'LISTEN%' OR query LIKE 'SELECT 1'";
    server
        .query(&format!("SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity WHERE {listening}"))
        .await;
    soon("the loss", async || !lost.is_live()).await;
    let mut subscription = live(&engine, &request).await;
    engine.settle(&settle(&request, Outcome::Failure), DEADLINE).await.unwrap();
    assert!(is_notified(&mut subscription).await);
}

#[tokio::test]
async fn a_claim_that_ends_before_it_is_marked_is_claimed_again() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = open(&server.url());
    let (request, taken_over) = (fresh_claim(), fresh_claim());
    granted(&engine, &request).await;
    let mut subscription = live(&engine, &request).await;
    // In place of the mark, the claim ends.
    server
        .execute(
            "CREATE FUNCTION end_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF position(' 1p w '::bytea IN NEW.value) = 0 OR OLD.fence <> NEW.fence THEN RETURN NEW; END IF; \
             UPDATE oncegate_claims SET expires_at = clock_timestamp() WHERE app = NEW.app AND global_id = NEW.global_id; \
             RETURN NULL; END $$; \
             CREATE TRIGGER end_it BEFORE UPDATE ON oncegate_claims FOR EACH ROW EXECUTE FUNCTION end_it()",
        )
        .await;
    let next = waiting(&request);
    assert_eq!(granted(&engine, &next).await.attempt, next.attempt);
    // The claim of a caller that waited is marked, so that its end is notified, too.
    engine.settle(&settle(&next, Outcome::Failure), DEADLINE).await.unwrap();
    assert!(is_notified(&mut subscription).await);
    server.execute("DROP TRIGGER end_it ON oncegate_claims").await;

    granted(&engine, &taken_over).await;
    engine.settle(&settle(&taken_over, Outcome::Unknown), DEADLINE).await.unwrap();
    assert!(granted(&engine, &ClaimRequest { take_over: true, ..waiting(&taken_over) }).await.taken_over);
    let value = server.query(&format!("SELECT convert_from(value, 'UTF8') FROM {}", row(&taken_over))).await;
    assert!(value.contains(" 1p w "), "{value}");
}

#[tokio::test]
async fn a_standby_is_passed_over_since_it_notifies_of_nothing() {
    use oncegate_database::{Address, listen};

    let Some(primary) = PostgresServer::start().await else { return };
    let standby = primary.standby(&[]).await;
    let url =
        |servers: String| Address::parse(&format!("postgres://postgres@{servers}/postgres?sslmode=disable")).unwrap();
    let listen = async |servers: String| listen::listen(&url(servers), "oncegate", Duration::from_secs(10)).await;
    assert!(listen(standby.address().to_string()).await.is_err());
    let mut listener = listen(format!("{},{}", standby.address(), primary.address())).await.unwrap();
    primary.execute("NOTIFY oncegate, 'of a claim'").await;
    let notification = timeout(Duration::from_secs(10), listener.recv()).await.unwrap().unwrap();
    assert_eq!(notification.payload(), "of a claim");
    listen::check(&mut listener).await.unwrap();
}
