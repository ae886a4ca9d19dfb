//! One nonce at two gateways while the store is unavailable: two attempts of one try.

use oncegate_core::attempt::Attempt;
use oncegate_core::claim::Outcome;
use oncegate_core::record::ClaimState;
use oncegate_core::terms::LeaseEnd;

use super::super::*;
use super::support::*;

const CLOSED: OutcomeOnOutage = OutcomeOnOutage::FailClosed;
const SPOOLED: OutcomeOnOutage = OutcomeOnOutage::Spool;

/// A claim and its repeat at a second gateway; both were granted by a policy.
struct Repeated {
    one: World,
    two: World,
    first: Claim,
    second: Claim,
}

impl Repeated {
    async fn new(on_outage: ClaimOnOutage) -> Self {
        let (one, two) = World::two_cut_off().await;
        let first = request(&one, on_outage);
        one.clock.advance(Duration::from_millis(20));
        let second = repeat(&one, &first);
        one.claim(&first).await;
        two.claim(&second).await;
        Self { one, two, first, second }
    }

    async fn back(&self) {
        self.one.back().await;
        self.two.back().await;
        assert!(self.one.overlaps().is_empty() && self.two.overlaps().is_empty(), "one try");
    }

    async fn state(&self) -> Option<ClaimState> {
        self.one.held(&self.first).await.map(|held| held.record.state)
    }
}

/// The same claim call, sent again now.
fn repeat(world: &World, first: &Claim) -> Claim {
    first.with(|request| request.attempt = Attempt::new(world.clock.wall(), first.attempt.nonce().clone()))
}

fn state_after(outcome: &Outcome) -> Option<ClaimState> {
    match outcome {
        Outcome::Success { .. } => Some(ClaimState::Succeeded),
        Outcome::Failure => None,
        Outcome::Unknown => Some(ClaimState::Unknown),
    }
}

fn outcomes() -> [Outcome; 3] {
    [success("2"), Outcome::Failure, Outcome::Unknown]
}

#[tokio::test]
async fn either_attempt_settles_the_claim_at_any_gateway_once_the_store_is_back() {
    for on_outage in [ClaimOnOutage::Local, ClaimOnOutage::FailOpen] {
        for outcome in outcomes() {
            for (at_one, by_first) in [(true, true), (true, false), (false, true), (false, false)] {
                let world = Repeated::new(on_outage).await;
                world.back().await;
                let gateway = if at_one { &world.one } else { &world.two };
                let claim = if by_first { &world.first } else { &world.second };
                let settled = gateway.settle(&report(claim, outcome.clone(), CLOSED)).await;
                assert!(matches!(response(&settled), OutcomeResponse::Done { late: Some(false), .. }), "{settled:?}");
                assert_eq!(world.state().await, state_after(&outcome));
            }
        }
    }
}

#[tokio::test]
async fn either_attempt_settles_the_claim_at_any_gateway_while_the_store_is_unavailable() {
    for on_outage in [ClaimOnOutage::Local, ClaimOnOutage::FailOpen] {
        for outcome in outcomes() {
            for (at_one, by_first) in [(true, true), (true, false), (false, true), (false, false)] {
                for one_is_back_first in [true, false] {
                    let world = Repeated::new(on_outage).await;
                    let gateway = if at_one { &world.one } else { &world.two };
                    let claim = if by_first { &world.first } else { &world.second };
                    let settled = gateway.settle(&report(claim, outcome.clone(), SPOOLED)).await;
                    let is_superseded =
                        matches!(settled.answer, OutcomeAnswer::Response(OutcomeResponse::Superseded { .. }));
                    assert!(settled.policy.is_some() && !is_superseded, "{settled:?}");
                    if one_is_back_first {
                        world.one.back().await;
                    }
                    world.two.back().await;
                    world.back().await;
                    let case = (on_outage, &outcome, at_one, by_first, one_is_back_first);
                    // A failure frees the claim at its gateway; the other one's grant may reach the store after that.
                    if outcome != Outcome::Failure {
                        assert_eq!(world.state().await, state_after(&outcome), "{case:?}");
                    }
                }
            }
        }
    }
}

/// The second gateway has not delivered its grant of the same nonce yet.
#[tokio::test]
async fn a_success_is_recorded_although_its_attempt_is_not_known_to_the_store_yet() {
    let world = Repeated::new(ClaimOnOutage::FailOpen).await;
    world.one.back().await;
    let settled = world.one.settle(&report(&world.second, success("2"), CLOSED)).await;
    assert!(
        matches!(response(&settled), OutcomeResponse::Done { state: Some(ClaimState::Succeeded), .. }),
        "{settled:?}"
    );
    world.two.back().await;
    assert_eq!(world.state().await, Some(ClaimState::Succeeded));
}

