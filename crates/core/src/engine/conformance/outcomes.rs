//! Rules of outcome calls: each outcome in each state, and late outcomes.

use std::time::Duration;

use super::requests::{
    again, attempt, done, fresh_claim, long_terms, renew_of, settle_by, settle_of, strangers_to, success,
};
use super::subject::Subject;
use crate::attempt::Attempt;
use crate::canonical::Canonical;
use crate::claim::{
    ClaimRequest, ClaimResponse, LateTerms, Mismatch, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest,
    RenewalResponse,
};
use crate::record::{ClaimState, Contents};
use crate::terms::{Retention, Terms};

/// S3.
pub async fn a_success_is_final_and_replays_its_result(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    let retention = request.terms.retention.duration();
    let result = "{\"order\": \"A-1\",\n \"total\": 12.50}";
    assert_eq!(
        on.settle(&settle_of(&request, success(Some(result)))).await,
        done(Some(ClaimState::Succeeded), retention, false)
    );
    let live = on.duplicate(&ClaimRequest { take_over: true, ..again(&request) }).await;
    assert_eq!((live.record.state, live.record.result.as_deref()), (ClaimState::Succeeded, Some(result)));
    on.assert_left(live.left, retention.expect("it ends"));
    // The holder's own nonce does not reopen a success.
    assert_eq!(on.duplicate(&request).await.record.state, ClaimState::Succeeded);
    for outcome in [Outcome::Failure, Outcome::Unknown] {
        assert_eq!(on.settle(&settle_of(&request, outcome)).await, OutcomeResponse::AlreadySucceeded);
    }
    assert_eq!(on.renew(&renew_of(&request, None)).await, RenewalResponse::AlreadySucceeded);
    assert_eq!(on.duplicate(&again(&request)).await.record.state, ClaimState::Succeeded);
}

/// S5.
pub async fn the_first_result_stays(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    on.settle(&settle_of(&request, success(Some("1")))).await;
    let again_settled = on.settle(&settle_of(&request, success(Some("2")))).await;
    assert!(matches!(
        again_settled,
        OutcomeResponse::Done { state: Some(ClaimState::Succeeded), late: Some(false), .. }
    ));
    assert_eq!(on.read(&request.key).await.expect("kept").record.result.as_deref(), Some("1"));
}

/// The outcome's retention replaces the claim's, and is stored with the record.
pub async fn a_success_may_have_its_own_retention(on: &Subject) {
    for own in [Retention::For(Duration::from_mins(1)), Retention::Forever, Retention::For(Duration::from_hours(999))] {
        let terms = Terms { retention: Retention::For(Duration::from_hours(5)), ..long_terms() };
        let request = ClaimRequest { terms, ..fresh_claim() };
        on.granted(&request).await;
        let outcome = Outcome::Success { result: Some("[1]".into()), retention: Some(own) };
        assert_eq!(
            on.settle(&settle_of(&request, outcome)).await,
            done(Some(ClaimState::Succeeded), own.duration(), false)
        );
        let live = on.read(&request.key).await.expect("kept");
        assert_eq!((live.record.terms.retention, live.record.result.as_deref()), (own, Some("[1]")));
        match own.duration() {
            Some(own) => on.assert_left(live.left, own),
            None => assert_eq!(live.left, None),
        }
    }
}

/// A failure frees the key; the old attempt cannot change the new claim.
pub async fn a_failure_frees_the_key_at_once(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    assert_eq!(on.settle(&settle_of(&request, Outcome::Failure)).await, done(None, None, false));
    assert_eq!(on.read(&request.key).await, None);
    let next = again(&request);
    on.granted(&next).await;
    // S2: the old attempt's repeated failure does not delete the newer claim.
    let superseded = on.settle(&settle_of(&request, Outcome::Failure)).await;
    assert!(matches!(superseded, OutcomeResponse::Superseded { state: ClaimState::InProgress, .. }));
    assert_eq!(on.duplicate(&again(&request)).await.record.attempt, next.attempt);
}

/// The state `unknown`.
pub async fn an_unknown_claim_blocks_until_it_is_taken_over(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    let left = request.terms.unknown_retention.duration();
    assert_eq!(on.settle(&settle_of(&request, Outcome::Unknown)).await, done(Some(ClaimState::Unknown), left, false));
    // The holder's own nonce is a duplicate too, also with `take_over`.
    for repeat in [again(&request), request.clone(), ClaimRequest { take_over: true, ..request.clone() }] {
        let live = on.duplicate(&repeat).await;
        assert_eq!(live.record.state, ClaimState::Unknown);
        on.assert_left(live.left, left.expect("it ends"));
    }
    let taker = ClaimRequest { take_over: true, ..again(&request) };
    let grant = on.granted(&taker).await;
    assert!(grant.taken_over && !grant.repeated);
    assert_eq!(grant.attempt, taker.attempt);
    // A reply may be lost, so a repeated call reports the take-over too.
    let repeated = Attempt::new(attempt().timestamp(), taker.attempt.nonce().clone());
    for (repeat, is_repeated) in [(taker.clone(), false), (ClaimRequest { attempt: repeated, ..taker.clone() }, true)] {
        let grant = on.granted(&repeat).await;
        assert_eq!((grant.attempt, grant.taken_over, grant.repeated), (taker.attempt.clone(), true, is_repeated));
    }
    // Only one attempt takes over: then the claim is in progress again.
    assert_eq!(on.duplicate(&ClaimRequest { take_over: true, ..again(&request) }).await.record.attempt, taker.attempt);
    assert!(matches!(on.settle(&settle_of(&request, success(None))).await, OutcomeResponse::Superseded { .. }));
    assert_eq!(
        on.renew(&renew_of(&taker, None)).await,
        RenewalResponse::Renewed { left: long_terms().lease, ends_at: None }
    );
}

