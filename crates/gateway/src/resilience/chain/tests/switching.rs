//! Switches between engines that answer.

use super::core::Core;
use super::*;

#[tokio::test(start_paused = true)]
async fn a_switch_reaches_every_gateway_and_those_that_start_later() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    let before = here.granted().await;
    assert_eq!(stores.holders(&before.key).await, "a");
    let switched = here.chain.switch("b").await.unwrap();
    assert_eq!(switched, Switched { from: "a".into(), to: "b".into(), epoch: 1 });
    assert_eq!(here.active(), "b");
    assert!(there.wait_until_active("b").await <= Duration::from_millis(600), "it is followed at the next look");
    for gateway in [&here, &there, &stores.gateway()] {
        assert_eq!(stores.holders(&gateway.granted().await.key).await, "b");
    }
    let back = there.chain.switch("a").await.unwrap();
    assert_eq!((back.epoch, back.from.as_str()), (2, "b"));
    here.wait_until_active("a").await;
}

/// The engine that was read may no longer be the one that grants.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_read_before_a_switch_is_not_granted_again_after_it() {
    let stores = Stores::new(&["a", "b"]);
    let gateway = stores.gateway();
    gateway.granted().await;
    gateway.engines[0].set(DELAYED);
    let name = RecordName::Grants(fresh_claim().key);
    let (read, switched) = tokio::join!(gateway.chain.get_granted(&name, DEADLINE), gateway.chain.switch("b"));
    assert!(matches!(read, Err(EngineError::Indeterminate(_))), "{read:?}");
    switched.unwrap();
}

#[tokio::test(start_paused = true)]
async fn during_a_switch_no_gateway_grants_and_outcomes_go_to_the_previous_engine() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    let held = there.granted().await;
    let started = stores.clock.monotonic();
    let switching = tokio::spawn({
        let chain = here.chain.clone();
        async move { chain.switch("b").await }
    });
    sleep(Duration::from_millis(700)).await;
    for gateway in [&here, &there] {
        let status = gateway.chain.status();
        assert_eq!((status.phase, status.active.as_str()), (Phase::Closing, "a"));
        assert_eq!(status.switching_to.as_deref(), Some("b"));
        let refused = gateway.claim(&fresh_claim()).await;
        assert!(is_paused(&refused), "{refused:?}");
        let read = gateway.chain.get_granted(&RecordName::Metadata("a".into()), DEADLINE).await;
        assert!(
            matches!(read, Err(EngineError::Determinate(Determinate::Paused(_)))),
            "no hold is granted again: {read:?}"
        );
    }
    let renewal = RenewalRequest { key: held.key.clone(), attempt: held.attempt.clone(), lease: None };
    assert!(matches!(there.chain.renew(&renewal, DEADLINE).await, Ok(RenewalResponse::Renewed { .. })));
    assert!(matches!(
        there.chain.settle(&settle(&held), DEADLINE).await,
        Ok(OutcomeResponse::Done { late: Some(false), .. })
    ));
    switching.await.unwrap().unwrap();
    assert!(stores.clock.monotonic().saturating_sub(started) >= Duration::from_secs(2), "all have had time to see it");
}

/// A gateway that does not know yet that the new engine is active would report the outcome to the old one.
#[tokio::test(start_paused = true)]
async fn a_claim_of_the_new_engine_is_not_settled_on_the_old_one() {
    let mut late = 0;
    for round in 0..10 {
        let stores = Stores::new(&["a", "b"]);
        let (here, there) = (stores.gateway(), stores.gateway());
        sleep(Duration::from_millis(50 * round)).await;
        let chain = here.chain.clone();
        let switching = tokio::spawn(async move { chain.switch("b").await });
        here.wait_until_active("b").await;
        let held = here.granted().await;
        late += u32::from(there.chain.status().phase == Phase::Closing);
        match there.chain.settle(&settle(&held), DEADLINE).await {
            Ok(OutcomeResponse::Done { late: Some(false), .. }) | Err(EngineError::Indeterminate(_)) => {}
            other => panic!("answered as accepted: {other:?}"),
        }
        assert!(there.chain.settle(&settle(&held), DEADLINE).await.is_ok(), "repeated, it goes where the claim is");
        switching.await.unwrap().unwrap();
    }
    assert!(late > 0, "it had seen it each time");
}

