//! What a policy accepts is recorded, however old it is; what could not be recorded is not accepted. And no app loses anything by
//! what another one does.

use super::super::*;
use super::support::*;
use crate::domain::claim::{LateTerms, Outcome};
use crate::domain::degraded::Degraded;
use crate::domain::record::State;
use crate::resilience::journal::entry::{Deed, Entry};

const SPOOLED: OutcomeOnOutage = OutcomeOnOutage::Spool;

/// An outcome whose attempt is too old to be recorded if its claim is gone.
fn too_old(ask: &Claim, outcome: Outcome) -> Settle {
    Settle { late: None, ..report(ask, outcome, SPOOLED) }
}

#[tokio::test]
async fn an_outcome_too_old_to_be_recorded_is_not_accepted() {
    let world = World::new().await;
    world.line.set(Way::Gone);
    for outcome in [success("7"), Outcome::Unknown] {
        let ask = ask(&world, ClaimOnOutage::FailClosed);
        assert_eq!(world.settle(&too_old(&ask, outcome)).await.split(), (Settled::Expired, SPOOL));
        let another = other(&world, &ask);
        world.settle(&report(&another, success("8"), SPOOLED)).await;
        assert_eq!(world.settle(&too_old(&ask, success("7"))).await.split(), (Settled::Expired, SPOOL));
    }
    let nothing_to_lose = too_old(&ask(&world, ClaimOnOutage::FailClosed), Outcome::Failure);
    assert_eq!(world.settle(&nothing_to_lose).await, Settled::Spooled);
    world.back().await;
}

#[tokio::test]
async fn an_old_outcome_of_a_claim_that_stands_here_is_recorded_also_after_its_lease() {
    let world = World::new().await;
    let ask = ask(&world, ClaimOnOutage::Local);
    assert_eq!(told(&world.claim(&ask).await), (None, "granted"));
    world.line.set(Way::Gone);
    assert_eq!(world.settle(&too_old(&ask, success("7"))).await, Settled::Spooled);
    world.clock.advance(ask.terms.lease * 2);
    let world = world.restarted().await;
    world.back().await;
    let found = world.held(&ask).await.unwrap();
    assert_eq!((found.record.state, found.record.result.as_deref()), (State::Succeeded, Some("7")));
    assert_eq!(found.record.operation.as_ref(), Some(&ask.operation));
}

/// Earlier releases accepted what was too old.
#[tokio::test]
async fn what_an_earlier_release_has_accepted_is_recorded() {
    let world = World::new().await;
    world.line.set(Way::Gone);
    let ask = ask(&world, ClaimOnOutage::FailClosed);
    let deed = Deed::Reported(too_old(&ask, success("7")));
    let entry = Entry { chain: "default".into(), policy: Degraded::Spool, at: world.clock.wall(), deed };
    world.keeper.keep(&entry).await.unwrap();
    let world = world.restarted().await;
    world.back().await;
    assert_eq!(world.held(&ask).await.unwrap().record.result.as_deref(), Some("7"));
}

/// S14: the local record is bounded, and so is what an app can do to another one's claims in it.
#[tokio::test]
async fn an_app_that_fills_the_local_record_makes_no_other_app_forget() {
    let world = World::new().await;
    let of = |app: &str| {
        let ask = ask(&world, ClaimOnOutage::Local);
        Claim { key: Key { app: app.parse().unwrap(), ..ask.key.clone() }, ..ask }
    };
    let [done, held] = [of("bank"), of("bank")];
    for ask in [&done, &held] {
        assert_eq!(told(&world.claim(ask).await), (None, "granted"));
    }
    world.settle(&report(&done, success("7"), OutcomeOnOutage::FailClosed)).await;
    world.claim(&of("shop")).await;
    // More than the whole record has room for.
    let large = format!("\"{}\"", "x".repeat(1 << 20));
    for _ in 0..80 {
        let ask = of("shop");
        let late =
            LateTerms { operation: None, contents: crate::domain::record::Contents::Unverified, terms: ask.terms };
        let report = report(&ask, success(&large), OutcomeOnOutage::FailClosed);
        world.settle(&Settle { late: Some(late), ..report }).await;
    }
    world.line.set(Way::Gone);
    for ask in [&done, &held] {
        assert_eq!(told(&world.claim(&other(&world, ask)).await), (LOCAL, "duplicate"));
    }
    assert_eq!(told(&world.claim(&of("bank")).await), (LOCAL, "granted"), "and it is not blind");
}
