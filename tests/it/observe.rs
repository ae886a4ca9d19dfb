//! Observe first, enforce later: a team watches the claims that enforcing would have stopped, and their outcomes, then
//! enforces.

use std::time::Duration;

use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use crate::support::caller::{app, caller};
use crate::support::exposition::Page;
use crate::support::gateway;

const CLAIMS: &str = "oncegate_claims_total";
const OBSERVED: &str = "oncegate_observed_claims_total";
const OUTCOMES: &str = "oncegate_observed_outcomes_total";

/// An observed app, except for payouts.
fn config() -> String {
    format!(
        "{}mode = \"observe\"\n[apps.shop.operations.\"order.submit\"]\nlease = \"1m\"\n\
         [apps.shop.operations.\"payout.send\"]\nmode = \"enforce\"\n[apps.shop.operations.\"coupon.redeem\"]\n\
         lease = \"200ms\"\non_lease_end = \"unknown\"\n",
        app("shop")
    )
}

async fn claim(shop: &Client, operation: &str, contents: &str, fingerprint: Option<i64>) -> Answer {
    let body = json!({ "operation": operation, "contents": contents, "fingerprint": fingerprint });
    shop.post("/v1/claims", &body).await
}

async fn report(shop: &Client, granted: &Answer, operation: &str, outcome: &str) -> Value {
    shop.report(granted, json!({ "outcome": outcome, "operation": operation })).await.expect(200).body["state"].clone()
}

async fn count(gateway: &Gateway, name: &str, labels: &[(&str, &str)]) -> u64 {
    Page::get(&gateway.admin_client()).await.sum(name, labels)
}

#[tokio::test]
async fn a_team_sees_what_enforcing_would_have_stopped() {
    let gateway = gateway::on_memory().config(&config()).start().await;
    let shop = caller(&gateway, "shop");
    let order = "order.submit";

    // An order, and the same one again while it is in progress, and when it is done: all go ahead.
    let first = claim(&shop, order, "A-1", None).await.expect(201);
    let during = claim(&shop, order, "A-1", None).await.expect(201);
    assert_eq!((first.body.get("would_be"), &during.body["would_be"]), (None, &json!("duplicate")));
    assert_eq!(report(&shop, &first, order, "success").await, "succeeded");
    let after = claim(&shop, order, "A-1", None).await.expect(201);
    let nothing_to_do = claim(&shop, order, "A-1", None).await.expect(201);
    // Two of the three ran: those are double executions. The third one noticed the earlier run without the gateway.
    for (granted, outcome) in [(&during, "success"), (&after, "success"), (&nothing_to_do, "failure")] {
        assert_eq!(report(&shop, granted, order, outcome).await, "observed");
    }
    // An unknown claim, and a badly chosen fingerprint.
    let lost = claim(&shop, "coupon.redeem", "C-1", None).await.expect(201);
    until("the lease ends", Duration::from_secs(10), async || {
        shop.get(&lost.path("")).await.expect(200).body["state"] == "unknown"
    })
    .await;
    let guessed = claim(&shop, "coupon.redeem", "C-1", None).await.expect(201);
    assert_eq!(guessed.body["would_be"], "duplicate");
    assert_eq!(report(&shop, &guessed, "coupon.redeem", "unknown").await, "observed");
    let altered = claim(&shop, order, "A-1", Some(7)).await.expect(201);
    assert_eq!(altered.body["would_be"], "fingerprint_mismatch");
    assert_eq!(report(&shop, &altered, order, "success").await, "observed");
    let record = shop.get(&first.path("")).await.expect(200).body;
    assert_eq!((&record["state"], &record["has_fingerprint"]), (&json!("succeeded"), &json!(false)), "as it was");

    // In a batch too, and under operations that are not configured.
    let items = json!([{ "contents": "B-1" }, { "contents": "B-1" }, { "contents": "B-1", "fingerprint": 1 }]);
    let batch = shop.post("/v1/claims/batch", &json!({ "items": items })).await.expect(200);
    let would_be: Vec<_> = batch.body["items"].as_array().unwrap().iter().map(|item| item.get("would_be")).collect();
    assert_eq!(would_be, [None, Some(&json!("duplicate")), Some(&json!("fingerprint_mismatch"))]);

    // The enforced operation is enforced.
    claim(&shop, "payout.send", "P-1", None).await.expect(201);
    claim(&shop, "payout.send", "P-1", None).await.expect(409);
    claim(&shop, "payout.send", "P-1", Some(1)).await.expect(422);

    for (operation, would_be, claims) in [
        (order, "duplicate_in_progress", 1),
        (order, "duplicate_succeeded", 2),
        (order, "fingerprint_mismatch", 1),
        ("coupon.redeem", "duplicate_unknown", 1),
        ("default", "duplicate_in_progress", 1),
        ("default", "fingerprint_mismatch", 1),
    ] {
        let labels = [("app", "shop"), ("operation", operation), ("would_be", would_be)];
        assert_eq!(count(&gateway, OBSERVED, &labels).await, claims, "{labels:?}");
    }
    assert_eq!(count(&gateway, OBSERVED, &[]).await, 7, "and nothing else");
    for (operation, would_be, outcome) in [
        (order, "duplicate_in_progress", "success"),
        (order, "duplicate_succeeded", "success"),
        (order, "duplicate_succeeded", "failure"),
        (order, "fingerprint_mismatch", "success"),
        ("coupon.redeem", "duplicate_unknown", "unknown"),
    ] {
        let labels = [("operation", operation), ("would_be", would_be), ("outcome", outcome)];
        assert_eq!(count(&gateway, OUTCOMES, &labels).await, 1, "{labels:?}");
    }
    assert_eq!(count(&gateway, OUTCOMES, &[]).await, 5, "and nothing else");
    for (result, claims) in [("observed_duplicate", 5), ("observed_mismatch", 2), ("duplicate_in_progress", 1)] {
        assert_eq!(count(&gateway, CLAIMS, &[("result", result)]).await, claims, "{result}");
    }
    let page = Page::get(&gateway.admin_client()).await;
    let enforced = page.series(OBSERVED).any(|(labels, _)| labels.contains(&("operation", "payout.send")));
    assert!(!enforced, "what is enforced has no series of what enforcing would do");
}

