//! PostgreSQL as a store, held to its promises over real servers.

mod conformance;
mod database;

use std::time::Duration;

use oncegate::engine::postgres::Options;

/// Options for a machine that other tests share: nothing is slow until it is very slow.
fn options() -> Options {
    Options {
        connect_timeout: Duration::from_secs(10),
        response_timeout: Duration::from_secs(10),
        ..Options::default()
    }
}
