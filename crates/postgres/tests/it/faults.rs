//! Faults between the engine and its server, and of the server itself.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::claim::{ClaimResponse, Outcome, OutcomeResponse, RenewalRequest};
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Determinate, EngineError, Topology as _};
use oncegate_core::operator::{ReleaseRequest, ReleaseResponse};
use oncegate_core::record::ClaimState;
use oncegate_postgres::{Options, Postgres};
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};
use sqlx::Executor as _;
use tokio_util::sync::CancellationToken;

use super::{
    again, granted, is_duplicate, is_uncertain, open, options, row, serves, serves_again, settle, soon, success,
    unavailable,
};

const HOUR: Duration = Duration::from_hours(1);

/// The last statement of a sweep leaves a trace when it runs, not when it is prepared.
const COUNT_SWEEPS: &str = "
    CREATE TABLE swept ();
    CREATE FUNCTION count_sweep() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO swept DEFAULT VALUES; RETURN NULL; END';
    CREATE TRIGGER count_sweep AFTER DELETE ON oncegate_locks FOR EACH STATEMENT EXECUTE FUNCTION count_sweep();";

/// An engine that reaches the server through a proxy, over one connection for calls.
async fn behind_proxy(server: &PostgresServer) -> (TcpProxy, Postgres) {
    behind_proxy_with(server, options()).await
}

/// The same with the timeouts of these options.
async fn behind_proxy_with(server: &PostgresServer, timeouts: Options) -> (TcpProxy, Postgres) {
    let proxy = TcpProxy::start_any(server.address()).await;
    let url = format!("postgres://postgres@{}/postgres?sslmode=disable&connections=1", proxy.address());
    let direct = open(&server.url());
    serves(&direct).await;
    direct.close().await;
    let mut connection = PostgresServer::connect(&server.url()).await.unwrap();
    connection.execute(COUNT_SWEEPS).await.unwrap();
    // It sweeps once, when it is opened. After that, every reply belongs to a call.
    let rare = Duration::from_hours(1);
    let quiet = Options { sweep_interval: rare, heartbeat_interval: rare, ..timeouts };
    let engine = Postgres::open(&url, quiet).unwrap();
    soon("it has swept", async || {
        let idle = "query LIKE '%DELETE FROM oncegate_locks%' AND state = 'idle' AND pid <> pg_backend_pid()";
        let swept = format!("SELECT EXISTS (SELECT FROM swept) AND EXISTS (SELECT FROM pg_stat_activity WHERE {idle})");
        server.query(&swept).await == "true"
    })
    .await;
    serves(&engine).await;
    // Prepared once, a statement is one round trip.
    granted(&engine, &fresh_claim()).await;
    (proxy, engine)
}

#[tokio::test]
async fn a_reply_that_is_lost_is_uncertain_and_the_same_attempt_recognises_itself() {
    let Some(server) = PostgresServer::start().await else { return };
    let (proxy, engine) = behind_proxy(&server).await;
    let request = fresh_claim();
    proxy.lose_next_reply();
    assert!(is_uncertain(&engine.claim(&request, DEADLINE).await), "it may have happened");
    serves(&engine).await;
    // It did happen.
    let grant = granted(&engine, &request).await;
    assert!(!grant.repeated && grant.lease_left.is_some(), "{grant:?}");
    assert!(is_duplicate(&engine, &again(&request)).await);

    proxy.lose_next_reply();
    assert!(is_uncertain(&engine.settle(&settle(&request, success("1")), DEADLINE).await));
    serves(&engine).await;
    let settled = engine.settle(&settle(&request, success("2")), DEADLINE).await.unwrap();
    assert!(matches!(settled, OutcomeResponse::Done { late: Some(false), .. }), "{settled:?}");
    let held = engine.read(&request.key).await.unwrap().expect("it stands");
    assert_eq!(held.record.result.as_deref(), Some("1"));

    // A call that changes nothing is never uncertain.
    proxy.lose_next_reply();
    unavailable(engine.read(&request.key).await);
}

