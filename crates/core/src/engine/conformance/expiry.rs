//! Rules of leases and retentions: the end of a claim without a call, and the effect of renewals.

use std::time::Duration;

use super::requests::{again, attempt, done, fresh_claim, long_terms, renew_of, settle_of, success};
use super::subject::{Subject, duplicate};
use crate::attempt::Attempt;
use crate::claim::{ClaimRequest, Outcome, OutcomeResponse, RenewalRequest, RenewalResponse};
use crate::record::ClaimState;
use crate::terms::{LeaseEnd, Retention, Terms};

/// L1, S10.
pub async fn a_lease_ends_by_itself(on: &Subject) {
    let request = on
        .in_time(async |pace| {
            let request = ClaimRequest { terms: Terms { lease: pace.ticks(2), ..long_terms() }, ..fresh_claim() };
            let started = pace.now();
            on.granted(&request).await;
            let found = on.claim(&again(&request)).await;
            pace.within(started, pace.ticks(2))?;
            duplicate(found);
            (on.pass)(pace.ticks(3)).await;
            Ok(request)
        })
        .await;
    assert_eq!(on.read(&request.key).await, None);
    assert_eq!(on.renew(&renew_of(&request, None)).await, RenewalResponse::LeaseLost);
    let next = again(&request);
    assert!(!on.granted(&next).await.taken_over);
    assert!(matches!(on.settle(&settle_of(&request, success(None))).await, OutcomeResponse::Superseded { .. }));
}

/// `on_lease_end = "unknown"`.
pub async fn the_end_of_a_lease_can_mean_unknown(on: &Subject) {
    let terms = Terms { on_lease_end: LeaseEnd::Unknown, ..long_terms() };
    let lapsed = async || {
        let request = on
            .in_time(async |pace| {
                let request = ClaimRequest { terms: Terms { lease: pace.ticks(2), ..terms }, ..fresh_claim() };
                let started = pace.now();
                on.granted(&request).await;
                let found = on.claim(&again(&request)).await;
                pace.within(started, pace.ticks(2))?;
                let live = duplicate(found);
                assert_eq!(live.record.state, ClaimState::InProgress);
                assert!(live.left.expect("a lease ends") <= pace.ticks(2));
                (on.pass)(pace.ticks(3)).await;
                Ok(request)
            })
            .await;
        let live = on.duplicate(&request).await;
        assert_eq!((live.record.state, live.left), (ClaimState::Unknown, None));
        assert_eq!(on.renew(&renew_of(&request, None)).await, RenewalResponse::LeaseLost);
        request
    };
    // Its holder settles it, in each way.
    let request = lapsed().await;
    assert_eq!(on.settle(&settle_of(&request, Outcome::Failure)).await, done(None, None, false));
    let request = lapsed().await;
    let retention = terms.retention.duration();
    assert_eq!(
        on.settle(&settle_of(&request, success(None))).await,
        done(Some(ClaimState::Succeeded), retention, false)
    );
    let request = lapsed().await;
    assert_eq!(on.settle(&settle_of(&request, Outcome::Unknown)).await, done(Some(ClaimState::Unknown), None, false));
    // The very attempt, which no caller can repeat, gets its lease back.
    let request = ClaimRequest { terms, ..lapsed().await };
    let repeated = Attempt::new(attempt().timestamp(), request.attempt.nonce().clone());
    let repeat = ClaimRequest { attempt: repeated, take_over: true, ..request.clone() };
    assert_eq!(on.duplicate(&repeat).await.record.state, ClaimState::Unknown);
    let grant = on.granted(&ClaimRequest { take_over: true, ..request.clone() }).await;
    assert!(!grant.taken_over && !grant.repeated && grant.attempt == request.attempt, "{grant:?}");
    assert_eq!(on.read(&request.key).await.expect("it is in progress").fence, grant.fence);
    assert_eq!(
        on.renew(&renew_of(&request, None)).await,
        RenewalResponse::Renewed { left: terms.lease, ends_at: None }
    );
    // A take-over gets a new lease.
    let request = lapsed().await;
    let taker = ClaimRequest { take_over: true, terms, ..again(&request) };
    assert!(on.granted(&taker).await.taken_over);
    let live = on.duplicate(&again(&request)).await;
    assert_eq!((live.record.state, live.record.attempt), (ClaimState::InProgress, taker.attempt));
    on.assert_left(live.left, terms.lease);
}

