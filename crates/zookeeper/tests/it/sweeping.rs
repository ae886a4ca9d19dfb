//! What is deleted once it has ended, and what is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oncegate_core::claim::{ClaimRequest, Outcome, OutcomeResponse};
use oncegate_core::clock::{Clock, SystemClock, Timestamp};
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{ChangePurpose, Engine, RecordChange, RecordName, SharedRecord};
use oncegate_core::terms::{LeaseEnd, Terms};
use oncegate_testkit::zookeeper_cluster::ZooKeeperCluster;
use oncegate_zookeeper::Options;

use super::{again, granted, key, leased, nodes, open, options, settle, soon, success};

const SHORT: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_ended_is_deleted_and_all_else_is_left() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
    let engine = open(&cluster.url());
    let (ended, held, done) = (leased(SHORT), fresh_claim(), fresh_claim());
    let outlives = leased(SHORT);
    let terms = Terms { on_lease_end: LeaseEnd::Unknown, ..outlives.terms };
    let outlives = ClaimRequest { terms, ..outlives };
    for request in [&ended, &held, &done, &outlives] {
        granted(&engine, request).await;
    }
    engine.settle(&settle(&done, success("1")), DEADLINE).await.unwrap();
    let lock = |name: &str| RecordName::Lock("shop".parse().unwrap(), name.parse().unwrap());
    for (name, lasts) in [("ended", SHORT), ("held", Duration::from_hours(1))] {
        let change = RecordChange {
            name: lock(name),
            expected: None,
            new: SharedRecord::versioned(7, b"value").unwrap(),
            lasts: Some(lasts),
            from: Timestamp::default(),
            before: Timestamp::from_micros(u64::MAX),
            purpose: ChangePurpose::Grant,
            lease_max: lasts,
            notifies: false,
        };
        engine.change_record(&change, DEADLINE).await.unwrap();
    }
    let is_there = |key: &str| nodes(&cluster).get(key).is_some();
    soon("the ended claim is deleted", async || !is_there(&key(&ended))).await;
    soon("the ended lock is deleted", async || !is_there("/oncegate/l/shop/ended")).await;
    for kept in [&held, &done, &outlives] {
        assert!(is_there(&key(kept)));
        assert!(engine.read(&kept.key).await.unwrap().is_some());
    }
    assert!(is_there("/oncegate/l/shop/held"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_released_stays_for_a_while_and_is_absent_to_all() {
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
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

/// The clock of a machine, and what a test adds to it.
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
    let Some(cluster) = ZooKeeperCluster::start_one().await else { return };
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
