//! The documented behaviour of each dialect, as tables: requests in order, with their answers.

use std::time::{Duration, UNIX_EPOCH};

use oncegate_core::clock::{Clock as _, SystemClock};
use oncegate_testkit::fresh;
use oncegate_testkit::wait::until;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use super::{Answer, SOON, Upstream, proxy, proxy_with};

/// A field of a request.
type Field = (&'static str, &'static str);

/// A case, with the fields and the body of its request, and its status and `Repeatability-Result`.
type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str, u16, &'a str);

const ALICE: Field = ("authorization", "alice");

/// The status, and the value at this place of the body, if any.
fn check(case: &str, answer: &Answer, status: u16, place: &str, value: &str) {
    assert_eq!(answer.status, status, "{case}: {:?}", answer.body);
    if !place.is_empty() {
        assert_eq!(answer.json().pointer(place), Some(&Value::from(value)), "{case}: {:?}", answer.body);
    }
}

/// draft-ietf-httpapi-idempotency-key-header-07, section 2.7, "Error Handling": 400 without a key, 422 for another payload, 409
/// while the first request is running.
#[tokio::test]
async fn the_ietf_draft() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "").await;
    let key: Field = ("idempotency-key", "\"8e03978e-40d5-43dd-bc93-6894a57f9324\"");
    let send = async |fields: &[Field], body| caller.send("POST", "/orders/a", fields, body).await;
    check("no key", &send(&[ALICE], "1").await, 400, "/code", "idempotency_key_invalid");
    check("first", &send(&[ALICE, key], "1").await, 201, "", "");
    let repeat = send(&[ALICE, key], "1").await;
    check("repeat", &repeat, 201, "", "");
    assert!(repeat.is_replay() && repeat.headers.contains_key("age"));
    let other = send(&[ALICE, key], "2").await;
    check("other payload", &other, 422, "/code", "fingerprint_mismatch");
    assert_eq!(other.headers["content-type"], "application/problem+json");
    assert_eq!(upstream.effects(), 1);
}

/// `docs.stripe.com/api/idempotent_requests`: the status and body of the first request, also of a 500; an error for other
/// parameters; "the idempotency layer compares incoming parameters".
#[tokio::test]
async fn stripe() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "dialect = \"stripe\"\n").await;
    let key: Field = ("idempotency-key", "KG5LxwFBepaKHyUD");
    let send = async |path: &str, fields: &[Field], body| caller.send("POST", path, fields, body).await;
    let missing = send("/orders/a", &[ALICE], "a=1").await;
    check("no key", &missing, 400, "/error/type", "invalid_request_error");
    for case in ["first", "repeat"] {
        let broken = send("/orders/broken", &[ALICE, key], "a=1").await;
        check(case, &broken, 500, "", "");
        assert_eq!(broken.is_replay(), case == "repeat");
    }
    for account in [("stripe-account", "acct_1"), ("stripe-account", "acct_2"), ("stripe-context", "acct_1")] {
        for case in ["first", "repeat"] {
            let of_account = send("/orders/broken", &[ALICE, key, account], "a=1").await;
            assert_eq!((of_account.status, of_account.is_replay()), (500, case == "repeat"), "{account:?}");
        }
    }
    let other = send("/orders/broken", &[ALICE, key], "a=2").await;
    check("other parameters", &other, 400, "/error/type", "idempotency_error");
    assert_eq!(other.headers["stripe-should-retry"], "false");
    assert_eq!(upstream.effects(), 4);
}

