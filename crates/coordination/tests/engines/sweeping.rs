//! The ended records that a sweep deletes, and those that it keeps.

use std::time::Duration;

use futures_util::future::join_all;
use oncegate_core::claim::{ClaimRequest, ClaimResponse};
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

/// A sweep reads many claims that have ended, and deletes them after that. In between they are claimed again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_granted_during_a_sweep_is_not_deleted() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let engine = open(&cluster.url());
    let mut held = Vec::new();
    for _ in 0..10 {
        let ended: Vec<_> = (0..400).map(|_| leased(SHORT)).collect();
        join_all(ended.iter().map(|request| granted(&engine, request))).await;
        let next = ended.iter().zip(0..).map(async |(request, number)| {
            // Spread over the time in which they end for all gateways, and a sweep begins and ends.
            tokio::time::sleep(Duration::from_millis(550) + Duration::from_millis(1) * number).await;
            let next = ClaimRequest { key: request.key.clone(), ..fresh_claim() };
            while !matches!(engine.claim(&next, DEADLINE).await, Ok(ClaimResponse::Granted(_))) {}
            next
        });
        held.extend(join_all(next).await);
    }
    // The second one began after the last grant.
    for _ in 0..2 {
        let swept = leased(SHORT);
        granted(&engine, &swept).await;
        soon("a sweep follows", async || !has_key(&cluster, &key(&swept))).await;
    }
    let read = join_all(held.iter().map(|request| engine.read(&request.key))).await;
    let deleted = read.into_iter().filter(|live| live.as_ref().unwrap().is_none());
    assert_eq!(deleted.count(), 0);
}

/// The locks of an app are next to each other, and more than a sweep reads at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_ended_behind_many_that_have_not_is_deleted() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let engine = open(&cluster.url());
    let hold = async |name: String, lasts: Duration| {
        let change = RecordChange { lasts: Some(lasts), lease_max: lasts, ..held(&name) };
        engine.change_record(&change, DEADLINE).await.unwrap();
    };
    join_all((0..700).map(|number| hold(format!("held-{number:03}"), Duration::from_hours(1)))).await;
    hold("then-ended".to_owned(), SHORT).await;
    soon("the last one is deleted", async || !has_key(&cluster, "/oncegate/l/shop/then-ended")).await;
    assert!(has_key(&cluster, "/oncegate/l/shop/held-000") && has_key(&cluster, "/oncegate/l/shop/held-699"));
}

/// Returns the change that stores a lock of this name.
fn held(name: &str) -> RecordChange {
    RecordChange {
        name: RecordName::Lock("shop".parse().unwrap(), name.parse().unwrap()),
        expected: None,
        new: SharedRecord::versioned(7, b"value").unwrap(),
        lasts: Some(SHORT),
        from: Timestamp::default(),
        before: Timestamp::from_micros(u64::MAX),
        purpose: ChangePurpose::Grant,
        lease_max: SHORT,
        notifies: false,
    }
}
