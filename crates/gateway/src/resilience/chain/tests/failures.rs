//! Engines and gateways that fail, during a switch and otherwise.

use oncegate_core::engine::Metadata;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_gateway_that_has_not_read_the_state_for_long_grants_nothing() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    there.granted().await;
    // As if its process were suspended: it does not read the state any more.
    there.chain.close().await;
    here.chain.switch("b").await.unwrap();
    let refused = there.claim(&fresh_claim()).await;
    assert!(matches!(refused, Err(EngineError::Determinate(Determinate::Unavailable(_)))), "{refused:?}");
    for refused in there.claim_batch(&[fresh_claim(), fresh_claim()]).await {
        assert!(matches!(refused, Err(EngineError::Determinate(Determinate::Unavailable(_)))), "{refused:?}");
    }
    let refused = there.chain.settle(&settle(&fresh_claim()), DEADLINE).await;
    assert!(matches!(refused, Err(EngineError::Determinate(Determinate::Unavailable(_)))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_dead_spare_engine_delays_no_call() {
    for is in [Fault::Refused, Fault::Silent] {
        let stores = Stores::new(&["a", "b"]);
        let gateway = stores.gateway_with(OnDataLoss::Resume, |engines| engines[1].set(is));
        for _ in 0..1000 {
            let started = stores.clock.monotonic();
            gateway.granted().await;
            assert!(stores.clock.monotonic().saturating_sub(started) < Duration::from_secs(1));
            sleep(Duration::from_millis(10)).await;
            gateway.engines[1].set(if stores.clock.monotonic().as_millis() % 3000 < 500 { Fault::None } else { is });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_can_be_switched_away_from_a_dead_engine_which_learns_of_it_later() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    there.granted().await;
    for gateway in [&here, &there] {
        gateway.engines[0].set(Fault::Refused);
    }
    here.chain.switch("b").await.unwrap();
    there.wait_until_active("b").await;
    assert_eq!((stores.epoch_at(0).await, stores.epoch_at(1).await), (0, 1));
    there.engines[0].set(Fault::None);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(stores.epoch_at(0).await, 1, "the gateway that reaches it updates it");
    // So a gateway that starts now and reaches only that engine does not use it.
    let late = stores.gateway_with(OnDataLoss::Resume, |engines| engines[1].set(Fault::Refused));
    let refused = late.claim(&fresh_claim()).await;
    assert!(matches!(refused, Err(EngineError::Determinate(Determinate::Unavailable(_)))), "{refused:?}");
    assert_eq!(late.active(), "b");
}

#[tokio::test(start_paused = true)]
async fn a_chain_is_not_switched_to_an_engine_that_does_not_answer() {
    for is in [Fault::Refused, Fault::Silent] {
        let stores = Stores::new(&["a", "b"]);
        let (here, there) = (stores.gateway(), stores.gateway());
        here.engines[1].set(is);
        let refused = here.chain.switch("b").await.unwrap_err();
        assert!(matches!(&refused, ChainSwitchError::Unavailable { to, .. } if to == "b"), "{refused:?}");
        sleep(Duration::from_secs(15)).await;
        for gateway in [&here, &there] {
            assert_eq!(gateway.active(), "a");
            gateway.granted().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_switch_whose_gateway_died_is_completed_by_another() {
    let stores = Stores::new(&["a", "b"]);
    let there = stores.gateway();
    there.granted().await;
    {
        let here = stores.gateway();
        let died = tokio::time::timeout(Duration::from_secs(1), here.chain.switch("b")).await;
        assert!(died.is_err(), "it is not done in a second");
    }
    sleep(Duration::from_secs(1)).await;
    assert!(is_paused(&there.claim(&fresh_claim()).await));
    assert_eq!(there.chain.switch("a").await, Err(ChainSwitchError::InProgress("b".into())));
    let waited = there.wait_until_active("b").await;
    assert!(waited > Duration::from_secs(7) && waited < Duration::from_secs(10), "{waited:?}");
    assert_eq!(stores.holders(&there.granted().await.key).await, "b");
}

/// Its operator has accepted that the new engine lacks the claims of the other one.
#[tokio::test(start_paused = true)]
async fn a_switch_that_another_gateway_completes_causes_no_freeze_on_the_new_engine() {
    let stores = Stores::new(&["a", "b"]);
    mark_as_kept(&*stores.stores[0].1).await;
    let there = stores.freezing_gateway();
    there.granted().await;
    {
        let here = stores.freezing_gateway();
        let died = tokio::time::timeout(Duration::from_secs(1), here.chain.switch("b")).await;
        assert!(died.is_err(), "it is not done in a second");
    }
    there.wait_until_active("b").await;
    assert_eq!(stores.holders(&there.granted().await.key).await, "b");
    stores.freezing_gateway().granted().await;
}

#[tokio::test(start_paused = true)]
async fn a_switch_whose_new_engine_died_can_be_reverted() {
    let stores = Stores::new(&["a", "b"]);
    let (here, there) = (stores.gateway(), stores.gateway());
    there.granted().await;
    let die = async {
        sleep(Duration::from_secs(1)).await;
        for gateway in [&here, &there] {
            gateway.engines[1].set(Fault::Refused);
        }
    };
    let (refused, ()) = tokio::join!(here.chain.switch("b"), die);
    assert!(matches!(refused, Err(ChainSwitchError::Incomplete { .. })), "{refused:?}");
    assert!(is_paused(&there.claim(&fresh_claim()).await));
    sleep(Duration::from_secs(10)).await;
    let back = there.chain.switch("a").await.unwrap();
    assert_eq!((back.from.as_str(), back.to.as_str(), back.epoch), ("a", "a", 2));
    here.wait_until_active("a").await;
    here.granted().await;
    // The state that the dead engine has stored does not count when it is back.
    for gateway in [&here, &there] {
        gateway.engines[1].set(Fault::None);
    }
    sleep(Duration::from_secs(15)).await;
    assert_eq!((here.active(), there.active(), stores.epoch_at(1).await), ("a".into(), "a".into(), 2));
}

#[tokio::test(start_paused = true)]
async fn a_gateway_without_the_active_engine_refuses_claims() {
    let stores = Stores::new(&["a", "b", "c"]);
    let here = stores.gateway();
    here.granted().await;
    here.chain.switch("c").await.unwrap();
    let fewer = Stores { clock: stores.clock.clone(), stores: stores.stores[..2].to_vec() }.gateway();
    let refused = fewer.claim(&fresh_claim()).await.unwrap_err().to_string();
    assert!(refused.contains("switched to engine `c`, which this gateway does not have"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_state_that_cannot_be_read_is_not_overwritten_and_stops_grants() {
    let stores = Stores::new(&["a", "b"]);
    for (_, store) in &stores.stores {
        assert_eq!(
            store.compare_and_set_metadata("chain.main", None, &Metadata::new("from a later release").unwrap()).await,
            Ok(true)
        );
    }
    let gateway = stores.gateway();
    let refused = gateway.claim(&fresh_claim()).await.unwrap_err();
    assert!(refused.to_string().contains("cannot be read by this release"), "{refused}");
    assert!(gateway.chain.switch("b").await.is_err());
    let record = stores.stores[1].1.get_metadata("chain.main").await.unwrap().unwrap();
    assert_eq!(record.as_str(), "from a later release");
}
