//! The suite that every engine passes.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::engine::conformance::Subject;
use oncegate_redis::{Options, Redis};

use super::{RedisServer, options};

async fn subject() -> Option<Subject> {
    with(options()).await
}

async fn with(options: Options) -> Option<Subject> {
    let server = RedisServer::start().await?;
    Some(Subject {
        engine: Arc::new(Redis::open(&server.url(), options).expect("it is a URL")),
        pass: Box::new(|span| Box::pin(tokio::time::sleep(span))),
        tick: Duration::from_millis(100),
        exact_time: false,
        keep: Box::new(server),
    })
}

oncegate_core::conformance!(subject());

/// A claim of a taken key learns this with its first command, and reads the record with a second one.
mod without_remembered_keys {
    use super::*;

    async fn subject() -> Option<Subject> {
        with(Options { remembered_keys: 0, ..options() }).await
    }

    oncegate_core::conformance!(subject());
}
