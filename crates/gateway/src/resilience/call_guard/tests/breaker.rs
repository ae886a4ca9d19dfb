//! The breaker and its prober.

use oncegate_core::engine::Claims as _;

use super::*;

/// Thirty calls time out after 900 ms and open the breaker. Two others have a deadline of half a minute.
#[tokio::test(start_paused = true)]
async fn calls_in_flight_end_when_the_breaker_opens() {
    let store = Store::new();
    store.set_silent();
    let engine = guarded(store.clone());
    let (old, young, patient) = (request(), request(), DEADLINE * 30);
    let begun_just_before = async {
        sleep(850 * MS).await;
        timed(engine.claim(&young, patient)).await
    };
    let crowd = load(&engine, 30, 1, MS);
    let (old, young, _crowd) = tokio::join!(timed(engine.claim(&old, patient)), begun_just_before, crowd);
    assert!(is_open(&engine));
    for (answer, took, most) in [(old.0, old.1, 910 * MS), (young.0, young.1, 101 * MS)] {
        assert!(matches!(answer, Err(EngineError::Indeterminate(_))), "it may have happened: {answer:?}");
        assert!(took <= most, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_refuses_at_once_and_sends_only_probes() {
    let store = Store::new();
    let engine = guarded(store.clone());
    opened(&engine, &store).await;
    let before = store.claims();
    for _ in 0..1000 {
        let (answer, took) = timed(engine.claim(&request(), DEADLINE)).await;
        let Err(EngineError::Determinate(Determinate::Unavailable(why))) = answer else { panic!("{answer:?}") };
        assert!(why.contains("breaker is open"), "{why}");
        assert_eq!(took, Duration::ZERO);
        sleep(MS).await;
    }
    assert_eq!(store.claims(), before);
    let probes = store.probes.load(Ordering::SeqCst);
    assert!((6..=14).contains(&probes), "a second's worth of probes: {probes}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_opens_the_breaker_within_a_second_under_load() {
    // With 64 callers the retry budget lacks some requests, with 12 every call is hedged.
    for callers in [12, 64] {
        let store = Store::new();
        let engine = guarded(store.clone());
        load(&engine, callers, 100, MS).await;
        store.set_silent();
        let (answers, took) = timed(load(&engine, callers, 1, MS)).await;
        assert!(is_open(&engine), "{callers} callers: after {took:?}");
        assert!(took < DEADLINE);
        assert!(answers.iter().all(Result::is_err));
    }
}

#[tokio::test(start_paused = true)]
async fn service_is_back_within_a_second_of_the_store_also_without_calls() {
    for callers in [0, 64] {
        let store = Store::new();
        let engine = guarded(store.clone());
        opened(&engine, &store).await;
        sleep(Duration::from_mins(1)).await;
        store.recover();
        // One call passes, then more and more.
        for _ in 0..100 {
            load(&engine, callers, 1, MS).await;
            sleep(9 * MS).await;
        }
        if callers > 0 {
            assert_eq!(engine.0.breaker(0).state(), BreakerState::Closed);
        }
        assert!(engine.claim(&request(), DEADLINE).await.is_ok(), "{callers} callers");
    }
}

#[tokio::test(start_paused = true)]
async fn a_trial_call_without_an_answer_delays_others_by_less_than_a_second() {
    // No call in between detects that the trial call has no answer.
    let store = Store::new();
    let engine = guarded(store.clone());
    opened(&engine, &store).await;
    store.recover();
    half_open(&engine).await;
    store.set_silent();
    let in_vain = async {
        let (answer, took) = timed(engine.claim(&request(), Duration::from_mins(1))).await;
        assert!(matches!(answer, Err(EngineError::Indeterminate(_))), "{answer:?}");
        assert!(took < Duration::from_secs(1), "{took:?}");
    };
    let others = async {
        sleep(MS).await;
        store.recover();
        sleep(Duration::from_secs(1)).await;
        assert!(engine.claim(&request(), DEADLINE).await.is_ok());
    };
    tokio::join!(in_vain, others);
}

#[tokio::test(start_paused = true)]
async fn calls_that_arrive_together_after_a_quiet_time_are_all_served() {
    for store_is_silent in [false, true] {
        let store = Store::new();
        let engine = guarded(store.clone());
        opened(&engine, &store).await;
        if store_is_silent {
            store.set_silent();
        }
        sleep(Duration::from_mins(1)).await;
        store.recover();
        sleep(Duration::from_secs(1)).await;
        let claims: Vec<_> = (0..64).map(|_| (request(), DEADLINE)).collect();
        let answers = claim_batch(&engine, &claims).await;
        assert!(answers.iter().all(|(answer, _)| answer.is_ok()), "{answers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_only_probes_gets_one_call_for_each_probe() {
    let store = Store::new();
    let engine = guarded(store.clone());
    store.always_answers_probes.store(true, Ordering::SeqCst);
    opened(&engine, &store).await;
    let (asked, probed) = (store.claims(), store.probes.load(Ordering::SeqCst));
    store.in_flight_max.store(0, Ordering::SeqCst);
    for _ in 0..1000 {
        load(&engine, 16, 1, MS).await;
    }
    let (asked, probed) = (store.claims() - asked, store.probes.load(Ordering::SeqCst) - probed);
    assert!(asked <= probed + 1 && asked > 5, "{asked} calls, {probed} probes");
    assert_eq!(store.in_flight_max.load(Ordering::SeqCst), 1, "never two at once");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_trial_call_makes_room_for_another() {
    let store = Store::new();
    let engine = guarded(store.clone());
    store.always_answers_probes.store(true, Ordering::SeqCst);
    opened(&engine, &store).await;
    store.set_failure(None);
    store.set_silent();
    half_open(&engine).await;
    let gone = timeout(10 * MS, engine.claim(&request(), DEADLINE)).await;
    assert!(gone.is_err(), "it was let through, and is not waited for");
    store.recover();
    assert!(engine.claim(&request(), DEADLINE).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn duplicates_full_stores_and_cancelled_calls_do_not_open_the_breaker() {
    let store = Store::new();
    let engine = guarded(store.clone());
    let held = request();
    engine.claim(&held, DEADLINE).await.unwrap();
    for _ in 0..100 {
        let again = ClaimRequest { attempt: request().attempt, ..held.clone() };
        assert!(matches!(engine.claim(&again, DEADLINE).await, Ok(ClaimResponse::Duplicate(_))));
    }
    for failure in [Determinate::Full("full".into()), Determinate::Incompatible("a record".into())] {
        store.set_failure(EngineError::from(failure.clone()));
        let asked = store.claims();
        for _ in 0..100 {
            assert_eq!(engine.claim(&request(), DEADLINE).await.unwrap_err(), failure.clone().into());
        }
        assert_eq!(store.claims() - asked, 100, "there is no point in asking again");
    }
    // Callers that disconnect, each after a while.
    store.set_silent();
    for _ in 0..100 {
        assert!(timeout(300 * MS, engine.claim(&request(), DEADLINE)).await.is_err());
    }
    assert_eq!(engine.0.breaker(0).state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn calls_with_impossible_deadlines_do_not_open_the_breaker() {
    let store = Store::new();
    store.set_time(90 * MS);
    let engine = guarded(store.clone());
    let hasty = request();
    for _ in 0..200 {
        assert!(engine.claim(&hasty, 50 * MS).await.is_err());
    }
    assert!(engine.claim(&request(), DEADLINE).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_engine_is_not_probed() {
    let store = Store::new();
    let engine = guarded(store.clone());
    opened(&engine, &store).await;
    drop(engine);
    sleep(DEADLINE).await;
    assert_eq!(Arc::strong_count(&store), 1);
}

#[tokio::test(start_paused = true)]
async fn a_ramp_ends_in_its_time_although_all_its_calls_wait() {
    let store = Store::new();
    let engine = guarded(store.clone());
    store.always_answers_probes.store(true, Ordering::SeqCst);
    opened(&engine, &store).await;
    store.recover();
    half_open(&engine).await;
    engine.claim(&request(), DEADLINE).await.unwrap();
    // The ramp has started. Calls without an answer are all that it allows.
    store.set_silent();
    let in_vain = async {
        let (one, other, patient) = (request(), request(), Duration::from_mins(1));
        tokio::join!(engine.claim(&one, patient), engine.claim(&other, patient))
    };
    let others = async {
        sleep(500 * MS).await;
        store.recover();
        assert!(engine.claim(&request(), DEADLINE).await.is_err(), "no position is left");
        sleep(500 * MS).await;
        assert!(engine.claim(&request(), DEADLINE).await.is_ok());
    };
    tokio::select! {
        _ = in_vain => panic!("they wait for a minute"),
        () = others => {}
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_answers_again_is_not_probed_any_more() {
    let store = Store::new();
    let engine = guarded(store.clone());
    for outages in 1..=2 {
        opened(&engine, &store).await;
        store.recover();
        sleep(Duration::from_secs(2)).await;
        assert_eq!(engine.0.breaker(0).state(), BreakerState::Closed, "{outages}");
        let probes = store.probes.load(Ordering::SeqCst);
        sleep(Duration::from_mins(1)).await;
        assert_eq!(store.probes.load(Ordering::SeqCst), probes, "{outages}");
        assert!(!engine.0.shards.get(0).has_prober.load(Ordering::SeqCst), "{outages}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_trial_call_is_not_hedged() {
    let store = Store::new();
    let engine = guarded(store.clone());
    opened(&engine, &store).await;
    store.recover();
    half_open(&engine).await;
    let before = store.claims();
    store.set_time(600 * MS);
    assert!(engine.claim(&request(), DEADLINE).await.is_ok());
    assert_eq!(store.claims() - before, 1);
    assert_eq!(engine.0.breaker(0).state(), BreakerState::HalfOpen, "the ramp has started");
}

#[tokio::test(start_paused = true)]
async fn answers_after_three_quarters_of_the_deadline_open_the_breaker() {
    for (time, opens) in [(740 * MS, false), (760 * MS, true)] {
        let store = Store::new();
        let engine = guarded(store.clone());
        while engine.0.shards.get(0).budget.withdraw(engine.0.clock.monotonic()) {}
        store.set_time(time);
        load(&engine, 9, 3, MS).await;
        assert_eq!(is_open(&engine), opens, "{time:?}");
    }
}
