//! The suite that every engine passes.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::engine::conformance::Subject;

use super::{RedisServer, open};

async fn subject() -> Option<Subject> {
    let server = RedisServer::start().await?;
    Some(Subject {
        engine: Arc::new(open(&server.url())),
        pass: Box::new(|span| Box::pin(tokio::time::sleep(span))),
        tick: Duration::from_millis(100),
        exact_time: false,
        keep: Box::new(server),
    })
}

oncegate_core::conformance!(subject());
