//! Text of callers and operators on pages: shown with escapes, never as markup, and never to an operator who may not see it.

use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::gateway::Gateway;
use serde_json::{Value, json};

use super::browser::Browser;
use super::{ROLES, operated, token, without_own_script};
use crate::support::prometheus::escaped;

/// A double execution whose operation has this name.
pub(super) async fn suspected(gateway: &Gateway, operation: &str, contents: &Value) {
    suspected_by(&gateway.client(), operation, contents).await;
}

/// The same by this caller. Returns the grant of the attempt that holds the claim, unless another call has it.
pub(super) async fn suspected_by(client: &Client, operation: &str, contents: &Value) -> Answer {
    let granted = client.post("/v1/claims", &json!({ "operation": operation, "contents": contents })).await.expect(201);
    let other = granted.body["timestamp"].as_u64().unwrap() - 1;
    let late = json!({ "attempt": format!("{other}-0123456789abcdef"), "operation": operation, "outcome": "success" });
    assert_eq!(client.post(&granted.path("/outcome"), &late).await.status, 409);
    granted
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
                && overview.text.contains("52 operations of app <code>default</code> may have been executed twice"),
            "{}",
            overview.text
        );
        let first = browser.get("/console/attention").await.expect(200);
        assert_eq!(first.text.matches("<tr").count(), 51, "50 rows and the heading");
        let (_, rest) = first.text.split_once("href=\"/console/attention?after=").expect("newer ones");
        let after = rest.split('"').next().unwrap();
        let second = browser.get(&format!("/console/attention?after={after}")).await.expect(200);
        assert_eq!(second.text.matches("<tr").count(), 3, "{}", second.text);
        let shows_contents = second.text.contains("secret-coupon");
        assert!(second.text.contains("coupon.redeem") && shows_contents == (role != "view"), "{role}: {}", second.text);
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
async fn names_of_callers_are_never_markup_and_keys_and_reasons_are_shown_as_text() {
    let (gateway, proxied) = super::proxy::started().await;
    let client = gateway.client();
    for hostile in ["<script>", "\"><b>", "'><i>", "\u{202e}abc", "a b", "{{7*7}}", "</a>"] {
        for (call, body) in [
            ("/v1/claims", json!({ "operation": hostile, "contents": 1 })),
            ("/v1/claims", json!({ "operation": "order.submit", "contents": 1, "caller": hostile })),
            ("/v1/locks/nightly-report/holds", json!({ "caller": hostile })),
            (&*format!("/v1/locks/{}/holds", escaped(hostile)), json!({})),
        ] {
            let refused = client.post(call, &body).await;
            assert_eq!(refused.code(), (400, "invalid_request"), "{call} {body}: {}", refused.text);
        }
    }
    // Any printable ASCII may be in a key, and anything in a reason.
    let key = "<img/src=x>0123456789abcdef0123456789";
    assert_eq!(proxied.post("/orders/a", key, "one").await.status, 201);
    suspected(&gateway, "order.submit", &json!(1)).await;
    let reason = json!({ "found": "once", "reason": "<b>bold</b>" });
    gateway.admin_client().with_credential(&token("act")).post("/admin/v1/suspects/1/check", &reason).await.expect(200);
    let browser = Browser::signed_in(&gateway, "act").await;
    for (path, shown) in [
        ("/console/proxy/orders.create", "&lt;img/src"),
        ("/console/recent", ""),
        ("/console/audit", "&lt;b&gt;bold&lt;/b&gt;"),
    ] {
        let page = browser.get(path).await.expect(200);
        assert!(page.text.contains(shown), "{path}: {}", page.text);
        for broken in ["<img", "<b>"] {
            assert!(!page.text.contains(broken), "{path}: {}", page.text);
        }
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