/// The claim may have ended or not: no later answer may report that it certainly still exists.
#[tokio::test]
async fn a_failure_report_whose_reply_is_lost_is_uncertain() {
    let Some(server) = PostgresServer::start().await else { return };
    let (proxy, engine) = behind_proxy(&server).await;
    let request = fresh_claim();
    granted(&engine, &request).await;
    proxy.lose_next_reply();
    let response = engine.settle(&settle(&request, Outcome::Failure), DEADLINE).await;
    assert!(is_uncertain(&response), "{response:?}");
    serves(&engine).await;
    assert_eq!(engine.read(&request.key).await, Ok(None), "it did happen");

    // The same without a record, where the success is recorded late.
    let late = fresh_claim();
    proxy.lose_reply_after(1);
    let response = engine.settle(&settle(&late, success("1")), DEADLINE).await;
    assert!(is_uncertain(&response), "{response:?}");
    serves(&engine).await;
    assert_eq!(engine.read(&late.key).await.unwrap().unwrap().record.state, ClaimState::Succeeded, "it did happen");
}

/// A claim that waited for a row has a higher fence than the released claim that had the row before.
#[tokio::test]
async fn a_fence_is_above_those_drawn_while_its_claim_waited_for_the_row() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = Arc::new(open(&server.url()));
    let mut session = PostgresServer::connect(&server.url()).await.unwrap();
    for first_ends in ["state = 'r', value = ''", "expires_at = clock_timestamp() - interval '1 second'"] {
        let request = fresh_claim();
        granted(&*engine, &request).await;
        let row = row(&request);
        let (table, condition) = row.split_once(" WHERE ").unwrap();
        let update = async |session: &mut sqlx::PgConnection, set: &str| {
            let sql = format!("UPDATE {table} SET {set} WHERE {condition}");
            session.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(sql))).await.unwrap();
        };
        update(&mut session, first_ends).await;
        session.execute("BEGIN").await.unwrap();
        update(&mut session, "fence = fence").await;
        let waiting = {
            let (engine, request) = (engine.clone(), again(&request));
            tokio::spawn(async move { granted(&*engine, &request).await.fence.unwrap() })
        };
        soon("the claim waits for the row", async || {
            server.query("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").await == "1"
        })
        .await;
        // As the other one's claim and its release would leave it.
        let theirs: u64 = server.query("SELECT nextval('oncegate_fence')").await.parse().unwrap();
        update(&mut session, &format!("fence = {theirs}")).await;
        session.execute("COMMIT").await.unwrap();
        let fence = waiting.await.unwrap();
        assert!(fence > theirs, "{fence} after {theirs} was taken");
        let held = server.query(&format!("SELECT fence FROM {row}")).await;
        assert_eq!(held, fence.to_string());
    }
}

/// A change by a second statement is uncertain if the reply to that statement is lost.
#[tokio::test]
async fn a_change_whose_reply_is_lost_is_uncertain() {
    let Some(server) = PostgresServer::start().await else { return };
    let (proxy, engine) = behind_proxy(&server).await;
    let request = fresh_claim();
    let renewal = RenewalRequest { key: request.key.clone(), attempt: request.attempt.clone(), lease: Some(HOUR * 5) };
    let held = async || engine.read(&request.key).await.unwrap();
    granted(&engine, &request).await;
    // Prepared once, a statement is one round trip, and the second one brings the second reply.
    engine.renew(&RenewalRequest { lease: Some(HOUR * 2), ..renewal.clone() }, DEADLINE).await.unwrap();
    proxy.lose_reply_after(1);
    let response = engine.renew(&renewal, DEADLINE).await;
    assert!(is_uncertain(&response), "{response:?}");
    serves(&engine).await;
    assert!(held().await.unwrap().left.unwrap() > HOUR * 4, "it did happen");

    // The new connection has its statements to prepare as well.
    engine.renew(&RenewalRequest { lease: Some(HOUR * 6), ..renewal.clone() }, DEADLINE).await.unwrap();
    proxy.lose_reply_after(1);
    let response = engine.settle(&settle(&request, Outcome::Unknown), DEADLINE).await;
    assert!(is_uncertain(&response), "{response:?}");
    serves(&engine).await;
    assert_eq!(held().await.unwrap().record.state, ClaimState::Unknown, "it did happen");
}

#[tokio::test]
async fn a_request_cut_in_the_middle_did_not_happen_and_is_uncertain() {
    let Some(server) = PostgresServer::start().await else { return };
    let (proxy, engine) = behind_proxy(&server).await;
    let request = fresh_claim();
    proxy.cut_after(100);
    assert!(is_uncertain(&engine.claim(&request, DEADLINE).await));
    serves(&engine).await;
    assert_eq!(engine.read(&request.key).await, Ok(None));
}