/// The store granted the first attempt, and its answer was lost.
#[tokio::test]
async fn a_nonce_that_the_store_granted_too_is_settled_by_the_attempt_of_a_policy() {
    let world = World::new().await;
    let first = request(&world, ClaimOnOutage::FailOpen);
    world.claim_elsewhere(&first).await;
    world.clock.advance(Duration::from_millis(20));
    world.line.set(Way::Gone);
    let second = repeat(&world, &first);
    assert_eq!(summary(&world.claim(&second).await), (FAIL_OPEN, "granted"));
    world.back().await;
    world.settle(&report(&second, success("2"), CLOSED)).await;
    assert_eq!(world.held(&first).await.unwrap().record.state, ClaimState::Succeeded);
}

#[tokio::test]
async fn either_attempt_renews_the_lease() {
    for on_outage in [ClaimOnOutage::Local, ClaimOnOutage::FailOpen] {
        let world = Repeated::new(on_outage).await;
        let longer = |claim: &ClaimRequest| RenewalRequest { lease: Some(claim.terms.lease * 2), ..renewal(claim) };
        let renewed = world.one.try_renew(&longer(&world.second)).await.unwrap().split().0;
        assert_eq!(renewed, RenewalResponse::Renewed { left: world.first.terms.lease * 2, ends_at: None });
        world.back().await;
        assert_eq!(world.one.held(&world.first).await.unwrap().left, Some(world.first.terms.lease * 2));
        world.one.clock.advance(world.first.terms.lease);
        let renewed = world.two.try_renew(&longer(&world.second)).await.unwrap().answer;
        let left = world.first.terms.lease * 2;
        assert!(matches!(renewed, RenewalResponse::Renewed { left: of_store, .. } if of_store == left), "{renewed:?}");
    }
}

/// A claim of an operation whose lease end means unknown, granted by both gateways and renewed at the second one only.
async fn renewed_at_the_second_gateway(on_outage: ClaimOnOutage) -> Repeated {
    let (one, two) = World::two_cut_off().await;
    let first = request(&one, on_outage).with(|request| request.terms.on_lease_end = LeaseEnd::Unknown);
    one.clock.advance(Duration::from_millis(20));
    let second = repeat(&one, &first);
    one.claim(&first).await;
    two.claim(&second).await;
    let longer = RenewalRequest { lease: Some(first.terms.lease * 3), ..renewal(&second) };
    two.try_renew(&longer).await.unwrap();
    Repeated { one, two, first, second }
}

/// S1: the first gateway does not know that the second one has extended the lease.
#[tokio::test]
async fn a_lease_that_ended_at_one_gateway_is_restored_by_the_gateway_that_extended_it() {
    for on_outage in [ClaimOnOutage::Local, ClaimOnOutage::FailOpen] {
        for delivered_before_its_end in [true, false] {
            let world = renewed_at_the_second_gateway(on_outage).await;
            let (lease, clock) = (world.first.terms.lease, &world.one.clock);
            if delivered_before_its_end {
                world.one.back().await;
            }
            clock.advance(lease + Duration::from_millis(10));
            world.one.back().await;
            clock.advance(Duration::from_millis(10));
            assert_eq!(world.state().await, Some(ClaimState::Unknown), "no other gateway knows of the renewal yet");
            world.back().await;
            let held = world.one.held(&world.first).await.unwrap();
            assert_eq!(
                (held.record.state, held.left),
                (ClaimState::InProgress, Some((lease * 2).saturating_sub(Duration::from_millis(20))))
            );
            for gateway in [&world.one, &world.two] {
                let taker = other(gateway, &world.first).with(|request| request.take_over = true);
                assert_eq!(summary(&gateway.claim(&taker).await), (None, "duplicate"));
            }
            let settled = world.two.settle(&report(&world.second, success("2"), CLOSED)).await;
            assert!(matches!(response(&settled), OutcomeResponse::Done { late: Some(false), .. }), "{settled:?}");
            assert_eq!(world.state().await, Some(ClaimState::Succeeded));
        }
    }
}

