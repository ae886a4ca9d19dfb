//! Content of the tables, the calls that write and those that do not, and the reads of lists.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use oncegate_core::claim::{ClaimRequest, Outcome};
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Determinate, EngineError, Topology as _, value};
use oncegate_core::operator::ListRequest;
use oncegate_core::record::{ClaimState, Realm};
use oncegate_core::terms::{LeaseEnd, Retention, Terms};
use oncegate_postgres::{Options, Postgres};
use oncegate_testkit::postgres_server::PostgresServer;

use super::{again, granted, is_duplicate, open, options, row, serves, settle, soon, success};

#[tokio::test]
async fn a_value_is_the_line_that_all_byte_stores_share() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = open(&server.url());
    let stored = async |request: &ClaimRequest| {
        server.query(&format!("SELECT convert_from(value, 'UTF8') FROM {}", row(request))).await
    };
    for retention in [None, Some(Retention::Forever), Some(Retention::For(Duration::from_hours(5)))] {
        let request = fresh_claim();
        granted(&engine, &request).await;
        assert_eq!(stored(&request).await, value::encode(&request.record()));
        let outcome = Outcome::Success { result: Some("{\"a\":\"b\\nc\"}".into()), retention };
        engine.settle(&settle(&request, outcome), DEADLINE).await.unwrap();
        let held = engine.read(&request.key).await.unwrap().expect("it stands");
        assert_eq!(held.record.terms.retention, retention.unwrap_or(request.terms.retention));
        assert_eq!(value::decode(stored(&request).await.as_bytes()).unwrap(), held.record);
        assert_eq!(held.record.state, ClaimState::Succeeded);
        assert_eq!(held.left.is_none(), retention == Some(Retention::Forever));
    }
}

/// A lock on its row would be a write, too, and a commit.
#[tokio::test]
async fn a_duplicate_writes_nothing() {
    let Some(server) = PostgresServer::start().await else { return };
    let options = Options { sweep_interval: Duration::from_hours(1), ..options() };
    let engine = Arc::new(Postgres::open(&format!("{}&connections=1", server.url()), options).unwrap());
    // Each session begins with its own commit.
    soon("all its sessions are open", async || {
        let swept = "query LIKE '%DELETE FROM oncegate_locks%' AND state = 'idle' AND pid <> pg_backend_pid()";
        server.query(&format!("SELECT count(*) FROM pg_stat_activity WHERE {swept}")).await == "1"
    })
    .await;
    let request = fresh_claim();
    granted(&*engine, &request).await;
    let physical = format!("SELECT ctid::text || ' ' || xmin || ' ' || xmax FROM {}", row(&request));
    let before = server.query(&physical).await;
    let next_transaction = "SELECT pg_snapshot_xmax(pg_current_snapshot())";
    let transactions = server.query(next_transaction).await;
    for _ in 0..10 {
        assert!(is_duplicate(&*engine, &again(&request)).await);
        engine.settle(&settle(&again(&request), success("1")), DEADLINE).await.unwrap();
        engine.read(&request.key).await.unwrap();
    }
    assert_eq!(server.query(&physical).await, before);
    assert_eq!(server.query(next_transaction).await, transactions, "nothing has taken a transaction");
}

#[tokio::test]
async fn a_success_changes_no_index() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = Arc::new(open(&server.url()));
    let requests: Vec<_> = (0..200).map(|_| fresh_claim()).collect();
    for answer in join_all(requests.iter().map(|request| engine.claim(request, DEADLINE))).await {
        answer.unwrap();
    }
    // One after the other, like outcomes in practice: the space of an old row version serves the next update.
    for request in &requests {
        engine.settle(&settle(request, success("1")), DEADLINE).await.unwrap();
    }
    engine.close().await;
    let counted = "SELECT n_tup_upd || ' ' || n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'oncegate_claims'";
    soon("all are counted", async || server.query(counted).await.starts_with("200 ")).await;
    let counts = server.query(counted).await;
    let hot: usize = counts.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(hot >= 190, "of 200 only {hot} touched no index");
}

#[tokio::test]
async fn a_value_that_cannot_be_read_is_neither_absent_nor_overwritten() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = open(&server.url());
    let request = fresh_claim();
    granted(&engine, &request).await;
    server
        .execute(&format!(
            "UPDATE oncegate_claims SET value = 'garbage' WHERE {}",
            row(&request).split_once("WHERE ").unwrap().1
        ))
        .await;
    let incompatible = |error: EngineError| {
        assert!(matches!(error, EngineError::Determinate(Determinate::Incompatible(_))), "{error:?}");
    };
    incompatible(engine.claim(&again(&request), DEADLINE).await.map(drop).unwrap_err());
    incompatible(engine.settle(&settle(&request, success("1")), DEADLINE).await.map(drop).unwrap_err());
    incompatible(engine.read(&request.key).await.map(drop).unwrap_err());
    assert_eq!(server.query(&format!("SELECT convert_from(value, 'UTF8') FROM {}", row(&request))).await, "garbage");
    // It does not affect other keys.
    let (requests, bad) = ([fresh_claim(), again(&request), fresh_claim()], 1);
    for (place, answer) in
        join_all(requests.iter().map(|request| engine.claim(request, DEADLINE))).await.into_iter().enumerate()
    {
        assert_eq!(answer.is_err(), place == bad);
    }
}

