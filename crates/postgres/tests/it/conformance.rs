//! The PostgreSQL engine under the conformance suite: directly, and by the rules of a pooler.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::engine::conformance::Subject;
use oncegate_database::{Address, schema};
use oncegate_postgres::Postgres;
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::shared::Shared;

use super::options;

async fn subject(keys: &str) -> Option<Subject> {
    static SERVER: Shared<PostgresServer> = Shared::new();
    let server = SERVER.get(migrated_server()).await?;
    let engine = Arc::new(Postgres::open(&format!("{}{keys}", server.url()), options()).unwrap());
    Some(Subject {
        engine,
        pass: Box::new(|duration| Box::pin(tokio::time::sleep(duration))),
        // Servers of other tests delay it nevertheless.
        tick: Duration::from_millis(250),
        exact_time: false,
        keep: Box::new(server),
    })
}

async fn migrated_server() -> Option<PostgresServer> {
    // The server's clock runs while a commit waits for a disk that other tests write to. Durability has its own tests.
    let server = PostgresServer::start_with(&["fsync = off"]).await?;
    // A pooler carries no migrations.
    schema::migrate(&Address::parse(&server.url()).unwrap(), Duration::from_secs(10)).await.unwrap();
    Some(server)
}

mod alone {
    oncegate_core::conformance!(super::subject(""));
}

mod pooled {
    oncegate_core::conformance!(super::subject("&pooler=transaction"));
}
