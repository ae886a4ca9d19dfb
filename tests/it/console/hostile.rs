//! Text of callers and operators on pages: shown with escapes, never as markup, and never to an operator who may not see it.

use oncegate_testkit::gateway::Gateway;
use serde_json::json;

use super::browser::Browser;
use super::{ROLES, operated, token, without_own_script};

/// A double execution whose operation has this name.
pub(super) async fn suspected(gateway: &Gateway, operation: &str, contents: &serde_json::Value) {
    let client = gateway.client();
    let granted = client.post("/v1/claims", &json!({ "operation": operation, "contents": contents })).await.expect(201);
    let other = granted.body["timestamp"].as_u64().unwrap() - 1;
    let late = json!({ "attempt": format!("{other}-0123456789abcdef"), "operation": operation, "outcome": "success" });
    assert_eq!(client.post(&granted.path("/outcome"), &late).await.status, 409);
}

#[tokio::test]
async fn suspects_are_listed_and_counted() {
    let gateway = operated().start().await;
    for number in 0..51 {
        suspected(&gateway, "order.submit", &json!({ "number": number })).await;
    }
    suspected(&gateway, "coupon.redeem", &json!({ "coupon": "secret-coupon" })).await;
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        let overview = browser.get("/console/").await.expect(200);
        assert!(
            overview.text.contains("1 thing needs a person")
                && overview.text.contains("52 operations of app `default` may have been executed twice"),
            "{}",
            overview.text
        );
        let first = browser.get("/console/attention").await.expect(200);
        assert!(first.text.contains("coupon.redeem") && !first.text.contains("secret-coupon"), "{}", first.text);
        assert_eq!(first.text.matches("<tr").count(), 51, "50 rows and the heading");
        let (_, rest) = first.text.split_once("href=\"/console/attention?after=").expect("older ones");
        let after = rest.split('"').next().unwrap();
        let second = browser.get(&format!("/console/attention?after={after}")).await.expect(200);
        assert_eq!(second.text.matches("<tr").count(), 3, "{}", second.text);
        let none = browser.get("/console/attention?kind=overlap").await.expect(200);
        assert!(none.text.contains("Nothing is open here"), "{}", none.text);
    }
}

#[tokio::test]
async fn wrong_values_in_addresses_are_problems_that_run_nothing() {
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "view").await;
    let hostile =
        ["%3Cscript%3Ealert(1)%3C/script%3E", "%22%3E%3Cb%3E", "%E2%80%AE", "%00", "a%0Ab", "%FF", "'", "../x"];
    for value in hostile {
        for path in [
            format!("/console/attention?kind={value}"),
            format!("/console/attention?app={value}"),
            format!("/console/attention?after={value}"),
            format!("/console/{value}"),
            format!("/console/sign-in?to={value}"),
        ] {
            let page = browser.get(&path).await;
            assert!([303, 400, 404].contains(&page.status), "{path}: {}", page.status);
            for broken in ["<script>alert", "\"><b>", "\u{202e}", "\0"] {
                assert!(!page.text.contains(broken), "{path}: {}", page.text);
            }
            if page.status == 400 {
                assert!(
                    page.text.contains("invalid_request") && page.text.starts_with("<!DOCTYPE html>"),
                    "{}",
                    page.text
                );
            }
        }
        let answer = Browser::at(&gateway).sign_in(&token("view"), value).await;
        assert_eq!(answer.headers["location"], "/console/");
    }
}

#[tokio::test]
async fn the_first_view_is_light() {
    let gateway = operated().start().await;
    let page = Browser::signed_in(&gateway, "view").await.get("/console/").await.expect(200);
    let (_, rest) = page.text.split_once("rel=\"stylesheet\" href=\"").unwrap();
    let style = Browser::at(&gateway).get(rest.split('"').next().unwrap()).await.expect(200);
    assert_eq!(style.headers["cache-control"], "public, max-age=31536000, immutable");
    assert!(page.text.len() <= 24 << 10 && style.text.len() <= 12 << 10, "{} {}", page.text.len(), style.text.len());
    for banned in ["<script", " style=", "http://", "https://", "data:"] {
        assert!(!without_own_script(&page.text).contains(banned), "{banned} in {}", page.text);
    }
}
