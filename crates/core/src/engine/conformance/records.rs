//! Rules of shared records: metadata, locks and degraded grants.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::super::shared_record::{METADATA_BYTES_MAX, RECORD_BYTES_MAX};
use super::super::{
    ChangePurpose, ChangeResponse, Channel, EngineError, Metadata, RecordChange, RecordName, RecordView, SharedRecord,
};
use super::requests::{DEADLINE, app, attempt, fresh_claim};
use super::subject::Subject;
use crate::attempt::{Entropy as _, SystemEntropy};
use crate::clock::Timestamp;
use crate::operator::LockListRequest;
use crate::record::{Key, Realm};

/// Metadata is stored only over the expected value, and a repeated call succeeds.
pub async fn metadata_is_stored_only_over_the_expected_value(on: &Subject) {
    let (name, other_name) = (fresh_name(), fresh_name());
    let engine = &on.engine;
    let current = async || engine.get_metadata(&name).await.expect("the engine answers");
    let compare_and_set = async |expected: Option<&Metadata>, new: &Metadata| -> Result<bool, EngineError> {
        engine.compare_and_set_metadata(&name, expected, new).await
    };
    let (first, second) = (metadata("{\"n\": 1}"), metadata(&"ü".repeat(METADATA_BYTES_MAX / 2)));
    assert_eq!(current().await, None);
    assert_eq!(compare_and_set(Some(&first), &second).await, Ok(false), "nothing is stored");
    assert_eq!(current().await, None);
    assert_eq!(compare_and_set(None, &first).await, Ok(true));
    assert_eq!(current().await.as_ref(), Some(&first));
    assert_eq!(compare_and_set(None, &second).await, Ok(false), "a value is stored");
    assert_eq!(compare_and_set(Some(&second), &metadata("")).await, Ok(false), "another value is stored");
    assert_eq!(current().await.as_ref(), Some(&first), "and is unchanged");
    assert_eq!(compare_and_set(Some(&first), &second).await, Ok(true));
    assert_eq!(compare_and_set(Some(&first), &second).await, Ok(true), "a repeat succeeds");
    assert_eq!(compare_and_set(Some(&first), &first).await, Ok(false));
    assert_eq!(current().await.as_ref(), Some(&second));
    assert_eq!(engine.get_metadata(&other_name).await, Ok(None), "another name has another value");
    (on.pass)(on.tick).await;
    assert_eq!(compare_and_set(Some(&second), &metadata("")).await, Ok(true));
    assert_eq!(current().await, Some(metadata("")));
}

/// Of concurrent calls with the same expected value, one succeeds.
pub async fn of_many_racing_compare_and_sets_exactly_one_succeeds(on: &Subject) {
    let name = fresh_name();
    let mut current = None;
    for round in 0..5 {
        let racers: Vec<_> = (0..50)
            .map(|racer| {
                let (engine, name, expected) = (on.engine.clone(), name.clone(), current.clone());
                let new = metadata(&format!("{round}-{racer}"));
                tokio::spawn(async move {
                    let stored = engine.compare_and_set_metadata(&name, expected.as_ref(), &new).await;
                    (stored.expect("the engine answers"), new)
                })
            })
            .collect();
        let raced = join_all(racers).await.into_iter().map(|racer| racer.expect("no panic"));
        let winners: Vec<_> = raced.filter(|(stored, _)| *stored).map(|(_, new)| new).collect();
        assert_eq!(winners.len(), 1, "exactly one of 50 succeeds");
        current = on.engine.get_metadata(&name).await.expect("the engine answers");
        assert_eq!(current.as_ref(), winners.first());
    }
}

