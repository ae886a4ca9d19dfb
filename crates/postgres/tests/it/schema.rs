//! Databases with the schema of another release: migrations, and the reported status.

use std::time::Duration;

use futures_util::future::join_all;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Determinate, EngineError, Topology as _};
use oncegate_database::schema::{self, BUILD};
use oncegate_database::{Address, DatabaseError, connect};
use oncegate_postgres::{Options, Postgres};
use oncegate_testkit::postgres_server::PostgresServer;

const LIMIT: Duration = Duration::from_secs(10);

fn address(url: &str) -> Address {
    Address::parse(url).unwrap()
}

/// A database that lacks the last migration, which brings the locks.
async fn without_locks(server: &PostgresServer, name: &str) -> String {
    let url = server.database(name).await;
    schema::migrate(&address(&url), LIMIT).await.unwrap();
    let newest = schema::status(&address(&url), LIMIT).await.unwrap().newest;
    let sql = format!("DROP TABLE oncegate_locks; DELETE FROM oncegate_migrations WHERE version = {newest}");
    PostgresServer::execute_at(&url, &sql).await;
    url
}

#[tokio::test]
async fn an_old_schema_is_migrated_only_if_the_url_asks_for_it_and_the_caller_needs_it() {
    let Some(server) = PostgresServer::start().await else { return };
    let url = without_locks(&server, "old").await;
    let newest = schema::status(&address(&url), LIMIT).await.unwrap().newest;
    let version = async |migrate: &str, needed| {
        connect(&address(&format!("{url}&migrate={migrate}")), needed, LIMIT).await.map(|(_, schema)| schema.version)
    };
    for migrate in ["empty", "false"] {
        let refused = version(migrate, newest).await;
        assert!(matches!(refused, Err(DatabaseError::Incompatible(_))), "{migrate}: {refused:?}");
    }
    assert_eq!(version("true", newest - 1).await, Ok(newest - 1), "it has what is needed");
    assert_eq!(version("true", newest).await, Ok(newest));
    assert_eq!(version("empty", newest).await, Ok(newest));
}

#[tokio::test]
async fn the_status_has_what_is_missing_and_whether_this_build_fits() {
    let Some(server) = PostgresServer::start().await else { return };
    let status = async |url: &str| schema::status(&address(url), LIMIT).await.unwrap();
    let empty = status(&server.database("empty").await).await;
    assert_eq!(
        (empty.version, empty.pending.len(), empty.fits_build),
        (0, usize::try_from(empty.newest).unwrap(), true)
    );
    let url = without_locks(&server, "old").await;
    let old = status(&url).await;
    assert_eq!((old.version, old.pending, old.fits_build), (old.newest - 1, vec![(old.newest, "locks")], true));
    for (oldest_build, fits) in [(BUILD, true), (BUILD + 1, false)] {
        PostgresServer::execute_at(&url, &format!("UPDATE oncegate_schema SET oldest_build = {oldest_build}")).await;
        assert_eq!(status(&url).await.fits_build, fits, "{oldest_build}");
    }
    // A failed migration was not applied.
    PostgresServer::execute_at(&url, "UPDATE oncegate_migrations SET success = false WHERE version = 2").await;
    let pending: Vec<_> = status(&url).await.pending.into_iter().map(|(version, _)| version).collect();
    assert_eq!(pending, [2, old.newest]);
}

#[tokio::test]
async fn a_probe_checks_whether_the_database_is_still_for_this_build() {
    let Some(server) = PostgresServer::start().await else { return };
    // Without heartbeats, which would find it as well.
    let options = Options { heartbeat_interval: Duration::from_hours(1), ..super::options() };
    let engine = Postgres::open(&format!("{}&connections=1", server.url()), options).unwrap();
    super::serves(&engine).await;
    server.execute(&format!("UPDATE oncegate_schema SET oldest_build = {}", BUILD + 1)).await;
    let probed = engine.probe().await;
    assert!(matches!(probed, Err(EngineError::Determinate(Determinate::Incompatible(_)))), "{probed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_at_an_empty_database_wait_for_its_schema_on_every_connection() {
    let Some(server) = PostgresServer::start().await else { return };
    for number in 0..5 {
        let url = server.database(&format!("empty{number}")).await;
        let engine = super::open(&format!("{url}&connections=6"));
        let requests: Vec<_> = (0..60).map(|_| fresh_claim()).collect();
        let answers = join_all(requests.iter().map(|request| engine.claim(request, DEADLINE))).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
}