/// `docs.stripe.com/error-low-level`: a client repeats a request if `Stripe-Should-Retry` says `true`, and does not if it says `false`.
#[tokio::test]
async fn stripes_clients_repeat_what_has_not_run_and_what_runs_still() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy_with(port, "", "dialect = \"stripe\"\n").await;
    let should_retry = |case: &str, answer: &Answer, status, expected: &str| {
        assert_eq!(answer.status, status, "{case}: {:?}", answer.body);
        assert_eq!(answer.headers["stripe-should-retry"], expected, "{case}");
        assert_eq!(answer.headers.contains_key("retry-after"), expected == "true", "{case}");
    };
    should_retry("no answer in time", &caller.post("/orders/late", "k-1", "1").await, 504, "true");
    should_retry("still running", &caller.post("/orders/late", "k-1", "1").await, 409, "true");
    upstream.gate.add_permits(1);
    assert!(caller.post("/orders/torn", "k-2", "1").await.body.is_none());
    should_retry("unknown", &caller.post("/orders/torn", "k-2", "1").await, 409, "false");
    should_retry("no key", &caller.send("POST", "/orders/a", &[ALICE], "1").await, 400, "false");

    let quota = "dialect = \"stripe\"\n[defaults.quota]\nrequests_per_second = 1\nburst = \"1s\"\n";
    let (_gateway, caller) = proxy(port, quota).await;
    let mut refused = caller.post("/orders/a", "k-3", "1").await;
    until("the quota is used up", SOON, async || {
        refused = caller.post("/orders/a", "k-3", "1").await;
        refused.status != 201
    })
    .await;
    should_retry("over a quota", &refused, 429, "true");

    let (_gateway, caller) = proxy(fresh::port(), "dialect = \"stripe\"\n").await;
    for case in ["no server", "still none"] {
        should_retry(case, &caller.post("/orders/a", "k-4", "1").await, 502, "true");
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (_gateway, caller) = proxy(listener.local_addr().unwrap().port(), "dialect = \"stripe\"\n").await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
        }
    });
    should_retry("broken off", &caller.post("/orders/a", "k-5", "1").await, 502, "false");
}

/// OASIS Repeatable Requests 1.0, with the statuses of learn.microsoft.com/rest/api/communication/repeatable-requests.
#[tokio::test]
async fn oasis_repeatable_requests() {
    let (upstream, port) = Upstream::start().await;
    let (_gateway, caller) = proxy(port, "dialect = \"oasis\"\n").await;
    let now = Duration::from_micros(SystemClock::new().wall().as_micros());
    let now = httpdate::fmt_http_date(UNIX_EPOCH + now);
    let (id, sent): (_, (&str, &str)) = (("repeatability-request-id", "5942d803"), ("repeatability-first-sent", &now));
    let old = ("repeatability-first-sent", "Tue, 15 Nov 1994 08:12:31 GMT");
    let alice = ("authorization", "alice");
    let table: &[Row<'_>] = &[
        ("no ID", &[alice, sent], "1", 400, "rejected"),
        ("no date", &[alice, id], "1", 400, "rejected"),
        ("no date at all", &[alice, id, ("repeatability-first-sent", "soon")], "1", 400, "rejected"),
        ("outside of the tracked time", &[alice, id, old], "1", 412, "rejected"),
        ("first", &[alice, id, sent], "1", 201, "accepted"),
        ("repeat", &[alice, id, sent], "1", 201, "accepted"),
        ("other body", &[alice, id, sent], "2", 400, "rejected"),
    ];
    for (case, fields, body, status, result) in table {
        let answer = caller.send("POST", "/orders/a", fields, body).await;
        assert_eq!(
            (answer.status, &answer.headers["repeatability-result"]),
            (*status, &result.parse().unwrap()),
            "{case}"
        );
    }
    assert_eq!(upstream.effects(), 1);

    // A claim was made, and freed.
    let (_gateway, caller) = proxy(fresh::port(), "dialect = \"oasis\"\n").await;
    let answer = caller.send("POST", "/orders/a", &[alice, id, sent], "1").await;
    assert_eq!((answer.status, &answer.headers["repeatability-result"]), (502, &"accepted".parse().unwrap()));
}

/// The Fetch standard: scripts of listed origins may send keys, and read replays and refusals.
#[tokio::test]
async fn cross_origin_requests() {
    let (_upstream, port) = Upstream::start().await;
    let origins = "cors_origins = [\"https://shop.example\"]\n";
    let (_gateway, caller) = super::start(origins, &format!("urls = [\"http://127.0.0.1:{port}\"]\n"), "").await;
    let origin: Field = ("origin", "https://shop.example");
    let key: Field = ("idempotency-key", "k-1");
    let preflight = [origin, ("access-control-request-method", "POST")];
    let preflight = caller.send("OPTIONS", "/orders/a", &preflight, "").await;
    assert_eq!(preflight.headers["access-control-allow-headers"], "idempotency-key");
    caller.send("POST", "/orders/a", &[ALICE, origin, key], "1").await;
    for (case, fields) in [("replay", &[ALICE, origin, key][..]), ("refusal", &[ALICE, origin])] {
        let answer = caller.send("POST", "/orders/a", fields, "1").await;
        assert_eq!(answer.headers["access-control-allow-origin"], "https://shop.example", "{case}");
    }
    let evil = caller.send("POST", "/orders/a", &[ALICE, ("origin", "https://evil.example")], "1").await;
    assert!(!evil.headers.contains_key("access-control-allow-origin"));
}