/// A record is replaced only over the expected version; a repeated call finds its own.
pub async fn a_record_is_changed_only_over_the_expected_version(on: &Subject) {
    for name in [fresh_lock("a"), fresh_grants()] {
        let (first, second) = (record(b"one \0\n\xff"), record(&vec![7; RECORD_BYTES_MAX]));
        let same_value = record(first.value());
        assert_eq!(on.view(&name).await.record, None);
        assert_eq!(on.refused(&change(&name, Some(&first), &second)).await, None, "nothing is stored");
        let stored_at = on.stored(&change(&name, None, &first)).await;
        let view = on.view(&name).await;
        assert_eq!(view.record.as_ref(), Some(&first));
        assert!(view.now >= stored_at);
        assert_eq!(on.refused(&change(&name, None, &second)).await, Some(first.clone()), "a record is stored");
        assert_eq!(on.refused(&change(&name, Some(&same_value), &second)).await, Some(first.clone()), "versions count");
        on.stored(&change(&name, Some(&first), &second)).await;
        on.stored(&change(&name, Some(&first), &second)).await;
        assert_eq!(on.refused(&change(&name, Some(&first), &same_value)).await, Some(second.clone()));
        on.stored(&change(&name, Some(&second), &same_value)).await;
        assert_eq!(
            on.refused(&change(&name, Some(&first), &second)).await,
            Some(same_value),
            "a version never returns"
        );
    }
}

/// A change is made only from its first instant on, and only before its end.
pub async fn a_change_outside_its_bounds_of_time_is_refused(on: &Subject) {
    let name = fresh_lock("a");
    let now = on.view(&name).await.now;
    let new = record(b"new");
    let bounded = |from, before| RecordChange { from, before, ..change(&name, None, &new) };
    let (past, far) = (Timestamp::default(), now.plus(Duration::from_hours(1)));
    assert_eq!(on.refused(&bounded(past, now)).await, None, "it comes too late");
    assert_eq!(on.refused(&bounded(far, far.plus(on.tick))).await, None, "it comes too early");
    assert_eq!(on.view(&name).await.record, None);
    on.stored(&bounded(now, far)).await;
}

/// A record that has ended is absent from reads and changes.
pub async fn a_record_that_has_ended_is_absent(on: &Subject) {
    for name in [fresh_lock("a"), fresh_grants()] {
        let (first, second, third) = (record(b"1"), record(b"2"), record(b"3"));
        let lasting = |change: RecordChange, ticks| RecordChange { lasts: Some(on.ticks(ticks)), ..change };
        on.stored(&lasting(change(&name, None, &first), 1)).await;
        on.stored(&lasting(change(&name, Some(&first), &second), 40)).await;
        (on.pass)(on.ticks(2)).await;
        assert_eq!(on.view(&name).await.record.as_ref(), Some(&second), "the change has given it more time");
        on.stored(&lasting(change(&name, Some(&second), &third), 1)).await;
        (on.pass)(on.ticks(2)).await;
        assert_eq!(on.view(&name).await.record, None);
        assert_eq!(on.refused(&change(&name, Some(&third), &first)).await, None);
        let anew = record(b"4");
        on.stored(&change(&name, None, &anew)).await;
        assert_eq!(on.view(&name).await.record, Some(anew));
    }
}

/// Locks of two apps, and metadata, are different records.
pub async fn locks_of_apps_do_not_share_records(on: &Subject) {
    let name = fresh_name();
    let lock = |app: &str| RecordName::Lock(app.parse().expect("an app"), name.parse().expect("a name"));
    let new = record(b"a");
    on.stored(&change(&lock("a"), None, &new)).await;
    for other in [lock("b"), RecordName::Metadata(name.as_str().into())] {
        assert_eq!(on.view(&other).await.record, None, "{other:?}");
    }
}

/// The degraded grants of a key are in the shard of the key, so that one shard answers for both.
pub async fn degraded_grants_are_in_the_shard_of_their_key(on: &Subject) {
    // An engine knows its shards once it has answered a call.
    on.granted(&fresh_claim()).await;
    for _ in 0..50 {
        for realm in [Realm::Api, Realm::Proxy] {
            let key = Key { realm, ..fresh_claim().key };
            let shard = on.engine.shard_of(&key);
            assert_eq!(on.engine.shard_of_record(&RecordName::Grants(key.clone())), shard, "{key:?}");
        }
    }
}

