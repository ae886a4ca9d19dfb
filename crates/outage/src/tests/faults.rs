//! Deliveries over a connection that loses requests and replies, by a gateway that is restarted repeatedly.

use oncegate_core::attempt::SystemEntropy;
use oncegate_core::claim::Outcome;
use oncegate_core::engine::faulty::Faulty;
use oncegate_core::record::ClaimState;

use super::super::*;
use super::support::*;

/// With any lost replies and any number of restarts, each accepted outcome is in the store, each operation ran once,
/// and no overlap is reported.
#[tokio::test]
async fn no_accepted_outcome_is_lost_and_none_is_delivered_twice() {
    for seed in 0..20 {
        let world = World::new().await;
        let spooled: Vec<_> = (0..6).map(|_| request(&world, ClaimOnOutage::FailClosed)).collect();
        for request in &spooled {
            world.claim(request).await;
        }
        world.line.set(Way::Gone);
        let local: Vec<_> = (0..6).map(|_| request(&world, ClaimOnOutage::Local)).collect();
        for request in &local {
            world.claim(request).await;
        }
        let outcome = |number| match number % 3 {
            0 => success("7"),
            1 => Outcome::Failure,
            _ => Outcome::Unknown,
        };
        for (number, request) in spooled.iter().chain(&local).enumerate() {
            world.settle(&report(request, outcome(number), OutcomeOnOutage::Spool)).await;
        }
        let World { clock, store, gateway, journal, folder, .. } = world;
        gateway.close().await;
        journal.close().await;
        for round in 0..100 {
            let faulty = Arc::new(Faulty::new(store.clone(), seed * 1000 + round, 0.4));
            let journal = Arc::new(OutageJournal::new(folder.path(), ROOMY, clock.clone()));
            journal.open().await.unwrap();
            if journal.status().entries == 0 {
                assert!(journal.open().await.is_ok());
                assert!(
                    journal.suspects(&oncegate_core::suspect::SuspectFilter::default(), 1).is_empty(),
                    "seed {seed}"
                );
                break;
            }
            assert!(round < 99, "seed {seed}: {} left", journal.status().entries);
            let gateway =
                OutagePolicies::start("default", faulty, journal.clone(), clock.clone(), Arc::new(SystemEntropy));
            drop(gateway.deliver_all(Duration::ZERO).await);
            gateway.close().await;
            journal.close().await;
        }
        for (number, request) in spooled.iter().chain(&local).enumerate() {
            let state = store.read(&request.key).await.unwrap().map(|held| held.record.state);
            let expected = [Some(ClaimState::Succeeded), None, Some(ClaimState::Unknown)][number % 3];
            assert_eq!(state, expected, "seed {seed}, outcome {number}");
        }
    }
}
