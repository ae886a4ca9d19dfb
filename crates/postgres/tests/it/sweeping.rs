//! The sweeper: rows that it deletes, and rows that it must keep.

use std::time::Duration;

use oncegate_core::claim::{ClaimRequest, Outcome, RenewalRequest, RenewalResponse};
use oncegate_core::clock::{Clock, SystemClock};
use oncegate_core::engine::Claims as _;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::terms::{LeaseEnd, Retention, Terms};
use oncegate_database::{Address, schema};
use oncegate_postgres::{Options, Postgres};
use oncegate_testkit::postgres_server::PostgresServer;
use sqlx::Executor as _;

use super::{again, granted, open, row, serves, settle, soon, success};

/// Moves the end of a claim's row, and makes the sweeper look at it.
async fn shift(server: &PostgresServer, request: &ClaimRequest, seconds: i32) {
    let key = row(request);
    let (_, key) = key.split_once("WHERE").unwrap();
    let sql = "UPDATE oncegate_claims SET expires_at = clock_timestamp() + interval '1 second' *";
    server.execute(&format!("{sql} {seconds}, sweep_at = clock_timestamp() WHERE {key}")).await;
}

/// Waits until the sweeper has read a row. Returns true if it is still there.
async fn is_left(server: &PostgresServer, request: &ClaimRequest) -> bool {
    let seen = format!("SELECT sweep_at > clock_timestamp() FROM {}", row(request));
    soon("it was looked at", async || {
        server.query(&format!("SELECT count(*) FROM {}", row(request))).await == "0"
            || server.query(&seen).await != "false"
    })
    .await;
    server.query(&format!("SELECT count(*) FROM {}", row(request))).await == "1"
}

#[tokio::test]
async fn ended_rows_are_swept_after_a_minute_and_not_before() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = open(&server.url());
    for outcome in [None, Some(success("1")), Some(Outcome::Unknown), Some(Outcome::Failure)] {
        let request = fresh_claim();
        granted(&engine, &request).await;
        if let Some(outcome) = outcome.clone() {
            engine.settle(&settle(&request, outcome), DEADLINE).await.unwrap();
        }
        shift(&server, &request, -50).await;
        assert!(is_left(&server, &request).await, "{outcome:?}: a fence may still be on its way");
        assert_eq!(engine.read(&request.key).await, Ok(None));
        shift(&server, &request, -70).await;
        assert!(!is_left(&server, &request).await, "{outcome:?}");
    }
}

#[tokio::test]
async fn a_claim_that_was_renewed_or_outlives_its_lease_is_left() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = open(&server.url());
    let request = fresh_claim();
    granted(&engine, &request).await;
    // Looked at early, as if it had been renewed since its end was guessed.
    shift(&server, &request, 100).await;
    assert!(is_left(&server, &request).await);
    let renewal = RenewalRequest { key: request.key.clone(), attempt: request.attempt.clone(), lease: None };
    assert!(matches!(engine.renew(&renewal, DEADLINE).await, Ok(RenewalResponse::Renewed { .. })));

    let terms = Terms { on_lease_end: LeaseEnd::Unknown, ..request.terms };
    let unknown = ClaimRequest { terms, ..fresh_claim() };
    granted(&engine, &unknown).await;
    shift(&server, &unknown, -1000).await;
    assert!(is_left(&server, &unknown).await);
    assert_eq!(server.query(&format!("SELECT sweep_at FROM {}", row(&unknown))).await, "", "it is not looked at again");
    // Until it is settled.
    engine.settle(&settle(&unknown, success("1")), DEADLINE).await.unwrap();
    assert_ne!(server.query(&format!("SELECT sweep_at FROM {}", row(&unknown))).await, "");
}

