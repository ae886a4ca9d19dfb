//! Rules of claim calls and lookups: grants, answers to duplicates, comparisons.

use futures_util::future::join_all;

use super::requests::{DEADLINE, again, app, done, fresh_claim, issuer, settle_of, success};
use super::subject::Subject;
use crate::canonical::Canonical;
use crate::claim::{ClaimRequest, ClaimResponse, Mismatch, Outcome};
use crate::record::{ClaimState, Contents, Key};
use crate::tenant::Operation;

/// S1.
pub async fn a_first_claim_is_granted(on: &Subject) {
    let request = fresh_claim();
    let grant = on.granted(&request).await;
    assert_eq!(grant.attempt, request.attempt);
    assert!(!grant.repeated && !grant.taken_over);
    assert_eq!(grant.fence.is_some(), on.engine.capabilities().strict_fence);
}

/// S1, S4.
pub async fn a_second_attempt_is_a_duplicate_and_changes_nothing(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    for _ in 0..3 {
        let live = on.duplicate(&again(&request)).await;
        assert_eq!((live.record.state, &live.record.attempt), (ClaimState::InProgress, &request.attempt));
        on.assert_left(live.left, request.terms.lease);
    }
    assert_eq!(on.settle(&settle_of(&request, Outcome::Failure)).await, done(None, None, false));
}

/// S1: the race, several times over.
pub async fn of_many_racing_claims_exactly_one_is_granted(on: &Subject) {
    for _ in 0..5 {
        let request = fresh_claim();
        let racers: Vec<_> = (0..200)
            .map(|_| {
                let (engine, request) = (on.engine.clone(), again(&request));
                tokio::spawn(async move { engine.claim(&request, DEADLINE).await.map(|answer| (request, answer)) })
            })
            .collect();
        let mut winners = Vec::new();
        for racer in join_all(racers).await {
            match racer.expect("no panic").expect("the engine answers") {
                (request, ClaimResponse::Granted(grant)) => winners.push((request, grant)),
                (_, ClaimResponse::Duplicate(live)) => assert_eq!(live.record.state, ClaimState::InProgress),
                (_, other) => panic!("unexpected {other:?}"),
            }
        }
        assert_eq!(winners.len(), 1, "exactly one of 200 is granted");
        assert_eq!(winners[0].1.attempt, winners[0].0.attempt, "it gets its own attempt");
    }
}

/// S5.
pub async fn the_same_nonce_gets_the_same_attempt_and_the_remaining_lease(on: &Subject) {
    let request = fresh_claim();
    let first = on.granted(&request).await;
    (on.pass)(on.tick).await;
    let nonce = request.attempt.nonce().clone();
    let repeat = ClaimRequest { attempt: issuer().issue(Some(nonce)), ..request.clone() };
    let second = on.granted(&repeat).await;
    assert!(second.repeated);
    assert_eq!((&second.attempt, second.fence), (&first.attempt, first.fence));
    let left = second.lease_left.expect("a repeat gets what is left");
    assert!(left + on.tick <= request.terms.lease, "a repeat does not restart the lease");
}

/// S5, S9: a call that is repeated because its reply was lost gets the answer of the first one.
pub async fn a_repeated_call_finds_its_own_claim(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    let grant = on.granted(&request).await;
    assert_eq!((grant.attempt, grant.repeated), (request.attempt.clone(), false));
    assert!(grant.lease_left.is_some());
}

/// S7.
pub async fn other_contents_under_the_same_key_are_refused(on: &Subject) {
    let request = fresh_claim();
    let forged = ClaimRequest { contents: Canonical::trusted("\"forged\""), ..again(&request) };
    on.granted(&request).await;
    assert_eq!(on.claim(&forged).await, ClaimResponse::Mismatch(Mismatch::Contents));
    // Also with the same nonce. And another operation means other contents.
    let same_nonce = ClaimRequest { attempt: request.attempt.clone(), ..forged.clone() };
    assert_eq!(on.claim(&same_nonce).await, ClaimResponse::Mismatch(Mismatch::Contents));
    let operation = "other".parse().expect("an operation");
    assert_eq!(
        on.claim(&ClaimRequest { operation, ..again(&request) }).await,
        ClaimResponse::Mismatch(Mismatch::Contents)
    );
    on.settle(&settle_of(&request, success(None))).await;
    assert_eq!(on.claim(&forged).await, ClaimResponse::Mismatch(Mismatch::Contents));
    assert_eq!(on.duplicate(&again(&request)).await.record.attempt, request.attempt);
}

