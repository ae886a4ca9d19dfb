//! `spool`: outcomes are kept on the disk, and delivered in order before later calls.

use futures_util::future::join_all;
use oncegate_core::claim::Outcome;
use oncegate_core::record::ClaimState;
use tokio::time::timeout;

use super::super::*;
use super::support::*;

const SPOOLED: OutcomeOnOutage = OutcomeOnOutage::Spool;

/// A claim that the store granted before the outage.
async fn granted(world: &World) -> Claim {
    let request = request(world, ClaimOnOutage::FailClosed);
    assert_eq!(summary(&world.claim(&request).await), (None, "granted"));
    request
}

#[tokio::test]
async fn without_a_policy_calls_are_refused_and_nothing_is_written() {
    let world = World::new().await;
    let held = granted(&world).await;
    world.line.set(Way::Gone);
    let refused = world.try_claim(&request(&world, ClaimOnOutage::FailClosed)).await.unwrap_err();
    assert_eq!(refused, EngineError::unavailable("the line is cut"), "as the store's line said it");
    assert!(world.try_settle(&report(&held, success("1"), OutcomeOnOutage::FailClosed)).await.is_err());
    assert!(world.try_renew(&renewal(&held)).await.is_err());
    assert!(!world.journal.exists());
}

#[tokio::test]
async fn no_policy_overrides_a_store_that_answers_that_it_is_full() {
    let world = World::new().await;
    let held = granted(&world).await;
    world.line.set(Way::Full);
    for policy in [ClaimOnOutage::Local, ClaimOnOutage::FailOpen] {
        let refused = world.try_claim(&request(&world, policy)).await.unwrap_err();
        assert!(!refused.is_unavailable(), "{policy:?}: {refused}");
    }
    assert!(world.try_settle(&report(&held, success("1"), SPOOLED)).await.is_err());
    assert!(!world.journal.exists());
    // The same if an entry waits on the key.
    world.line.set(Way::Gone);
    let waiting = request(&world, ClaimOnOutage::FailOpen);
    world.claim(&waiting).await;
    world.line.set(Way::Full);
    world.clock.advance(waiting.terms.lease);
    assert!(world.try_claim(&other(&world, &waiting)).await.is_err());
}

#[tokio::test]
async fn a_spooled_success_is_never_granted_again_by_this_gateway() {
    let world = World::new().await;
    let mut held = request(&world, ClaimOnOutage::FailClosed);
    held.terms.lease = Duration::from_secs(1);
    world.claim(&held).await;
    world.line.set(Way::Gone);
    assert_eq!(world.settle(&report(&held, success("7"), SPOOLED)).await, SPOOLED_ANSWER);
    assert_eq!(world.settle(&report(&held, success("8"), SPOOLED)).await, SPOOLED_ANSWER, "repeated");
    assert_eq!(world.journal.status().entries, 1);
    let refused = world.settle(&report(&held, Outcome::Failure, SPOOLED)).await.split();
    assert_eq!(refused, (OutcomeResponse::AlreadySucceeded, SPOOL));
    world.clock.advance(Duration::from_secs(2));
    for policy in [ClaimOnOutage::FailClosed, ClaimOnOutage::Local, ClaimOnOutage::FailOpen] {
        let again = Call { on_outage: policy, ..other(&world, &held) };
        match world.claim(&again).await.split() {
            (ClaimResponse::Duplicate(found), Some(_)) => {
                assert_eq!((found.record.state, found.record.result.as_deref()), (ClaimState::Succeeded, Some("7")));
            }
            other => panic!("{policy:?}: {other:?}"),
        }
    }
    // Not after a restart, and not when the store is back: the success is delivered first.
    let world = world.restarted().await;
    assert_eq!(summary(&world.claim(&other(&world, &held)).await), (SPOOL, "duplicate"));
    world.line.set(Way::Whole);
    assert_eq!(summary(&world.claim(&other(&world, &held)).await), (None, "duplicate"));
    assert_eq!(world.held(&held).await.unwrap().record.result.as_deref(), Some("7"));
    assert_eq!(world.journal.status().entries, 0);
}