/// A server with asynchronous commits answers the engine only after the sync.
#[tokio::test]
async fn commits_are_synchronous_whatever_the_database_is_set_to() {
    let Some(server) = PostgresServer::start().await else { return };
    server.execute("ALTER DATABASE postgres SET synchronous_commit = off").await;
    let checked = "CREATE FUNCTION checked() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        IF current_setting('synchronous_commit') <> 'on' THEN RAISE EXCEPTION 'not synchronous'; END IF; RETURN NEW; END $$; \
        CREATE TRIGGER checked BEFORE INSERT OR UPDATE ON oncegate_claims FOR EACH ROW EXECUTE FUNCTION checked()";
    serves(&open(&server.url())).await;
    server.execute(checked).await;
    for keys in ["", "&pooler=transaction"] {
        let engine = open(&format!("{}{keys}", server.url()));
        let request = fresh_claim();
        granted(&engine, &request).await;
        engine.settle(&settle(&request, Outcome::Unknown), DEADLINE).await.unwrap();
        assert!(engine.capabilities().durable);
    }
}

/// Otherwise the server compiles a statement for each check of the schema, which takes longer than a call may.
#[tokio::test]
async fn statements_have_the_same_settings_behind_a_pooler() {
    let Some(server) = PostgresServer::start().await else { return };
    serves(&open(&server.url())).await;
    let noted = "CREATE TABLE noted (settings text); CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        INSERT INTO noted SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings \
        WHERE name IN ('synchronous_commit', 'plan_cache_mode', 'jit') OR name LIKE 'enable%'; RETURN NEW; END $$; \
        CREATE TRIGGER note BEFORE INSERT ON oncegate_claims FOR EACH ROW EXECUTE FUNCTION note()";
    server.execute(noted).await;
    for keys in ["", "&pooler=transaction"] {
        granted(&open(&format!("{}{keys}", server.url())), &fresh_claim()).await;
    }
    assert_eq!(server.query("SELECT count(*) FROM noted").await, "2");
    assert_eq!(server.query("SELECT count(DISTINCT settings) FROM noted").await, "1");
    assert_eq!(server.query("SELECT count(*) FROM noted WHERE settings LIKE '%jit=off%'").await, "2");
}

#[tokio::test]
async fn a_server_that_does_not_sync_is_not_called_durable() {
    let Some(server) = PostgresServer::start_with(&["fsync = off"]).await else { return };
    let engine = open(&server.url());
    granted(&engine, &fresh_claim()).await;
    assert!(!engine.capabilities().durable);
}

/// A connection that a pooler gives to another client must have no state of the engine.
#[tokio::test]
async fn behind_a_pooler_nothing_is_left_in_a_session() {
    let Some(server) = PostgresServer::start_with(&["log_statement = 'all'"]).await else { return };
    let direct = open(&server.url());
    serves(&direct).await;
    direct.close().await;
    let engine = open(&format!("{}&pooler=transaction", server.url()));
    let request = fresh_claim();
    granted(&engine, &request).await;
    assert!(is_duplicate(&engine, &again(&request)).await);
    engine.settle(&settle(&request, Outcome::Unknown), DEADLINE).await.unwrap();
    engine.close().await;
    let log = server.log();
    let (_, ours) = log.split_once("BEGIN; SET LOCAL").expect("its first transaction");
    assert!(ours.contains("execute <unnamed>: "), "{ours}");
    assert!(!ours.contains("execute sqlx"), "no statement is kept by name");
    let sets = ours.lines().filter(|line| line.contains("SET ") && line.contains("LOG:  statement: SET"));
    assert_eq!(sets.count(), 0, "no setting outlives its transaction");
    // The same for advisory locks, except on the migration's own connection.
    assert!(!ours.contains("pg_advisory_lock("), "{ours}");
}

#[tokio::test]
async fn a_list_shows_what_stands_page_by_page() {
    let Some(server) = PostgresServer::start().await else { return };
    let engine = Arc::new(open(&server.url()));
    let terms = fresh_claim().terms;
    let lapsing = Terms { lease: Duration::from_millis(100), on_lease_end: LeaseEnd::Unknown, ..terms };
    let ending = Terms { lease: Duration::from_millis(100), ..terms };
    let mut requests: Vec<_> = (0..30).map(|_| fresh_claim()).collect();
    for (place, request) in requests.iter_mut().enumerate() {
        match place {
            20..25 => request.terms = lapsing,
            25..30 => request.terms = ending,
            _ => {}
        }
        granted(&*engine, request).await;
    }
    for request in &requests[..5] {
        engine.settle(&settle(request, success("1")), DEADLINE).await.unwrap();
    }
    for request in &requests[5..10] {
        engine.settle(&settle(request, Outcome::Failure), DEADLINE).await.unwrap();
    }
    for request in &requests[10..15] {
        engine.settle(&settle(request, Outcome::Unknown), DEADLINE).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    let app = requests[0].key.app.clone();
    for (state, count) in [
        (None, 20),
        (Some(ClaimState::InProgress), 5),
        (Some(ClaimState::Succeeded), 5),
        (Some(ClaimState::Unknown), 10),
    ] {
        let mut listed = Vec::new();
        let mut after = None;
        loop {
            let page = engine
                .list(&ListRequest { app: app.clone(), realm: Realm::Api, state, after, limit: 3 })
                .await
                .unwrap();
            let Some(last) = page.last() else { break };
            assert!(page.len() <= 3);
            after = Some(last.global_id);
            listed.extend(page);
        }
        assert_eq!(listed.len(), count, "{state:?}");
        assert!(listed.windows(2).all(|pair| pair[0].global_id.as_bytes() < pair[1].global_id.as_bytes()));
        assert!(listed.iter().all(|listed| state.is_none_or(|state| listed.claim.record.state == state)));
    }
    let other = ListRequest { app: "another".parse().unwrap(), realm: Realm::Api, state: None, after: None, limit: 10 };
    assert_eq!(engine.list(&other).await.unwrap(), []);
    assert!(engine.capabilities().lists);
}
