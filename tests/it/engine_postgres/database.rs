//! The database below the engine: connections to the primary, migrations, and the builds that may use a schema.

use std::time::Duration;

use oncegate_database::schema::{self, BUILD};
use oncegate_database::{Address, DatabaseError, connect};
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use crate::support::command::oncegate;
use crate::support::gateway;
use crate::support::table::rows;

const LIMIT: Duration = Duration::from_secs(10);

/// Longest time until a gateway detects a change of its database, which it checks every five seconds.
const TIMEOUT: Duration = Duration::from_secs(20);

fn address(url: &str) -> Address {
    Address::parse(url).unwrap()
}

fn why(refused: Result<impl Sized, DatabaseError>) -> String {
    refused.map(|_| ()).unwrap_err().to_string()
}

#[tokio::test]
async fn two_migrations_at_once_are_one() {
    let Some(server) = PostgresServer::start().await else { return };
    let address = address(&server.url());
    let migrations = (0..8).map(|_| schema::migrate(&address, LIMIT));
    let mut done: Vec<_> = futures_util::future::join_all(migrations).await.into_iter().map(Result::unwrap).collect();
    done.sort_unstable();
    let newest = done[0].1;
    assert!(newest >= 1);
    assert_eq!(done.iter().filter(|(before, _)| *before == 0).count(), 1, "{done:?}");
    assert!(done.iter().all(|(_, after)| *after == newest), "{done:?}");
    assert_eq!(server.query("SELECT count(*) FROM oncegate_schema").await, "1");
}

#[tokio::test]
async fn an_empty_database_is_migrated_unless_configured_otherwise() {
    let Some(server) = PostgresServer::start().await else { return };
    let never = address(&format!("{}&migrate=false", server.url()));
    let refused = why(connect(&never, 1, LIMIT).await);
    assert!(refused.contains("oncegate migrate"), "{refused}");
    assert_eq!(server.query("SELECT to_regclass('oncegate_schema')").await, "");

    let (_connection, made) = connect(&address(&server.url()), 1, LIMIT).await.unwrap();
    let (_connection, found) = connect(&never, 1, LIMIT).await.unwrap();
    assert_eq!(made, found);
    assert!(!made.marker.is_empty());
}

#[tokio::test]
async fn only_an_older_gateway_is_turned_away() {
    let Some(server) = PostgresServer::start().await else { return };
    let address = address(&server.url());
    let (_connection, schema) = connect(&address, 1, LIMIT).await.unwrap();
    // Newer than this release: the database was migrated for the next one already.
    let newer = schema.version + 1;
    let record = format!(
        "INSERT INTO oncegate_migrations (version, description, success, checksum, execution_time) \
         VALUES ({newer}, 'expand', true, '', 0)"
    );
    server.execute(&record).await;
    assert!(connect(&address, 1, LIMIT).await.is_ok(), "what was only added does not matter");
    assert_eq!(schema::migrate(&address, LIMIT).await.unwrap(), (newer, newer));

    let refused = why(connect(&address, newer + 1, LIMIT).await);
    assert!(refused.contains(&format!("version {}", newer + 1)) && refused.contains("oncegate migrate"), "{refused}");

    server.execute(&format!("UPDATE oncegate_schema SET oldest_build = {}", BUILD + 1)).await;
    let refused = connect(&address, 1, LIMIT).await.map(|_| ()).unwrap_err();
    assert!(matches!(&refused, DatabaseError::Incompatible(why) if why.contains("newer release")), "{refused:?}");
}

#[tokio::test]
async fn a_standby_is_refused_and_the_primary_found() {
    let Some(primary) = PostgresServer::start().await else { return };
    let (_connection, schema) = connect(&address(&primary.url()), 1, LIMIT).await.unwrap();
    let standby = primary.standby(&[]).await;
    let refused = why(connect(&address(&standby.url()), 1, LIMIT).await);
    assert!(refused.contains("standby"), "{refused}");

    let both = format!("postgres://postgres@{},{}/postgres?sslmode=disable", standby.address(), primary.address());
    let (_connection, found) = connect(&address(&both), 1, LIMIT).await.unwrap();
    assert_eq!(found, schema);
    standby.promote().await;
    assert!(connect(&address(&standby.url()), 1, LIMIT).await.is_ok());
}

#[tokio::test]
async fn a_read_only_server_and_a_refused_login_are_reported() {
    let Some(server) = PostgresServer::start().await else { return };
    server.execute("ALTER DATABASE postgres SET default_transaction_read_only = on").await;
    let refused = why(connect(&address(&server.url()), 1, LIMIT).await);
    assert!(refused.contains("read-only"), "{refused}");
    let refused = why(connect(&address(&server.url_of("nowhere")), 1, LIMIT).await);
    assert!(refused.contains("no database of that name"), "{refused}");

    let template = server.url_of("template1");
    PostgresServer::execute_at(&template, "CREATE ROLE guest LOGIN").await;
    let guest = template.replace("postgres@", "guest@");
    let refused = connect(&address(&guest), 1, LIMIT).await.map(|_| ()).unwrap_err();
    assert!(
        matches!(&refused, DatabaseError::Incompatible(why) if why.contains("docs/engines/postgres.md")),
        "{refused:?}"
    );
    assert_eq!(PostgresServer::query_at(&template, "SELECT to_regclass('oncegate_schema')").await, "");
}

