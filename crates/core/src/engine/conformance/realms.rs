//! Rules of realms: a record of the proxy and a claim of the API are never the same record.

use std::time::Duration;

use tokio::time::timeout;

use super::notifications::{assert_notified, subscribed, waiting};
use super::requests::{again, attempt, claim_of, done, fresh_claim, issuer, renew_of, settle_of, success};
use super::subject::Subject;
use crate::claim::{ClaimRequest, ClaimResponse, Outcome, OutcomeResponse, RenewalResponse};
use crate::operator::{ListRequest, ReleaseRequest, ReleaseResponse};
use crate::record::{ClaimState, Key, Realm};

/// Time to wait for a notification that must not arrive.
const NOT_NOTIFIED: Duration = Duration::from_millis(300);

/// Returns a request for the same app, operation and contents in the other realm, with the same attempt.
fn in_other_realm(request: &ClaimRequest) -> ClaimRequest {
    let realm = match request.key.realm {
        Realm::Api => Realm::Proxy,
        Realm::Proxy => Realm::Api,
    };
    ClaimRequest { key: Key { realm, ..request.key.clone() }, ..request.clone() }
}

fn of_proxy() -> ClaimRequest {
    in_other_realm(&fresh_claim())
}

/// No call in one realm reads, settles, extends, plants or releases anything in the other, also with the same attempt.
pub async fn the_same_id_in_two_realms_is_two_records(on: &Subject) {
    for request in [fresh_claim(), of_proxy()] {
        on.granted(&request).await;
        let other = in_other_realm(&request);
        assert_eq!(on.read(&other.key).await, None);
        assert_eq!(on.renew(&renew_of(&other, None)).await, RenewalResponse::LeaseLost);
        assert_eq!(on.settle(&settle_of(&other, Outcome::Failure)).await, done(None, None, true));
        assert_eq!(on.release(&other.key, &other.attempt).await, ReleaseResponse::Absent);
        // A late success is planted in its own realm only.
        let planted = on.settle(&settle_of(&other, success(Some("\"planted\"")))).await;
        assert!(matches!(planted, OutcomeResponse::Done { late: Some(true), .. }), "{planted:?}");
        let live = on.read(&request.key).await.expect("it is untouched");
        assert_eq!(live.record, request.record());

        on.settle(&settle_of(&request, success(Some("\"own\"")))).await;
        let result = async |of: &ClaimRequest| on.duplicate(&again(of)).await.record.result;
        assert_eq!(result(&request).await.as_deref(), Some("\"own\""));
        assert_eq!(result(&other).await.as_deref(), Some("\"planted\""));
        let replace =
            ReleaseRequest { key: other.key.clone(), attempt: other.attempt.clone(), result: Some("1".into()) };
        assert_eq!(on.released(&replace).await, ReleaseResponse::Done);
        assert_eq!(result(&request).await.as_deref(), Some("\"own\""));
        assert_eq!(on.release(&request.key, &request.attempt).await, ReleaseResponse::Done);
        assert_eq!(result(&other).await.as_deref(), Some("1"));
    }
}

/// Each realm has its own grants, outcomes and expiry.
pub async fn a_record_of_the_proxy_is_kept_as_any_claim(on: &Subject) {
    let request = of_proxy();
    on.granted(&request).await;
    let same_nonce = issuer().issue(Some(request.attempt.nonce().clone()));
    assert!(on.granted(&ClaimRequest { attempt: same_nonce, ..request.clone() }).await.repeated);
    let live = on.read(&request.key).await.expect("it is live");
    assert_eq!((&live.record, live.record.state), (&request.record(), ClaimState::InProgress));
    on.settle(&settle_of(&request, Outcome::Unknown)).await;
    let taker = ClaimRequest { take_over: true, ..again(&request) };
    assert!(on.granted(&taker).await.taken_over);
    on.settle(&settle_of(&taker, Outcome::Failure)).await;
    assert_eq!(on.read(&request.key).await, None);
    // In one batch with its twin of the API.
    let (first, second) = (again(&request), in_other_realm(&again(&request)));
    for (_, answer) in on.claim_batch(vec![first, second]).await {
        assert!(matches!(answer, ClaimResponse::Granted(_)), "{answer:?}");
    }
}

/// An app's list has the claims of one realm.
pub async fn a_list_has_one_realm(on: &Subject) {
    let app_name = format!("realms{}", attempt().timestamp().as_micros());
    let of_api = claim_of(&app_name, "1");
    let of_proxy = in_other_realm(&claim_of(&app_name, "2"));
    for request in [&of_api, &of_proxy] {
        on.granted(request).await;
    }
    if on.engine.capabilities().lists {
        for request in [of_api, of_proxy] {
            let Key { app, realm, global_id } = request.key;
            let listed = on.list(&ListRequest { app, realm, state: None, after: None, limit: 10 }).await;
            assert_eq!(listed.iter().map(|listed| listed.global_id).collect::<Vec<_>>(), [global_id], "{realm:?}");
        }
    }
}

/// A subscription does not receive the ends of other records.
pub async fn a_notification_has_one_realm(on: &Subject) {
    for request in [fresh_claim(), of_proxy()] {
        let other = in_other_realm(&request);
        for each in [&request, &other] {
            on.granted(each).await;
            on.duplicate(&waiting(each)).await;
        }
        let Some(mut of_request) = subscribed(on, &request.key).await else { return };
        let Some(mut of_other) = subscribed(on, &other.key).await else { return };
        // Earlier notifications do not count.
        drop(timeout(NOT_NOTIFIED, of_other.notified()).await);
        on.settle(&settle_of(&request, success(None))).await;
        assert_notified(&mut of_request, "its own end").await;
        assert!(timeout(NOT_NOTIFIED, of_other.notified()).await.is_err(), "notified by the end in another realm");
    }
}