#[tokio::test]
async fn outcomes_of_a_key_are_delivered_in_order_and_before_later_calls() {
    let world = World::new().await;
    let held = granted(&world).await;
    world.line.set(Way::Gone);
    assert_eq!(world.settle(&report(&held, Outcome::Unknown, SPOOLED)).await, SPOOLED_ANSWER);
    assert_eq!(summary(&world.claim(&other(&world, &held)).await), (SPOOL, "duplicate"), "no gateway knows");
    assert_eq!(world.settle(&report(&held, success("7"), SPOOLED)).await, SPOOLED_ANSWER);
    let world = world.restarted().await;
    world.line.set(Way::Whole);
    let settled = world.settle(&report(&held, success("8"), SPOOLED)).await;
    assert_succeeded(&settled);
    assert_eq!(world.held(&held).await.unwrap().record.result.as_deref(), Some("7"), "the first one stays");
    assert_eq!(world.journal.status().entries, 0);
}

/// S9, also if an entry has started to wait on the key before the reply was lost.
#[tokio::test]
async fn an_outcome_that_the_store_may_have_taken_is_answered_as_uncertain() {
    let world = World::new().await;
    let held = granted(&world).await;
    world.line.set(Way::SlowReplyLost);
    let failed = report(&held, Outcome::Failure, OutcomeOnOutage::FailClosed);
    let on_its_way = world.try_settle(&failed);
    tokio::pin!(on_its_way);
    assert!(futures_util::poll!(&mut on_its_way).is_pending());
    world.line.set(Way::Gone);
    let stranger = report(&other(&world, &held), Outcome::Unknown, SPOOLED);
    assert_eq!(world.settle(&stranger).await, SPOOLED_ANSWER);
    world.line.go_on.notify_one();
    let failure = on_its_way.await.unwrap_err();
    assert_eq!(world.held(&held).await, None, "it was taken");
    assert!(matches!(failure, EngineError::Indeterminate(_)), "{failure}");
}

/// A grant of a store that is now unavailable, and another waiting entry on its key.
async fn granted_before_another_spooled(world: &World) -> Claim {
    let held = granted(world).await;
    world.line.set(Way::Gone);
    let stranger = report(&other(world, &held), Outcome::Failure, SPOOLED);
    assert_eq!(world.settle(&stranger).await, SPOOLED_ANSWER);
    held
}

/// S6: if it took effect after its caller was answered, the caller's next call would be answered as late.
#[tokio::test]
async fn a_failure_that_waits_longer_than_its_caller_is_left_to_the_next_call() {
    let world = World::new().await;
    let held = granted_before_another_spooled(&world).await;
    let failed = report(&held, Outcome::Failure, SPOOLED);
    let turn = world.gateway.0.locks.exclusive(&held.key).await;
    let first = world.try_settle(&failed);
    tokio::pin!(first);
    assert!(futures_util::poll!(&mut first).is_pending());
    world.clock.advance(failed.context().deadline);
    let next = world.try_settle(&failed);
    tokio::pin!(next);
    assert!(futures_util::poll!(&mut next).is_pending());
    world.line.set(Way::Whole);
    drop(turn);
    let first = first.await;
    let next = next.await.unwrap().split();
    assert_eq!(
        next,
        (OutcomeResponse::Done { state: None, left: None, ends_at: None, late: Some(false) }, None),
        "it was in time"
    );
    assert!(matches!(first, Err(EngineError::Determinate(_))), "nothing was done: {first:?}");
}

/// If it took effect after its caller was answered, others would wait for its lease to end.
#[tokio::test]
async fn a_claim_that_waits_longer_than_its_caller_is_not_made() {
    for back in [false, true] {
        let world = World::new().await;
        world.line.set(Way::Gone);
        let wanted = request(&world, ClaimOnOutage::FailOpen);
        let turn = world.gateway.0.locks.exclusive(&wanted.key).await;
        let waits = world.try_claim(&wanted);
        tokio::pin!(waits);
        assert!(futures_util::poll!(&mut waits).is_pending());
        world.clock.advance(wanted.context().deadline);
        if back {
            world.line.set(Way::Whole);
        }
        drop(turn);
        let late = waits.await;
        assert!(matches!(late, Err(EngineError::Determinate(_))), "{late:?}");
        world.line.set(Way::Whole);
        assert_eq!((world.held(&wanted).await, world.journal.status().entries), (None, 0));
    }
}

