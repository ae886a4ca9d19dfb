//! The suite that every engine passes. A cluster of one member is enough: no member fails here, and others have tests of their own.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::engine::conformance::Subject;
use oncegate_etcd::Etcd;
use oncegate_testkit::etcd_cluster::EtcdCluster;
use oncegate_testkit::shared::Shared;

use super::options;

/// How much the clock of the store may be behind: the time between two of its ticks, and what a busy machine adds. That ends lie later by what
/// the clock may gain is less than the tick by which the rules wait longer.
const LATE: Duration = Duration::from_millis(400);

async fn subject() -> Option<Subject> {
    static CLUSTER: Shared<EtcdCluster> = Shared::new();
    let cluster = CLUSTER.get(EtcdCluster::start_one()).await?;
    Some(Subject {
        engine: Arc::new(Etcd::open(&cluster.url(), options()).unwrap()),
        pass: Box::new(|span| Box::pin(tokio::time::sleep(span + LATE))),
        tick: Duration::from_millis(600),
        exact_time: false,
        keep: Box::new(cluster),
    })
}

oncegate_core::conformance!(subject());