/// An attempt that holds nothing is let through by every call about it.
#[tokio::test]
async fn an_observed_attempt_is_renewed_and_reported_alone_and_in_a_batch() {
    let gateway = gateway::on_memory().config(&config()).start().await;
    let shop = caller(&gateway, "shop");
    let first = claim(&shop, "order.submit", "A-1", None).await.expect(201);
    let observed = claim(&shop, "order.submit", "A-1", None).await.expect(201);
    let renewed = shop.renew(&observed, Some("5m")).await.expect(200);
    assert!(renewed.body["lease_ms"].as_u64() > Some(200_000), "{}", renewed.text);
    let item = |of: &Answer| json!({ "global_id": of.body["global_id"], "attempt": of.body["attempt"], "outcome": "success", "result": of.body["timestamp"] });
    let items = json!({ "items": [item(&observed), item(&first), item(&observed)] });
    let batch = shop.post("/v1/outcomes/batch", &items).await.expect(200);
    let states: Vec<_> = batch.body["items"].as_array().unwrap().iter().map(|item| &item["state"]).collect();
    assert_eq!(states, ["observed", "succeeded", "observed"], "{}", batch.text);
    assert_eq!(count(&gateway, OUTCOMES, &[("would_be", "duplicate_in_progress"), ("outcome", "success")]).await, 2);
    assert_eq!(shop.get(&first.path("")).await.expect(200).body["result"], first.body["timestamp"], "as it was");
}

#[tokio::test]
async fn the_same_claims_count_once_the_team_enforces() {
    let gateway = gateway::on_memory().config(&format!("{}mode = \"observe\"\n", app("shop"))).start().await;
    let shop = caller(&gateway, "shop");
    let first = shop.claim(json!("A-1")).await.expect(201);
    let let_through = shop.claim(json!("A-1")).await.expect(201);
    shop.settle(&first, "success").await.expect(200);
    gateway.configure(&app("shop"));
    gateway.signal("HUP");
    until("it is enforced", Duration::from_secs(10), async || shop.claim(json!("A-1")).await.status == 409).await;
    // An attempt of observe mode still reports by its terms, and changes nothing.
    assert_eq!(shop.settle(&let_through, "failure").await.expect(200).body["state"], "observed");
    assert_eq!(shop.claim(json!("A-1")).await.expect(409).body["state"], "succeeded");
}
