//! History of an order: its timeline combines the record in the store with the answers of this gateway.

use serde_json::json;

use super::browser::Browser;
use super::pages::{page_of, succeeded};
use super::{ROLES, operated};

#[tokio::test]
async fn the_page_of_a_claim_shows_its_success_and_its_repeats_in_order() {
    let gateway = operated().start().await;
    let contents = json!({ "order_id": "A-1" });
    let claim = json!({ "operation": "order.submit", "contents": contents });
    let page = page_of(&succeeded(&gateway, &contents, &json!(1)).await);
    let mut newest = String::new();
    for _ in 0..3 {
        let repeat = gateway.client().post("/v1/claims", &claim).await.expect(409);
        repeat.headers["x-request-id"].to_str().unwrap().clone_into(&mut newest);
    }
    let other = json!({ "operation": "order.submit", "contents": contents, "fingerprint": 1 });
    gateway.client().post("/v1/claims", &other).await;
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        let shown = browser.get(&page).await.expect(200).text;
        let (_, line) = shown.split_once("<ol class=\"timeline\">").unwrap();
        let line = line.split("</ol>").next().unwrap();
        let at = |part: &str| line.find(part).unwrap_or_else(|| panic!("{part}: {line}"));
        assert!(at("claimed") < at("succeeded (the end of its retention"), "{line}");
        assert!(at("succeeded (the end of its retention") < at("3 × "), "{line}");
        assert!(at("3 × ") < at("the operation can be claimed again"), "{line}");
        assert!(line.contains(&newest), "{line}");
        let list = browser.get("/console/recent?kind=duplicate").await.expect(200);
        assert_eq!(list.text.matches("a repeat got 409: done").count(), 3, "{}", list.text);
        assert!(list.text.contains(&format!("href=\"{page}\"")), "{}", list.text);
        assert_eq!(browser.get("/console/recent?kind=other").await.status, 400);
    }
}

#[tokio::test]
async fn a_claim_that_has_ended_is_still_in_what_the_gateway_has_seen() {
    let gateway = operated().start().await;
    let claim = json!({ "operation": "order.submit", "contents": { "order_id": "A-1" } });
    let granted = gateway.client().post("/v1/claims", &claim).await.expect(201);
    gateway.client().post("/v1/claims", &claim).await.expect(409);
    gateway.client().settle(&granted, "failure").await.expect(200);
    let browser = Browser::signed_in(&gateway, "view").await;
    let shown = browser.get(&page_of(&granted)).await.expect(200).text;
    assert!(shown.contains("This gateway has seen it") && shown.contains("a repeat got 409: in progress"), "{shown}");
}

#[tokio::test]
async fn a_timeline_that_is_cut_says_so() {
    let gateway = operated().start().await;
    let contents = json!({ "order_id": "A-1" });
    let item = json!({ "operation": "order.submit", "contents": contents });
    let granted = succeeded(&gateway, &contents, &json!(1)).await;
    let repeats = async |count: usize| {
        gateway.client().post("/v1/claims/batch", &json!({ "items": vec![&item; count] })).await.expect(200);
    };
    let browser = Browser::signed_in(&gateway, "view").await;
    let page = async || browser.get(&page_of(&granted)).await.expect(200).text;
    for _ in 0..10 {
        repeats(100).await;
    }
    let shown = page().await;
    assert!(shown.contains("1000 × a repeat") && !shown.contains("Only the newest 1000 events"), "{shown}");
    repeats(1).await;
    let shown = page().await;
    assert!(shown.contains("1000 × a repeat") && shown.contains("Only the newest 1000 events"), "{shown}");
}

#[tokio::test]
async fn the_page_of_an_operation_has_its_observed_calls_and_what_ran_twice() {
    let gateway = operated().config("[defaults]\nmode = \"observe\"\n").start().await;
    let client = gateway.client();
    let claim = |operation: &str| json!({ "operation": operation, "contents": "A-1" });
    let mut attempts = Vec::new();
    for operation in ["order.submit", "pay", "refund"] {
        client.post("/v1/claims", &claim(operation)).await.expect(201);
        attempts.push(client.post("/v1/claims", &claim(operation)).await.expect(201));
    }
    client.report(&attempts[0], json!({ "outcome": "success" })).await.expect(200);
    client.report(&attempts[1], json!({ "outcome": "success", "operation": "pay" })).await.expect(200);
    let browser = Browser::signed_in(&gateway, "view").await;
    for (operation, twice) in [("order.submit", 1), ("pay", 1), ("refund", 0)] {
        let page = browser.get(&format!("/console/operations/default/{operation}")).await.expect(200).text;
        assert_eq!(page.matches("let through in observe mode").count(), 1, "{operation}: {page}");
        assert_eq!(page.matches("ran again in observe mode").count(), twice, "{operation}: {page}");
    }
}