#[tokio::test]
async fn a_network_that_refuses_or_swallows_everything_heals() {
    let Some(server) = PostgresServer::start().await else { return };
    let (connect_timeout, response_timeout) = (Duration::from_secs(3), Duration::from_millis(1500));
    let impatient = Options { connect_timeout, response_timeout, ..options() };
    let (mut proxy, engine) = behind_proxy_with(&server, impatient).await;
    let request = fresh_claim();
    granted(&engine, &request).await;
    proxy.refuse().await;
    soon("it is certain", async || {
        engine.claim(&fresh_claim(), DEADLINE).await.is_err_and(|why| why.to_string().contains("refuses connections"))
    })
    .await;
    proxy.heal().await;
    serves_again(&engine).await;

    for mode in [Mode::Blackhole, Mode::HalfOpen] {
        proxy.set(mode);
        let held_back = fresh_claim();
        let answer = tokio::time::timeout(Duration::from_secs(5), engine.claim(&held_back, DEADLINE)).await;
        assert!(answer.as_ref().is_err() || is_uncertain(answer.as_ref().unwrap()), "{mode:?}: {answer:?}");
        proxy.heal().await;
        serves_again(&engine).await;
    }
    proxy.set(Mode::Delay(Duration::from_millis(50)));
    assert!(is_duplicate(&engine, &again(&request)).await, "slow is not broken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_nothing_and_serves_again() {
    let Some(mut server) = PostgresServer::start().await else { return };
    let engine = Arc::new(open(&server.url()));
    // The first connection makes the schema, and others may find a part of it.
    serves_again(&*engine).await;
    for _ in 0..3 {
        let stop = CancellationToken::new();
        let grants = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let callers: Vec<_> = (0..16)
            .map(|_| {
                let (engine, stop, grants) = (engine.clone(), stop.clone(), grants.clone());
                tokio::spawn(async move {
                    let mut held = Vec::new();
                    // Whose call waits until the server is back meets no failure.
                    while !stop.is_cancelled() {
                        let request = fresh_claim();
                        match engine.claim(&request, DEADLINE).await {
                            Ok(ClaimResponse::Granted(_)) => {
                                grants.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                                held.push(request);
                            }
                            Ok(other) => panic!("{other:?}"),
                            Err(_) => break,
                        }
                    }
                    held
                })
            })
            .collect();
        soon("claims are granted", async || grants.load(std::sync::atomic::Ordering::SeqCst) > 32).await;
        server.kill();
        stop.cancel();
        server.restart().await;
        serves_again(&*engine).await;
        let mut count = 0;
        for caller in callers {
            for request in caller.await.unwrap() {
                let held = engine.read(&request.key).await.unwrap().expect("what was granted stands");
                assert_eq!(held.record.attempt, request.attempt);
                count += 1;
            }
        }
        assert!(count > 16, "{count} grants");
    }
    assert_eq!(engine.data_lost(), 0);
}

#[tokio::test]
async fn an_orderly_shutdown_of_the_server_is_reported_and_service_returns_within_a_second() {
    let Some(mut server) = PostgresServer::start().await else { return };
    let engine = open(&server.url());
    let request = fresh_claim();
    granted(&engine, &request).await;
    server.shut_down();
    soon("it is reported", async || {
        let answer = engine.claim(&fresh_claim(), DEADLINE).await;
        assert!(answer.is_err());
        !is_uncertain(&answer)
    })
    .await;
    server.restart().await;
    serves_again(&engine).await;
    assert!(is_duplicate(&engine, &again(&request)).await);
    // An administrator ends our sessions.
    server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'oncegate'").await;
    serves_again(&engine).await;
}

#[tokio::test]
async fn calls_to_a_frozen_server_end_and_a_sent_call_may_still_take_effect() {
    let Some(server) = PostgresServer::start().await else { return };
    let impatient = Options { response_timeout: Duration::from_secs(2), ..options() };
    let engine = Arc::new(Postgres::open(&format!("{}&connections=1", server.url()), impatient).unwrap());
    let request = fresh_claim();
    granted(&*engine, &request).await;
    server.freeze();
    let given_up = fresh_claim();
    let gone = tokio::time::timeout(Duration::from_millis(100), engine.claim(&given_up, DEADLINE)).await;
    assert!(gone.is_err(), "there is no answer");
    server.thaw();
    serves_again(&*engine).await;
    // Its caller has disconnected, and the statement was not cancelled.
    soon("it happened", async || engine.read(&given_up.key).await.unwrap().is_some()).await;

    server.freeze();
    tokio::time::sleep(Duration::from_secs(3)).await;
    server.thaw();
    serves_again(&*engine).await;
    assert!(is_duplicate(&*engine, &again(&request)).await);
}

/// A commit that waits for an absent standby never ends.
#[tokio::test]
async fn a_server_that_waits_for_its_standby_is_not_filled_with_connections() {
    let Some(server) = PostgresServer::start_with(&["max_connections = 30"]).await else { return };
    let impatient = Options { response_timeout: Duration::from_millis(50), ..options() };
    let engine = Arc::new(Postgres::open(&format!("{}&connections=3", server.url()), impatient).unwrap());
    serves(&engine).await;
    server.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'").await;
    server.execute("SELECT pg_reload_conf()").await;
    // It gets a signal, and commits wait once its checkpointer has read the setting.
    let is_held_up =
        async || tokio::time::timeout(Duration::from_millis(30), engine.claim(&fresh_claim(), DEADLINE)).await.is_err();
    soon("commits wait for the standby", is_held_up).await;
    let ours = async || -> usize {
        let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oncegate'";
        server.query(count).await.parse().unwrap()
    };
    let mut most = 0;
    for _ in 0..100 {
        let calls = (0..10).map(|_| async {
            let answer = tokio::time::timeout(Duration::from_millis(30), engine.claim(&fresh_claim(), DEADLINE)).await;
            assert!(!matches!(answer, Ok(Ok(_))), "nothing is granted that is not durable");
        });
        futures_util::future::join_all(calls).await;
        most = most.max(ours().await);
    }
    assert!(most > 4, "some were left to themselves: {most}");
    assert!(most <= 3 + 1 + 6, "{most} connections");
    // A second pool does not help the sessions that wait already; a reload wakes them.
    server.execute("ALTER SYSTEM RESET synchronous_standby_names").await;
    server.execute("SELECT pg_reload_conf()").await;
    soon("it serves again", async || engine.claim(&fresh_claim(), DEADLINE).await.is_ok()).await;
}

#[tokio::test]
async fn a_locked_row_delays_only_its_own_key() {
    let Some(server) = PostgresServer::start().await else { return };
    let impatient = Options { response_timeout: Duration::from_secs(2), ..options() };
    let engine = Postgres::open(&format!("{}&connections=1", server.url()), impatient).unwrap();
    let (locked, free) = (fresh_claim(), fresh_claim());
    granted(&engine, &locked).await;
    granted(&engine, &free).await;
    let mut session = PostgresServer::connect(&server.url()).await.unwrap();
    let lock = format!("BEGIN; SELECT 1 FROM {} FOR UPDATE", row(&locked));
    session.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(lock))).await.unwrap();
    let stuck = settle(&locked, success("1"));
    assert!(tokio::time::timeout(Duration::from_millis(100), engine.settle(&stuck, DEADLINE)).await.is_err());
    soon("another key is served", async || engine.settle(&settle(&free, success("1")), DEADLINE).await.is_ok()).await;
    // The abandoned statement continues once it can.
    session.execute(sqlx::raw_sql("ROLLBACK")).await.unwrap();
    soon("it happened", async || {
        let held = engine.read(&locked.key).await.unwrap().expect("it stands");
        held.record.result.is_some()
    })
    .await;
}

