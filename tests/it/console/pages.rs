//! The pages: each one for each role, a claim found from its contents, and text of callers that is shown and never runs.

use oncegate_core::hex;
use oncegate_testkit::client::Answer;
use oncegate_testkit::gateway::Gateway;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::browser::{Browser, OWN, location};
use super::{ROLES, operated, without_own_script};

/// A claim of `order.submit` that has succeeded with this result. Returns the answer to its claim call.
pub(super) async fn succeeded(gateway: &Gateway, contents: &Value, result: &Value) -> Answer {
    let claim = json!({ "operation": "order.submit", "contents": contents });
    let granted = gateway.client().post("/v1/claims", &claim).await.expect(201);
    gateway.client().report(&granted, json!({ "outcome": "success", "result": result })).await.expect(200);
    granted
}

/// Returns the page of a claim of the open app.
pub(super) fn page_of(granted: &Answer) -> String {
    format!("/console/claims/default/{}", granted.body["global_id"].as_str().unwrap())
}

#[tokio::test]
async fn the_documentation_has_a_row_for_each_page() {
    let docs = include_str!("../../../docs/console.md");
    let gateway = operated().start().await;
    let page = Browser::signed_in(&gateway, "act").await.get("/console/").await.expect(200).text;
    let (_, nav) = page.split_once("<nav>").unwrap();
    let (nav, _) = nav.split_once("</nav>").unwrap();
    let titles: Vec<_> = nav.split("</a>").filter_map(|link| link.rsplit_once('>')).map(|(_, title)| title).collect();
    assert!(titles.len() > 10, "{titles:?}");
    for title in titles {
        let is_row = |line: &str| line.strip_prefix("| ").is_some_and(|row| row.starts_with(title));
        assert!(docs.lines().any(is_row), "docs/console.md has no row for {title:?}");
    }
    for picture in [
        &include_bytes!("../../../docs/images/console-overview.png")[..],
        include_bytes!("../../../docs/images/console-claim.png"),
    ] {
        assert!(picture.len() <= 150_000, "a picture of {} bytes", picture.len());
    }
}

#[tokio::test]
async fn each_page_opens_for_each_role_that_may_see_it() {
    let gateway = operated().start().await;
    let claim = page_of(&succeeded(&gateway, &json!({ "order_id": "A-1" }), &json!(1)).await);
    let lock = json!({ "name": "nightly", "lease": "30s" });
    gateway.client().post("/v1/locks/acquire", &lock).await;
    let pages = [
        ("/console/", 0),
        ("/console/attention", 0),
        ("/console/find", 0),
        (&*claim, 0),
        ("/console/engines", 0),
        ("/console/chains/default", 0),
        ("/console/locks", 0),
        ("/console/apps", 0),
        ("/console/spool", 0),
        ("/console/audit", 0),
        (&*format!("{claim}/release"), 2),
        ("/console/chains/default/switch", 2),
        ("/console/chains/default/failover", 2),
    ];
    for (rank, role) in ROLES.iter().enumerate() {
        let browser = Browser::signed_in(&gateway, role).await;
        for (path, needed) in pages {
            let page = browser.get(path).await;
            assert_eq!(page.status, if rank < needed { 403 } else { 200 }, "{role}: {path}: {}", page.text);
            assert!(
                page.text.starts_with("<!DOCTYPE html>") && page.text.contains("Sign out"),
                "{path}: {}",
                page.text
            );
            assert!(!without_own_script(&page.text).contains("<script") && !page.text.contains(" style="), "{path}");
        }
        for action in ["settle", "release"] {
            let form = format!("form_token={}&reason=x", browser.form_token().await);
            let answer = browser.post(&format!("{claim}/{action}"), &[OWN], &form).await;
            let refused = if rank < 2 { 403 } else { 400 };
            assert_eq!(answer.status, refused, "{role}: {action} without a nonce: {}", answer.text);
        }
        assert_eq!(browser.get("/console/nothing").await.status, 404);
        assert_eq!(browser.get("/console/chains/nothing").await.status, 404);
    }
}