#[tokio::test]
async fn a_server_that_is_down_or_silent_is_reported_in_time() {
    let Some(mut server) = PostgresServer::start().await else { return };
    let address = address(&server.url());
    server.freeze();
    let refused = why(connect(&address, 1, Duration::from_millis(200)).await);
    assert!(refused.contains("200ms"), "{refused}");
    server.kill();
    let refused = why(connect(&address, 1, LIMIT).await);
    assert!(refused.contains("refuses connections"), "{refused}");
}

/// The command, as a deployment runs it: before the gateways, perhaps several at once.
#[tokio::test]
async fn the_command_migrates_and_says_what_it_did() {
    let Some(server) = PostgresServer::start().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let url = server.url();
    let migrate = |words: &[&str]| oncegate(folder.path(), &[&["migrate", "--engine", &url], words].concat());
    // Looking changes nothing, however often.
    for _ in 0..2 {
        let status = migrate(&["--status"]);
        assert_eq!(status.code, Some(3), "{}", status.err);
        let row = &rows(&status.out)[0];
        assert_eq!((&*row["VERSION"], &*row["STATUS"]), ("0", "needs `oncegate migrate`"), "{}", status.out);
        assert_eq!(row["PENDING"], row["NEWEST"]);
        let planned = migrate(&["--dry-run"]);
        assert_eq!(planned.code, Some(0), "{}", planned.err);
        assert_eq!(rows(&planned.out).len().to_string(), row["PENDING"]);
        assert_eq!((&*rows(&planned.out)[0]["MIGRATION"], &*rows(&planned.out)[0]["SUBJECT"]), ("1", "claims"));
    }
    assert_eq!(migrate(&["--status", "--dry-run"]).code, Some(2));
    let migrated = migrate(&[]);
    assert_eq!(migrated.code, Some(0), "{}", migrated.err);
    let row = &rows(&migrated.out)[0];
    assert!(row["DATABASE"] == "database" && row["FROM"] == "0" && row["TO"] != "0", "{}", migrated.out);
    let status = migrate(&["--status", "--output", "json"]);
    assert_eq!(status.code, Some(0), "{}", status.err);
    let status: Value = serde_json::from_str(&status.out).unwrap();
    assert_eq!((&status["databases"][0]["up_to_date"], &status["databases"][0]["pending"]), (&json!(true), &json!([])));
    assert_eq!(migrate(&["--dry-run"]).out, "Every schema is up to date.\n");
    let config = folder.path().join("oncegate.toml");
    let apps = url.replace("postgres://", "postgresql://");
    let toml =
        format!("[engines]\nmain = \"{url}\"\n[chains.default]\nengines = [\"main\"]\n[registry]\nurl = \"{apps}\"\n");
    std::fs::write(&config, toml).unwrap();
    let again = oncegate(folder.path(), &["migrate", "--config", config.to_str().unwrap()]);
    let databases: Vec<_> =
        rows(&again.out).into_iter().map(|row| (row["DATABASE"].clone(), row["FROM"] == row["TO"])).collect();
    assert_eq!(databases, [("engine main".to_owned(), true), ("registry".to_owned(), true)], "{}", again.err);
    let nowhere = server.url_of("nowhere").replace("postgres@", "postgres:hunter2@");
    let refused = oncegate(folder.path(), &["migrate", "--engine", &nowhere]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("no database of that name") && !refused.err.contains("hunter2"), "{}", refused.err);
}

/// A migration that removes something raises `oldest_build`, which also stops running gateways.
#[tokio::test]
async fn a_raised_oldest_build_stops_a_gateway_that_runs() {
    let Some(server) = PostgresServer::start().await else { return };
    let gateway = gateway::on(server.url()).patient().start().await;
    let client = gateway.client();
    client.claim(json!("before")).await.expect(201);
    let set_oldest_build = |build: i32| format!("UPDATE oncegate_schema SET oldest_build = {build}");
    server.execute(&set_oldest_build(BUILD + 1)).await;
    // Every connection must notice it, and each takes some of these keys.
    let all_refuse = async || {
        let mut answers = Vec::new();
        for number in 0..32 {
            answers.push(client.claim(json!({ "number": number })).await);
        }
        answers.iter().all(|answer| answer.status == 503 && answer.body["code"] == "store_incompatible")
    };
    until("it refuses", TIMEOUT, all_refuse).await;
    let ready = gateway.admin_client().get("/readyz?verbose").await.expect(200).body;
    let engine = &ready["engines"]["primary"];
    assert_eq!(engine["up"], false);
    assert!(engine["detail"].as_str().unwrap().contains("newer release"), "{engine}");
    server.execute(&set_oldest_build(BUILD)).await;
    until("it serves again", TIMEOUT, async || client.claim(json!("after")).await.status == 201).await;
}
