//! `local`: this process decides alone, on the claims that it knows.

use oncegate_core::canonical::canonicalize;
use oncegate_core::claim::{Grant, Outcome};
use oncegate_core::engine::conformance::DEADLINE;
use oncegate_core::record::{ClaimState, Contents};
use oncegate_core::terms::{LeaseEnd, Retention, Terms};
use tokio::time::timeout;

use super::super::*;
use super::support::*;
use crate::journal::memory::{Disk, Flaw, Trouble};

const CLOSED: OutcomeOnOutage = OutcomeOnOutage::FailClosed;

#[tokio::test]
async fn one_attempt_is_granted_and_the_others_are_duplicates() {
    let world = World::cut_off().await;
    let first = request(&world, ClaimOnOutage::Local);
    assert_eq!(summary(&world.claim(&first).await), (LOCAL, "granted"));
    assert_eq!(summary(&world.claim(&other(&world, &first)).await), (LOCAL, "duplicate"));
    let nonce = first.attempt.nonce().clone();
    world.clock.advance(Duration::from_secs(1));
    let again = oncegate_core::attempt::Attempt::new(world.clock.wall(), nonce);
    let again = first.with(|request| request.attempt = again);
    match world.claim(&again).await.split() {
        (ClaimResponse::Granted(grant), LOCAL) => {
            assert_eq!((grant.attempt, grant.repeated), (first.attempt.clone(), true));
            assert!(grant.lease_left.unwrap() + Duration::from_secs(1) <= first.terms.lease);
        }
        other => panic!("{other:?}"),
    }
    let odd = other(&world, &first).with(|request| request.fingerprint = Some([1; 32]));
    assert_eq!(summary(&world.claim(&odd).await), (LOCAL, "mismatch"));
    world.clock.advance(first.terms.lease);
    assert_eq!(summary(&world.claim(&other(&world, &first)).await), (LOCAL, "granted"), "the lease has ended");
    assert!(world.overlaps().is_empty());
}

#[tokio::test]
async fn concurrent_attempts_get_one_grant_however_the_store_fails() {
    for way in [Way::Gone, Way::ReplyLost] {
        let world = Arc::new(World::new().await);
        world.line.set(way);
        let first = request(&world, ClaimOnOutage::Local);
        let racers: Vec<_> = (0..50)
            .map(|_| {
                let (world, request) = (world.clone(), other(&world, &first));
                tokio::spawn(async move { summary(&world.claim(&request).await) })
            })
            .collect();
        let mut granted = 0;
        for racer in racers {
            granted += usize::from(racer.await.unwrap().1 == "granted");
        }
        assert_eq!(granted, 1);
    }
}

