//! Charges, overdrafts and permits of an app, and what survives a change of settings.

use oncegate_core::clock::{Clock, ManualClock, Timestamp};

use super::*;
use crate::tenants::Registry;
use crate::tenants::tests::app;

fn per_second(rate: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(rate)
}

fn app_with(quota: Quota) -> Arc<App> {
    Arc::new(App { quota, ..app("shop", &[]) })
}

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::default())
}

#[test]
fn an_app_without_quotas_is_never_refused() {
    let app = app_with(Quota::default());
    let permits: Vec<_> = (0..10_000).map(|_| app.acquire_permit(Purpose::New).unwrap()).collect();
    for _ in 0..10_000 {
        app.charge_request(Purpose::New, || Duration::ZERO).unwrap();
        app.charge_bytes(u64::MAX, Purpose::New, || Duration::ZERO).unwrap();
    }
    assert_eq!(app.left(QuotaName::RequestsPerSecond, Duration::ZERO), None);
    drop(permits);
}

#[test]
fn granted_claims_can_be_settled_after_the_quota_is_used_up() {
    let clock = clock();
    let app = app_with(Quota { requests_per_second: per_second(10), ..Quota::default() });
    let charge = |purpose| app.charge_request(purpose, || clock.monotonic());
    let started = (0..100).filter(|_| charge(Purpose::New).is_ok()).count();
    assert_eq!(started, 10);
    let settled = (0..1000).filter(|_| charge(Purpose::Settle).is_ok()).count();
    assert_eq!(settled, 100, "ten seconds of its rate");
    let refused = charge(Purpose::Settle).unwrap_err();
    assert_eq!((refused.quota, refused.limit), (QuotaName::RequestsPerSecond, 10));
    assert_eq!(refused.wait, Duration::from_millis(100));
    // A debt is paid back before new work is accepted; until then outcomes continue at the rate.
    assert_eq!(charge(Purpose::New).unwrap_err().wait, Duration::from_millis(10_100));
    clock.advance(Duration::from_millis(100));
    assert_eq!((charge(Purpose::New).is_ok(), charge(Purpose::Settle)), (false, Ok(())));
    clock.advance(Duration::from_millis(10_100));
    assert_eq!(charge(Purpose::New), Ok(()));
}

#[test]
fn a_large_result_passes_although_claims_have_used_the_bytes() {
    let app = app_with(Quota { claim_bytes_per_second: per_second(1000), ..Quota::default() });
    let charge = |bytes, purpose| app.charge_bytes(bytes, purpose, || Duration::ZERO);
    charge(1000, Purpose::New).unwrap();
    charge(1, Purpose::New).unwrap_err();
    charge(60_000, Purpose::Settle).unwrap();
    charge(1, Purpose::Settle).unwrap_err();
    charge(0, Purpose::Settle).unwrap();
}

#[test]
fn a_charge_is_owed_until_it_is_refunded() {
    let clock = clock();
    let app = app_with(Quota { claim_bytes_per_second: per_second(1000), ..Quota::default() });
    app.charge_bytes(4000, Purpose::Settle, || clock.monotonic()).unwrap();
    app.refund_bytes(1000);
    assert_eq!(app.left(QuotaName::ClaimBytesPerSecond, clock.monotonic()), Some((0, Duration::from_secs(3))));
    clock.advance(Duration::from_millis(2500));
    let left = app.left(QuotaName::ClaimBytesPerSecond, clock.monotonic());
    assert_eq!(left, Some((500, Duration::from_millis(500))));
}

#[test]
fn a_permit_is_taken_until_it_is_dropped() {
    let app = app_with(Quota { requests_in_flight: Some(2), ..Quota::default() });
    let (first, _second) = (app.acquire_permit(Purpose::New).unwrap(), app.acquire_permit(Purpose::New).unwrap());
    let refused = app.acquire_permit(Purpose::New).unwrap_err();
    assert_eq!((refused.quota, refused.limit), (QuotaName::RequestsInFlight, 2));
    drop(first);
    let _third = app.acquire_permit(Purpose::New).unwrap();
    app.acquire_permit(Purpose::New).unwrap_err();
}

#[test]
fn an_apps_last_permits_are_for_its_outcomes() {
    let app = app_with(Quota { requests_in_flight: Some(8), ..Quota::default() });
    let _new: Vec<_> = (0..7).map(|_| app.acquire_permit(Purpose::New).unwrap()).collect();
    app.acquire_permit(Purpose::New).unwrap_err();
    let _outcome = app.acquire_permit(Purpose::Settle).unwrap();
    app.acquire_permit(Purpose::Settle).unwrap_err();
}

#[test]
fn concurrent_requests_never_exceed_the_limit() {
    let app = app_with(Quota { requests_in_flight: Some(3), ..Quota::default() });
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    let permit = app.acquire_permit(Purpose::New);
                    assert!(app.usage.charged.in_flight.load(Ordering::Relaxed) <= 3);
                    drop(permit);
                }
            });
        }
    });
    assert_eq!(app.usage.charged.in_flight.load(Ordering::Relaxed), 0);
}

#[test]
fn debt_survives_a_reload_unless_the_quotas_changed() {
    let quota = Quota { requests_per_second: per_second(1), requests_in_flight: Some(2), ..Quota::default() };
    let shop = |quota| App { quota, ..app("shop", &["0123456789abcdefABCDEF"]) };
    let registry = Registry::of([shop(quota)]);
    let now = Duration::from_secs(1000);
    let before = registry.apps()[0].clone();
    before.charge_request(Purpose::New, || now).unwrap();
    let _permit = before.acquire_permit(Purpose::New).unwrap();

    registry.replace([shop(quota)]);
    let same = registry.apps()[0].clone();
    same.charge_request(Purpose::New, || now).unwrap_err();
    let _other_permit = same.acquire_permit(Purpose::New).unwrap();
    same.acquire_permit(Purpose::New).unwrap_err();

    registry.replace([shop(Quota { requests_per_second: per_second(2), ..quota })]);
    let changed = registry.apps()[0].clone();
    changed.charge_request(Purpose::New, || now).unwrap();
    changed.charge_request(Purpose::New, || now).unwrap();
    assert_eq!(changed.charge_request(Purpose::New, || now).unwrap_err().limit, 2);
    changed.acquire_permit(Purpose::New).unwrap_err();
}

#[test]
fn stored_responses_have_a_quota_of_their_own() {
    let unlimited = app_with(Quota::default());
    assert!(unlimited.count_response(ResponseKind::Other, u64::MAX, None, Duration::ZERO));
    let app = app_with(Quota { response_bytes_total: Some(100), ..Quota::default() });
    let counted = [60, 41, 10].map(|bytes| app.count_response(ResponseKind::Other, bytes, None, Duration::ZERO));
    assert_eq!(counted, [true, false, true]);
    let errors = [20, 6, 5].map(|bytes| app.count_response(ResponseKind::ClientError, bytes, None, Duration::ZERO));
    assert_eq!(errors, [true, false, true], "a quarter of it");
}

#[test]
fn quotas_have_the_names_of_the_configuration() {
    let names = [QuotaName::RequestsPerSecond, QuotaName::ClaimBytesPerSecond, QuotaName::RequestsInFlight];
    for (name, text) in names.into_iter().zip(["requests_per_second", "claim_bytes_per_second", "requests_in_flight"]) {
        assert_eq!(name.as_str(), text);
        assert_eq!(serde_json::to_value(name).unwrap(), text);
    }
}