/// The purpose of the two phases: after a grant of the new engine was delivered, no grant of the old one is.
#[tokio::test(start_paused = true)]
async fn no_gateway_grants_on_the_old_engine_after_a_grant_on_the_new_one() {
    for round in 0..20 {
        let stores = Arc::new(Stores::new(&["a", "b"]));
        let grants = Arc::new(Mutex::new(Vec::new()));
        let gateways: Vec<_> = (0..3).map(|_| Arc::new(stores.gateway())).collect();
        let callers: Vec<_> = (0..9)
            .map(|caller| {
                let (gateway, stores, grants) = (gateways[caller % 3].clone(), stores.clone(), grants.clone());
                tokio::spawn(async move {
                    for step in 0..600 {
                        let request = fresh_claim();
                        if let Ok(ClaimResponse::Granted(_)) = gateway.claim(&request).await {
                            let on = stores.holders(&request.key).await;
                            grants.lock().unwrap().push((stores.clock.monotonic(), on));
                        }
                        sleep(Duration::from_millis(5 + (step * 7 + round) % 5)).await;
                    }
                })
            })
            .collect();
        sleep(Duration::from_millis(200 + round * 37)).await;
        // One gateway gets late answers of the old engine.
        gateways[1].engines[0].set(if round % 2 == 0 { DELAYED } else { Fault::None });
        gateways[0].chain.switch("b").await.unwrap();
        for caller in callers {
            caller.await.unwrap();
        }
        let grants = grants.lock().unwrap();
        let last_on_old = grants.iter().filter(|(_, on)| on == "a").map(|(at, _)| *at).max().unwrap();
        let first_on_new = grants.iter().filter(|(_, on)| on == "b").map(|(at, _)| *at).min().unwrap();
        assert!(last_on_old < first_on_new, "round {round}: {last_on_old:?} {first_on_new:?}");
        assert!(first_on_new < last_on_old + Duration::from_secs(3), "round {round}: no gateway granted for long");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_returns_after_the_switch_is_not_delivered() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    there.granted().await;
    there.engines[0].set(DELAYED);
    let request = fresh_claim();
    let report = settle(&request);
    let (late, outcome) = (there.claim(&request), there.chain.settle(&report, DEADLINE));
    let (late, outcome, switched) = tokio::join!(late, outcome, here.chain.switch("b"));
    switched.unwrap();
    assert!(matches!(late, Err(EngineError::Indeterminate(_))), "{late:?}");
    assert!(matches!(outcome, Err(EngineError::Indeterminate(_))), "{outcome:?}");
    // The repeat is granted on the engine that all gateways use.
    let again = there.claim(&request).await;
    assert!(matches!(&again, Ok(ClaimResponse::Granted(grant)) if grant.attempt == request.attempt), "{again:?}");
    assert_eq!(stores.holders(&request.key).await, "ab");
}

#[tokio::test(start_paused = true)]
async fn a_switch_to_the_active_or_an_unknown_engine_is_refused() {
    let stores = Stores::new(&["a", "b"]);
    let gateway = stores.gateway();
    gateway.granted().await;
    assert_eq!(gateway.chain.switch("a").await, Err(ChainSwitchError::AlreadyActive("a".into())));
    let refused = gateway.chain.switch("c").await.unwrap_err().to_string();
    assert_eq!(refused, "the chain has no engine `c`; it has: a, b");
    let alone = Stores::new(&["a"]).gateway();
    assert_eq!(alone.chain.switch("a").await, Err(ChainSwitchError::AlreadyActive("a".into())));
    gateway.granted().await;
}

#[tokio::test(start_paused = true)]
async fn of_two_switches_at_once_one_wins_and_the_other_is_refused() {
    for round in 0..30 {
        let stores = Stores::new(&["a", "b", "c"]);
        let (here, there, third) = (stores.gateway(), stores.gateway(), stores.gateway());
        third.granted().await;
        let other = if round % 2 == 0 { "b" } else { "c" };
        let late = async {
            sleep(Duration::from_millis(round * 100)).await;
            there.chain.switch(other).await
        };
        let (one, two) = tokio::join!(here.chain.switch("b"), late);
        let won: Vec<_> = [&one, &two].into_iter().flatten().collect();
        // A switch that begins after the end of the first is another switch.
        let expected = if round < 20 || other == "b" { 1 } else { 2 };
        assert_eq!(won.len(), expected, "round {round}: {one:?} {two:?}");
        let active = won.iter().max_by_key(|switched| switched.epoch).unwrap().to.clone();
        for gateway in [&here, &there, &third] {
            gateway.wait_until_active(&active).await;
            assert_eq!(stores.holders(&gateway.granted().await.key).await, active, "round {round}");
        }
    }
}

/// The store of this call may lack the claim, while another one has it: a duplicate would hide that.
#[tokio::test(start_paused = true)]
async fn during_a_switch_a_claim_that_the_store_knows_is_paused_too() {
    let stores = Stores::new(&["a", "b"]);
    let gateway = stores.gateway();
    let held = gateway.granted().await;
    let again = ClaimRequest { attempt: fresh_claim().attempt, ..held };
    let claim = async {
        sleep(Duration::from_secs(1)).await;
        (gateway.claim(&again).await, gateway.claim_batch(std::slice::from_ref(&again)).await.remove(0))
    };
    let (switched, (alone, in_batch)) = tokio::join!(gateway.chain.switch("b"), claim);
    switched.unwrap();
    assert!(is_paused(&alone) && is_paused(&in_batch), "{alone:?} {in_batch:?}");
}

/// The first claims of a batch are answered with the last one.
#[tokio::test(start_paused = true)]
async fn a_grant_that_waits_while_the_chain_is_switched_does_not_stand() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    let (key, began) = (there.granted().await.key, there.chain.moment());
    assert_eq!(there.chain.check_grant(&began, &key), Ok(()));
    here.chain.switch("b").await.unwrap();
    there.wait_until_active("b").await;
    let refused = there.chain.check_grant(&began, &key);
    assert!(matches!(refused, Err(EngineError::Indeterminate(_))), "{refused:?}");
    assert_eq!(there.chain.check_grant(&there.chain.moment(), &key), Ok(()));
}