/// Others have to know of it, whether or not its caller still waits.
#[tokio::test]
async fn a_success_that_waits_longer_than_its_caller_is_recorded() {
    let world = World::new().await;
    let held = granted_before_another_spooled(&world).await;
    let done = report(&held, success("7"), SPOOLED);
    let turn = world.gateway.0.locks.exclusive(&held.key).await;
    let first = world.try_settle(&done);
    tokio::pin!(first);
    assert!(futures_util::poll!(&mut first).is_pending());
    world.clock.advance(done.context().deadline);
    world.line.set(Way::Whole);
    drop(turn);
    let settled = first.await.unwrap();
    assert_succeeded(&settled);
}

#[tokio::test]
async fn a_failure_frees_the_key_when_the_store_is_back() {
    let world = World::new().await;
    let held = granted(&world).await;
    world.line.set(Way::Gone);
    assert_eq!(world.settle(&report(&held, Outcome::Failure, SPOOLED)).await, SPOOLED_ANSWER);
    assert!(world.try_claim(&other(&world, &held)).await.is_err(), "only the store knows");
    world.line.set(Way::Whole);
    assert_eq!(summary(&world.claim(&other(&world, &held)).await), (None, "granted"));
}

#[tokio::test]
async fn a_grant_by_another_gateway_before_the_delivery_is_reported() {
    let world = World::new().await;
    let [done, failed] = [granted(&world).await, granted(&world).await];
    world.line.set(Way::Gone);
    world.settle(&report(&done, success("7"), SPOOLED)).await;
    world.settle(&report(&failed, Outcome::Failure, SPOOLED)).await;
    world.clock.advance(done.terms.lease);
    let theirs = other(&world, &done);
    world.claim_elsewhere(&theirs).await;
    world.claim_elsewhere(&other(&world, &failed)).await;
    world.back().await;
    let overlaps = world.overlaps();
    assert_eq!(overlaps.len(), 1, "nothing had happened in the other");
    assert_eq!((overlaps[0].ours.hash, overlaps[0].theirs.unwrap().hash), (done.attempt.hash(), theirs.attempt.hash()));
    assert_eq!((policy_of(&overlaps[0]), overlaps[0].state), (SPOOL, Some(ClaimState::InProgress)));
    assert_eq!(world.held(&done).await.unwrap().record.attempt, theirs.attempt);
}

/// The live claim ends between two calls of the delivery: nothing holds the key, so the outcome is not dropped.
#[tokio::test]
async fn a_success_whose_refusing_claim_has_just_ended_is_recorded() {
    for left in 1..4 {
        let world = World::new().await;
        let done = granted(&world).await;
        world.line.set(Way::Gone);
        world.settle(&report(&done, success("7"), SPOOLED)).await;
        world.clock.advance(done.terms.lease);
        let theirs = other(&world, &done).with(|request| request.terms.lease = Duration::from_millis(left));
        world.claim_elsewhere(&theirs).await;
        world.line.set(Way::EachTakesAMillisecond);
        world.gateway.deliver_all(Duration::from_secs(5)).await.unwrap();
        let held = world.held(&done).await.map(|held| (held.record.attempt.hash(), held.record.state));
        let is_recorded = held == Some((done.attempt.hash(), ClaimState::Succeeded));
        assert!(is_recorded || world.overlaps().len() == 1, "{left} ms were left: {held:?}");
    }
}

#[tokio::test]
async fn a_lookup_and_an_operator_see_what_was_spooled_before() {
    let world = World::new().await;
    let held = granted(&world).await;
    world.line.set(Way::Gone);
    world.settle(&report(&held, success("7"), SPOOLED)).await;
    let release = ReleaseRequest { key: held.key.clone(), attempt: held.attempt.clone(), result: None };
    assert!(world.gateway.release(&release).await.is_err() && world.gateway.read(&held.key).await.is_err());
    world.line.set(Way::Whole);
    assert_eq!(world.gateway.read(&held.key).await.unwrap().unwrap().record.state, ClaimState::Succeeded);
    assert_eq!(world.gateway.release(&release).await, Ok(ReleaseResponse::Done));
}

