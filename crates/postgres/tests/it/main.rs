//! Tests of the PostgreSQL engine on real servers.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod conformance;
mod connections;
mod faults;
mod layout;
mod locks;
mod measure;
mod notifications;
mod schema;
mod standby;
mod sweeping;
mod tls;

use std::time::Duration;

use oncegate_core::claim::ClaimRequest;
use oncegate_core::engine::Topology as _;
use oncegate_postgres::{Options, Postgres};

use oncegate_testkit::calls::{again, granted, is_duplicate, is_uncertain, serves_again, settle, success, unavailable};

/// Options for a machine that other tests share: only a very slow call counts as slow.
fn options() -> Options {
    Options {
        connect_timeout: Duration::from_secs(10),
        response_timeout: Duration::from_secs(10),
        sweep_interval: Duration::from_millis(50),
        ..Options::default()
    }
}

fn open(url: &str) -> Postgres {
    Postgres::open(url, options()).expect("a good URL")
}

/// Waits until something holds.
async fn soon(what: &str, holds: impl AsyncFnMut() -> bool) {
    oncegate_testkit::wait::until(what, Duration::from_secs(10), holds).await;
}

/// Waits until every connection serves: the first one makes the schema, and the others may meet a part of it.
async fn serves(engine: &Postgres) {
    soon("it serves", async || engine.probe().await.is_ok()).await;
}

/// SQL condition of the row of a claim.
fn row(request: &ClaimRequest) -> String {
    format!(
        "oncegate_claims WHERE app = '{}' AND global_id = decode('{}', 'hex')",
        request.key.app, request.key.global_id
    )
}