/// S7.
pub async fn another_fingerprint_is_refused_in_every_state(on: &Subject) {
    let with = |fingerprint| ClaimRequest { fingerprint, ..fresh_claim() };
    for (first, second) in [(Some([1; 32]), Some([2; 32])), (Some([1; 32]), None), (None, Some([1; 32]))] {
        for outcome in [None, Some(success(None)), Some(Outcome::Unknown)] {
            let request = with(first);
            on.granted(&request).await;
            if let Some(outcome) = outcome {
                on.settle(&settle_of(&request, outcome)).await;
            }
            let other = ClaimRequest { fingerprint: second, take_over: true, ..again(&request) };
            assert_eq!(on.claim(&other).await, ClaimResponse::Mismatch(Mismatch::Fingerprint));
            assert_eq!(on.read(&request.key).await.expect("still there").record.attempt, request.attempt);
        }
    }
}

/// The name of a caller is stored with its claim, through its outcome, and decides nothing.
pub async fn the_caller_is_kept_with_its_claim(on: &Subject) {
    for outcome in [success(None), Outcome::Unknown] {
        let request = ClaimRequest { caller: "pod/shop-7c9:1".parse().ok(), ..fresh_claim() };
        on.granted(&request).await;
        let other = ClaimRequest { caller: None, ..again(&request) };
        assert_eq!(on.duplicate(&other).await.record.caller, request.caller);
        on.settle(&settle_of(&request, outcome)).await;
        assert_eq!(on.read(&request.key).await.expect("still there").record.caller, request.caller);
    }
}

/// S7 for contents over `contents_stored_bytes`, also when that bound changes between two calls.
pub async fn long_contents_are_kept_as_a_digest_and_still_compared(on: &Subject) {
    for (first, second) in [(0, 0), (0, 1024), (1024, 0)] {
        let request = ClaimRequest { contents_stored_bytes: first, ..fresh_claim() };
        on.granted(&request).await;
        let repeat = ClaimRequest { contents_stored_bytes: second, ..again(&request) };
        let live = on.duplicate(&repeat).await;
        assert_eq!(matches!(live.record.contents, Contents::Digest(..)), first == 0);
        let forged = ClaimRequest { contents: Canonical::trusted("\"forged\""), ..repeat };
        assert_eq!(on.claim(&forged).await, ClaimResponse::Mismatch(Mismatch::Contents));
    }
}

/// S8.
pub async fn apps_do_not_see_each_other(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    // The same global ID under another app, as an MD5 collision would give it.
    let other = ClaimRequest { key: Key { app: app("another"), ..request.key.clone() }, ..again(&request) };
    assert_eq!(on.read(&other.key).await, None);
    assert!(!on.granted(&other).await.repeated);
    assert_eq!(on.settle(&settle_of(&other, Outcome::Failure)).await, done(None, None, false));
    assert_eq!(on.duplicate(&again(&request)).await.record.attempt, request.attempt);
}

/// A lookup returns the record and its remaining time.
pub async fn a_read_returns_the_live_claim(on: &Subject) {
    let request = ClaimRequest { fingerprint: Some([9; 32]), operation: Operation::default(), ..fresh_claim() };
    assert_eq!(on.read(&request.key).await, None);
    let grant = on.granted(&request).await;
    let live = on.read(&request.key).await.expect("a live claim");
    assert_eq!(live.record, request.record());
    assert_eq!(live.fence, grant.fence);
    on.assert_left(live.left, request.terms.lease);
    on.engine.probe().await.expect("the store answers");
}

/// S11.
pub async fn fences_rise_strictly_where_promised(on: &Subject) {
    let request = fresh_claim();
    let mut last = None;
    for round in 0..20 {
        let next = ClaimRequest { take_over: true, ..again(&request) };
        let grant = on.granted(&next).await;
        if on.engine.capabilities().strict_fence {
            let fence = grant.fence.expect("a fence is promised");
            assert!(fence < 1 << 53, "a fence must survive as a double");
            assert!(last.is_none_or(|last| fence > last), "{fence} does not rise above {last:?}");
            last = Some(fence);
            assert_eq!(on.granted(&next).await.fence, last, "a repeat gets the same fence");
        } else {
            assert_eq!(grant.fence, None, "no fence unless it is promised");
        }
        let outcome = if round % 2 == 0 { Outcome::Failure } else { Outcome::Unknown };
        on.settle(&settle_of(&next, outcome)).await;
    }
}
