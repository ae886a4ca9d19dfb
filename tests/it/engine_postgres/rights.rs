//! The roles, grants and pooler settings of `docs/engines/postgres.md`, applied as they stand there: a gateway works with
//! no more rights.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use oncegate_core::engine::{Engine, Metadata};
use oncegate_database::{Address, connect};
use oncegate_postgres::{Options, Postgres};
use oncegate_testkit::fresh;
use oncegate_testkit::pgbouncer::PgBouncer;
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::wait::until;
use serde_json::json;

use crate::claim_lifecycle;
use crate::support::command::oncegate;
use crate::support::gateway;

/// Bound on waiting, on a machine that other tests share.
const PATIENCE: Duration = Duration::from_secs(10);

/// The SQL blocks of the page's section on roles.
fn documented() -> Vec<&'static str> {
    let page = include_str!("../../../docs/engines/postgres.md");
    let (_, section) = page.split_once("\n## Roles and grants\n").expect("the section");
    let section = section.split("\n## ").next().expect("the section");
    section.split("```sql\n").skip(1).map(|block| block.split("```").next().expect("the block")).collect()
}

/// The statements of a block one by one: a database cannot be created together with others.
async fn apply(url: &str, block: &str) {
    for statement in block.split(";\n").map(str::trim).filter(|statement| !statement.is_empty()) {
        PostgresServer::execute_at(url, statement).await;
    }
}

/// A server with the roles of the page, migrated by one of them. Returns the URL of the other one's database.
async fn prepared(server: &PostgresServer) -> String {
    let [roles, grants, registry] = documented()[..] else { panic!("roles, grants, and grants for the registry") };
    apply(&server.url(), roles).await;
    let of = |role: &str| server.url_of("oncegate").replace("postgres@", &format!("{role}@"));
    let folder = tempfile::tempdir().unwrap();
    let migrated = oncegate(folder.path(), &["migrate", "--engine", &of("oncegate_owner")]);
    assert_eq!(migrated.code, Some(0), "{}", migrated.err);
    apply(&of("oncegate_owner"), grants).await;
    apply(&of("oncegate_owner"), registry).await;
    of("oncegate")
}

#[tokio::test]
async fn a_gateway_works_with_the_documented_rights() {
    let Some(server) = PostgresServer::start().await else { return };
    let url = prepared(&server).await;
    let gateway = gateway::on(&url).patient().start().await;
    claim_lifecycle::check(&gateway.client(), true).await;

    // Sweeping deletes; fences are raised when they lie behind; gateways agree by metadata.
    gateway.client().claim(json!("short")).await.expect(201);
    let row = "SELECT count(*) FROM oncegate_claims WHERE expires_at < clock_timestamp() - interval '1 minute'";
    PostgresServer::execute_at(
        &server.url_of("oncegate"),
        "UPDATE oncegate_claims SET expires_at = expires_at - interval '1 hour', sweep_at = clock_timestamp() WHERE state = 'p'; \
         SELECT setval('oncegate_fence', 1)",
    )
    .await;
    until("what has ended is swept", PATIENCE, async || PostgresServer::query_at(&url, row).await == "0").await;
    drop(gateway);
    let gateway = gateway::on(&url).patient().start().await;
    let granted = gateway.client().claim(json!("after the loss")).await.expect(201);
    assert!(granted.body["fence"].as_u64() > Some(1_000_000_000_000_000), "lifted: {}", granted.text);
    let engine =
        Postgres::open(&url, Options { response_timeout: PATIENCE, ..Options::default() }).expect("a good URL");
    let engine: Arc<dyn Engine> = Arc::new(engine);
    let (old, new) = (Metadata::new("one").unwrap(), Metadata::new("two").unwrap());
    assert!(engine.compare_and_set_metadata("a-test", None, &old).await.unwrap());
    assert!(engine.compare_and_set_metadata("a-test", Some(&old), &new).await.unwrap());
}

#[tokio::test]
async fn a_registry_works_with_the_documented_rights() {
    let Some(server) = PostgresServer::start().await else { return };
    let url = prepared(&server).await;
    let app = "INSERT INTO oncegate_apps (app) VALUES ('shop'); INSERT INTO oncegate_app_secrets (app, digest) \
               VALUES ('shop', sha256('secret_of_the_shop_0123456789'))";
    let gateway = gateway::on_memory().env("ONCEGATE_REGISTRY__URL", &url).start().await;
    PostgresServer::execute_at(&url, app).await;
    let client = gateway.client().with_credential("shop.secret_of_the_shop_0123456789");
    until("the app is let in", PATIENCE, async || client.claim(fresh::contents()).await.status == 201).await;
    let used = "SELECT last_used_at IS NOT NULL FROM oncegate_app_secrets";
    let recorded = async || PostgresServer::query_at(&url, used).await == "true";
    until("its use is recorded", Duration::from_mins(1), recorded).await;
}

#[tokio::test]
async fn a_pooler_that_others_keep_busy_lets_gateways_in() {
    let Some(server) = PostgresServer::start().await else { return };
    prepared(&server).await;
    let Some(pooler) = PgBouncer::start(server.address(), "oncegate").await else { return };
    let url = pooler.url("oncegate", "&pooler=transaction");
    let gateway = gateway::on(&url).patient().start().await;
    until("a claim is granted", PATIENCE, async || gateway.client().claim(fresh::contents()).await.status == 201).await;

    // Others of the same pool leave their own unnamed statements on its servers.
    let pooler = Arc::new(pooler);
    let busy = (0..4).map(|_| tokio::spawn(keep_busy(pooler.clone()))).collect::<Vec<_>>();
    let address = Address::parse(&url).unwrap();
    let connecting = (0..40).map(|_| connect(&address, 1, Duration::from_secs(30)));
    for connected in join_all(connecting).await {
        connected.unwrap();
    }
    busy.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Prepares and runs unnamed statements, which fail now and then. The gateway must not use them.
async fn keep_busy(pooler: Arc<PgBouncer>) {
    loop {
        let Ok(mut connection) = pooler.connect("oncegate").await else { continue };
        let busy = || sqlx::query("SELECT $1::int WHERE false").persistent(false).bind(1);
        while busy().execute(&mut connection).await.is_ok() {}
    }
}
