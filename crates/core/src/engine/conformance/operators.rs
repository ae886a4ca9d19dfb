//! Rules of operators' calls: releases and lists.

use super::super::EngineError;
use super::requests::{
    again, app, attempt, claim_of, done, fresh_claim, long_terms, renew_of, settle_of, strangers_to, success,
};
use super::subject::Subject;
use crate::claim::{ClaimRequest, Outcome, OutcomeResponse, RenewalResponse};
use crate::global_id::GlobalId;
use crate::operator::{ListRequest, ReleaseRequest, ReleaseResponse};
use crate::record::{ClaimState, Key, Realm, Record};
use crate::terms::{LeaseEnd, Retention, Terms};

/// An operator's release, of a claim in each state that there is.
pub async fn a_release_ends_a_claim_in_any_state(on: &Subject) {
    let lapsing = Terms { lease: on.ticks(2), on_lease_end: LeaseEnd::Unknown, ..long_terms() };
    let mut requests = Vec::new();
    for outcome in [None, Some(success(Some("1"))), Some(Outcome::Unknown)] {
        let request = fresh_claim();
        on.granted(&request).await;
        if let Some(outcome) = outcome {
            on.settle(&settle_of(&request, outcome)).await;
        }
        requests.push(request);
    }
    let forever = Outcome::Success { result: None, retention: Some(Retention::Forever) };
    let (kept, late, lapsed) = (fresh_claim(), fresh_claim(), ClaimRequest { terms: lapsing, ..fresh_claim() });
    on.granted(&kept).await;
    on.settle(&settle_of(&kept, forever)).await;
    on.settle(&settle_of(&late, success(None))).await;
    on.granted(&lapsed).await;
    (on.pass)(on.ticks(3)).await;
    requests.extend([kept, late, lapsed]);
    for request in requests {
        let live = on.read(&request.key).await.expect("a live claim");
        assert_eq!(on.release(&request.key, &live.record.attempt).await, ReleaseResponse::Done);
        assert_eq!(on.read(&request.key).await, None);
        assert_eq!(on.release(&request.key, &live.record.attempt).await, ReleaseResponse::Absent);
        let grant = on.granted(&again(&request)).await;
        assert!(!grant.taken_over && !grant.repeated);
    }
    // An ended claim is absent here too.
    let ended = ClaimRequest { terms: Terms { lease: on.ticks(2), ..long_terms() }, ..fresh_claim() };
    on.granted(&ended).await;
    (on.pass)(on.ticks(3)).await;
    assert_eq!(on.release(&ended.key, &ended.attempt).await, ReleaseResponse::Absent);
}

/// S2: only the claim of the attempt that the operator was shown is released.
pub async fn a_release_by_another_attempt_changes_nothing(on: &Subject) {
    for outcome in [None, Some(success(Some("1"))), Some(Outcome::Unknown)] {
        let request = fresh_claim();
        on.granted(&request).await;
        if let Some(outcome) = outcome {
            on.settle(&settle_of(&request, outcome)).await;
        }
        let before = on.read(&request.key).await.expect("kept");
        for stranger in strangers_to(&request) {
            assert_eq!(on.release(&request.key, &stranger).await, ReleaseResponse::Superseded);
        }
        // Nor another app's claim with the same ID.
        let other = Key { app: app("another"), ..request.key.clone() };
        assert_eq!(on.release(&other, &request.attempt).await, ReleaseResponse::Absent);
        let after = on.read(&request.key).await.expect("kept");
        assert_eq!((&after.record, after.fence), (&before.record, before.fence));
    }
}

/// Only the result of the claim is replaced; its end and its fence stay.
pub async fn an_operator_replaces_the_result_of_a_success_only(on: &Subject) {
    let forever = Outcome::Success { result: Some("1".into()), retention: Some(Retention::Forever) };
    for outcome in [None, Some(Outcome::Unknown), Some(success(None)), Some(success(Some("1"))), Some(forever)] {
        let request = fresh_claim();
        on.granted(&request).await;
        if let Some(outcome) = outcome {
            on.settle(&settle_of(&request, outcome)).await;
        }
        let before = on.read(&request.key).await.expect("kept");
        let replace =
            |attempt| ReleaseRequest { key: request.key.clone(), attempt, result: Some("[2,\"é\\n\"]".into()) };
        assert_eq!(on.released(&replace(attempt())).await, ReleaseResponse::Superseded);
        let succeeded = before.record.state == ClaimState::Succeeded;
        let expected = if succeeded { ReleaseResponse::Done } else { ReleaseResponse::Superseded };
        // A call that is repeated has the effect of one.
        for _ in 0..2 {
            assert_eq!(on.released(&replace(request.attempt.clone())).await, expected);
        }
        let after = on.read(&request.key).await.expect("kept");
        let result = if succeeded { replace(attempt()).result } else { None };
        assert_eq!((&after.record, after.fence), (&Record { result, ..before.record.clone() }, before.fence));
        assert_eq!(after.left.is_some(), before.left.is_some());
        if let Some(left) = before.left {
            on.assert_left(after.left, left);
        }
    }
    let absent = ReleaseRequest { key: fresh_claim().key, attempt: attempt(), result: Some("1".into()) };
    assert_eq!(on.released(&absent).await, ReleaseResponse::Absent);
}