/// A success is kept until its retention ends.
pub async fn a_retention_ends_by_itself(on: &Subject) {
    let request = on
        .in_time(async |pace| {
            let terms = Terms { retention: Retention::For(pace.ticks(4)), ..long_terms() };
            let request = ClaimRequest { terms, ..fresh_claim() };
            on.granted(&request).await;
            let started = pace.now();
            on.settle(&settle_of(&request, success(None))).await;
            (on.pass)(pace.tick).await;
            let found = on.claim(&again(&request)).await;
            pace.within(started, pace.ticks(4))?;
            duplicate(found);
            (on.pass)(pace.ticks(4)).await;
            Ok(request)
        })
        .await;
    assert_eq!(on.read(&request.key).await, None);
    on.granted(&again(&request)).await;
}

/// `retention = "forever"`.
pub async fn a_retention_may_last_for_ever(on: &Subject) {
    let request = on
        .in_time(async |pace| {
            let terms = Terms { lease: pace.ticks(2), retention: Retention::Forever, ..long_terms() };
            let request = ClaimRequest { terms, ..fresh_claim() };
            let started = pace.now();
            on.granted(&request).await;
            let settled = on.settle(&settle_of(&request, success(None))).await;
            pace.within(started, pace.ticks(2))?;
            assert_eq!(settled, done(Some(ClaimState::Succeeded), None, false));
            (on.pass)(pace.ticks(4)).await;
            Ok(request)
        })
        .await;
    assert_eq!(on.duplicate(&again(&request)).await.left, None);
}

/// A claim that was reported unknown is kept until its `unknown_retention` ends.
pub async fn an_unknown_retention_ends_by_itself(on: &Subject) {
    // Also if the end of the lease would have meant unknown: a reported claim does not outlive its time.
    for on_lease_end in [LeaseEnd::Release, LeaseEnd::Unknown] {
        let request = on
            .in_time(async |pace| {
                let unknown_retention = Retention::For(pace.ticks(2));
                let terms = Terms { unknown_retention, on_lease_end, ..long_terms() };
                let request = ClaimRequest { terms, ..fresh_claim() };
                on.granted(&request).await;
                let started = pace.now();
                on.settle(&settle_of(&request, Outcome::Unknown)).await;
                let found = on.claim(&again(&request)).await;
                pace.within(started, pace.ticks(2))?;
                duplicate(found);
                (on.pass)(pace.ticks(3)).await;
                Ok(request)
            })
            .await;
        on.granted(&again(&request)).await;
    }
}

/// Expiry = max(current, now + lease).
pub async fn a_renewal_extends_and_never_shortens(on: &Subject) {
    for on_lease_end in [LeaseEnd::Release, LeaseEnd::Unknown] {
        let hour = Duration::from_hours(1);
        let request = on
            .in_time(async |pace| {
                let lease = pace.ticks(4);
                let request = ClaimRequest { terms: Terms { lease, on_lease_end, ..long_terms() }, ..fresh_claim() };
                let claimed = pace.now();
                on.granted(&request).await;
                (on.pass)(pace.ticks(2)).await;
                // A renewal without a lease uses that of the claim.
                let renewal = pace.now();
                let renewed = on.renew(&renew_of(&request, None)).await;
                pace.within(claimed, lease)?;
                assert_eq!(renewed, RenewalResponse::Renewed { left: lease, ends_at: None });
                (on.pass)(pace.ticks(3)).await;
                let found = on.claim(&again(&request)).await;
                let longer = on.renew(&renew_of(&request, Some(hour))).await;
                pace.within(renewal, lease)?;
                assert_eq!(duplicate(found).record.state, ClaimState::InProgress);
                assert_eq!(longer, RenewalResponse::Renewed { left: hour, ends_at: None });
                Ok(request)
            })
            .await;
        let RenewalResponse::Renewed { left, .. } = on.renew(&renew_of(&request, Some(on.tick))).await else {
            panic!("the lease is lost")
        };
        on.assert_left(Some(left), hour);
        (on.pass)(on.ticks(2)).await;
        assert_eq!(on.duplicate(&again(&request)).await.record.state, ClaimState::InProgress);
        assert_eq!(on.settle(&settle_of(&request, Outcome::Failure)).await, done(None, None, false));
    }
}

/// The renewal column.
pub async fn a_renewal_without_the_claim_is_refused(on: &Subject) {
    let request = fresh_claim();
    assert_eq!(on.renew(&renew_of(&request, None)).await, RenewalResponse::LeaseLost);
    on.granted(&request).await;
    let stranger = RenewalRequest { attempt: attempt(), ..renew_of(&request, None) };
    assert!(matches!(on.renew(&stranger).await, RenewalResponse::Superseded { state: ClaimState::InProgress, .. }));
}
