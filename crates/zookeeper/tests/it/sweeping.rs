//! Nodes of released claims, and versions that start again after a deletion.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncegate_core::claim::{Outcome, OutcomeResponse};
use oncegate_core::clock::{Clock, SystemClock, Timestamp};
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Topology as _};
use oncegate_zookeeper::Options;

use super::{Cluster, again, granted, key, nodes, open, options, settle, soon, success};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_released_stays_for_a_while_and_is_absent_to_all() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let patient = Options { linger: Duration::from_hours(1), ..options() };
    let engine = oncegate_zookeeper::open(&cluster.url(), patient).unwrap();
    let request = fresh_claim();
    let fence = granted(&engine, &request).await.fence;
    engine.settle(&settle(&request, Outcome::Failure), DEADLINE).await.unwrap();
    let (mut sweeps, mut last) = (0, None);
    oncegate_testkit::wait::until("it is swept many times", Duration::from_secs(30), async || {
        let cursor = nodes(&cluster).get("/oncegate/sweep");
        sweeps += usize::from(cursor != last);
        last = cursor;
        sweeps > 15
    })
    .await;
    assert!(nodes(&cluster).get(&key(&request)).is_some(), "its versions must not start again at 0");
    assert_eq!(engine.read(&request.key).await, Ok(None));
    assert!(granted(&engine, &again(&request)).await.fence > fence);
    engine.close().await;
    let engine = open(&cluster.url());
    let other = fresh_claim();
    granted(&engine, &other).await;
    engine.settle(&settle(&other, Outcome::Failure), DEADLINE).await.unwrap();
    soon("it is deleted", async || nodes(&cluster).get(&key(&other)).is_none()).await;
    granted(&engine, &again(&other)).await;
}

/// The clock of a machine, and the time that a test adds to it.
struct Shifted {
    clock: SystemClock,
    seconds: AtomicU64,
}

impl Clock for Shifted {
    fn wall(&self) -> Timestamp {
        self.clock.wall()
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic() + Duration::from_secs(self.seconds.load(Ordering::Relaxed))
    }
}

/// A node that was created again counts its versions from zero, as the first attempt's node did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_was_seen_long_ago_replaces_nothing() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let clock = Arc::new(Shifted { clock: SystemClock::new(), seconds: AtomicU64::new(0) });
    let engine = oncegate_zookeeper::open(&cluster.url(), Options { clock: clock.clone(), ..options() }).unwrap();
    let request = fresh_claim();
    granted(&engine, &request).await;
    // As a sweep long after its end does.
    nodes(&cluster).delete(&key(&request));
    let other = again(&request);
    let fence = granted(&open(&cluster.url()), &other).await.fence;
    clock.seconds.store(21, Ordering::Relaxed);
    let settled = engine.settle(&settle(&request, success("1")), DEADLINE).await;
    assert!(matches!(settled, Ok(OutcomeResponse::Superseded { .. })), "{settled:?}");
    let stands = engine.read(&request.key).await.unwrap().unwrap();
    assert_eq!((stands.record.attempt, stands.fence), (other.attempt, fence));
}
