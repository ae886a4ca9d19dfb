//! The suite that every engine passes, on a cluster.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::engine::conformance::Subject;

use super::{open, three_primaries};

async fn subject() -> Option<Subject> {
    let cluster = three_primaries().await?;
    Some(Subject {
        engine: Arc::new(open(&cluster.url())),
        pass: Box::new(|span| Box::pin(tokio::time::sleep(span))),
        tick: Duration::from_millis(100),
        exact_time: false,
        keep: Box::new(cluster),
    })
}

oncegate_core::conformance!(subject());
