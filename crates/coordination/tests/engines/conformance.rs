//! The suite that every engine passes. A cluster of one member is enough: no member fails here; faults have separate
//! tests.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::engine::conformance::{DEADLINE, Subject};
use oncegate_core::engine::{Engine, RecordName};
use oncegate_testkit::shared::Shared;

use super::{Cluster, engine, options};

/// Extra time by which the store's clock advances beyond the wait of a rule. An end may be half a second later than a
/// lease, and rules already wait a tick longer than a lease.
const LATE: Duration = Duration::from_millis(400);

async fn subject() -> Option<Subject> {
    static CLUSTER: Shared<Cluster> = Shared::new();
    let cluster = CLUSTER.get(Cluster::start_one()).await?;
    let engine = Arc::new(engine::open(&cluster.url(), options()).unwrap());
    let clock = engine.clone();
    Some(Subject {
        engine,
        pass: Box::new(move |span| Box::pin(advanced(clock.clone(), span + LATE))),
        tick: Duration::from_millis(600),
        exact_time: false,
        keep: Box::new(cluster),
    })
}

/// Waits until the store's clock has advanced. On a busy machine it is slow.
async fn advanced(engine: Arc<dyn Engine>, span: Duration) {
    let now = async || engine.get_record(&RecordName::Metadata("none".into()), DEADLINE).await.unwrap().now;
    let end = now().await.plus(span);
    while now().await < end {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

oncegate_core::conformance!(subject());