/// The record of degraded grants belongs to one claim, and is in no list.
pub async fn degraded_grants_are_of_one_claim_and_in_no_list(on: &Subject) {
    let claim = fresh_claim();
    let key = &claim.key;
    let new = record(b"grants");
    on.stored(&change(&RecordName::Grants(key.clone()), None, &new)).await;
    let others = [Key { realm: Realm::Proxy, ..key.clone() }, Key { app: app("another"), ..key.clone() }];
    for other in others {
        assert_eq!(on.view(&RecordName::Grants(other.clone())).await.record, None, "{other:?}");
    }
    assert_eq!(on.engine.read(key).await, Ok(None), "it is no claim");
    on.granted(&claim).await;
    assert_eq!(on.view(&RecordName::Grants(key.clone())).await.record, Some(new), "and no claim replaces it");
    if !on.engine.capabilities().lists {
        return;
    }
    let locks = LockListRequest { app: key.app.clone(), after: None, limit: 1000 };
    let locks = on.engine.list_records(&locks).await.expect("the engine lists").records;
    let id = key.global_id.to_string();
    assert!(locks.iter().all(|(name, _)| !name.as_ref().contains(&id)), "{locks:?}");
}

/// If the engine has notifications, only a change with `notifies` reaches the subscriptions of its record.
pub async fn a_change_that_notifies_reaches_the_subscriptions_of_its_record(on: &Subject) {
    let name = fresh_lock("a");
    let RecordName::Lock(app, lock) = &name else { panic!("the name of a lock") };
    let mut subscription = on.engine.subscribe(&Channel::of_lock(app, lock)).await;
    if !subscription.is_live() {
        return;
    }
    let (first, second) = (record(b"a"), record(b"b"));
    on.stored(&change(&name, None, &first)).await;
    assert!(subscription.notified().now_or_never().is_none(), "the first change does not notify");
    on.stored(&RecordChange { notifies: true, ..change(&name, Some(&first), &second) }).await;
    timeout(Duration::from_secs(10), subscription.notified()).await.expect("the change is notified");
}

/// Returns a name that no other test uses.
fn fresh_name() -> String {
    format!("test.{}", attempt().timestamp().as_micros())
}

pub(super) fn fresh_lock(app: &str) -> RecordName {
    RecordName::Lock(app.parse().expect("an app"), fresh_name().parse().expect("a name"))
}

fn fresh_grants() -> RecordName {
    RecordName::Grants(fresh_claim().key)
}

fn metadata(text: &str) -> Metadata {
    Metadata::new(text).expect("a short text")
}

fn record(value: &[u8]) -> SharedRecord {
    SharedRecord::versioned(SystemEntropy.bits(), value).expect("a short value")
}

fn change(name: &RecordName, expected: Option<&SharedRecord>, new: &SharedRecord) -> RecordChange {
    RecordChange {
        name: name.clone(),
        expected: expected.cloned(),
        new: new.clone(),
        lasts: Some(Duration::from_mins(10)),
        from: Timestamp::default(),
        before: Timestamp::from_micros(u64::MAX),
        purpose: ChangePurpose::Grant,
        lease_max: Duration::ZERO,
        notifies: false,
    }
}

impl Subject {
    async fn view(&self, name: &RecordName) -> RecordView {
        self.engine.get_record(name, DEADLINE).await.expect("the engine answers")
    }

    async fn stored(&self, change: &RecordChange) -> Timestamp {
        match self.engine.change_record(change, DEADLINE).await.expect("the engine answers") {
            ChangeResponse::Stored(now) => now,
            refused @ ChangeResponse::Refused { .. } => panic!("expected it to be stored, got {refused:?}"),
        }
    }

    async fn refused(&self, change: &RecordChange) -> Option<SharedRecord> {
        match self.engine.change_record(change, DEADLINE).await.expect("the engine answers") {
            ChangeResponse::Refused { view, .. } => view.record,
            ChangeResponse::Stored(_) => panic!("expected a refusal"),
        }
    }
}
