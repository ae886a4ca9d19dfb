//! A store that executes a call late, after its caller gave up and a policy answered instead.

use oncegate_core::claim::Outcome;
use oncegate_core::record::ClaimState;

use super::super::*;
use super::support::*;

const CLOSED: OutcomeOnOutage = OutcomeOnOutage::FailClosed;
const MINUTE: Duration = Duration::from_mins(1);

/// A claim with a short lease, which a policy grants while the store is stopped; the store executes the first call late.
async fn granted_and_renewed(on_outage: ClaimOnOutage) -> (World, Claim) {
    let world = World::cut_off().await;
    let mut first = request(&world, on_outage);
    first.terms.lease = Duration::from_secs(6);
    let policy = summary(&world.claim(&first).await).0;
    let longer = RenewalRequest { lease: Some(MINUTE), ..renewal(&first) };
    assert_eq!(
        world.try_renew(&longer).await.unwrap().split(),
        (RenewalResponse::Renewed { left: MINUTE, ends_at: None }, policy)
    );
    (world, first)
}

#[tokio::test]
async fn a_renewal_by_a_policy_counts_although_the_store_executed_the_claim_call_late() {
    for on_outage in [ClaimOnOutage::Local, ClaimOnOutage::FailOpen] {
        for restarts in [false, true] {
            let (mut world, first) = granted_and_renewed(on_outage).await;
            if restarts {
                world = world.restarted().await;
            }
            assert_eq!(summary(&world.claim_elsewhere(&first).await), (None, "granted"), "executed late");
            world.back().await;
            assert_eq!(world.held(&first).await.unwrap().left, Some(MINUTE));
            world.clock.advance(Duration::from_secs(7));
            assert_eq!(summary(&world.claim(&other(&world, &first)).await), (None, "duplicate"));
            let settled = world.settle(&report(&first, success("1"), CLOSED)).await;
            assert!(matches!(response(&settled), OutcomeResponse::Done { late: Some(false), .. }), "{settled:?}");
        }
    }
}

/// The first lease ends between two calls of the delivery.
#[tokio::test]
async fn a_claim_whose_first_lease_ends_before_its_renewal_is_claimed_again() {
    let (world, first) = granted_and_renewed(ClaimOnOutage::FailOpen).await;
    world.claim_elsewhere(&first).await;
    world.clock.advance(first.terms.lease.checked_sub(Duration::from_millis(1)).unwrap());
    world.line.set(Way::EachTakesAMillisecond);
    world.gateway.deliver_all(Duration::from_secs(5)).await.unwrap();
    let held = world.held(&first).await.unwrap();
    assert_eq!(held.record.attempt, first.attempt);
    assert!(held.left.unwrap() > first.terms.lease, "{held:?}");
}

/// Its lease was too short to be renewed in time, and another gateway was granted the claim: two grants.
#[tokio::test]
async fn a_claim_that_another_gateway_was_granted_after_the_first_lease_is_reported() {
    let (world, first) = granted_and_renewed(ClaimOnOutage::FailOpen).await;
    world.claim_elsewhere(&first).await;
    world.clock.advance(first.terms.lease);
    let theirs = other(&world, &first);
    assert_eq!(summary(&world.claim_elsewhere(&theirs).await), (None, "granted"));
    world.back().await;
    assert_eq!(world.overlapping(), [(first.attempt.hash(), theirs.attempt.hash())]);
}

/// The store has the later grant of this gateway: it executed the claim call of that grant late.
#[tokio::test]
async fn a_grant_after_a_failed_one_is_no_overlap_even_if_the_store_has_it_already() {
    let world = World::cut_off().await;
    let [first, waits] = [request(&world, ClaimOnOutage::Local), request(&world, ClaimOnOutage::Local)];
    let waits = first.with(|request| request.attempt = waits.attempt.clone());
    world.claim(&first).await;
    world.clock.advance(Duration::from_millis(3));
    world.settle(&report(&first, Outcome::Failure, CLOSED)).await;
    assert_eq!(summary(&world.claim(&waits).await), (LOCAL, "granted"));
    world.claim_elsewhere(&waits).await;
    world.back().await;
    assert_eq!(world.overlapping(), []);
    assert_eq!(world.held(&first).await.unwrap().record.attempt, waits.attempt);
}

/// The first one had failed before another gateway granted the claim, as the store knows.
#[tokio::test]
async fn a_grant_beside_a_failed_claim_that_the_store_executed_late_is_no_overlap() {
    let (one, two) = World::two_cut_off().await;
    let first = request(&one, ClaimOnOutage::FailOpen);
    one.claim(&first).await;
    one.clock.advance(Duration::from_millis(5));
    one.settle(&report(&first, Outcome::Failure, OutcomeOnOutage::Spool)).await;
    one.back().await;
    one.claim_elsewhere(&first).await;
    one.clock.advance(Duration::from_millis(5));
    let second = other(&two, &first);
    assert_eq!(summary(&two.claim(&second).await), (FAIL_OPEN, "granted"));
    two.back().await;
    assert_eq!(two.overlapping(), []);
    assert_eq!(two.held(&first).await.unwrap().record.attempt, first.attempt);
}