/// Delivered afterwards, the outcome would be that of an attempt that no longer holds the claim.
#[tokio::test]
async fn what_was_spooled_is_delivered_before_an_operator_releases_its_claim() {
    let world = World::new().await;
    let held = granted(&world).await;
    world.line.set(Way::Gone);
    world.settle(&report(&held, Outcome::Unknown, SPOOLED)).await;
    world.line.set(Way::Whole);
    let release = ReleaseRequest { key: held.key.clone(), attempt: held.attempt.clone(), result: None };
    assert_eq!(world.gateway.release(&release).await, Ok(ReleaseResponse::Done));
    assert_eq!(world.journal.status().entries, 0);
    assert_eq!(world.gateway.read(&held.key).await, Ok(None));
}

#[tokio::test]
async fn the_background_task_delivers() {
    let world = World::new().await;
    let held = granted(&world).await;
    world.line.set(Way::Gone);
    world.settle(&report(&held, success("7"), SPOOLED)).await;
    world.line.set(Way::Whole);
    for _ in 0..6000 {
        if world.journal.status().entries == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(world.held(&held).await.unwrap().record.state, ClaimState::Succeeded);
}

#[tokio::test]
async fn concurrent_calls_each_have_their_policy() {
    let world = World::new().await;
    let held = [granted(&world).await, granted(&world).await];
    world.line.set(Way::Gone);
    let reports =
        [report(&held[0], success("1"), SPOOLED), report(&held[1], success("2"), OutcomeOnOutage::FailClosed)];
    let answers = join_all(reports.iter().map(|report| world.try_settle(report))).await;
    assert_eq!(answers[0], Ok(SPOOLED_ANSWER));
    assert!(answers[1].is_err());
    let requests = [request(&world, ClaimOnOutage::Local), request(&world, ClaimOnOutage::FailClosed)];
    let answers = join_all(requests.iter().map(|request| world.try_claim(request))).await;
    assert_eq!(summary(answers[0].as_ref().unwrap()), (LOCAL, "granted"));
    assert!(answers[1].is_err());
}

/// Items with and without a policy take different routes, and each answer has the index of its item.
#[tokio::test]
async fn each_item_of_a_batch_is_answered_by_its_own_policy() {
    let world = World::new().await;
    let held = granted(&world).await;
    world.line.set(Way::Gone);
    assert_eq!(world.settle(&report(&held, success("1"), SPOOLED)).await, SPOOLED_ANSWER);
    let requests = [
        other(&world, &held),
        request(&world, ClaimOnOutage::FailClosed),
        request(&world, ClaimOnOutage::Local),
        request(&world, ClaimOnOutage::FailClosed),
        request(&world, ClaimOnOutage::FailOpen),
    ];
    let batch = async || {
        let answers = world.claim_batch(&requests).await;
        answers.into_iter().map(|answer| answer.ok().map(|answer| summary(&answer))).collect::<Vec<_>>()
    };
    let of_policies = [Some((SPOOL, "duplicate")), None, Some((LOCAL, "granted")), None, Some((FAIL_OPEN, "granted"))];
    assert_eq!(batch().await, of_policies);
    // When the store is back, waiting entries are delivered before the same claim is granted again.
    world.line.set(Way::Whole);
    let of_the_store = ["duplicate", "granted", "granted", "granted", "granted"].map(|word| Some((None, word)));
    assert_eq!(batch().await, of_the_store);
    assert_eq!(world.held(&held).await.unwrap().record.state, ClaimState::Succeeded);
}

/// A caller that disconnects changes nothing: every entry on the disk is in the local claims too.
#[tokio::test]
async fn a_caller_that_gives_up_leaves_journal_and_local_claims_consistent() {
    let world = World::cut_off().await;
    for _ in 0..50 {
        let request = request(&world, ClaimOnOutage::Local);
        drop(timeout(Duration::from_micros(200), world.try_claim(&request)).await);
    }
    for _ in 0..10_000 {
        if world.gateway.0.tasks.len() == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(world.gateway.0.local_claims.keys_waiting().len(), world.journal.status().entries);
}
