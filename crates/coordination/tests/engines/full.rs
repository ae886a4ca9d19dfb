//! A store that is nearly full: grants stop early, so that there is room for outcomes.

use std::time::Duration;

use oncegate_core::claim::ClaimResponse;
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{
    ChangePurpose, ChangeResponse, Claims as _, Determinate, EngineError, RecordChange, RecordName, Records as _,
    SharedRecord,
};
use oncegate_testkit::calls::renew;

use super::{Cluster, GRANTS_END, again, delete_locks, granted, is_duplicate, open, settle, soon, success};

/// Returns the name of the setting.
fn setting() -> &'static str {
    GRANTS_END.split('=').next().unwrap()
}

fn is_full<T: std::fmt::Debug>(answer: &Result<T, EngineError>) -> bool {
    matches!(answer, Err(EngineError::Determinate(Determinate::Full(why))) if why.contains(setting()))
}

fn lock(number: u32, purpose: ChangePurpose) -> RecordChange {
    RecordChange {
        name: RecordName::Lock("shop".parse().unwrap(), format!("n{number}").parse().unwrap()),
        expected: None,
        new: SharedRecord::versioned(7, &vec![7; 180 << 10]).unwrap(),
        lasts: Some(Duration::from_hours(1)),
        from: Timestamp::default(),
        before: Timestamp::from_micros(u64::MAX),
        purpose,
        lease_max: Duration::ZERO,
        notifies: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_room_nothing_is_granted_and_all_else_goes_on() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let engine = open(&format!("{}?{GRANTS_END}", cluster.url()));
    let (held, done) = (fresh_claim(), fresh_claim());
    granted(&engine, &held).await;
    granted(&engine, &done).await;
    for number in 0..40 {
        let stored = engine.change_record(&lock(number, ChangePurpose::Keep), DEADLINE).await;
        assert!(matches!(stored, Ok(ChangeResponse::Stored(_))), "{stored:?}");
    }
    soon("grants end", async || is_full(&engine.claim(&fresh_claim(), DEADLINE).await)).await;
    assert!(is_full(&engine.change_record(&lock(100, ChangePurpose::Grant), DEADLINE).await));
    assert!(is_duplicate(&engine, &again(&held)).await, "what is there is reported");
    engine.renew(&renew(&held, None), DEADLINE).await.unwrap();
    engine.settle(&settle(&done, success("1")), DEADLINE).await.unwrap();
    engine.change_record(&lock(101, ChangePurpose::Keep), DEADLINE).await.unwrap();
    // A claim call that was repeated finds its own claim.
    let repeated = engine.claim(&held, DEADLINE).await;
    assert!(matches!(repeated, Ok(ClaimResponse::Granted(_))), "{repeated:?}");

    delete_locks(&cluster);
    soon("grants are made again", async || engine.claim(&fresh_claim(), DEADLINE).await.is_ok()).await;
}
