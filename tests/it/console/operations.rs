//! The pages of operations, the repeats of today on the overview, and links to the logs.

use serde_json::json;

use super::browser::Browser;
use super::pages::{page_of, succeeded};
use super::{ROLES, operated};

#[tokio::test]
async fn operations_are_listed_and_each_has_a_page() {
    let gateway = operated().start().await;
    let client = gateway.client();
    let claim = json!({ "operation": "order.submit", "contents": "A-1" });
    let granted = client.post("/v1/claims", &claim).await.expect(201);
    client.report(&granted, json!({ "outcome": "success" })).await.expect(200);
    for _ in 0..3 {
        client.post("/v1/claims", &claim).await.expect(409);
    }
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        let list = browser.get("/console/operations").await.expect(200).text;
        assert!(
            list.contains("href=\"/console/operations/default/order%2Esubmit\"")
                || list.contains("href=\"/console/operations/default/order.submit\""),
            "{list}"
        );
        assert!(list.contains("0 / 3 / 0") && list.contains("this gateway"), "{list}");
        let page = browser.get("/console/operations/default/order.submit").await.expect(200).text;
        assert!(page.contains("0 / 3 / 0") && page.matches("a repeat got 409: done").count() == 3, "{page}");
        let absent = browser.get("/console/operations/default/none").await.expect(404).text;
        assert!(absent.contains("no claim call of this operation"), "{absent}");
        let overview = browser.get("/console/").await.expect(200).text;
        assert!(
            overview.contains("1 operations met a repeat after they were done or unknown today (3 answers)."),
            "{overview}"
        );
    }
}

#[tokio::test]
async fn the_overview_says_what_really_ran_twice_in_observe_mode() {
    let gateway = operated().config("[defaults]\nmode = \"observe\"\n").start().await;
    let client = gateway.client();
    let claim = json!({ "operation": "order.submit", "contents": "A-1" });
    let overview = async || Browser::signed_in(&gateway, "view").await.get("/console/").await.expect(200).text;
    let first = client.post("/v1/claims", &claim).await.expect(201);
    client.report(&first, json!({ "outcome": "success" })).await.expect(200);
    assert!(overview().await.contains("No operation has met a repeat today"), "{}", overview().await);
    let passed = client.post("/v1/claims", &claim).await.expect(201);
    let shown = overview().await;
    assert!(shown.contains("no operation is known to have run a second time today"), "{shown}");
    assert!(shown.contains("It let 1 calls pass") && !shown.contains("No operation has met a repeat"), "{shown}");
    client.report(&passed, json!({ "outcome": "success" })).await.expect(200);
    let shown = overview().await;
    assert!(shown.contains("Observe mode: 1 operations really ran a second time today."), "{shown}");
    let recent =
        Browser::signed_in(&gateway, "view").await.get("/console/recent?kind=ran_twice").await.expect(200).text;
    assert!(recent.contains("ran again in observe mode and succeeded; its claim was: done"), "{recent}");
}

#[tokio::test]
async fn requests_and_attempts_lead_to_the_logs_that_the_configuration_names() {
    let links = "[console.links]\nrequest = \"https://logs.example/?q={request_id}&x=1\"\nattempt = \"http://logs.example/a/{attempt_hash}\"\n";
    let gateway = operated().config(links).start().await;
    let contents = json!({ "order_id": "A-1" });
    let claim = page_of(&succeeded(&gateway, &contents, &json!(1)).await);
    let again = json!({ "operation": "order.submit", "contents": contents, "caller": "pod/shop-7c9" });
    let headers = [("x-request-id", "a\"><b>&c"), ("content-type", "application/json")];
    let repeat = gateway.client().send("POST", "/v1/claims", &headers, again.to_string()).await.expect(409);
    let request = repeat.headers["x-request-id"].to_str().unwrap().to_owned();
    let browser = Browser::signed_in(&gateway, "view").await;
    let page = browser.get(&claim).await.expect(200).text;
    assert!(page.contains(&format!("href=\"https://logs.example/?q={request}&amp;x=1\" rel=\"noreferrer\"")), "{page}");
    assert!(page.contains("href=\"http://logs.example/a/"), "{page}");
    let recent = browser.get("/console/recent").await.expect(200).text;
    assert!(recent.contains("Search the logs"), "{recent}");
    let plain = operated().start().await;
    let claim = page_of(&succeeded(&plain, &contents, &json!(1)).await);
    let page = Browser::signed_in(&plain, "view").await.get(&claim).await.expect(200).text;
    assert!(!page.contains("Search the logs"), "{page}");
}

#[tokio::test]
async fn a_claim_and_its_wait_are_shown_with_their_callers() {
    let gateway = operated().start().await;
    let claim = json!({ "operation": "order.submit", "contents": "A", "lease": "10m", "caller": "pod/shop-7c9" });
    let page = page_of(&gateway.client().post("/v1/claims", &claim).await.expect(201));
    gateway
        .client()
        .post("/v1/locks/nightly/holds", &json!({ "lease": "10m", "caller": "pod/locker" }))
        .await
        .expect(201);
    let browser = Browser::signed_in(&gateway, "view").await;
    let shown = browser.get(&page).await.expect(200).text;
    assert!(shown.contains("caller <code><bdi>pod/shop-7c9</bdi></code>"), "{shown}");
    let lock = browser.get("/console/locks/default/nightly").await.expect(200).text;
    assert!(lock.contains("pod/locker"), "{lock}");
}

#[tokio::test]
async fn the_script_of_an_open_list_is_no_look_at_contents() {
    let gateway = operated().start().await;
    super::actions::unknown(&gateway, &json!({ "order_id": "secret-order" })).await;
    let browser = Browser::signed_in(&gateway, "read").await;
    let script = browser.send("GET", "/console/attention", &[("oncegate-live", "1")], "").await.expect(200).text;
    assert!(script.contains("data-row=\"api ") && !script.contains("secret-order"), "{script}");
    let page = browser.get("/console/attention").await.expect(200).text;
    assert!(page.contains("secret-order") && page.contains("id=\"new\""), "{page}");
    gateway.logged("claim.view", 1).await;
}
