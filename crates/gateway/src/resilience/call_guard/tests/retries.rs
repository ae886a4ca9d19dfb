//! Retries, hedged requests, and their budget.

use oncegate_core::engine::Claims as _;

use super::*;

#[tokio::test(start_paused = true)]
async fn no_call_waits_beyond_its_deadline() {
    let store = Store::new();
    store.set_silent();
    let engine = guarded(store.clone());
    let (answer, took) = timed(engine.claim(&request(), DEADLINE)).await;
    assert!(matches!(answer, Err(EngineError::Indeterminate(_))));
    assert!(took <= DEADLINE * 9 / 10, "{took:?}");
    assert_eq!(store.claims(), 2);
    let (answer, took) = timed(engine.claim(&request(), 50 * MS)).await;
    assert!(matches!(answer, Err(EngineError::Indeterminate(_))));
    assert!(took <= 46 * MS, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_awaited_if_the_budget_has_no_second_try() {
    let store = Store::new();
    store.set_time(850 * MS);
    let engine = guarded(store.clone());
    while engine.0.shards.get(0).budget.withdraw(engine.0.clock.monotonic()) {}
    assert!(engine.claim(&request(), DEADLINE).await.is_ok());
    assert_eq!(store.claims(), 1);
}

/// The first try is late and then refused, while the second one is in flight and succeeds.
#[tokio::test(start_paused = true)]
async fn a_certain_failure_is_not_final_while_the_second_try_is_in_flight() {
    let store = Store::new();
    store.set_time(650 * MS);
    store.set_failure(EngineError::from(Determinate::Full("full".into())));
    let engine = guarded(store.clone());
    let request = request();
    let make_room = async {
        sleep(540 * MS).await;
        store.set_failure(None);
        store.set_time(200 * MS);
    };
    let (answer, ()) = tokio::join!(engine.claim(&request, DEADLINE), make_room);
    assert_eq!(store.claims(), 2);
    assert!(matches!(answer, Ok(ClaimResponse::Granted(_))), "{answer:?}");
}

/// The first try is late, and a duplicate; then the other claim ends, and the second try is granted. With the answer of the first
/// try, the caller would hold a claim without knowing it.
#[tokio::test(start_paused = true)]
async fn a_duplicate_is_not_final_while_the_second_try_is_in_flight() {
    for (first, second) in [(650, 300), (850, 150)] {
        let store = Store::new();
        let engine = guarded(store.clone());
        let held = request();
        engine.claim(&held, DEADLINE).await.unwrap();
        let request = ClaimRequest { attempt: request().attempt, ..held.clone() };
        store.set_time(first * MS);
        let ends = async {
            sleep(540 * MS).await;
            store.set_time(second * MS);
        };
        // Between the effects of the two tries.
        let released = async {
            sleep(if first < 700 { 675 } else { 775 } * MS).await;
            let (key, attempt) = (held.key.clone(), held.attempt.clone());
            store.inner.release(&ReleaseRequest { key, attempt, result: None }).await.unwrap();
        };
        let (answer, (), ()) = tokio::join!(engine.claim(&request, DEADLINE), ends, released);
        assert_eq!(store.claims(), 3);
        assert!(matches!(answer, Ok(ClaimResponse::Granted(_))), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_try_is_retried_with_the_same_attempt() {
    for failure in [EngineError::indeterminate("lost"), EngineError::unavailable("for a moment")] {
        let store = Store::new();
        store.set_failure(failure);
        let engine = guarded(store.clone());
        let request = request();
        let heal = async {
            sleep(MS / 2).await;
            store.set_failure(None);
        };
        let (answer, ()) = tokio::join!(engine.claim(&request, DEADLINE), heal);
        assert!(matches!(answer, Ok(ClaimResponse::Granted(grant)) if grant.attempt == request.attempt));
        assert_eq!(store.claims(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_is_not_retried_uses_up_no_retries() {
    let store = Store::new();
    let engine = guarded(store.clone());
    store.set_failure(EngineError::incompatible("too old"));
    let refused = load(&engine, 1, 4 * FLOOR as usize, MS).await;
    assert_eq!((answered(&refused), store.claims()), (0, 4 * FLOOR));
    store.set_failure(EngineError::indeterminate("lost"));
    let heal = async {
        sleep(MS / 2).await;
        store.set_failure(None);
    };
    let request = request();
    let (answer, ()) = tokio::join!(engine.claim(&request, DEADLINE), heal);
    assert!(matches!(answer, Ok(ClaimResponse::Granted(_))), "{answer:?}");
}

/// All calls take longer than the time of a first try.
#[tokio::test(start_paused = true)]
async fn a_slow_store_answers_all_calls_and_gets_few_retries() {
    let store = Store::new();
    let engine = guarded(store.clone());
    assert_eq!(answered(&load(&engine, 20, 100, 10 * MS).await), 2000);
    let before = store.claims();
    store.set_time(700 * MS);
    let answers = load(&engine, 64, 20, MS).await;
    assert_eq!(answered(&answers), answers.len(), "all are answered");
    assert_eq!(engine.0.breaker(0).state(), BreakerState::Closed);
    let (asked, offered) = (store.claims() - before, answers.len());
    // Few retries were saved before.
    assert!(asked as usize <= offered + offered / 10 + 55 + 10, "{asked} for {offered}");
}

#[tokio::test(start_paused = true)]
async fn retries_add_at_most_a_tenth_to_the_calls() {
    let named = |name: &str| metric(&format!("oncegate_{name}"));
    named("");
    let store = Store::new();
    let engine = CallGuard::new(store.clone(), "retried", DEADLINE, PausedClock::start(), Arc::new(SystemEntropy));
    let mut offered = 0;
    for round in 0..1000 {
        if round % 5 == 0 {
            store.set_failure(EngineError::indeterminate("lost"));
        } else {
            store.recover();
        }
        offered += u32::try_from(load(&engine, 4, 1, MS).await.len()).unwrap();
    }
    assert_eq!(engine.0.breaker(0).state(), BreakerState::Closed);
    let seconds = u32::try_from(engine.0.clock.monotonic().as_secs()).unwrap() + 1;
    let asked = store.claims();
    assert!(asked <= offered + offered / 10 + FLOOR + seconds, "{asked} for {offered} in {seconds} s");
    assert!(asked >= offered + offered / 20, "the budget is used: {asked} for {offered}");
    let counted = |result: &str| named(&format!("retries_total{{engine=\"retried\",result=\"{result}\"}}"));
    let made = counted("answered").zip(counted("failed")).map(|(answered, failed)| answered + failed);
    assert_eq!(made, Some(f64::from(asked - offered)));
    assert!(counted("over_budget") > Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn five_hundred_calls_in_an_outage_are_each_answered_within_the_deadline() {
    let store = Store::new();
    store.set_silent();
    let engine = guarded(store.clone());
    let requests: Vec<_> = (0..500).map(|_| request()).collect();
    let (answers, took) = timed(join_all(requests.iter().map(|request| engine.claim(request, DEADLINE)))).await;
    assert!(answers.iter().all(|answer| matches!(answer, Err(EngineError::Indeterminate(_)))));
    assert!(took <= DEADLINE * 9 / 10, "{took:?}");
    assert!(store.claims() <= 500 + 50 + FLOOR);
}

/// Both tries are in flight when the first one is answered.
#[tokio::test(start_paused = true)]
async fn a_full_store_is_not_final_while_the_second_try_may_still_succeed() {
    let store = Store::new();
    let engine = guarded(store.clone());
    store.set_time(700 * MS);
    store.set_failure(EngineError::from(Determinate::Full("no room".into())));
    let request = request();
    let second_is_lost = async {
        sleep(500 * MS).await;
        store.set_silent();
    };
    let (answer, ()) = tokio::join!(engine.claim(&request, DEADLINE), second_is_lost);
    assert_eq!(store.claims(), 2);
    assert!(matches!(answer, Err(EngineError::Indeterminate(_))), "{answer:?}");
}

/// Each try takes a millisecond.
#[tokio::test(start_paused = true)]
async fn a_write_of_metadata_is_repeated_once_and_only_if_it_may_have_happened() {
    let store = Store::new();
    let engine: Arc<dyn Engine> = Arc::new(guarded(store.clone()));
    for (failure, tries) in [(EngineError::unavailable("out"), 1), (EngineError::indeterminate("lost"), 2)] {
        store.set_failure(failure.clone());
        let new = Metadata::new("1").unwrap();
        let (answer, took) = timed(engine.compare_and_set_metadata("a", None, &new)).await;
        assert_eq!((answer, took), (Err(failure), MS * tries));
    }
}