#[tokio::test]
async fn a_promoted_standby_is_found_with_all_that_was_acknowledged() {
    let Some(mut primary) = PostgresServer::start().await else { return };
    let standby = primary.standby(&[]).await;
    primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await;
    primary.execute("SELECT pg_reload_conf()").await;
    soon("it is synchronous", async || {
        primary.query("SELECT sync_state FROM pg_stat_replication LIMIT 1").await == "sync"
    })
    .await;
    let both = format!("postgres://postgres@{},{}/postgres?sslmode=disable", primary.address(), standby.address());
    let engine = open(&both);
    let mut held = Vec::new();
    for _ in 0..50 {
        let request = fresh_claim();
        let fence = granted(&engine, &request).await.fence.unwrap();
        held.push((request, fence));
    }
    primary.kill();
    unavailable_or_uncertain(engine.claim(&fresh_claim(), DEADLINE).await);
    standby.promote().await;
    serves_again(&engine).await;
    assert_eq!(engine.data_lost(), 0, "a promoted standby has the data");
    for (request, fence) in held {
        assert!(is_duplicate(&engine, &again(&request)).await, "what was granted stands");
        assert!(matches!(
            engine.settle(&settle(&request, Outcome::Failure), DEADLINE).await,
            Ok(OutcomeResponse::Done { .. })
        ));
        let next = granted(&engine, &again(&request)).await.fence.unwrap();
        assert!(next > fence, "{next} does not rise above {fence}");
    }
}