#[tokio::test]
async fn a_success_without_an_end_is_kept_and_its_failed_attempts_are_not() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = open(&server.url());
    let forever = |request: ClaimRequest| ClaimRequest {
        terms: Terms { retention: Retention::Forever, ..request.terms },
        ..request
    };
    let done = forever(fresh_claim());
    granted(&engine, &done).await;
    engine.settle(&settle(&done, success("1")), DEADLINE).await.unwrap();
    server.execute("UPDATE oncegate_claims SET sweep_at = clock_timestamp()").await;
    assert!(is_left(&server, &done).await);
    assert_eq!(server.query(&format!("SELECT sweep_at FROM {}", row(&done))).await, "");
    assert!(engine.read(&done.key).await.unwrap().is_some());

    let crashed = forever(fresh_claim());
    granted(&engine, &crashed).await;
    shift(&server, &crashed, -70).await;
    assert!(!is_left(&server, &crashed).await);
}

/// The statement took its fence before the stored claim was made. It may find the key free only after that claim was
/// swept.
#[tokio::test]
async fn nothing_goes_that_a_running_statement_could_be_older_than() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = open(&server.url());
    let request = fresh_claim();
    granted(&engine, &request).await;
    let mut running = PostgresServer::connect(&server.url()).await.unwrap();
    let running = tokio::spawn(async move { running.execute(sqlx::raw_sql("SELECT pg_sleep(8)")).await.map(drop) });
    soon("it runs", async || {
        server.query("SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(8)'").await == "1"
    })
    .await;
    shift(&server, &request, -59).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    server.execute("UPDATE oncegate_claims SET sweep_at = clock_timestamp()").await;
    assert!(is_left(&server, &request).await, "it ended more than a minute ago, but not before that statement began");
    running.await.unwrap().unwrap();
    server.execute("UPDATE oncegate_claims SET sweep_at = clock_timestamp()").await;
    assert!(!is_left(&server, &request).await);
}

#[tokio::test]
async fn all_that_has_ended_is_swept_when_an_engine_opens() {
    let Some(server) = PostgresServer::start().await else { return };
    schema::migrate(&Address::parse(&server.url()).unwrap(), Duration::from_secs(10)).await.unwrap();
    // Of claims more steps than of locks.
    server
        .execute(
            "CREATE TEMPORARY TABLE old AS \
             SELECT number, clock_timestamp() - interval '1 hour' AS at FROM generate_series(1, 2200) AS number; \
             INSERT INTO oncegate_claims (fence, expires_at, sweep_at, state, app, global_id, value) \
             SELECT 1, at, at, 's', 'shop', decode(lpad(to_hex(number), 32, '0'), 'hex'), '' FROM old; \
             INSERT INTO oncegate_locks (app, name, value, ends_at, sweep_at) \
             SELECT 'shop', 'n' || number, decode('010203040506070809', 'hex'), at, at FROM old WHERE number <= 700",
        )
        .await;
    let options = Options { sweep_interval: Duration::from_hours(1), ..super::options() };
    let _engine = Postgres::open(&server.url(), options).unwrap();
    soon("all are swept", async || {
        let counts = "SELECT (SELECT count(*) FROM oncegate_claims) || ' ' || (SELECT count(*) FROM oncegate_locks)";
        server.query(counts).await == "0 0"
    })
    .await;
}

#[tokio::test]
async fn one_gateway_sweeps_at_a_time() {
    let Some(server) = PostgresServer::start().await else { return };
    let (engine, _other) = (open(&server.url()), open(&server.url()));
    let request = fresh_claim();
    granted(&engine, &request).await;
    let mut turn = PostgresServer::connect(&server.url()).await.unwrap();
    turn.execute(sqlx::raw_sql("SELECT pg_advisory_lock(1869505383, 2)")).await.unwrap();
    shift(&server, &request, -100).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(server.query(&format!("SELECT count(*) FROM {}", row(&request))).await, "1");
    drop(turn);
    soon("it goes", async || server.query(&format!("SELECT count(*) FROM {}", row(&request))).await == "0").await;
}

/// A few hot keys are claimed and released again and again, and many cold ones come and go. The size of the tables
/// stays bounded, and no call waits for the sweeper.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_and_cold_keys_for_a_while_take_bounded_room() {
    soak(Duration::from_secs(4), 1_000).await;
}

