//! What operations have been answered, and how many have met a repeat today: the numbers of a known workload.

use std::time::Duration;

use oncegate_testkit::client::Client;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::commands::Terminal;
use super::{alice, operated};
use crate::support::caller::{app, caller};

const SOON: Duration = Duration::from_mins(1);

async fn claim(client: &Client, operation: &str, contents: &str) -> u16 {
    let claim = json!({ "operation": operation, "contents": contents });
    client.post("/v1/claims", &claim).await.status
}

#[tokio::test]
async fn the_numbers_are_those_of_the_callers() {
    let watched = format!("{}[apps.shop.operations.\"watch\"]\nmode = \"observe\"\n", app("shop"));
    let gateway = operated("memory:").config(&watched).start().await;
    let client = caller(&gateway, "shop");
    assert_eq!(alice(&gateway).get("/admin/v1/operations").await.expect(200).body["operations"], json!([]));
    // 30 operations; 12 succeed and meet 2 repeats each, 4 become unknown and meet one, 3 are repeated in progress.
    for number in 0..30 {
        let contents = format!("order-{number}");
        let request = json!({ "operation": "order.submit", "contents": contents });
        let granted = client.post("/v1/claims", &request).await.expect(201);
        let repeats = match number {
            0..12 => {
                client.report(&granted, json!({ "outcome": "success" })).await.expect(200);
                2
            }
            12..16 => {
                client.report(&granted, json!({ "outcome": "unknown" })).await.expect(200);
                1
            }
            16..19 => 1,
            _ => 0,
        };
        for _ in 0..repeats {
            assert_eq!(claim(&client, "order.submit", &contents).await, 409);
        }
    }
    let other = json!({ "operation": "order.submit", "contents": "order-0", "fingerprint": 1 });
    client.post("/v1/claims", &other).await.expect(422);
    // Observe mode: each of two repeats is let through, and one reports success.
    let watch = json!({ "operation": "watch", "contents": "A" });
    for round in 0..3 {
        let granted = client.post("/v1/claims", &watch).await.expect(201);
        if round < 2 {
            client.report(&granted, json!({ "outcome": "success", "operation": "watch" })).await.expect(200);
        }
    }

    let shown = alice(&gateway).get("/admin/v1/operations").await.expect(200).body;
    let submit = &shown["operations"][0];
    assert_eq!((&submit["app"], &submit["operation"]), (&json!("shop"), &json!("order.submit")), "the busiest first");
    assert_eq!((&submit["claims"], &submit["granted"], &submit["mismatches"]), (&json!(62), &json!(30), &json!(1)));
    assert_eq!(submit["duplicates"], json!({ "in_progress": 3, "succeeded": 24, "unknown": 4 }));
    let watch = &shown["operations"][1];
    assert_eq!((&watch["mode"], &watch["granted"]), (&json!("observe"), &json!(1)));
    assert_eq!((&watch["observed"], &watch["ran_twice"]), (&json!(2), &json!(1)));

    let today = alice(&gateway).get("/admin/v1/summary").await.expect(200).body["today"].clone();
    assert_eq!((&today["repeat_answers"], &today["mismatch_answers"]), (&json!(28), &json!(1)), "{today}");
    assert_eq!((&today["repeated_operations"], &today["at_least"]), (&json!(16), &json!(false)), "{today}");

    // One of two calls that were let through has succeeded: one operation ran a second time.
    assert_eq!((&today["observed_answers"], &today["ran_twice_operations"]), (&json!(2), &json!(1)), "{today}");
    let again = json!({ "operation": "watch", "contents": "B" });
    let first = client.post("/v1/claims", &again).await.expect(201);
    client.report(&first, json!({ "outcome": "success", "operation": "watch" })).await.expect(200);
    for outcome in ["success", "failure", "success"] {
        let passed = client.post("/v1/claims", &again).await.expect(201);
        let item =
            json!({ "global_id": passed.body["global_id"], "attempt": passed.body["attempt"], "outcome": outcome });
        client.post("/v1/outcomes/batch", &json!({ "items": [item] })).await.expect(200);
    }
    let today = alice(&gateway).get("/admin/v1/summary").await.expect(200).body["today"].clone();
    assert_eq!((&today["observed_answers"], &today["ran_twice_operations"]), (&json!(5), &json!(2)), "{today}");
    let second = alice(&gateway).get("/admin/v1/recent?kind=ran_twice").await.expect(200).body;
    let details: Vec<_> = second["events"].as_array().unwrap().iter().map(|event| &event["detail"]).collect();
    assert_eq!(details, ["succeeded"; 3], "{second}");
    let summary = Terminal::at(&gateway).run(&["summary"]).expect(0).out;
    assert!(summary.contains("2 operations; observe mode let 5 calls pass"), "{summary}");

    let printed = Terminal::at(&gateway).run(&["operations", "--app", "shop"]).expect(0).out;
    assert!(printed.contains("3 / 24 / 4"), "{printed}");
    let one = alice(&gateway).get("/admin/v1/operations?operation=watch").await.expect(200).body;
    assert_eq!(one["operations"].as_array().unwrap().len(), 1);
    let some = alice(&gateway).get("/admin/v1/operations?limit=1").await.expect(200).body;
    assert_eq!((&some["more"], some["operations"].as_array().map(Vec::len)), (&json!(true), Some(1)));
    for wrong in ["limit=0", "limit=1001", "app=-", "operation=-", "kind=a"] {
        assert_eq!(alice(&gateway).get(&format!("/admin/v1/operations?{wrong}")).await.status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn a_rate_comes_with_the_first_points_of_the_history() {
    let gateway = operated("memory:").start().await;
    let operations = async || alice(&gateway).get("/admin/v1/operations").await.expect(200).body;
    let number = std::cell::Cell::new(0);
    until("there is a rate", SOON, async || {
        number.set(number.get() + 1);
        claim(&gateway.client(), "order.submit", &format!("order-{}", number.get())).await;
        operations().await["operations"][0]["claims_per_second"].as_f64().is_some_and(|rate| rate > 0.0)
    })
    .await;
    let shown = operations().await;
    assert!(shown["operations"][0]["app_p99_seconds"].is_number(), "{shown}");
    assert_eq!(shown["operations"][0]["mode"], Value::from("enforce"));
}