/// An outcome that the previous engine certainly did not take is not made uncertain by the new one.
#[tokio::test(start_paused = true)]
async fn during_a_switch_a_certain_failure_stays_certain() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    let held = there.granted().await;
    let settle = async {
        sleep(Duration::from_secs(1)).await;
        for engine in &there.engines {
            engine.set(Fault::Refused);
        }
        there.chain.settle(&settle(&held), DEADLINE).await
    };
    let (switched, refused) = tokio::join!(here.chain.switch("b"), settle);
    switched.unwrap();
    assert!(matches!(refused, Err(EngineError::Determinate(Determinate::Unavailable(_)))), "{refused:?}");
}

/// A chain as one gateway knows it, without the tasks that follow it; and its engines.
fn core(stores: &Stores) -> (Core, Vec<Arc<Faulty>>) {
    let (setup, engines) = stores.setup(OnDataLoss::Resume);
    (Core::new(setup), engines)
}

#[tokio::test(start_paused = true)]
async fn another_switch_is_refused_until_the_one_before_it_counts_as_abandoned() {
    let (core, engines) = core(&Stores::new(&["a", "b", "c"]));
    // Otherwise the switch would be completed.
    engines[1].set(Fault::Refused);
    core.adopt(ChainState::closing(&core.view().state, "b", 1));
    sleep(core.times.abandoned.checked_sub(Duration::from_millis(1)).unwrap()).await;
    assert_eq!(core.switch("c", Order::Operator).await, Err(ChainSwitchError::InProgress("b".into())));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(core.switch("c", Order::Operator).await, Ok(Switched { from: "a".into(), to: "c".into(), epoch: 2 }));
}

#[tokio::test(start_paused = true)]
async fn a_switch_ends_where_another_gateway_has_switched_again_or_has_completed_it() {
    let later = async |core: &Core, next: fn(&ChainState) -> ChainState| {
        sleep(Duration::from_secs(1)).await;
        core.adopt(next(&core.view().state));
    };
    let (again, _) = core(&Stores::new(&["a", "b", "c"]));
    let (switched, ()) =
        tokio::join!(again.switch("b", Order::Operator), later(&again, |closing| ChainState::closing(closing, "c", 1)));
    assert_eq!(switched, Err(ChainSwitchError::Conflict("c".into())));
    assert_eq!(again.view().state.phase, Phase::Closing, "nothing was opened");
    let (completed, _) = core(&Stores::new(&["a", "b", "c"]));
    let (switched, ()) = tokio::join!(completed.switch("b", Order::Operator), later(&completed, ChainState::opened));
    assert_eq!(switched, Ok(Switched { from: "a".into(), to: "b".into(), epoch: 1 }));
}

#[tokio::test(start_paused = true)]
async fn a_switch_replaces_no_state_at_its_target_that_is_newer_than_the_known_one() {
    let stores = Stores::new(&["a", "b"]);
    let (core, _) = core(&stores);
    let newer = ChainState::closing(&core.view().state, "b", 1).opened();
    let (target, record) = (&stores.stores[1].1, newer.to_metadata().unwrap());
    assert_eq!(target.compare_and_set_metadata("chain.main", None, &record).await, Ok(true));
    assert_eq!(core.switch("b", Order::Operator).await, Err(ChainSwitchError::AlreadyActive("b".into())));
    assert_eq!(target.get_metadata("chain.main").await, Ok(Some(record)));
}