/// Every later call of a holder whose claim was released is answered accordingly.
pub async fn a_released_holder_holds_nothing(on: &Subject) {
    let released = async || {
        let request = fresh_claim();
        on.granted(&request).await;
        assert_eq!(on.release(&request.key, &request.attempt).await, ReleaseResponse::Done);
        request
    };
    let request = released().await;
    assert_eq!(on.renew(&renew_of(&request, None)).await, RenewalResponse::LeaseLost);
    assert_eq!(on.settle(&settle_of(&request, Outcome::Failure)).await, done(None, None, true));
    let recorded = on.settle(&settle_of(&request, success(None))).await;
    assert!(
        matches!(recorded, OutcomeResponse::Done { state: Some(ClaimState::Succeeded), late: Some(true), .. }),
        "{recorded:?}"
    );
    let request = released().await;
    let next = again(&request);
    on.granted(&next).await;
    for outcome in [success(None), Outcome::Failure, Outcome::Unknown] {
        assert!(matches!(on.settle(&settle_of(&request, outcome)).await, OutcomeResponse::Superseded { .. }));
    }
    assert_eq!(on.duplicate(&again(&request)).await.record.attempt, next.attempt);
}

/// S11, over a release of every state.
pub async fn a_release_keeps_fences_rising(on: &Subject) {
    if !on.engine.capabilities().strict_fence {
        return;
    }
    let request = fresh_claim();
    let mut last = None;
    for outcome in [None, Some(success(None)), Some(Outcome::Unknown), None] {
        let next = again(&request);
        let fence = on.granted(&next).await.fence.expect("a fence is promised");
        assert!(last.is_none_or(|last| fence > last), "{fence} does not rise above {last:?}");
        last = Some(fence);
        if let Some(outcome) = outcome {
            on.settle(&settle_of(&next, outcome)).await;
        }
        assert_eq!(on.release(&next.key, &next.attempt).await, ReleaseResponse::Done);
    }
}

/// Consecutive pages contain every claim once, in order.
pub async fn a_list_is_ordered_by_global_id_and_paged(on: &Subject) {
    let (app, mut ids) = lister();
    if !on.engine.capabilities().lists {
        let refused = on.engine.list(&list_of(&app, None, 10)).await;
        assert!(matches!(refused, Err(EngineError::Determinate(_))), "{refused:?}");
        return;
    }
    assert_eq!(on.list(&list_of(&app, None, 10)).await, []);
    for number in 0..25 {
        let request = claim_of(&app, &number.to_string());
        on.granted(&request).await;
        ids.push(request.key.global_id);
    }
    ids.sort();
    let (mut found, mut after) = (Vec::new(), None);
    for expected in [10, 10, 5, 0] {
        let page = on.list(&list_of(&app, after, 10)).await;
        assert_eq!(page.len(), expected);
        after = page.last().map(|last| last.global_id).or(after);
        found.extend(page.into_iter().map(|listed| listed.global_id));
    }
    assert_eq!(found, ids);
    // An ID without a claim is a valid start as well.
    let between = GlobalId::from_bytes((u128::from_be_bytes(*ids[3].as_bytes()) + 1).to_be_bytes());
    assert_eq!(on.list(&list_of(&app, Some(between), 1)).await[0].global_id, ids[4]);
    let end = GlobalId::from_bytes([0xff; 16]);
    assert_eq!(on.list(&list_of(&app, Some(end), 10)).await, []);
}

/// A list contains the claims of the app in the requested state, as a lookup returns them, and no ended ones.
pub async fn a_list_contains_the_live_claims(on: &Subject) {
    if !on.engine.capabilities().lists {
        return;
    }
    let (app, _) = lister();
    // Its name has the other's as a prefix, so its claims are next to the other's.
    on.granted(&claim_of(&format!("{app}-1"), "1")).await;
    let short = Terms { lease: on.ticks(2), ..long_terms() };
    let lapsing = Terms { on_lease_end: LeaseEnd::Unknown, ..short };
    let claim = |contents: &str, terms| ClaimRequest { terms, ..claim_of(&app, contents) };
    let [ended, lapsed] = [claim("1", short), claim("2", lapsing)];
    let [running, succeeded, unknown, failed, released] =
        ["3", "4", "5", "6", "7"].map(|text| claim(text, long_terms()));
    for request in [&ended, &lapsed, &running, &succeeded, &unknown, &failed, &released] {
        on.granted(request).await;
    }
    on.settle(&settle_of(&succeeded, success(Some("{\"n\": 1}")))).await;
    on.settle(&settle_of(&unknown, Outcome::Unknown)).await;
    on.settle(&settle_of(&failed, Outcome::Failure)).await;
    on.release(&released.key, &released.attempt).await;
    (on.pass)(on.ticks(3)).await;
    for (state, expected) in [
        (None, vec![&lapsed, &running, &succeeded, &unknown]),
        (Some(ClaimState::InProgress), vec![&running]),
        (Some(ClaimState::Succeeded), vec![&succeeded]),
        (Some(ClaimState::Unknown), vec![&lapsed, &unknown]),
    ] {
        let listed = on.list(&ListRequest { state, ..list_of(&app, None, 100) }).await;
        let mut expected: Vec<_> = expected.into_iter().map(|request| request.key.clone()).collect();
        expected.sort();
        let found: Vec<_> = listed.iter().map(|listed| listed.global_id).collect();
        assert_eq!(found, expected.iter().map(|key| key.global_id).collect::<Vec<_>>(), "{state:?}");
        for (listed, key) in listed.iter().zip(&expected) {
            let live = on.read(key).await.expect("a live claim");
            assert_eq!((&listed.claim.record, listed.claim.fence), (&live.record, live.fence));
            assert!(listed.claim.left.is_some() == live.left.is_some() && listed.claim.left >= live.left);
        }
    }
}

/// Returns an app that no other test uses, and an empty list for the IDs of its claims.
fn lister() -> (String, Vec<GlobalId>) {
    (format!("lister{}", attempt().timestamp().as_micros()), Vec::new())
}

fn list_of(app_name: &str, after: Option<GlobalId>, limit: usize) -> ListRequest {
    ListRequest { app: app(app_name), realm: Realm::Api, state: None, after, limit }
}
