//! The PostgreSQL engine under the conformance suite: by itself, through a pooler's rules, and with the fault wrapper and the
//! retries around it.

use std::sync::Arc;
use std::time::Duration;

use oncegate::engine::conformance::Subject;
use oncegate::engine::postgres::Postgres;

use super::options;
use crate::support::postgres_server::PostgresServer;

async fn subject(keys: &str) -> Option<Subject> {
    let server = PostgresServer::start().await?;
    let engine = Arc::new(Postgres::open(&format!("{}{keys}", server.url()), options()).unwrap());
    Some(Subject {
        engine,
        pass: Box::new(|duration| Box::pin(tokio::time::sleep(duration))),
        tick: Duration::from_millis(150),
        exact_time: false,
        keep: Box::new(server),
    })
}

mod alone {
    oncegate::conformance!(super::subject(""));
}

mod pooled {
    oncegate::conformance!(super::subject("&pooler=transaction"));
}