fn unavailable_or_uncertain<T: std::fmt::Debug>(answer: Result<T, EngineError>) {
    if !is_uncertain(&answer) {
        unavailable(answer);
    }
}

#[tokio::test]
async fn a_database_that_comes_back_empty_is_noticed_and_fences_go_on_rising() {
    let Some(mut server) = PostgresServer::start().await else { return };
    let noticed = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = noticed.clone();
    let hook = Arc::new(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    });
    let engine = Postgres::open(&server.url(), Options { on_data_loss: Some(hook), ..options() }).unwrap();
    let request = fresh_claim();
    let fence = granted(&engine, &request).await.fence.unwrap();
    assert!(fence < 1 << 53);
    server.restart_empty().await;
    serves(&engine).await;
    assert_eq!((engine.data_lost(), noticed.load(std::sync::atomic::Ordering::SeqCst)), (1, 1));
    let next = granted(&engine, &again(&request)).await.fence.unwrap();
    assert!(next > fence, "{next} does not rise above {fence}");
}

#[tokio::test]
async fn fences_rise_over_a_back_up_that_was_restored() {
    let Some(server) = PostgresServer::start().await else { return };
    let request = fresh_claim();
    let engine = open(&server.url());
    let fence = granted(&engine, &request).await.fence.unwrap();
    engine.close().await;
    // Its value of a day ago.
    server.execute("SELECT setval('oncegate_fence', last_value - 86400000000) FROM oncegate_fence").await;
    server.execute("DELETE FROM oncegate_claims").await;
    let next = granted(&open(&server.url()), &request).await.fence.unwrap();
    assert!(next > fence, "{next} does not rise above {fence}");
}

#[tokio::test]
async fn a_bad_item_does_not_fail_its_neighbours() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = Arc::new(open(&format!("{}&connections=1", server.url())));
    serves(&engine).await;
    // The table accepts everything that callers can send, so this test adds a rule that refuses a value.
    let poison = "ALTER TABLE oncegate_claims ADD CHECK (position('hemlock'::bytea IN value) = 0)";
    server.execute(poison).await;
    let mut requests: Vec<_> = (0..40).map(|_| fresh_claim()).collect();
    requests[7].operation = "hemlock".parse().unwrap();
    // While the row of the first is waited for, the others gather.
    let calls = requests.iter().map(|request| engine.claim(request, DEADLINE));
    let answers = futures_util::future::join_all(calls).await;
    for (place, answer) in answers.iter().enumerate() {
        match place {
            7 => assert!(
                matches!(answer, Err(EngineError::Determinate(Determinate::Incompatible(why))) if why.contains("23514")),
                "{answer:?}"
            ),
            _ => assert!(matches!(answer, Ok(ClaimResponse::Granted(_))), "{place}: {answer:?}"),
        }
    }
    // A NUL, which text and jsonb would refuse.
    let nul = oncegate_core::canonical::canonicalize(b"\"\\u0000\"").unwrap();
    granted(&*engine, &oncegate_core::claim::ClaimRequest { contents: nul, ..fresh_claim() }).await;
}

