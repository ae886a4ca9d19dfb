//! Apps, their secrets and their terms: authentication, visibility of claims, and the terms of each app's claims.

use std::time::Duration;

use oncegate_core::hex;
use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::gateway;

const OLD: &str = "old_secret_0123456789abcdef";
const NEW: &str = "new_secret_0123456789abcdef";
const OTHER: &str = "other_secret_0123456789abc";

fn digest(secret: &str) -> String {
    hex::encode(&Sha256::digest(secret))
}

/// Two apps, one of them with two secrets, and a disabled one.
fn apps() -> String {
    let (old, new, other) = (digest(OLD), digest(NEW), digest(OTHER));
    format!(
        "[apps.shop]\nsecrets = [\"sha256:{old}\", \"sha256:{new}\"]\n[apps.\"bank.eu\"]\nsecrets = [\"sha256:{other}\"]\n\
         [apps.gone]\nsecrets = [\"sha256:{other}\"]\ndisabled = true\n"
    )
}

fn client(gateway: &Gateway, app: &str, secret: &str) -> Client {
    gateway.client().with_credential(&format!("{app}.{secret}"))
}

#[tokio::test]
async fn either_secret_is_accepted_and_all_others_get_the_same_response() {
    let gateway = gateway::on_memory().config(&apps()).start().await;
    client(&gateway, "shop", OLD).claim(json!(1)).await.expect(201);
    client(&gateway, "shop", NEW).claim(json!(1)).await.expect(409);
    client(&gateway, "bank.eu", OTHER).claim(json!(1)).await.expect(201);
    let off = client(&gateway, "gone", OTHER).claim(json!(1)).await;
    assert_eq!(off.code(), (403, "app_disabled"));

    let wrong = [
        format!("Bearer shop.{OTHER}"),
        format!("Bearer bank.eu.{OLD}"),
        format!("Bearer bank.{OTHER}"),
        format!("Bearer eu.{OTHER}"),
        format!("Bearer unknown.{OLD}"),
        format!("Bearer gone.{OLD}"),
        format!("Bearer shop.{OLD}x"),
        format!("Bearer shop.{}", digest(OLD)),
        format!("Bearer shop{OLD}"),
        format!("Basic shop.{OLD}"),
        format!("Bearer SHOP.{OLD}"),
        "Bearer shop.".into(),
        "Bearer".into(),
        String::new(),
    ];
    let anybody = gateway.client();
    let mut response = vec![anybody.get("/v1/claims/x").await];
    for authorization in &wrong {
        response.push(anybody.send("GET", "/v1/claims/x", &[("authorization", authorization)], "").await);
    }
    let without_id = |answer: &Answer| {
        let mut body = answer.body.clone();
        assert!(body.as_object_mut().unwrap().remove("request_id").is_some());
        body
    };
    for (answer, authorization) in response.iter().skip(1).zip(&wrong) {
        assert_eq!(answer.code(), (401, "unauthenticated"), "{authorization}");
        assert_eq!(without_id(answer), without_id(&response[0]), "{authorization}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        assert_eq!(answer.headers.len(), response[0].headers.len());
        assert_eq!(answer.text.len(), response[0].text.len());
    }
    // On every path, and before a body is looked at.
    for path in ["/v1/claims", "/v1/claims/batch", "/v1/outcomes/batch", "/v1/global-ids"] {
        assert_eq!(anybody.post_raw(path, "{").await.code(), (401, "unauthenticated"), "{path}");
    }
    // Many failures do not lock out callers with a valid credential.
    for _ in 0..200 {
        client(&gateway, "shop", OTHER).get("/v1/claims/x").await.expect(401);
    }
    client(&gateway, "shop", NEW).claim(json!(2)).await.expect(201);
}

#[tokio::test]
async fn the_same_contents_in_two_apps_are_two_claims() {
    let gateway = gateway::on_memory().config(&apps()).start().await;
    let (shop, bank) = (client(&gateway, "shop", OLD), client(&gateway, "bank.eu", OTHER));
    let ours = shop.claim(json!({ "order_id": "A-1" })).await.expect(201);
    let theirs = bank.claim(json!({ "order_id": "A-1" })).await.expect(201);
    assert_ne!(ours.body["global_id"], theirs.body["global_id"]);

    assert_eq!(bank.get(&ours.path("")).await.code(), (404, "not_found"));
    assert_eq!(bank.renew(&ours, None).await.code(), (409, "lease_lost"));
    // With the exact attempt, which it should not have: recorded among its own claims, which had no such claim.
    let reported = bank.report(&ours, json!({ "outcome": "success", "result": "not mine" })).await.expect(200);
    assert_eq!(reported.body["late"], true);
    let items = json!([{ "global_id": ours.body["global_id"], "attempt": ours.body["attempt"], "outcome": "failure" }]);
    bank.post("/v1/outcomes/batch", &json!({ "items": items })).await.expect(200);

    let record = shop.get(&ours.path("")).await.expect(200);
    assert_eq!(
        (&record.body["state"], &record.body["contents"]),
        (&json!("in_progress"), &json!({ "order_id": "A-1" }))
    );
    shop.report(&ours, json!({ "outcome": "success", "result": "mine" })).await.expect(200);
    assert_eq!(shop.claim(json!({ "order_id": "A-1" })).await.expect(409).body["result"], "mine");
    assert_eq!(bank.claim(json!({ "order_id": "A-1" })).await.expect(409).body["state"], "in_progress");
}

#[tokio::test]
async fn the_app_of_an_open_gateway_is_called_default() {
    let gateway = gateway::on_memory().start().await;
    let expected = oncegate_testkit::client::global_id("default", "[1]");
    let granted = gateway.client().claim(json!([1])).await.expect(201);
    assert_eq!(granted.body["global_id"], expected);
    // It requires no credential, and ignores one.
    let other = client(&gateway, "shop", OLD).claim(json!([1])).await.expect(409);
    assert_eq!(other.body["global_id"], expected);
}

fn terms() -> String {
    let old = digest(OLD);
    format!(
        r#"[defaults]
lease = "5s"
unknown_retention = "2d"
[apps.shop]
secrets = ["sha256:{old}"]
retention = "2h"
contents_stored_bytes = 12
[apps.shop.operations."coupon.redeem"]
lease = "300ms"
retention = "10d"
unknown_retention = "3h"
on_lease_end = "unknown"
contents_stored_bytes = 0
[apps.shop.operations."report.send"]
mode = "observe"
lease = "9s"
"#
    )
}

async fn shop_on_terms() -> (Gateway, Client) {
    let gateway = gateway::on_memory().config(&terms()).start().await;
    let shop = client(&gateway, "shop", OLD);
    (gateway, shop)
}

fn instant(answer: &Value) -> jiff::Timestamp {
    answer.as_str().unwrap_or_else(|| panic!("no instant: {answer}")).parse().unwrap()
}

/// Asserts that this is so many hours after the start of its claim, within the length of the test. The gateway's clock says when
/// a claim starts, and the store's when it expires: a wall clock that steps while the test runs moves only the first.
fn assert_hours_after(answer: &Answer, claimed: &Answer, hours: i64) {
    let seconds = (instant(&answer.body["expires_at"]) - instant(&claimed.body["claimed_at"])).get_seconds();
    assert!((seconds - hours * 3600).abs() < 600, "{seconds} s: {}", answer.text);
}

#[tokio::test]
async fn a_caller_may_ask_for_more_caution_at_the_end_of_its_lease() {
    let (_gateway, shop) = shop_on_terms().await;
    let claim = |operation: &str, asked: Value| json!({ "operation": operation, "contents": asked.to_string(), "lease": "100ms", "on_lease_end": asked });
    let cautious = shop.post("/v1/claims", &claim("default", json!("unknown"))).await.expect(201);
    until("the claim is unknown", Duration::from_secs(20), async || {
        let record = shop.get(&cautious.path("")).await;
        record.body["state"] == "unknown" && record.body["on_lease_end"] == "unknown"
    })
    .await;
    assert_eq!(shop.settle(&cautious, "success").await.expect(200).body["state"], "succeeded");
    // Null is the term of the operation, and a caller cannot ask for less.
    let own = shop.post("/v1/claims", &claim("coupon.redeem", Value::Null)).await.expect(201);
    assert_eq!(shop.get(&own.path("")).await.expect(200).body["on_lease_end"], "unknown");
    let refused = shop.post("/v1/claims", &claim("coupon.redeem", json!("release"))).await;
    assert_eq!(refused.code(), (400, "invalid_request"));
    assert!(refused.text.contains("unknown"), "{}", refused.text);
}

#[tokio::test]
async fn terms_of_the_operation_go_before_those_of_the_app_and_the_defaults() {
    let (_gateway, shop) = shop_on_terms().await;
    // What is left of each lease, also on a busy machine: less than of any longer one.
    for (operation, lease_ms, retention, lease_end) in [
        ("default", 301..=5_000, "2h", "release"),
        ("coupon.redeem", 0..=300, "10d", "unknown"),
        ("report.send", 5_001..=9_000, "2h", "release"),
    ] {
        let granted = shop.post("/v1/claims", &json!({ "operation": operation, "contents": "long enough" })).await;
        let granted = granted.expect(201);
        let lease = granted.body["lease_ms"].as_u64().unwrap();
        assert!(lease_ms.contains(&lease), "{operation}: {lease}");
        let record = shop.get(&granted.path("")).await.expect(200);
        assert_eq!(
            (&record.body["retention"], &record.body["on_lease_end"]),
            (&json!(retention), &json!(lease_end)),
            "{operation}"
        );
    }
    // A request of the caller overrides all of them.
    let body = json!({ "operation": "coupon.redeem", "contents": 1, "lease": "1m", "retention": "4h" });
    let own = shop.post("/v1/claims", &body).await.expect(201);
    assert!(own.body["lease_ms"].as_u64().unwrap() > 50_000);
    assert_hours_after(&shop.settle(&own, "success").await.expect(200), &own, 4);
    let again = shop.claim(json!("retained as the app says")).await.expect(201);
    assert_hours_after(&shop.settle(&again, "success").await.expect(200), &again, 2);
    let at_outcome = shop.claim(json!("retained as the outcome says")).await.expect(201);
    let report = json!({ "outcome": "success", "retention": "5h" });
    assert_hours_after(&shop.report(&at_outcome, report).await.expect(200), &at_outcome, 5);
    let unknown = shop.claim(json!("unknown as the defaults say")).await.expect(201);
    assert_hours_after(&shop.settle(&unknown, "unknown").await.expect(200), &unknown, 48);
    let coupon = shop.post("/v1/claims", &json!({ "operation": "coupon.redeem", "contents": 2, "lease": "1m" })).await;
    assert_hours_after(&shop.settle(&coupon, "unknown").await.expect(200), &coupon, 3);
    let coupon = shop.post("/v1/claims", &json!({ "operation": "coupon.redeem", "contents": 3, "lease": "1m" })).await;
    assert_hours_after(&shop.settle(&coupon, "success").await.expect(200), &coupon, 240);
    let body = json!({ "operation": "coupon.redeem", "contents": 4, "lease": "1m", "retention": "forever" });
    let forever = shop.post("/v1/claims", &body).await;
    assert_eq!(shop.settle(&forever, "success").await.expect(200).body["expires_at"], Value::Null);
}

#[tokio::test]
async fn a_lease_that_ends_in_doubt_waits_for_a_take_over() {
    let (_gateway, shop) = shop_on_terms().await;
    let body = json!({ "operation": "coupon.redeem", "contents": "C-1" });
    let first = shop.post("/v1/claims", &body).await.expect(201);
    until("the lease ends", Duration::from_secs(10), async || {
        shop.get(&first.path("")).await.expect(200).body["state"] == "unknown"
    })
    .await;
    let doubt = shop.post("/v1/claims", &body).await;
    assert_eq!((doubt.code(), &doubt.body["state"]), ((409, "duplicate"), &json!("unknown")));
    assert!(doubt.headers.get("retry-after").is_none(), "waiting does not help");
    assert_eq!(shop.renew(&first, None).await.code(), (409, "lease_lost"));

    let mut take = body.clone();
    take["take_over"] = json!(true);
    take["lease"] = json!("1m");
    let second = shop.post("/v1/claims", &take).await.expect(201);
    assert_eq!(second.body["taken_over"], true);
    assert!(second.body["fence"].as_u64() > first.body["fence"].as_u64());
    assert_eq!(shop.post("/v1/claims", &take).await.code(), (409, "duplicate"), "what is held is not taken over");
    assert_eq!(shop.settle(&first, "success").await.code(), (409, "superseded"));
    shop.settle(&second, "success").await.expect(200);
    assert_eq!(shop.post("/v1/claims", &take).await.body["state"], "succeeded");

    // Its holder may still settle it, unless another attempt has taken it over.
    let late = shop.post("/v1/claims", &json!({ "operation": "coupon.redeem", "contents": "C-2" })).await.expect(201);
    until("the lease ends", Duration::from_secs(10), async || {
        shop.get(&late.path("")).await.expect(200).body["state"] == "unknown"
    })
    .await;
    let settled = shop.settle(&late, "success").await.expect(200);
    assert_eq!((&settled.body["state"], &settled.body["late"]), (&json!("succeeded"), &json!(false)));
}

#[tokio::test]
async fn a_duplicate_that_is_only_observed_goes_ahead_and_changes_nothing() {
    let (_gateway, shop) = shop_on_terms().await;
    let body = json!({ "operation": "report.send", "contents": "R-1" });
    let first = shop.post("/v1/claims", &body).await.expect(201);
    assert!(first.body.get("would_be").is_none());
    let second = shop.post("/v1/claims", &body).await.expect(201);
    assert_eq!((&second.body["would_be"], &second.body["fence"]), (&json!("duplicate"), &Value::Null));
    assert_ne!(second.body["attempt"], first.body["attempt"]);
    for outcome in ["success", "failure", "unknown"] {
        let response = shop.settle(&second, outcome).await.expect(200);
        assert_eq!(response.body["state"], "observed", "{outcome}");
    }
    assert_eq!(shop.get(&first.path("")).await.expect(200).body["state"], "in_progress");
    shop.report(&first, json!({ "outcome": "success", "result": 1 })).await.expect(200);
    let third = shop.post("/v1/claims", &body).await.expect(201);
    assert_eq!(third.body["would_be"], "duplicate");
    assert_eq!(shop.settle(&third, "failure").await.expect(200).body["state"], "observed");
    assert_eq!(shop.get(&first.path("")).await.expect(200).body["result"], 1);
    // Other operations of the same app are stopped.
    shop.claim(json!("enforced")).await.expect(201);
    shop.claim(json!("enforced")).await.expect(409);
}

#[tokio::test]
async fn contents_too_long_to_store_are_known_by_their_digest() {
    let (_gateway, shop) = shop_on_terms().await;
    for (operation, contents, canonical, stored) in [
        ("coupon.redeem", json!(1), "1", false),
        ("default", json!("0123456789"), "\"0123456789\"", true),
        ("default", json!("0123456789x"), "\"0123456789x\"", false),
    ] {
        let body = json!({ "operation": operation, "contents": contents });
        let granted = shop.post("/v1/claims", &body).await.expect(201);
        let record = shop.get(&granted.path("")).await.expect(200).body;
        assert_eq!(record.get("contents").is_some(), stored, "{record}");
        if !stored {
            assert_eq!(
                (&record["contents_sha256"], &record["contents_bytes"]),
                (&json!(digest(canonical)), &json!(canonical.len()))
            );
        }
        shop.post("/v1/claims", &body).await.expect(409);
    }
}
