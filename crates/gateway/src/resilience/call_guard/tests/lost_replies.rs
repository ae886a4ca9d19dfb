//! Requests and replies that are lost.

use oncegate_core::engine::Claims as _;

use super::*;

fn failure_of(request: &ClaimRequest) -> OutcomeRequest {
    OutcomeRequest { key: request.key.clone(), attempt: request.attempt.clone(), outcome: Outcome::Failure, late: None }
}

/// A key is granted once. `Duplicate` means that there is a live claim, and `Done` that the outcome is recorded.
#[tokio::test(start_paused = true)]
async fn lost_requests_and_replies_never_cause_a_wrong_answer() {
    for seed in 0..300 {
        let (_clock, memory) = memory();
        let engine = guarded(Arc::new(Faulty::new(memory.clone(), seed, 0.4)));
        let first = fresh_claim();
        let mut granted = 0;
        for try_again in [false, true, true] {
            let request = if try_again {
                ClaimRequest { attempt: fresh_claim().attempt, ..first.clone() }
            } else {
                first.clone()
            };
            let held_before = memory.read(&first.key).await.unwrap();
            match engine.claim(&request, DEADLINE).await {
                Ok(ClaimResponse::Granted(grant)) => {
                    granted += 1;
                    assert_eq!(grant.attempt, request.attempt, "seed {seed}");
                    assert!(!grant.repeated, "seed {seed}: its own earlier try is not a repeat");
                    assert_eq!(memory.read(&first.key).await.unwrap().unwrap().record.attempt, request.attempt);
                }
                Ok(ClaimResponse::Duplicate(held)) => {
                    assert_ne!(held.record.attempt, request.attempt, "seed {seed}: a holder is no duplicate of itself");
                    assert!(held_before.is_some(), "seed {seed}: a duplicate of nothing");
                }
                Ok(other) => panic!("seed {seed}: {other:?}"),
                Err(EngineError::Determinate(_)) => {
                    assert_eq!(memory.read(&first.key).await.unwrap(), held_before, "seed {seed}: it did not happen");
                }
                Err(EngineError::Indeterminate(_)) => {}
            }
        }
        assert!(granted <= 1, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_whose_reply_was_lost_is_released_and_not_reported_late() {
    let (mut seen_lost, mut seen_plain) = (false, false);
    for seed in 0..200 {
        let (_clock, memory) = memory();
        let request = fresh_claim();
        memory.claim(&request, DEADLINE).await.unwrap();
        let engine = guarded(Arc::new(Faulty::new(memory.clone(), seed, 0.5)));
        let failure = OutcomeRequest {
            key: request.key.clone(),
            attempt: request.attempt.clone(),
            outcome: Outcome::Failure,
            late: None,
        };
        match engine.settle(&failure, DEADLINE).await {
            Ok(OutcomeResponse::Done { state: None, late, .. }) => {
                assert_eq!(memory.read(&request.key).await.unwrap(), None);
                assert_ne!(late, Some(true), "seed {seed}: it was not late");
                seen_lost |= late.is_none();
                seen_plain |= late == Some(false);
            }
            Ok(other) => panic!("seed {seed}: {other:?}"),
            Err(_) => {}
        }
    }
    assert!(seen_lost && seen_plain, "both ways are met");
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_reply_was_lost_is_done() {
    let mut seen_done = 0;
    for seed in 0..200 {
        let (_clock, memory) = memory();
        let request = fresh_claim();
        memory.claim(&request, DEADLINE).await.unwrap();
        let engine = guarded(Arc::new(Faulty::new(memory.clone(), seed, 0.5)));
        let release = ReleaseRequest { key: request.key.clone(), attempt: request.attempt.clone(), result: None };
        match engine.release(&release).await {
            Ok(ReleaseResponse::Done) => {
                assert_eq!(memory.read(&request.key).await.unwrap(), None);
                seen_done += 1;
            }
            Ok(other) => panic!("seed {seed}: {other:?}"),
            Err(EngineError::Determinate(_)) => {
                assert!(memory.read(&request.key).await.unwrap().is_some(), "seed {seed}");
            }
            Err(EngineError::Indeterminate(_)) => {}
        }
    }
    assert!(seen_done > 100, "{seen_done}");
}

/// `Ok(true)` means that the record is stored, and a certain failure that it is not.
#[tokio::test(start_paused = true)]
async fn a_metadata_write_whose_reply_was_lost_is_never_answered_wrong() {
    let (mut put, mut not_known) = (0, 0);
    for seed in 0..300 {
        let (_clock, memory) = memory();
        let memory: Arc<dyn Engine> = memory;
        let engine: Arc<dyn Engine> = Arc::new(guarded(Arc::new(Faulty::new(memory.clone(), seed, 0.5))));
        let (old, new) = (Metadata::new("old").unwrap(), Metadata::new("new").unwrap());
        memory.compare_and_set_metadata("n", None, &old).await.unwrap();
        let answers = engine.compare_and_set_metadata("n", Some(&old), &new).await;
        let stands = memory.get_metadata("n").await.unwrap();
        match answers {
            Ok(true) => {
                assert_eq!(stands, Some(new), "seed {seed}");
                put += 1;
            }
            Ok(false) => panic!("seed {seed}: no other caller was there"),
            Err(EngineError::Determinate(_)) => assert_eq!(stands, Some(old), "seed {seed}"),
            Err(EngineError::Indeterminate(_)) => not_known += 1,
        }
    }
    assert!(put > 150 && not_known > 20, "{put} {not_known}");
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_the_second_try_has_released_is_not_reported_late_by_the_first() {
    let store = Store::new();
    let engine = guarded(store.clone());
    let request = request();
    engine.claim(&request, DEADLINE).await.unwrap();
    let failure = failure_of(&request);
    store.set_time(700 * MS);
    let second_overtakes = async {
        sleep(500 * MS).await;
        store.set_silent();
        sleep(150 * MS).await;
        store.inner.settle(&failure, DEADLINE).await.unwrap();
    };
    let (answer, ()) = tokio::join!(engine.settle(&failure, DEADLINE), second_overtakes);
    assert_eq!(answer, Ok(OutcomeResponse::Done { state: None, left: None, ends_at: None, late: None }));
}

/// A second try that certainly did nothing does not change the meaning of the first answer.
#[tokio::test(start_paused = true)]
async fn a_failure_that_the_first_try_has_released_is_answered_if_the_second_was_refused() {
    let store = Store::new();
    let engine = guarded(store.clone());
    let request = request();
    engine.claim(&request, DEADLINE).await.unwrap();
    store.set_time(700 * MS);
    let second_is_refused = async {
        sleep(500 * MS).await;
        store.set_time(MS);
        store.set_out();
    };
    let failure = failure_of(&request);
    let (answer, ()) = tokio::join!(engine.settle(&failure, DEADLINE), second_is_refused);
    assert_eq!(answer, Ok(OutcomeResponse::Done { state: None, left: None, ends_at: None, late: Some(false) }));
}