#[tokio::test]
async fn a_server_without_free_connections_is_reported_and_retried() {
    let Some(server) = PostgresServer::start_with(&["max_connections = 4", "superuser_reserved_connections = 0"]).await
    else {
        return;
    };
    let mut taken = Vec::new();
    while let Ok(connection) = PostgresServer::connect(&server.url()).await {
        taken.push(connection);
    }
    let engine = open(&format!("{}&connections=1", server.url()));
    let why = unavailable(engine.claim(&fresh_claim(), DEADLINE).await);
    assert!(why.contains("53300") && why.contains("max_connections"), "{why}");
    drop(taken);
    serves(&engine).await;
    granted(&engine, &fresh_claim()).await;
}

#[tokio::test]
async fn a_schema_that_is_taken_away_or_made_for_newer_gateways_is_incompatible() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = open(&format!("{}&migrate=false&connections=1", server.url()));
    let why = engine.claim(&fresh_claim(), DEADLINE).await.unwrap_err();
    assert!(
        matches!(&why, EngineError::Determinate(Determinate::Incompatible(why)) if why.contains("oncegate migrate"))
    );

    let other = open(&server.url());
    serves(&other).await;
    serves(&engine).await;
    server.execute("UPDATE oncegate_schema SET oldest_build = 1000").await;
    server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'oncegate'").await;
    soon("it keeps off", async || {
        let answer = engine.claim(&fresh_claim(), DEADLINE).await;
        matches!(answer, Err(EngineError::Determinate(Determinate::Incompatible(why))) if why.contains("build 1000"))
    })
    .await;
}

/// A migration that only adds, during the work of an engine that does not know of it, and before the start of another
/// one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expanding_migration_under_load_disturbs_no_call() {
    let Some(server) = PostgresServer::start().await else { return };
    let old = Arc::new(open(&server.url()));
    serves(&old).await;
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let load = |engine: Arc<Postgres>| {
        let stop = stop.clone();
        tokio::spawn(async move {
            let mut count = 0;
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let request = fresh_claim();
                granted(&*engine, &request).await;
                assert!(is_duplicate(&*engine, &again(&request)).await);
                let settled = engine.settle(&settle(&request, success("1")), DEADLINE).await.unwrap();
                assert!(matches!(settled, OutcomeResponse::Done { late: Some(false), .. }));
                count += 1;
            }
            count
        })
    };
    let mut loads: Vec<_> = (0..8).map(|_| load(old.clone())).collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let expand = "BEGIN; SET LOCAL lock_timeout = '10s'; \
        ALTER TABLE oncegate_claims ADD COLUMN tag text NOT NULL DEFAULT ''; \
        ALTER TABLE oncegate_schema ADD COLUMN note text; \
        INSERT INTO oncegate_migrations (version, description, success, checksum, execution_time) \
        VALUES (1000, 'expand', true, '', 0); COMMIT";
    server.execute(expand).await;
    server.execute("CREATE INDEX CONCURRENTLY ON oncegate_claims (tag) WHERE tag <> ''").await;
    let new = Arc::new(open(&server.url()));
    loads.extend((0..8).map(|_| load(new.clone())));
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    for load in loads {
        assert!(load.await.unwrap() > 0);
    }
}

#[tokio::test]
async fn an_operator_releases_the_attempt_that_was_shown_and_no_other() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = open(&server.url());
    let request = fresh_claim();
    let release = |attempt| ReleaseRequest { key: request.key.clone(), attempt, result: None };
    assert_eq!(engine.release(&release(request.attempt.clone())).await, Ok(ReleaseResponse::Absent));
    let fence = granted(&engine, &request).await.fence;
    engine.settle(&settle(&request, success("1")), DEADLINE).await.unwrap();
    assert_eq!(engine.release(&release(again(&request).attempt)).await, Ok(ReleaseResponse::Superseded));
    assert_eq!(engine.release(&release(request.attempt.clone())).await, Ok(ReleaseResponse::Done));
    assert_eq!(engine.read(&request.key).await, Ok(None));
    let next = granted(&engine, &again(&request)).await.fence;
    assert!(next > fence, "{next:?} does not rise above {fence:?}");
}

#[tokio::test]
async fn a_closed_engine_refuses_and_lets_go_of_the_server() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = open(&server.url());
    granted(&engine, &fresh_claim()).await;
    engine.close().await;
    assert!(unavailable(engine.claim(&fresh_claim(), DEADLINE).await).contains("closed"));
    unavailable(engine.probe().await);
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oncegate'";
    soon("it lets go of the server", async || server.query(ours).await == "0").await;
}