/// The attempt was issued before the first one failed, and granted after that.
#[tokio::test]
async fn successive_grants_of_one_gateway_are_no_overlap_however_short_the_interval() {
    for micros in [0, 1, 400, 1_400] {
        let step = Duration::from_micros(micros);
        let world = World::cut_off().await;
        let first = request(&world, ClaimOnOutage::Local);
        world.clock.advance(step);
        world.claim(&first).await;
        let waits = other(&world, &first);
        world.clock.advance(step);
        world.settle(&report(&first, Outcome::Failure, CLOSED)).await;
        assert_eq!(summary(&world.claim(&waits).await), (LOCAL, "granted"));
        world.clock.advance(step);
        world.back().await;
        assert_eq!(world.overlapping(), [], "{step:?}");
    }
}

/// An optimised gateway answers within microseconds.
#[tokio::test]
async fn a_take_over_of_an_unknown_outcome_is_no_overlap() {
    let steps = [20, 300, 700, 999, 5_000].map(Duration::from_micros);
    for step in steps {
        for outcome in [success("2"), Outcome::Failure, Outcome::Unknown] {
            a_take_over_after(step, outcome).await;
        }
    }
}

/// A claim fails, another one ends with an unknown outcome, and a third one takes that over, with a clock step between them.
async fn a_take_over_after(step: Duration, outcome: Outcome) {
    let world = World::cut_off().await;
    let failed = request(&world, ClaimOnOutage::Local);
    world.claim(&failed).await;
    world.clock.advance(step);
    world.settle(&report(&failed, Outcome::Failure, CLOSED)).await;
    world.clock.advance(step);
    let first = other(&world, &failed);
    assert_eq!(summary(&world.claim(&first).await), (LOCAL, "granted"));
    world.clock.advance(step);
    world.settle(&report(&first, Outcome::Unknown, CLOSED)).await;
    world.clock.advance(step);
    let taker = other(&world, &first).with(|request| request.take_over = true);
    assert_eq!(summary(&world.claim(&taker).await), (LOCAL, "granted"));
    world.clock.advance(step);
    world.settle(&report(&taker, outcome.clone(), CLOSED)).await;
    world.back().await;
    assert_eq!(world.overlapping(), [], "{outcome:?} after {step:?}");
    let state = world.held(&first).await.map(|held| held.record.state);
    let expected = match outcome {
        Outcome::Success { .. } => Some(ClaimState::Succeeded),
        Outcome::Failure => None,
        Outcome::Unknown => Some(ClaimState::Unknown),
    };
    assert_eq!(state, expected, "the store ends as the gateway did");
}

/// An unknown outcome blocks all claims except take-overs, at every gateway.
#[tokio::test]
async fn a_grant_during_an_unknown_outcome_is_an_overlap() {
    let (one, two) = World::two_cut_off().await;
    let first = request(&one, ClaimOnOutage::FailOpen);
    one.claim(&first).await;
    one.clock.advance(Duration::from_millis(5));
    one.settle(&report(&first, Outcome::Unknown, OutcomeOnOutage::Spool)).await;
    one.clock.advance(Duration::from_millis(5));
    let second = other(&one, &first);
    two.claim(&second).await;
    one.clock.advance(Duration::from_millis(5));
    two.settle(&report(&second, Outcome::Failure, OutcomeOnOutage::Spool)).await;
    two.back().await;
    one.back().await;
    assert_eq!(one.overlapping(), [(first.attempt.hash(), second.attempt.hash())]);
}

#[tokio::test]
async fn a_success_for_a_month_is_compared() {
    let (one, two) = World::two_cut_off().await;
    let first = request(&one, ClaimOnOutage::FailOpen);
    one.claim(&first).await;
    one.clock.advance(Duration::from_micros(1_234_567));
    let retention = Some(oncegate_core::terms::Retention::For(Duration::from_hours(24 * 30)));
    let done = Outcome::Success { result: None, retention };
    one.settle(&report(&first, done, OutcomeOnOutage::Spool)).await;
    let second = other(&one, &first);
    two.claim(&second).await;
    one.back().await;
    two.back().await;
    assert_eq!(two.overlapping(), [(second.attempt.hash(), first.attempt.hash())]);
}

/// Another gateway delivers the success of another attempt between two calls of the delivery, when the lease has just ended.
#[tokio::test]
async fn a_success_beside_a_grant_whose_lease_ends_during_its_delivery_is_an_overlap() {
    let world = World::cut_off().await;
    let first = request(&world, ClaimOnOutage::FailOpen);
    world.claim(&first).await;
    let beside = other(&world, &first);
    world.line.set(Way::Slow);
    let calls = || world.line.calls.load(std::sync::atomic::Ordering::SeqCst);
    let delivery = world.gateway.deliver_all(Duration::from_secs(5));
    tokio::pin!(delivery);
    // The claim call is executed, and its grant has to wait.
    let before = calls();
    while futures_util::poll!(&mut delivery).is_pending() && calls() < before + 2 {
        world.line.go_on.notify_one();
        tokio::task::yield_now().await;
    }
    world.clock.advance(first.terms.lease);
    world.settle_elsewhere(&report(&beside, success("1"), CLOSED)).await;
    world.line.set(Way::Whole);
    world.line.go_on.notify_one();
    delivery.await.unwrap();
    assert_eq!(world.overlapping(), [(first.attempt.hash(), beside.attempt.hash())]);
}
