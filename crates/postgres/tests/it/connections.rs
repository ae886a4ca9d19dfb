//! The order of calls: a few calls share one connection, calls on one key keep their order, and other calls avoid a
//! slow connection.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use oncegate_core::claim::{ClaimResponse, OutcomeResponse};
use oncegate_core::engine::Claims as _;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_postgres::{Options, Postgres};
use oncegate_testkit::calls::{granted, settle, success};
use oncegate_testkit::postgres_server::PostgresServer;
use sqlx::Executor as _;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{open, options, row, serves, soon};

#[tokio::test]
async fn an_outcome_never_overtakes_its_claim_however_busy_the_connections_are() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = Arc::new(open(&format!("{}&connections=3", server.url())));
    serves(&engine).await;
    // More callers than one connection has room for.
    let mut callers = JoinSet::new();
    for _ in 0..300 {
        let engine = engine.clone();
        callers.spawn(async move { while engine.claim(&fresh_claim(), DEADLINE).await.is_ok() {} });
    }
    for _ in 0..20 {
        // Asked in this order, and neither waits for the other's answer.
        join_all((0..10).map(|_| async {
            let request = fresh_claim();
            let success = settle(&request, success("1"));
            let (claimed, settled) = join(engine.claim(&request, DEADLINE), engine.settle(&success, DEADLINE)).await;
            assert!(matches!(claimed, Ok(ClaimResponse::Granted(_))), "{claimed:?}");
            assert!(matches!(settled, Ok(OutcomeResponse::Done { late: Some(false), .. })), "{settled:?}");
        }))
        .await;
    }
    callers.shutdown().await;
}

#[tokio::test]
async fn a_waiting_statement_delays_no_later_call() {
    let Some(server) = PostgresServer::start().await else { return };
    let patient = Options { response_timeout: Duration::from_secs(30), ..options() };
    let engine = Arc::new(Postgres::open(&format!("{}&connections=2", server.url()), patient).unwrap());
    serves(&engine).await;
    let locked = fresh_claim();
    granted(&*engine, &locked).await;
    let mut session = PostgresServer::connect(&server.url()).await.unwrap();
    let lock = format!("BEGIN; SELECT 1 FROM {} FOR UPDATE", row(&locked));
    session.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(lock))).await.unwrap();
    let success = settle(&locked, success("1"));
    let asked = engine.clone();
    let stuck = tokio::spawn(async move { asked.settle(&success, DEADLINE).await });
    let answered = async || timeout(Duration::from_millis(100), engine.claim(&fresh_claim(), DEADLINE)).await.is_ok();
    // Some may come before it is known to be slow.
    soon("the other connection is busy", async || answered().await && answered().await).await;
    let mut late = 0;
    for _ in 0..50 {
        late += i32::from(timeout(Duration::from_secs(10), engine.claim(&fresh_claim(), DEADLINE)).await.is_err());
    }
    // A key may happen to go the way of the locked one.
    assert!(late <= 3, "{late} of 50 were held up");
    assert!(!stuck.is_finished(), "the row is locked all along");
    session.execute(sqlx::raw_sql("ROLLBACK")).await.unwrap();
    let settled = stuck.await.unwrap();
    assert!(matches!(settled, Ok(OutcomeResponse::Done { .. })), "{settled:?}");
}
