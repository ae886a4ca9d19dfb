//! Accepted outcomes are recorded, however old they are; outcomes that could not be recorded are not accepted. And no app loses
//! claims because of another one.

use oncegate_core::claim::{LateTerms, Outcome};
use oncegate_core::record::ClaimState;

use super::super::*;
use super::support::*;

const SPOOLED: OutcomeOnOutage = OutcomeOnOutage::Spool;

/// An outcome of an attempt that is too old to be recorded if its claim no longer exists.
fn too_old(request: &ClaimRequest, outcome: Outcome) -> Report {
    report(request, outcome, SPOOLED).with(|report| report.late = None)
}

#[tokio::test]
async fn an_outcome_too_old_to_be_recorded_is_not_accepted() {
    let world = World::cut_off().await;
    for outcome in [success("7"), Outcome::Unknown] {
        let request = request(&world, ClaimOnOutage::FailClosed);
        assert_eq!(world.settle(&too_old(&request, outcome)).await.split(), (OutcomeResponse::Expired, SPOOL));
        let another = other(&world, &request);
        world.settle(&report(&another, success("8"), SPOOLED)).await;
        assert_eq!(world.settle(&too_old(&request, success("7"))).await.split(), (OutcomeResponse::Expired, SPOOL));
    }
    let nothing_to_lose = too_old(&request(&world, ClaimOnOutage::FailClosed), Outcome::Failure);
    assert_eq!(world.settle(&nothing_to_lose).await, SPOOLED_ANSWER);
    world.back().await;
}

#[tokio::test]
async fn an_old_outcome_of_a_known_claim_is_recorded_also_after_its_lease() {
    let world = World::new().await;
    let request = request(&world, ClaimOnOutage::Local);
    assert_eq!(summary(&world.claim(&request).await), (None, "granted"));
    world.line.set(Way::Gone);
    assert_eq!(world.settle(&too_old(&request, success("7"))).await, SPOOLED_ANSWER);
    world.clock.advance(request.terms.lease * 2);
    let world = world.restarted().await;
    world.back().await;
    let found = world.held(&request).await.unwrap();
    assert_eq!((found.record.state, found.record.result.as_deref()), (ClaimState::Succeeded, Some("7")));
    assert_eq!(found.record.operation.as_ref(), Some(&request.operation));
}

/// S14: the local claims are bounded, and an app cannot displace the claims of another one.
#[tokio::test]
async fn an_app_that_fills_the_local_claims_makes_no_other_app_forget() {
    let world = World::new().await;
    let of = |app: &str| request(&world, ClaimOnOutage::Local).with(|request| request.key.app = app.parse().unwrap());
    let [done, held] = [of("bank"), of("bank")];
    for request in [&done, &held] {
        assert_eq!(summary(&world.claim(request).await), (None, "granted"));
    }
    world.settle(&report(&done, success("7"), OutcomeOnOutage::FailClosed)).await;
    world.claim(&of("shop")).await;
    // More than all local claims have room for.
    let large = format!("\"{}\"", "x".repeat(1 << 20));
    for _ in 0..80 {
        let request = of("shop");
        let late =
            LateTerms { operation: None, contents: oncegate_core::record::Contents::Unverified, terms: request.terms };
        let report = report(&request, success(&large), OutcomeOnOutage::FailClosed);
        world.settle(&report.with(|report| report.late = Some(late))).await;
    }
    world.line.set(Way::Gone);
    for request in [&done, &held] {
        assert_eq!(summary(&world.claim(&other(&world, request)).await), (LOCAL, "duplicate"));
    }
    assert_eq!(summary(&world.claim(&of("bank")).await), (LOCAL, "granted"), "and it is not blind");
}
