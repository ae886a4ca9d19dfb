//! The ended records that a sweep deletes, and those that it keeps.

use std::time::Duration;

use oncegate_core::claim::ClaimRequest;
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{ChangePurpose, Claims as _, RecordChange, RecordName, Records as _, SharedRecord};
use oncegate_core::terms::{LeaseEnd, Terms};

use super::{Cluster, granted, has_key, key, leased, open, settle, soon, success};

const SHORT: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_ended_is_deleted_and_all_else_is_left() {
    let Some(cluster) = Cluster::start_one().await else { return };
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
    let records = [
        (lock("ended"), SHORT),
        (lock("held"), Duration::from_hours(1)),
        (RecordName::Grants(ended.key.clone()), SHORT),
        (RecordName::Grants(held.key.clone()), Duration::from_hours(1)),
    ];
    for (name, lasts) in records {
        let change = RecordChange {
            name,
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
    let is_there = |key: &str| has_key(&cluster, key);
    soon("the ended claim is deleted", async || !is_there(&key(&ended))).await;
    soon("the ended lock is deleted", async || !is_there("/oncegate/l/shop/ended")).await;
    let grants = |request: &ClaimRequest| key(request).replacen("/c/", "/g/", 1);
    soon("the ended grants are deleted", async || !is_there(&grants(&ended))).await;
    for kept in [&held, &done, &outlives] {
        assert!(is_there(&key(kept)));
        assert!(engine.read(&kept.key).await.unwrap().is_some());
    }
    assert!(is_there("/oncegate/l/shop/held") && is_there(&grants(&held)));
}