/// The row "unknown, A".
pub async fn the_holder_settles_its_unknown_claim(on: &Subject) {
    let unknown = async || {
        let request = fresh_claim();
        on.granted(&request).await;
        on.settle(&settle_of(&request, Outcome::Unknown)).await;
        request
    };
    let request = unknown().await;
    let repeated = on.settle(&settle_of(&request, Outcome::Unknown)).await;
    assert!(
        matches!(repeated, OutcomeResponse::Done { state: Some(ClaimState::Unknown), late: Some(false), .. }),
        "{repeated:?}"
    );
    assert_eq!(on.renew(&renew_of(&request, None)).await, RenewalResponse::LeaseLost);
    assert_eq!(on.settle(&settle_of(&request, Outcome::Failure)).await, done(None, None, false));
    let request = unknown().await;
    let retention = request.terms.retention.duration();
    assert_eq!(
        on.settle(&settle_of(&request, success(Some("1")))).await,
        done(Some(ClaimState::Succeeded), retention, false)
    );
}

/// S2: no call of another attempt changes anything, in any state.
pub async fn only_the_holder_settles(on: &Subject) {
    for outcome in [None, Some(success(Some("1"))), Some(Outcome::Unknown)] {
        let request = fresh_claim();
        on.granted(&request).await;
        if let Some(outcome) = outcome {
            on.settle(&settle_of(&request, outcome)).await;
        }
        let before = on.read(&request.key).await.expect("kept");
        for stranger in strangers_to(&request) {
            for outcome in [success(None), Outcome::Failure, Outcome::Unknown] {
                let answer = on.settle(&settle_by(&request, &stranger, outcome)).await;
                assert!(
                    matches!(answer, OutcomeResponse::Superseded { state, .. } if state == before.record.state),
                    "{answer:?}"
                );
            }
            let renewal = RenewalRequest { attempt: stranger, ..renew_of(&request, Some(Duration::from_hours(9))) };
            assert!(matches!(on.renew(&renewal).await, RenewalResponse::Superseded { .. }));
        }
        let after = on.read(&request.key).await.expect("kept");
        assert_eq!((&after.record, after.fence), (&before.record, before.fence));
        assert!(after.left <= before.left);
    }
}

/// S6.
pub async fn late_outcomes_are_recorded(on: &Subject) {
    let request = fresh_claim();
    let retention = request.terms.retention.duration();
    let late = settle_of(&request, success(Some("\"late\"")));
    for _ in 0..2 {
        let OutcomeResponse::Done { state, left, late, .. } = on.settle(&late).await else { panic!("recorded") };
        assert_eq!((state, late), (Some(ClaimState::Succeeded), Some(true)), "repeated or not, it is late");
        on.assert_left(left, retention.expect("it ends"));
    }
    // Its contents are unknown, so nothing is compared, not even the fingerprint.
    let live = on.duplicate(&ClaimRequest { fingerprint: Some([3; 32]), ..again(&request) }).await;
    assert_eq!((live.record.state, live.record.contents.clone()), (ClaimState::Succeeded, Contents::Unverified));
    assert_eq!((live.record.result.as_deref(), live.record.operation), (Some("\"late\""), None));

    let request = fresh_claim();
    let unknown = on.settle(&settle_of(&request, Outcome::Unknown)).await;
    assert_eq!(unknown, done(Some(ClaimState::Unknown), request.terms.unknown_retention.duration(), true));
    assert_eq!(on.duplicate(&again(&request)).await.record.state, ClaimState::Unknown);
    assert!(on.granted(&ClaimRequest { take_over: true, ..again(&request) }).await.taken_over);
}

/// S6: refused, and the caller learns it.
pub async fn a_late_outcome_that_is_too_old_is_refused(on: &Subject) {
    let request = fresh_claim();
    for outcome in [success(None), Outcome::Unknown] {
        let too_old = OutcomeRequest { late: None, ..settle_of(&request, outcome) };
        assert_eq!(on.settle(&too_old).await, OutcomeResponse::Expired);
    }
    assert_eq!(on.read(&request.key).await, None);
    // Its age does not matter while the claim is live.
    on.granted(&request).await;
    let old_holder = OutcomeRequest { late: None, ..settle_of(&request, success(None)) };
    assert!(matches!(on.settle(&old_holder).await, OutcomeResponse::Done { state: Some(ClaimState::Succeeded), .. }));
}

/// A late record with contents compares them like any other.
pub async fn a_late_record_with_contents_still_compares_them(on: &Subject) {
    let request = fresh_claim();
    let late = LateTerms {
        operation: Some(request.operation.clone()),
        contents: Contents::keep(&request.contents, 1024),
        terms: request.terms,
    };
    on.settle(&OutcomeRequest { late: Some(late), ..settle_of(&request, success(None)) }).await;
    on.duplicate(&again(&request)).await;
    let forged = ClaimRequest { contents: Canonical::trusted("\"forged\""), ..again(&request) };
    assert_eq!(on.claim(&forged).await, ClaimResponse::Mismatch(Mismatch::Contents));
}

/// A failure without a claim changes nothing.
pub async fn a_late_failure_releases_nothing(on: &Subject) {
    let request = fresh_claim();
    assert_eq!(on.settle(&settle_of(&request, Outcome::Failure)).await, done(None, None, true));
    let too_old = OutcomeRequest { late: None, ..settle_of(&request, Outcome::Failure) };
    assert_eq!(on.settle(&too_old).await, done(None, None, true));
    on.granted(&request).await;
}
