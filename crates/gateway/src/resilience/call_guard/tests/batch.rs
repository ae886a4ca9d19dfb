//! Batches.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_batch_in_an_outage_is_answered_within_the_deadlines_of_its_items() {
    let store = Store::new();
    store.set_silent();
    let engine = guarded(store.clone());
    let mut claims: Vec<_> = (0..500).map(|_| (request(), DEADLINE)).collect();
    claims.push((request(), 50 * MS));
    for ((answer, took), (_, deadline)) in claim_batch(&engine, &claims).await.iter().zip(&claims) {
        assert!(matches!(answer, Err(EngineError::Indeterminate(_))), "{answer:?}");
        assert!(*took <= *deadline * 9 / 10 + MS, "{took:?} of {deadline:?}");
    }
    assert!(store.claims() <= 501 + 50 + FLOOR);
    assert!(is_open(&engine));
}

#[tokio::test(start_paused = true)]
async fn an_item_without_an_answer_does_not_delay_the_others() {
    let store = Store::new();
    let engine = guarded(store.clone());
    let claims: Vec<_> = (0..100).map(|_| (request(), DEADLINE)).collect();
    *store.silent_key.lock().unwrap() = Some(claims[7].0.key.clone());
    for (position, (answer, took)) in claim_batch(&engine, &claims).await.into_iter().enumerate() {
        if position == 7 {
            assert!(matches!(answer, Err(EngineError::Indeterminate(_))), "{answer:?}");
            assert!(took > DEADLINE / 2 && took <= DEADLINE * 9 / 10 + MS, "{took:?}");
        } else {
            assert!(matches!(answer, Ok(ClaimResponse::Granted(_))), "{answer:?}");
            assert!(took <= 2 * MS, "{took:?}");
        }
    }
    assert_eq!(store.claims(), 101, "only that one is asked for again");
}

/// All items of the batch fail, are late, or are very late, and succeed the next time.
#[tokio::test(start_paused = true)]
async fn items_of_a_batch_are_retried_with_their_attempts() {
    for (failure, takes, most) in [
        (Some(EngineError::indeterminate("lost")), MS, 60 * MS),
        (Some(EngineError::unavailable("for a moment")), MS, 60 * MS),
        (None, 300 * MS, 301 * MS),
        (None, FOREVER, 610 * MS),
    ] {
        let store = Store::new();
        let engine = guarded(store.clone());
        load(&engine, 50, 4, MS).await;
        let before = store.claims();
        store.set_failure(failure.clone());
        store.set_time(takes);
        let claims: Vec<_> = (0..20).map(|_| (request(), DEADLINE)).collect();
        let heal = async {
            sleep(MS / 2).await;
            store.recover();
        };
        let (answers, ()) = tokio::join!(claim_batch(&engine, &claims), heal);
        for ((answer, took), (request, _)) in answers.into_iter().zip(&claims) {
            assert!(matches!(answer, Ok(ClaimResponse::Granted(grant)) if grant.attempt == request.attempt));
            assert!(took <= most, "{took:?}");
        }
        let again = if takes == 300 * MS { 0 } else { 20 };
        assert_eq!(store.claims() - before, 20 + again, "{failure:?} {takes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_item_of_a_batch_counts_for_the_breaker() {
    let store = Store::new();
    store.set_out();
    let engine = guarded(store.clone());
    let claims: Vec<_> = (0..30).map(|_| (request(), DEADLINE)).collect();
    claim_batch(&engine, &claims).await;
    assert!(is_open(&engine));
    store.recover();
    // Half-open: one call is the trial, and the others are refused at once.
    half_open(&engine).await;
    // Then more and more calls pass.
    for let_through in [1, 2, 4, 8_u32] {
        let (before, claims) = (store.claims(), [(); 30].map(|()| (request(), DEADLINE)));
        let answers = claim_batch(&engine, &claims).await;
        for (position, ((answer, _), (request, _))) in answers.into_iter().zip(&claims).enumerate() {
            match answer {
                Ok(ClaimResponse::Granted(grant)) => {
                    assert_eq!((grant.attempt == request.attempt, position < let_through as usize), (true, true));
                }
                other => {
                    assert!(matches!(other, Err(EngineError::Determinate(_))), "{other:?}");
                    assert!(position >= let_through as usize, "{position} of {let_through}");
                }
            }
        }
        assert_eq!(store.claims() - before, let_through);
    }
}