/// `cargo test --release --test it -- --ignored --nocapture hot_and_cold_keys_for_minutes`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn hot_and_cold_keys_for_minutes_take_bounded_room() {
    soak(Duration::from_mins(10), 10_000).await;
}

/// Number of parts of a soak test that are compared.
const PARTS: u32 = 10;

#[expect(clippy::print_stdout, reason = "the figures are for a run by hand")]
async fn soak(span: Duration, keys: usize) {
    let Some(server) = PostgresServer::start_with(&["autovacuum_naptime = 1s", "max_wal_size = '4GB'"]).await else {
        return;
    };
    let engine = std::sync::Arc::new(open(&server.url()));
    serves(&engine).await;
    // Ended rows are kept for a minute; older rows save the wait.
    let terms = Terms { retention: Retention::For(Duration::from_secs(1)), ..fresh_claim().terms };
    let cold: Vec<_> = (0..keys).map(|_| ClaimRequest { terms, ..fresh_claim() }).collect();
    let cold = std::sync::Arc::new(cold);
    let clock = SystemClock::new();
    let started = clock.monotonic();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..16_usize {
        let (engine, cold) = (engine.clone(), cold.clone());
        callers.spawn(async move {
            let clock = SystemClock::new();
            let hot = ClaimRequest { terms, ..cold[caller].clone() };
            let mut took = Vec::new();
            let mut place = caller;
            while clock.monotonic().saturating_sub(started) < span {
                place = (place + 16) % cold.len();
                for (base, failed) in [(&hot, true), (&cold[place], false)] {
                    let request = again(base);
                    let asked = clock.monotonic();
                    let granted = engine.claim(&request, DEADLINE).await.unwrap();
                    let answered = clock.monotonic();
                    took.push((answered.saturating_sub(started), answered.saturating_sub(asked)));
                    if matches!(granted, oncegate_core::claim::ClaimResponse::Granted(_)) {
                        let outcome = if failed { Outcome::Failure } else { success("1") };
                        engine.settle(&settle(&request, outcome), DEADLINE).await.unwrap();
                    }
                }
            }
            took
        });
    }
    let bytes = "SELECT pg_total_relation_size('oncegate_claims')";
    let mut most: u64 = 0;
    while clock.monotonic().saturating_sub(started) < span {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let age = "UPDATE oncegate_claims AS aged SET expires_at = expires_at - interval '2 minutes', \
                   sweep_at = clock_timestamp() FROM ( \
                       SELECT app, global_id FROM oncegate_claims \
                       WHERE expires_at < clock_timestamp() AND sweep_at > clock_timestamp() FOR UPDATE SKIP LOCKED) AS ended \
                   WHERE aged.app = ended.app AND aged.global_id = ended.global_id";
        server.execute(age).await;
        most = most.max(server.query(bytes).await.parse().unwrap());
    }
    let took: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
    let rows = server.query("SELECT count(*) FROM oncegate_claims").await;
    println!("{} calls, at most {most} bytes for {keys} keys, {rows} rows at the end", took.len());
    let part = |place: u32| {
        let within = |at: &Duration| (span * place / PARTS..span * (place + 1) / PARTS).contains(at);
        let mut took: Vec<_> = took.iter().filter(|(at, _)| within(at)).map(|(_, took)| *took).collect();
        took.sort_unstable();
        // If the machine stands still, nothing is answered in a part.
        took.get(took.len() * 99 / 100).copied().unwrap_or(span)
    };
    let parts: Vec<_> = (0..PARTS).map(part).collect();
    println!("p99 of each part: {parts:?}");
    // Flat, on a machine with other work: the best value of the second half is no worse than that of the first.
    let (first, second) = parts.split_at(parts.len() / 2);
    let best = |parts: &[Duration]| parts.iter().min().copied().unwrap_or_default();
    assert!(best(second) < best(first) * 3 + Duration::from_millis(100), "{parts:?}");
    // What lives is at most one row a key; dead rows and room left on pages make it a few times as much.
    let bound = 8 * 1024 * 1024 + u64::try_from(keys).unwrap() * 2_000;
    assert!(most < bound, "{most} bytes, more than {bound}");
}
