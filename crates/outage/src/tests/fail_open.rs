//! `fail_open`: grants without the store, with the attempt that was sent to the store.

use std::sync::atomic::Ordering;

use oncegate_core::claim::{Grant, Outcome};
use oncegate_core::outage::grants::DegradedGrant;
use oncegate_core::record::ClaimState;

use super::super::*;
use super::support::*;
use crate::journal::memory::{Disk, Flaw};

const CLOSED: OutcomeOnOutage = OutcomeOnOutage::FailClosed;

#[tokio::test]
async fn a_claim_is_granted_and_the_same_nonce_gets_the_same_grant_also_after_a_restart() {
    let world = World::new().await;
    let first = request(&world, ClaimOnOutage::FailOpen);
    assert_eq!(summary(&world.claim(&request(&world, ClaimOnOutage::FailOpen)).await), (None, "granted"));
    assert!(!world.journal.exists(), "nothing is written while all is well");
    world.line.set(Way::Gone);
    match world.claim(&first).await.split() {
        (ClaimResponse::Granted(grant), FAIL_OPEN) => assert_eq!(grant.attempt, first.attempt),
        other => panic!("{other:?}"),
    }
    let world = world.restarted().await;
    let nonce = first.attempt.nonce().clone();
    let again = oncegate_core::attempt::Attempt::new(world.clock.wall().plus(Duration::from_micros(9)), nonce);
    match world.claim(&first.with(|request| request.attempt = again)).await.split() {
        (ClaimResponse::Granted(grant), FAIL_OPEN) => {
            assert_eq!((grant.attempt, grant.repeated), (first.attempt.clone(), true));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_claim_that_the_store_executed_is_recognised() {
    let world = World::new().await;
    world.line.set(Way::ReplyLost);
    let first = request(&world, ClaimOnOutage::FailOpen);
    assert_eq!(summary(&world.claim(&first).await), (FAIL_OPEN, "granted"));
    assert_eq!(world.held(&first).await.unwrap().record.attempt, first.attempt);
    world.back().await;
    assert!(world.overlaps().is_empty());
    let settled = world.settle(&report(&first, success("1"), CLOSED)).await;
    assert_succeeded(&settled);
}

#[tokio::test]
async fn a_claim_in_its_own_journal_is_not_granted_twice() {
    let world = World::cut_off().await;
    let first = request(&world, ClaimOnOutage::FailOpen);
    world.claim(&first).await;
    assert_eq!(summary(&world.claim(&other(&world, &first)).await), (FAIL_OPEN, "duplicate"));
    world.clock.advance(first.terms.lease);
    assert_eq!(summary(&world.claim(&other(&world, &first)).await), (FAIL_OPEN, "granted"));
}

#[tokio::test]
async fn an_outcome_is_refused_unless_it_is_spooled_and_a_renewal_is_accepted() {
    let world = World::cut_off().await;
    let first = request(&world, ClaimOnOutage::FailOpen);
    world.claim(&first).await;
    assert!(world.try_settle(&report(&first, success("1"), CLOSED)).await.is_err());
    assert_eq!(world.try_renew(&renewal(&first)).await.unwrap().split().1, FAIL_OPEN);
    assert_eq!(world.settle(&report(&first, success("1"), OutcomeOnOutage::Spool)).await, SPOOLED_ANSWER);
    world.clock.advance(first.terms.lease);
    assert_eq!(summary(&world.claim(&other(&world, &first)).await), (FAIL_OPEN, "duplicate"), "it has succeeded");
    world.back().await;
    assert_eq!(world.held(&first).await.unwrap().record.state, ClaimState::Succeeded);
}

/// The lease had ended when the failure was reported, and another gateway had granted the claim in between.
#[tokio::test]
async fn a_failure_after_the_end_of_the_lease_overlaps_with_no_grant_in_between() {
    for (first_outcome, one_is_back_first) in
        [(Outcome::Failure, true), (Outcome::Failure, false), (success("1"), true), (success("1"), false)]
    {
        let (one, two) = World::two_cut_off().await;
        let first = request(&one, ClaimOnOutage::FailOpen);
        one.claim(&first).await;
        one.clock.advance(first.terms.lease + Duration::from_secs(1));
        let second = other(&two, &first);
        assert_eq!(summary(&two.claim(&second).await), (FAIL_OPEN, "granted"));
        one.clock.advance(Duration::from_secs(1));
        let is_success = first_outcome != Outcome::Failure;
        let reported = report(&first, first_outcome, OutcomeOnOutage::Spool);
        assert_eq!(one.settle(&reported).await, SPOOLED_ANSWER);
        two.settle(&report(&second, success("2"), OutcomeOnOutage::Spool)).await;
        let [earlier, later] = if one_is_back_first { [&one, &two] } else { [&two, &one] };
        earlier.back().await;
        later.back().await;
        assert_eq!(later.overlaps().len(), usize::from(is_success), "a success may have run twice");
        assert!(earlier.overlaps().is_empty());
    }
}

/// Renewals extend a grant, also those that were accepted after the outcome of another attempt.
#[tokio::test]
async fn a_renewal_after_the_outcome_of_another_attempt_counts() {
    let (one, two) = World::two_cut_off().await;
    let first = request(&one, ClaimOnOutage::FailOpen);
    assert_eq!(summary(&one.claim(&first).await), (FAIL_OPEN, "granted"));
    let stranger = report(&other(&one, &first), Outcome::Failure, OutcomeOnOutage::Spool);
    assert_eq!(one.settle(&stranger).await, SPOOLED_ANSWER);
    one.clock.advance(first.terms.lease * 3 / 4);
    assert_eq!(one.try_renew(&renewal(&first)).await.unwrap().split().1, FAIL_OPEN);
    one.clock.advance(first.terms.lease / 2);
    let second = other(&one, &first);
    assert_eq!(summary(&two.claim(&second).await), (FAIL_OPEN, "granted"));
    // Both end without an outcome, and leave no claim.
    one.clock.advance(first.terms.lease);
    one.back().await;
    two.back().await;
    assert_eq!(two.overlapping(), [(second.attempt.hash(), first.attempt.hash())]);
}

/// A delivery that was interrupted has written a grant with a shorter time than the next delivery knows.
#[tokio::test]
async fn grants_written_after_an_interrupted_delivery_are_compared_with_the_whole_grant() {
    let (one, two) = World::two_cut_off().await;
    let first = request(&one, ClaimOnOutage::FailOpen);
    assert_eq!(summary(&one.claim(&first).await), (FAIL_OPEN, "granted"));
    one.line.set(Way::Whole);
    let lease_ends = first.attempt.timestamp().plus(first.terms.lease);
    let grant = DegradedGrant::of_claim(&first, first.attempt.timestamp(), lease_ends);
    let known = one.gateway.0.write_grant(&first.key, &grant).await.unwrap();
    assert!(known.overlapping(&grant).is_empty());
    one.line.set(Way::Gone);
    one.clock.advance(first.terms.lease * 2);
    assert_eq!(one.settle(&report(&first, success("late"), OutcomeOnOutage::Spool)).await, SPOOLED_ANSWER);
    let second = other(&two, &first);
    assert_eq!(summary(&two.claim(&second).await), (FAIL_OPEN, "granted"));
    two.clock.advance(second.terms.lease / 2);
    let failure = report(&second, Outcome::Failure, OutcomeOnOutage::Spool);
    assert_eq!(two.settle(&failure).await, SPOOLED_ANSWER);
    two.back().await;
    assert!(two.overlaps().is_empty(), "the first one had ended, as far as the store knows");
    one.back().await;
    assert_eq!(one.overlapping(), [(first.attempt.hash(), second.attempt.hash())]);
}

/// Its lease had ended and another attempt was granted after it, so its grant is delivered without its outcome. The outcome is
/// refused, because another attempt holds the claim by then, which fails in the end.
#[tokio::test]
async fn an_outcome_after_its_grant_was_written_is_compared_with_later_grants() {
    let (one, two) = World::two_cut_off().await;
    let first = request(&one, ClaimOnOutage::FailOpen);
    assert_eq!(summary(&one.claim(&first).await), (FAIL_OPEN, "granted"));
    one.clock.advance(first.terms.lease * 2);
    let theirs = other(&one, &first);
    one.claim_elsewhere(&theirs).await;
    let second = other(&one, &first);
    assert_eq!(summary(&one.claim(&second).await), (FAIL_OPEN, "granted"));
    assert_eq!(one.settle(&report(&first, success("late"), OutcomeOnOutage::Spool)).await, SPOOLED_ANSWER);
    one.back().await;
    one.settle_elsewhere(&report(&theirs, Outcome::Failure, CLOSED)).await;
    one.clock.advance(first.terms.lease * 2);
    let third = other(&two, &first);
    assert_eq!(summary(&two.claim(&third).await), (FAIL_OPEN, "granted"));
    two.clock.advance(third.terms.lease * 2);
    two.back().await;
    assert_eq!(two.overlapping(), [(third.attempt.hash(), first.attempt.hash())]);
}

/// The delivery of a grant repeats its claim call: a take-over must not take over its own outcome.
#[tokio::test]
async fn an_outcome_that_reached_the_store_before_its_grant_is_not_undone() {
    let world = World::cut_off().await;
    let taker = request(&world, ClaimOnOutage::FailOpen).with(|request| request.take_over = true);
    assert_eq!(summary(&world.claim(&taker).await), (FAIL_OPEN, "granted"));
    let unknown = report(&taker, Outcome::Unknown, CLOSED);
    world.settle_elsewhere(&unknown).await;
    world.back().await;
    world.clock.advance(taker.terms.lease);
    assert_eq!(world.held(&taker).await.unwrap().record.state, ClaimState::Unknown);
}

#[tokio::test]
async fn a_grant_beside_a_claim_of_the_store_is_reported_whatever_its_outcome() {
    let world = World::new().await;
    let spooled = OutcomeOnOutage::Spool;
    let held: Vec<_> = (0..3).map(|_| request(&world, ClaimOnOutage::FailOpen)).collect();
    for request in &held {
        world.claim(request).await;
    }
    world.clock.advance(Duration::from_millis(1));
    world.line.set(Way::Gone);
    let ours: Vec<_> = held.iter().map(|request| other(&world, request)).collect();
    for request in &ours {
        assert_eq!(summary(&world.claim(request).await), (FAIL_OPEN, "granted"), "it was never delivered");
    }
    world.clock.advance(Duration::from_millis(1));
    // The first holder has succeeded, the second one has failed, and the third one reports nothing.
    world.settle(&report(&held[0], success("theirs"), spooled)).await;
    world.settle(&report(&held[1], Outcome::Failure, spooled)).await;
    world.settle(&report(&ours[0], success("ours"), spooled)).await;
    world.back().await;
    let overlaps = world.overlaps();
    for (ours, theirs) in ours.iter().zip(&held) {
        let overlap = overlaps.iter().find(|overlap| overlap.ours.hash == ours.attempt.hash()).unwrap();
        assert_eq!((overlap.theirs.unwrap().hash, policy_of(overlap)), (theirs.attempt.hash(), FAIL_OPEN));
    }
    assert_eq!(overlaps.len(), 3);
}

/// Each gateway granted the same claim; the one that delivers later finds the overlap.
#[tokio::test]
async fn two_gateways_that_both_granted_a_claim_report_it() {
    let (one, two) = World::two_cut_off().await;
    let first = request(&one, ClaimOnOutage::FailOpen);
    one.clock.advance(Duration::from_millis(1));
    let second = other(&one, &first);
    assert_eq!(summary(&one.claim(&first).await), (FAIL_OPEN, "granted"));
    assert_eq!(summary(&two.claim(&second).await), (FAIL_OPEN, "granted"));
    one.back().await;
    two.back().await;
    assert!(one.overlaps().is_empty(), "it was first");
    let overlaps = two.overlaps();
    assert_eq!(overlaps.len(), 1);
    assert_eq!(
        (overlaps[0].ours.hash, overlaps[0].theirs.unwrap().hash),
        (second.attempt.hash(), first.attempt.hash())
    );
}

#[tokio::test]
async fn a_journal_that_cannot_be_opened_fails_closed() {
    let world = World::new().await;
    std::fs::write(world.folder.path().join("journal"), "in the way").unwrap();
    world.line.set(Way::Gone);
    let refused = world.try_claim(&request(&world, ClaimOnOutage::FailOpen)).await.unwrap_err();
    assert!(refused.to_string().contains("journal"), "{refused}");
    std::fs::remove_file(world.folder.path().join("journal")).unwrap();
    assert_eq!(summary(&world.claim(&request(&world, ClaimOnOutage::FailOpen)).await), (FAIL_OPEN, "granted"));
}

/// Neither leaves a claim in the store: one has failed and the other reports nothing, or both have failed.
#[tokio::test]
async fn grants_that_leave_no_claim_are_compared() {
    let (one, two) = World::two_cut_off().await;
    let three = one.another_cut_off().await;
    let worlds = [&one, &two, &three];
    let first = request(&one, ClaimOnOutage::FailOpen);
    let mut requests = vec![first.clone()];
    for world in &worlds[1..] {
        one.clock.advance(Duration::from_millis(1));
        requests.push(other(world, &first));
    }
    for (world, request) in worlds.iter().zip(&requests) {
        assert_eq!(summary(&world.claim(request).await), (FAIL_OPEN, "granted"));
    }
    one.clock.advance(Duration::from_millis(1));
    for (world, request) in worlds.iter().zip(&requests).take(2) {
        let failed = report(request, Outcome::Failure, OutcomeOnOutage::Spool);
        assert_eq!(world.settle(&failed).await, SPOOLED_ANSWER);
    }
    one.clock.advance(first.terms.lease);
    for (world, request) in worlds.iter().zip(&requests) {
        world.back().await;
        assert_eq!(world.held(request).await, None);
    }
    let pairs = |world: &World| {
        let mut pairs = world.overlapping();
        pairs.sort_unstable_by_key(|(_, theirs)| requests.iter().position(|request| request.attempt.hash() == *theirs));
        pairs
    };
    let hashes: Vec<_> = requests.iter().map(|request| request.attempt.hash()).collect();
    assert_eq!(pairs(&one), []);
    assert_eq!(pairs(&two), [(hashes[1], hashes[0])]);
    assert_eq!(pairs(&three), [(hashes[2], hashes[0]), (hashes[2], hashes[1])]);
}

/// The answer to a repeated call names the end of the lease; until then another gateway's grant is an overlap.
#[tokio::test]
async fn a_grant_lasts_as_long_as_the_store_knows_however_slow_the_disk_is() {
    let (one, two) = World::two_cut_off().await;
    let clock = one.clock.clone();
    let slow = move || {
        clock.advance(Duration::from_millis(300));
        Duration::ZERO
    };
    let one = one.started_on(&Disk::new(slow, Flaw::None)).await;
    let first = request(&one, ClaimOnOutage::FailOpen);
    assert_eq!(summary(&one.claim(&first).await), (FAIL_OPEN, "granted"));
    let ClaimResponse::Granted(Grant { lease_left: Some(left), .. }) = one.claim(&first).await.answer else {
        panic!("the same nonce is granted again")
    };
    one.clock.advance(left.saturating_sub(Duration::from_millis(2)));
    let second = other(&two, &first);
    assert_eq!(summary(&two.claim(&second).await), (FAIL_OPEN, "granted"));
    one.clock.advance(first.terms.lease);
    one.back().await;
    two.back().await;
    assert_eq!(two.overlapping(), [(second.attempt.hash(), first.attempt.hash())]);
}

/// A success without an end, which later grants must read.
#[tokio::test]
async fn a_success_that_is_kept_for_ever_is_compared_too() {
    let (one, two) = World::two_cut_off().await;
    let first = request(&one, ClaimOnOutage::FailOpen);
    one.clock.advance(Duration::from_millis(1));
    let second = other(&two, &first);
    one.claim(&first).await;
    two.claim(&second).await;
    let retention = Some(oncegate_core::terms::Retention::Forever);
    let done = Outcome::Success { result: None, retention };
    assert_eq!(one.settle(&report(&first, done, OutcomeOnOutage::Spool)).await, SPOOLED_ANSWER);
    one.back().await;
    two.back().await;
    assert_eq!(two.overlaps().len(), 1);
}

/// In the record, the first grant ended with its lease. But the success that was reported after the delivery is recorded.
#[tokio::test]
async fn a_grant_after_a_success_that_is_later_than_its_delivery_is_an_overlap() {
    let (one, two) = World::two_cut_off().await;
    let first = request(&one, ClaimOnOutage::FailOpen);
    assert_eq!(summary(&one.claim(&first).await), (FAIL_OPEN, "granted"));
    one.back().await;
    one.settle(&report(&first, success("done"), CLOSED)).await;
    one.clock.advance(first.terms.lease * 2);
    let second = other(&two, &first);
    assert_eq!(summary(&two.claim(&second).await), (FAIL_OPEN, "granted"));
    two.back().await;
    assert_eq!(two.overlapping(), [(second.attempt.hash(), first.attempt.hash())]);
}

/// In the record, the first grant ended with its lease. But the store renewed it after the delivery.
#[tokio::test]
async fn a_grant_beside_a_claim_that_was_renewed_after_its_delivery_is_an_overlap() {
    for fails in [false, true] {
        let (one, two) = World::two_cut_off().await;
        let first = request(&one, ClaimOnOutage::FailOpen);
        assert_eq!(summary(&one.claim(&first).await), (FAIL_OPEN, "granted"));
        one.clock.advance(Duration::from_millis(3));
        one.back().await;
        let longer = RenewalRequest { lease: Some(first.terms.lease * 4), ..renewal(&first) };
        assert_eq!(one.try_renew(&longer).await.unwrap().policy, None);
        one.clock.advance(first.terms.lease * 2);
        let second = other(&two, &first);
        assert_eq!(summary(&two.claim(&second).await), (FAIL_OPEN, "granted"));
        two.clock.advance(Duration::from_millis(3));
        if fails {
            two.settle(&report(&second, Outcome::Failure, OutcomeOnOutage::Spool)).await;
        }
        two.back().await;
        assert_eq!(two.overlapping(), [(second.attempt.hash(), first.attempt.hash())], "fails: {fails}");
    }
}

/// The success of an attempt waits at another gateway than its grant, which grants the claim again once its lease has ended there.
/// Both deliver at the same time, and their calls come in any order.
#[tokio::test]
async fn a_grant_and_an_outcome_that_are_delivered_at_once_are_an_overlap() {
    for first_calls in 0..8 {
        for outcome in [None, Some(Outcome::Failure), Some(success("2"))] {
            for take_over in [false, true] {
                delivered_at_once(first_calls, outcome.clone(), take_over).await;
            }
        }
    }
}

/// The granting gateway has made so many calls when the other one delivers. Without an outcome the second grant ends by its lease.
async fn delivered_at_once(first_calls: usize, outcome: Option<Outcome>, take_over: bool) {
    let (one, two) = World::two_cut_off().await;
    let first = request(&one, ClaimOnOutage::Local);
    assert_eq!(summary(&one.claim(&first).await), (LOCAL, "granted"));
    let done = report(&first, success("1"), OutcomeOnOutage::Spool);
    assert_eq!(two.settle(&done).await, SPOOLED_ANSWER);
    one.clock.advance(first.terms.lease * 2);
    let second = other(&one, &first).with(|request| request.take_over = take_over);
    assert_eq!(summary(&one.claim(&second).await), (LOCAL, "granted"));
    one.clock.advance(Duration::from_millis(5));
    match &outcome {
        Some(outcome) => {
            one.settle(&report(&second, outcome.clone(), CLOSED)).await;
        }
        None => one.clock.advance(first.terms.lease * 2),
    }
    one.line.set(Way::Slow);
    let calls = one.line.calls.load(Ordering::SeqCst);
    let delivered = async {
        while one.line.calls.load(Ordering::SeqCst) <= calls + first_calls && one.journal.status().entries > 0 {
            one.line.go_on.notify_one();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        two.back().await;
        one.line.set(Way::Whole);
        one.line.go_on.notify_one();
    };
    tokio::join!(one.gateway.deliver_all(Duration::from_secs(5)), delivered).0.unwrap();
    one.back().await;
    let found = [one.overlapping(), two.overlapping()].concat();
    let (first, second) = (first.attempt.hash(), second.attempt.hash());
    let is_found = found.contains(&(first, second)) || found.contains(&(second, first));
    assert!(is_found, "after {first_calls} calls, {outcome:?}, taking over: {take_over}");
}

#[tokio::test]
async fn successive_grants_are_no_overlap() {
    let (one, two) = World::two_cut_off().await;
    let first = request(&one, ClaimOnOutage::FailOpen);
    one.claim(&first).await;
    one.clock.advance(Duration::from_millis(5));
    one.settle(&report(&first, Outcome::Failure, OutcomeOnOutage::Spool)).await;
    one.clock.advance(Duration::from_millis(1));
    let second = other(&two, &first);
    two.claim(&second).await;
    one.back().await;
    two.back().await;
    assert!(one.overlaps().is_empty() && two.overlaps().is_empty());
}