#[tokio::test]
async fn a_claim_is_found_by_its_contents_and_its_id_and_view_sees_neither_contents_nor_result() {
    let gateway = operated().start().await;
    let contents = json!({ "order_id": "secret-order", "amount": 12 });
    let granted = succeeded(&gateway, &contents, &json!({ "number": "secret-result" })).await;
    let page = page_of(&granted);
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        let form_token = browser.form_token().await;
        let find = async |fields: &str| {
            browser.post("/console/find", &[OWN], &format!("form_token={form_token}&app=default&{fields}")).await
        };
        let typed = "operation=order.submit&text=%7B%22amount%22%3A12.0%2C+%22order_id%22%3A%22secret-order%22%7D";
        let found = find(typed).await;
        assert_eq!((found.status, location(&found)), (303, &*page), "{}", found.text);
        let by_id = find(&format!("text=+{}", granted.body["global_id"].as_str().unwrap().to_uppercase())).await;
        assert_eq!((by_id.status, location(&by_id)), (303, &*page));
        let none = find("operation=order.submit&text=%7B%22order_id%22%3A%22B-2%22%7D").await.expect(200);
        assert!(none.text.contains("No live claim") && none.text.contains("B-2"), "{}", none.text);
        let wrong = find("text=A-1001").await.expect(200);
        assert!(wrong.text.contains("neither a global ID"), "{}", wrong.text);
        let shown = browser.get(&page).await.expect(200);
        for secret in ["secret-order", "secret-result"] {
            assert_eq!(shown.text.contains(secret), role != "view", "{role}: {}", shown.text);
        }
        assert!(shown.text.contains("Done. Repeats get 409 with the result until"), "{}", shown.text);
        let may_act = shown.text.contains("/release\"");
        assert_eq!(may_act, role == "act", "{}", shown.text);
    }
    let trail = std::fs::read_to_string(gateway.data_dir().join("audit.jsonl")).unwrap();
    assert!(!trail.contains("secret-"), "{trail}");
}

#[tokio::test]
async fn a_look_at_contents_is_in_the_audit_trail() {
    let gateway = operated().start().await;
    let granted = succeeded(&gateway, &json!({ "order_id": "A-1" }), &json!(1)).await;
    for role in ["view", "read"] {
        Browser::signed_in(&gateway, role).await.get(&page_of(&granted)).await.expect(200);
    }
    gateway.logged("claim.view", 1).await;
    assert!(gateway.log().lines().any(|line| line.contains("claim.view") && line.contains("\"read\"")));
}

#[tokio::test]
async fn masked_values_are_on_no_page() {
    let secret = "secret_of_shop_0123456789";
    let digest = hex::encode(&Sha256::digest(secret));
    let app = format!("[apps.shop]\nsecrets = [\"sha256:{digest}\"]\nconsole_mask = [\"/customer/email\"]\n");
    let refused = operated().config(&app.replace("/customer", "customer")).try_start().await;
    assert!(refused.err().unwrap().1.contains("is not a JSON pointer"));
    let gateway = operated().config(&app).start().await;
    let caller = gateway.client().with_credential(&format!("shop.{secret}"));
    let contents = json!({ "customer": { "email": "ann@shop.example", "id": 7 } });
    let granted = caller.claim(contents.clone()).await.expect(201);
    caller.report(&granted, json!({ "outcome": "success", "result": contents })).await.expect(200);
    let path = format!("/console/claims/shop/{}", granted.body["global_id"].as_str().unwrap());
    for role in ["read", "act"] {
        let page = Browser::signed_in(&gateway, role).await.get(&path).await.expect(200);
        assert!(!page.text.contains("ann@shop.example"), "{}", page.text);
        assert_eq!(
            page.text.matches("{&quot;email&quot;:&quot;•••&quot;,&quot;id&quot;:7}").count(),
            2,
            "{}",
            page.text
        );
    }
}

/// Strings that would run, hide or reorder something if a page showed them as they are.
const HOSTILE: [&str; 16] = [
    "<script>alert(1)</script>",
    "</pre><img src=x onerror=alert(1)>",
    "\"><svg/onload=alert(1)>",
    "' onmouseover='alert(1)",
    "<!--",
    "]]>",
    "&lt;b&gt;",
    "javascript:alert(1)",
    "a\u{202e}gpj.exe",
    "a\u{2066}b\u{2069}c",
    "a\u{200b}b\u{feff}c",
    "a\u{2028}b\u{2029}c",
    "a\u{e0041}b",
    "\u{ad}\u{180e}\u{3164}",
    "שלום עולם",
    "{{7*7}}${7*7}",
];

#[tokio::test]
async fn hostile_text_in_contents_and_results_is_shown_and_never_runs() {
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "act").await;
    for text in HOSTILE {
        let granted = succeeded(&gateway, &json!({ "a": text, text: 1 }), &json!([text])).await;
        let page = browser.get(&page_of(&granted)).await.expect(200);
        for broken in ["<script", "<img", "<svg", "<!--"] {
            assert!(!without_own_script(&page.text).contains(broken), "{text:?}: {}", page.text);
        }
        let hidden = |char: char| {
            "\u{202e}\u{2066}\u{2069}\u{200b}\u{feff}\u{2028}\u{2029}\u{e0041}\u{ad}\u{180e}\u{3164}".contains(char)
        };
        assert!(!page.text.contains(hidden), "{text:?}: {}", page.text);
    }
    let long = json!({ "a": "x".repeat(60_000) });
    let deep = (0..29).fold(json!(1), |inner, _| json!([inner]));
    for contents in [long, json!({ "deep": deep })] {
        let page = browser.get(&page_of(&succeeded(&gateway, &contents, &contents).await)).await.expect(200);
        assert!(page.text.len() < 24 << 10, "{}", page.text.len());
    }
}
