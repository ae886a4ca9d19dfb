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