#[tokio::test]
async fn an_unknown_outcome_that_was_reported_is_not_undone_by_a_lease() {
    let world = renewed_at_the_second_gateway(ClaimOnOutage::Local).await;
    world.one.back().await;
    world.one.settle(&report(&world.first, Outcome::Unknown, CLOSED)).await;
    world.back().await;
    assert_eq!(world.state().await, Some(ClaimState::Unknown));
}

#[tokio::test]
async fn a_claim_that_was_taken_over_is_not_restored_and_the_overlap_is_reported() {
    let world = renewed_at_the_second_gateway(ClaimOnOutage::Local).await;
    world.one.clock.advance(world.first.terms.lease);
    world.one.back().await;
    world.one.clock.advance(Duration::from_millis(10));
    let taker = other(&world.one, &world.first).with(|request| request.take_over = true);
    assert_eq!(summary(&world.one.claim(&taker).await), (None, "granted"));
    world.two.back().await;
    assert_eq!(world.one.held(&world.first).await.unwrap().record.attempt, taker.attempt);
    assert_eq!(world.two.overlapping(), [(world.second.attempt.hash(), taker.attempt.hash())]);
}

/// S9: the first step was answered, and an earlier try of it may still be in flight.
#[tokio::test]
async fn a_call_of_which_a_later_step_failed_is_not_answered_as_certainly_not_done() {
    let world = Repeated::new(ClaimOnOutage::FailOpen).await;
    world.back().await;
    let (gateway, claim) = (&world.two, &world.second);
    gateway.line.set(Way::Slow);
    let settled = async { gateway.try_settle(&report(claim, success("2"), CLOSED)).await.map(drop) };
    let renewed = async { gateway.try_renew(&renewal(claim)).await.map(drop) };
    for call in [Box::pin(settled) as futures_util::future::LocalBoxFuture<'_, _>, Box::pin(renewed)] {
        gateway.line.set(Way::Slow);
        tokio::pin!(call);
        assert!(futures_util::poll!(&mut call).is_pending());
        gateway.line.set(Way::Gone);
        gateway.line.go_on.notify_one();
        assert!(matches!(call.await, Err(EngineError::Indeterminate(_))));
    }
}

/// S2: if a caller uses one nonce for two tries, against the contract, the claim of the second one does not change.
#[tokio::test]
async fn a_nonce_alone_settles_nothing() {
    let world = World::new().await;
    let first = request(&world, ClaimOnOutage::FailClosed);
    world.claim(&first).await;
    world.clock.advance(first.terms.lease);
    let second = repeat(&world, &first);
    assert_eq!(summary(&world.claim(&second).await), (None, "granted"));
    for outcome in outcomes() {
        let settled = world.settle(&report(&first, outcome, CLOSED)).await;
        assert!(matches!(response(&settled), OutcomeResponse::Superseded { .. }), "{settled:?}");
    }
    let renewed = world.try_renew(&renewal(&first)).await.unwrap();
    assert!(matches!(renewed.answer, RenewalResponse::Superseded { .. }), "{renewed:?}");
    assert_eq!(world.held(&first).await.unwrap().record.attempt, second.attempt);
}

#[tokio::test]
async fn another_try_is_superseded() {
    let world = Repeated::new(ClaimOnOutage::FailOpen).await;
    world.back().await;
    for outcome in outcomes() {
        let settled = world.one.settle(&report(&other(&world.one, &world.first), outcome, CLOSED)).await;
        assert!(
            matches!(response(&settled), OutcomeResponse::Superseded { state: ClaimState::InProgress, .. }),
            "{settled:?}"
        );
    }
}

/// The claim under the other attempt of the try ends between the refusal and the lookup.
#[tokio::test]
async fn a_call_that_was_refused_by_a_claim_that_has_ended_since_is_sent_again() {
    for outcome in [Some(success("2")), Some(Outcome::Unknown), None] {
        let world = Repeated::new(ClaimOnOutage::FailOpen).await;
        world.back().await;
        let (gateway, claim) = (&world.two, &world.second);
        gateway
            .clock
            .advance(gateway.held(claim).await.unwrap().left.unwrap().saturating_sub(Duration::from_millis(1)));
        gateway.line.set(Way::EachTakesAMillisecond);
        if let Some(outcome) = outcome {
            let settled = gateway.settle(&report(claim, outcome, CLOSED)).await;
            assert!(matches!(response(&settled), OutcomeResponse::Done { late: Some(true), .. }), "{settled:?}");
        } else {
            assert_eq!(gateway.try_renew(&renewal(claim)).await.unwrap().answer, RenewalResponse::LeaseLost);
        }
    }
}
