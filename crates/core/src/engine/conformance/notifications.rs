//! Rules of waiting claims and notifications.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::super::{Channel, Subscription};
use super::requests::{DEADLINE, again, fresh_claim, issuer, renew_of, settle_of, success};
use super::subject::Subject;
use crate::canonical::Canonical;
use crate::claim::{ClaimRequest, ClaimResponse, Mismatch, Outcome, RenewalResponse};
use crate::operator::ReleaseResponse;
use crate::record::{ClaimState, Key};

/// Longest time that a notification may take on a loaded machine.
const SOON: Duration = Duration::from_secs(10);

/// Returns a live subscription. `None` if the engine has no notifications where it runs, such as behind a pooler.
pub(super) async fn subscribed(on: &Subject, key: &Key) -> Option<Subscription> {
    for _ in 0..50 {
        let subscription = on.engine.subscribe(&Channel::of_claim(key)).await;
        drop(timeout(Duration::from_millis(100), subscription.established()).await);
        if subscription.is_live() {
            return Some(subscription);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    None
}

pub(super) fn waiting(request: &ClaimRequest) -> ClaimRequest {
    ClaimRequest { waits: true, ..again(request) }
}

pub(super) async fn assert_notified(subscription: &mut Subscription, by: &str) {
    assert!(timeout(SOON, subscription.notified()).await.is_ok(), "not notified by {by}");
}

/// This holds for each way to end it: an outcome, an operator, or a take-over.
pub async fn the_end_of_a_claim_is_notified_to_those_who_wait_for_it(on: &Subject) {
    for outcome in [success(Some("1")), Outcome::Failure, Outcome::Unknown] {
        let request = fresh_claim();
        on.granted(&request).await;
        let Some(mut subscription) = subscribed(on, &request.key).await else { return };
        on.duplicate(&waiting(&request)).await;
        // A second one marks nothing, and is waited for as well.
        on.duplicate(&waiting(&request)).await;
        on.settle(&settle_of(&request, outcome.clone())).await;
        assert_notified(&mut subscription, &format!("{outcome:?}")).await;
    }

    let request = fresh_claim();
    on.granted(&request).await;
    let Some(mut subscription) = subscribed(on, &request.key).await else { return };
    on.duplicate(&waiting(&request)).await;
    on.renew(&renew_of(&request, Some(request.terms.lease * 2))).await;
    assert_eq!(on.release(&request.key, &request.attempt).await, ReleaseResponse::Done);
    assert_notified(&mut subscription, "a release after a renewal").await;
}

/// The claim of an attempt that has waited is waited for by others.
pub async fn the_end_of_a_claim_that_was_waited_for_is_notified(on: &Subject) {
    let request = ClaimRequest { waits: true, ..fresh_claim() };
    on.granted(&request).await;
    let Some(mut subscription) = subscribed(on, &request.key).await else { return };
    on.settle(&settle_of(&request, success(None))).await;
    assert_notified(&mut subscription, "a success").await;

    let request = fresh_claim();
    on.granted(&request).await;
    on.settle(&settle_of(&request, Outcome::Unknown)).await;
    let taker = ClaimRequest { take_over: true, ..waiting(&request) };
    assert!(on.granted(&taker).await.taken_over);
    let Some(mut subscription) = subscribed(on, &request.key).await else { return };
    on.settle(&settle_of(&taker, Outcome::Failure)).await;
    assert_notified(&mut subscription, "a failure after a take-over").await;
}

/// A caller hangs up before the store has answered its subscription, and the next one comes at once.
pub async fn a_subscription_that_was_dropped_at_once_costs_the_next_one_no_notification(on: &Subject) {
    for _ in 0..20 {
        let request = fresh_claim();
        on.granted(&request).await;
        on.duplicate(&waiting(&request)).await;
        // Its session is open, so that the dropped one is sent.
        let Some(_other) = subscribed(on, &fresh_claim().key).await else { return };
        drop(on.engine.subscribe(&Channel::of_claim(&request.key)).now_or_never());
        let Some(mut next) = subscribed(on, &request.key).await else { return };
        on.settle(&settle_of(&request, success(None))).await;
        assert_notified(&mut next, "a success after a subscription that was dropped").await;
    }
}

/// Its end stays, its holder renews and settles it as before.
pub async fn a_waiting_claim_changes_nothing_of_the_claim_in_its_way(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    let before = on.read(&request.key).await.expect("it is live");
    let found = on.duplicate(&waiting(&request)).await;
    let after = on.read(&request.key).await.expect("it is live");
    assert_eq!((&found.record, &after.record), (&before.record, &before.record));
    assert_eq!(after.fence, before.fence);
    assert!(after.left <= before.left, "{:?} is more than {:?}", after.left, before.left);
    on.assert_left(after.left, request.terms.lease);
    let lease = request.terms.lease * 2;
    assert_eq!(
        on.renew(&renew_of(&request, Some(lease))).await,
        RenewalResponse::Renewed { left: lease, ends_at: None }
    );
    on.settle(&settle_of(&request, success(Some("\" 1p w \"")))).await;
    let succeeded = on.duplicate(&waiting(&request)).await;
    assert_eq!(succeeded.record.state, ClaimState::Succeeded);
    assert_eq!(succeeded.record.result.as_deref(), Some("\" 1p w \""));
    assert_eq!(succeeded.record.contents, before.record.contents);
}

/// A mismatch, a repeat and a settled claim are answered as without waiting.
pub async fn a_waiting_claim_has_the_answer_of_any_other(on: &Subject) {
    let request = fresh_claim();
    on.granted(&request).await;
    let forged = ClaimRequest { contents: Canonical::trusted("\"forged\""), ..waiting(&request) };
    assert_eq!(on.claim(&forged).await, ClaimResponse::Mismatch(Mismatch::Contents));
    let other = ClaimRequest { fingerprint: Some([7; 32]), ..waiting(&request) };
    assert_eq!(on.claim(&other).await, ClaimResponse::Mismatch(Mismatch::Fingerprint));
    let nonce = request.attempt.nonce().clone();
    let repeat = ClaimRequest { attempt: issuer().issue(Some(nonce)), ..waiting(&request) };
    let grant = on.granted(&repeat).await;
    assert!(grant.repeated && grant.attempt == request.attempt);
    on.settle(&settle_of(&request, Outcome::Unknown)).await;
    assert_eq!(on.duplicate(&waiting(&request)).await.record.state, ClaimState::Unknown);
}

/// For claim calls with and without a wait.
pub async fn of_many_racing_waiting_claims_exactly_one_is_granted(on: &Subject) {
    for _ in 0..3 {
        let request = fresh_claim();
        let racers = (0..100).map(|racer| {
            let (engine, request) = (on.engine.clone(), ClaimRequest { waits: racer % 3 > 0, ..again(&request) });
            tokio::spawn(async move { engine.claim(&request, DEADLINE).await.expect("the engine answers") })
        });
        let answers = join_all(racers.collect::<Vec<_>>()).await;
        let granted = answers.into_iter().filter(|answer| matches!(answer, Ok(ClaimResponse::Granted(_)))).count();
        assert_eq!(granted, 1, "exactly one of 100 is granted");
    }
}