/// S1: a grant of the store is in flight while another call finds the store unavailable.
#[tokio::test]
async fn no_policy_decides_while_a_claim_call_is_in_flight() {
    let world = Arc::new(World::new().await);
    world.line.set(Way::Slow);
    let first = request(&world, ClaimOnOutage::Local);
    let claiming = |request: Claim| {
        let world = world.clone();
        tokio::spawn(async move { summary(&world.claim(&request).await) })
    };
    let on_its_way = claiming(first.clone());
    while world.line.calls.load(std::sync::atomic::Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    world.line.set(Way::Gone);
    let mut second = claiming(other(&world, &first));
    assert!(timeout(Duration::from_millis(200), &mut second).await.is_err(), "the first may be granted yet");
    world.line.go_on.notify_one();
    assert_eq!(on_its_way.await.unwrap(), (None, "granted"));
    assert_eq!(second.await.unwrap(), (LOCAL, "duplicate"));
}

#[tokio::test]
async fn claims_that_the_store_granted_or_recorded_before_are_known() {
    let world = World::new().await;
    let [held, done, freed] = [(); 3].map(|()| request(&world, ClaimOnOutage::Local));
    for request in [&held, &done, &freed] {
        assert_eq!(summary(&world.claim(request).await), (None, "granted"));
    }
    world.settle(&report(&done, success("7"), CLOSED)).await;
    world.settle(&report(&freed, Outcome::Failure, CLOSED)).await;
    world.line.set(Way::Gone);
    assert_eq!(summary(&world.claim(&other(&world, &held)).await), (LOCAL, "duplicate"));
    match world.claim(&other(&world, &done)).await.split() {
        (ClaimResponse::Duplicate(found), LOCAL) => {
            assert_eq!((found.record.state, found.record.result.as_deref()), (ClaimState::Succeeded, Some("7")));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(summary(&world.claim(&other(&world, &freed)).await), (LOCAL, "granted"));
    world.clock.advance(held.terms.lease);
    assert_eq!(summary(&world.claim(&other(&world, &held)).await), (LOCAL, "granted"), "its lease has ended");
    assert_eq!(summary(&world.claim(&other(&world, &done)).await), (LOCAL, "duplicate"));
}

/// This process confirmed the lease to its holder, although it never saw the claim call.
#[tokio::test]
async fn a_lease_that_was_renewed_through_this_process_is_known() {
    let world = World::new().await;
    world.claim(&request(&world, ClaimOnOutage::Local)).await;
    let theirs = request(&world, ClaimOnOutage::Local);
    world.claim_elsewhere(&theirs).await;
    world.clock.advance(theirs.terms.lease / 2);
    let renewed = world.try_renew(&renewal(&theirs)).await.unwrap();
    let ends_at = Some(world.clock.wall().plus(theirs.terms.lease));
    assert_eq!(renewed.split(), (RenewalResponse::Renewed { left: theirs.terms.lease, ends_at }, None));
    world.line.set(Way::Gone);
    world.clock.advance(theirs.terms.lease * 3 / 4);
    let odd = other(&world, &theirs).with(|request| request.fingerprint = Some([1; 32]));
    for request in [other(&world, &theirs), odd] {
        assert_eq!(summary(&world.claim(&request).await), (LOCAL, "duplicate"));
    }
    assert_eq!(summary(&world.claim(&theirs).await), (LOCAL, "granted"), "its own");
    world.clock.advance(theirs.terms.lease / 4);
    assert_eq!(summary(&world.claim(&other(&world, &theirs)).await), (LOCAL, "granted"), "it has ended");
}

/// A renewal does not show how long a success is kept: the outcome call does.
#[tokio::test]
async fn the_success_of_a_claim_that_was_only_renewed_here_has_the_retention_of_its_operation() {
    let world = World::new().await;
    world.claim(&request(&world, ClaimOnOutage::Local)).await;
    let theirs = request(&world, ClaimOnOutage::Local);
    let retention = Duration::from_mins(1);
    let terms = Terms { retention: Retention::For(retention), ..theirs.terms };
    let theirs = theirs.with(|request| request.terms = terms);
    world.claim_elsewhere(&theirs).await;
    world.try_renew(&renewal(&theirs)).await.unwrap();
    world.line.set(Way::Gone);
    assert_eq!(world.settle(&report(&theirs, success("7"), OutcomeOnOutage::Spool)).await, SPOOLED_ANSWER);
    world.clock.advance(retention.checked_sub(Duration::from_millis(1)).unwrap());
    assert_eq!(summary(&world.claim(&other(&world, &theirs)).await), (LOCAL, "duplicate"));
    world.clock.advance(Duration::from_millis(1));
    assert_eq!(summary(&world.claim(&other(&world, &theirs)).await), (LOCAL, "granted"));
}

#[tokio::test]
async fn outcomes_go_to_the_local_claims_and_are_delivered_with_their_claims() {
    let world = World::cut_off().await;
    let requests: Vec<_> = (0..4).map(|_| request(&world, ClaimOnOutage::Local)).collect();
    for request in &requests {
        world.claim(request).await;
    }
    let [done, failed, unknown, held] = &requests[..] else { panic!() };
    let state = |settled: Answered<OutcomeAnswer>| match settled.split() {
        (OutcomeResponse::Done { state, late: Some(false), .. }, LOCAL) => state,
        other => panic!("{other:?}"),
    };
    assert_eq!(state(world.settle(&report(done, success("7"), CLOSED)).await), Some(ClaimState::Succeeded));
    assert_eq!(state(world.settle(&report(failed, Outcome::Failure, CLOSED)).await), None);
    assert_eq!(state(world.settle(&report(unknown, Outcome::Unknown, CLOSED)).await), Some(ClaimState::Unknown));
    let refused = world.settle(&report(done, Outcome::Failure, CLOSED)).await.split();
    assert_eq!(refused, (OutcomeResponse::AlreadySucceeded, LOCAL));
    assert_eq!(summary(&world.claim(&other(&world, done)).await), (LOCAL, "duplicate"));
    // Over a restart of the gateway, after their leases, with a store that loses a reply.
    world.clock.advance(Duration::from_secs(10));
    let world = world.restarted().await;
    assert_eq!(summary(&world.claim(&other(&world, done)).await), (LOCAL, "duplicate"), "not forgotten");
    world.line.set(Way::ReplyLost);
    assert!(world.gateway.deliver_all(Duration::ZERO).await.is_err());
    world.back().await;
    let found = world.held(done).await.unwrap();
    assert_eq!((found.record.state, found.record.result.as_deref()), (ClaimState::Succeeded, Some("7")));
    assert_eq!(found.record.attempt, done.attempt);
    assert_eq!(found.record.contents, Contents::keep(&done.contents, 1024), "with what was claimed");
    assert_eq!(world.held(failed).await, None);
    assert_eq!(world.held(unknown).await.unwrap().record.state, ClaimState::Unknown);
    let standing = world.held(held).await.unwrap();
    assert_eq!((standing.record.state, &standing.record.attempt), (ClaimState::InProgress, &held.attempt));
    assert!(standing.left.unwrap() + Duration::from_secs(10) <= held.terms.lease, "what is left of its lease");
    // Now the store decides.
    assert_eq!(summary(&world.claim(&other(&world, done)).await), (None, "duplicate"));
    let settled = world.settle(&report(held, success("8"), CLOSED)).await;
    assert!(matches!(response(&settled), OutcomeResponse::Done { late: Some(false), .. }), "{settled:?}");
    assert!(world.overlaps().is_empty());
}

/// Only the store knows whether its claim is live: the grant of another attempt here does not matter.
#[tokio::test]
async fn an_outcome_of_a_grant_by_the_store_is_not_decided_by_the_local_claims() {
    let world = World::new().await;
    let theirs = request(&world, ClaimOnOutage::Local);
    assert_eq!(summary(&world.claim_elsewhere(&theirs).await), (None, "granted"), "through another gateway");
    world.clock.advance(Duration::from_millis(1));
    world.line.set(Way::Gone);
    let ours = other(&world, &theirs);
    assert_eq!(summary(&world.claim(&ours).await), (LOCAL, "granted"));
    assert!(world.try_settle(&report(&theirs, success("theirs"), CLOSED)).await.is_err());
    let spooled = report(&theirs, success("theirs"), OutcomeOnOutage::Spool);
    assert_eq!(world.settle(&spooled).await, SPOOLED_ANSWER);
    let world = world.restarted().await;
    let renewed = world.try_renew(&renewal(&ours)).await.unwrap().split();
    assert_eq!(
        renewed,
        (RenewalResponse::Renewed { left: ours.terms.lease, ends_at: None }, LOCAL),
        "it holds the claim here"
    );
    // It ends without an outcome, and the other one has succeeded.
    world.clock.advance(ours.terms.lease);
    match world.claim(&other(&world, &ours)).await.split() {
        (ClaimResponse::Duplicate(found), LOCAL) => {
            assert_eq!((found.record.state, found.record.result.as_deref()), (ClaimState::Succeeded, Some("theirs")));
        }
        other => panic!("{other:?}"),
    }
    world.back().await;
    assert_eq!(world.held(&theirs).await.unwrap().record.result.as_deref(), Some("theirs"));
    assert_eq!(world.overlapping(), [(theirs.attempt.hash(), ours.attempt.hash())]);
}

#[tokio::test]
async fn a_grant_and_its_renewals_survive_a_restart() {
    let world = World::cut_off().await;
    let first = request(&world, ClaimOnOutage::Local);
    world.claim(&first).await;
    let lease = first.terms.lease;
    world.clock.advance(lease / 2);
    let renewed = world.try_renew(&renewal(&first)).await.unwrap();
    assert_eq!(renewed.split(), (RenewalResponse::Renewed { left: lease, ends_at: None }, LOCAL));
    let stranger = world.try_renew(&renewal(&other(&world, &first))).await;
    assert!(stranger.is_err(), "nothing is known of it");
    let world = world.restarted().await;
    world.clock.advance(lease * 3 / 4);
    assert_eq!(summary(&world.claim(&other(&world, &first)).await), (LOCAL, "duplicate"), "renewed");
    world.clock.advance(lease / 4);
    assert_eq!(summary(&world.claim(&other(&world, &first)).await), (LOCAL, "granted"));
}

#[tokio::test]
async fn a_local_grant_is_known_in_the_next_outage() {
    let world = World::cut_off().await;
    let first = request(&world, ClaimOnOutage::Local);
    world.claim(&first).await;
    let world = world.restarted().await;
    world.back().await;
    world.line.set(Way::Gone);
    assert_eq!(summary(&world.claim(&other(&world, &first)).await), (LOCAL, "duplicate"));
}

#[tokio::test]
async fn a_wall_clock_that_is_set_back_extends_no_lease_over_a_restart() {
    let world = World::cut_off().await;
    let first = request(&world, ClaimOnOutage::Local);
    world.claim(&first).await;
    world.clock.step_wall(oncegate_core::clock::Timestamp::from_micros(1_600_000_000_000_000));
    let world = world.restarted().await;
    assert_eq!(summary(&world.claim(&other(&world, &first)).await), (LOCAL, "duplicate"));
    world.clock.advance(first.terms.lease);
    assert_eq!(summary(&world.claim(&other(&world, &first)).await), (LOCAL, "granted"));
}

#[tokio::test]
async fn a_double_grant_is_reported_and_the_later_outcome_changes_nothing() {
    let world = World::cut_off().await;
    let [alive, done, failed] = [(); 3].map(|()| request(&world, ClaimOnOutage::Local));
    let mut theirs = Vec::new();
    for request in [&alive, &done, &failed] {
        world.claim(request).await;
        world.clock.advance(Duration::from_millis(1));
        let their = other(&world, request);
        assert_eq!(summary(&world.claim_elsewhere(&their).await), (None, "granted"), "another gateway");
        theirs.push(their);
    }
    world.clock.advance(Duration::from_millis(1));
    world.settle(&report(&done, success("ours"), CLOSED)).await;
    world.settle(&report(&failed, Outcome::Failure, CLOSED)).await;
    world.back().await;
    let overlaps = world.overlaps();
    assert_eq!(overlaps.len(), 3);
    for (ours, theirs) in [&alive, &done, &failed].into_iter().zip(&theirs) {
        let overlap = overlaps.iter().find(|overlap| overlap.ours.hash == ours.attempt.hash()).unwrap();
        assert_eq!(overlap.theirs.unwrap().hash, theirs.attempt.hash());
        assert_eq!(
            (overlap.global_id, policy_of(overlap), overlap.state.unwrap()),
            (ours.key.global_id, LOCAL, ClaimState::InProgress)
        );
        assert_eq!(world.held(ours).await.unwrap().record.attempt, theirs.attempt, "theirs stands untouched");
    }
    // They are known after a restart too.
    let world = world.restarted().await;
    assert_eq!(world.overlaps().len(), 3);
}

#[tokio::test]
async fn a_grant_that_ended_without_an_outcome_is_compared_with_the_record_of_the_store() {
    let world = World::cut_off().await;
    let [beside, after, free] = [(); 3].map(|()| request(&world, ClaimOnOutage::Local));
    for request in [&beside, &after, &free] {
        world.claim(request).await;
    }
    world.clock.advance(Duration::from_secs(1));
    let their = other(&world, &beside);
    world.claim_elsewhere(&their).await;
    world.store.settle(&report(&their, success("theirs"), CLOSED), DEADLINE).await.unwrap();
    world.clock.advance(beside.terms.lease);
    world.claim_elsewhere(&other(&world, &after)).await;
    world.back().await;
    let overlaps = world.overlaps();
    assert_eq!(overlaps.len(), 1, "the other one was claimed when the lease had ended");
    assert_eq!((overlaps[0].ours.hash, overlaps[0].state), (beside.attempt.hash(), Some(ClaimState::Succeeded)));
    assert_eq!(world.held(&free).await, None, "an ended claim is not brought to life");
}

#[tokio::test]
async fn a_grant_whose_lease_end_means_unknown_turns_unknown_in_the_store() {
    let world = World::cut_off().await;
    let mut first = request(&world, ClaimOnOutage::Local);
    first.terms.on_lease_end = LeaseEnd::Unknown;
    world.claim(&first).await;
    world.clock.advance(first.terms.lease);
    assert_eq!(summary(&world.claim(&other(&world, &first)).await), (LOCAL, "duplicate"));
    world.back().await;
    world.clock.advance(Duration::from_millis(1));
    assert_eq!(world.held(&first).await.unwrap().record.state, ClaimState::Unknown);
}

#[tokio::test]
async fn the_same_try_at_another_gateway_is_no_overlap() {
    let world = World::cut_off().await;
    let first = request(&world, ClaimOnOutage::Local);
    world.claim(&first).await;
    let nonce = first.attempt.nonce().clone();
    world.clock.advance(Duration::from_millis(5));
    let elsewhere = oncegate_core::attempt::Attempt::new(world.clock.wall(), nonce);
    let elsewhere = first.with(|request| request.attempt = elsewhere);
    world.claim_elsewhere(&elsewhere).await;
    world.settle(&report(&first, success("7"), CLOSED)).await;
    world.back().await;
    assert!(world.overlaps().is_empty());
    assert_eq!(world.held(&first).await.unwrap().record.state, ClaimState::Succeeded);
}

#[tokio::test]
async fn a_full_journal_fails_closed() {
    let world = World::with(journal::Bounds { bytes: 1500, app_bytes: 1500 }).await;
    world.line.set(Way::Gone);
    let mut granted = Vec::new();
    let refused = loop {
        let request = request(&world, ClaimOnOutage::Local);
        match world.try_claim(&request).await {
            Ok(_) => granted.push(request),
            Err(failure) => break failure,
        }
    };
    assert!((1..10).contains(&granted.len()));
    assert!(refused.to_string().contains("limits.journal"), "{refused}");
    assert!(refused.is_unavailable());
    assert_eq!(summary(&world.claim(&other(&world, &granted[0])).await), (LOCAL, "duplicate"), "no room is needed");
    assert!(world.try_settle(&report(&granted[0], success("1"), CLOSED)).await.is_err());
    world.back().await;
    world.line.set(Way::Gone);
    assert_eq!(summary(&world.claim(&request(&world, ClaimOnOutage::Local)).await), (LOCAL, "granted"));
}

/// A claim in progress that was forgotten may be on any key of its app.
#[tokio::test]
async fn an_app_with_a_forgotten_claim_in_progress_is_granted_nothing_locally() {
    let world = World::new().await;
    let contents = canonicalize(format!("\"{}\"", "x".repeat(100_000)).as_bytes()).unwrap();
    // More than the local claims have room for.
    for _ in 0..800 {
        let request = request(&world, ClaimOnOutage::Local).with(|request| {
            request.contents = contents.clone();
            request.contents_stored_bytes = 1 << 20;
        });
        let grant = Grant {
            attempt: request.attempt.clone(),
            fence: None,
            repeated: false,
            taken_over: false,
            lease_left: None,
            lease_ends_at: None,
        };
        let now = world.clock.monotonic();
        world.gateway.0.local_claims.remember_claim(&request, &ClaimResponse::Granted(grant), now, now);
    }
    world.line.set(Way::Gone);
    let local = request(&world, ClaimOnOutage::Local);
    let is_refused = |answer: &Result<Answered<ClaimResponse>, EngineError>| {
        let failure = answer.as_ref().unwrap_err();
        failure.is_unavailable()
            && failure.to_string().contains("more claims are in progress than this gateway can remember")
    };
    assert!(is_refused(&world.try_claim(&local).await));
    let mut of_another = request(&world, ClaimOnOutage::Local);
    of_another.key.app = "other".parse().unwrap();
    let open = request(&world, ClaimOnOutage::FailOpen);
    let answers = world.claim_batch(&[local.clone(), of_another, open]).await;
    assert!(is_refused(&answers[0]));
    assert_eq!(summary(answers[1].as_ref().unwrap()), (LOCAL, "granted"), "each app has its own record");
    assert_eq!(summary(answers[2].as_ref().unwrap()), (FAIL_OPEN, "granted"));
    assert_eq!(world.journal.status().entries, 2);
    // Once the lease of the forgotten claim has ended, grants resume.
    world.clock.advance(local.terms.lease);
    assert_eq!(summary(&world.claim(&request(&world, ClaimOnOutage::Local)).await), (LOCAL, "granted"));
}

/// The store certainly did nothing; the content of the disk is unknown until the next run reads it.
#[tokio::test]
async fn a_grant_that_may_be_on_the_disk_is_answered_as_uncertain() {
    let disk = Disk::new(|| Duration::ZERO, Flaw::None);
    let world = World::new().await.started_on(&disk).await;
    world.line.set(Way::Gone);
    disk.turn(Trouble::NoSync);
    let first = request(&world, ClaimOnOutage::Local);
    let failure = world.try_claim(&first).await.unwrap_err();
    assert!(matches!(failure, EngineError::Indeterminate(_)), "{failure}");
    disk.turn(Trouble::None);
    let failure = world.try_claim(&request(&world, ClaimOnOutage::Local)).await.unwrap_err();
    assert!(matches!(failure, EngineError::Determinate(_)), "nothing more is written: {failure}");
    disk.crash(|loose| loose);
    let world = world.started_on(&disk).await;
    assert_eq!(summary(&world.claim(&other(&world, &first)).await), (LOCAL, "duplicate"));
    world.back().await;
    assert_eq!(world.held(&first).await.unwrap().record.attempt, first.attempt);
}
