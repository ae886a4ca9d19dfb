//! A form that is sent after the end of its session: nothing is executed, and after the sign-in the filled form appears
//! again.

use serde_json::json;

use super::actions::{bound, newest, unknown};
use super::browser::{Browser, OWN, location};
use super::pages::page_of;
use super::{operated, token};

#[tokio::test]
async fn a_form_is_filled_again_after_the_sign_in() {
    let gateway = operated().start().await;
    let mut browser = Browser::signed_in(&gateway, "act").await;
    let page = format!("{}/settle", page_of(&unknown(&gateway, &json!({ "order_id": "A-1" })).await));
    let form = bound(&browser.get(&page).await.expect(200));
    let sign_out = format!("form_token={}", browser.form_token().await);
    browser.post("/console/sign-out", &[OWN], &sign_out).await.expect(303);
    let body = format!("{form}&outcome=success&result=%7B%22n%22%3A7%7D&reason=%22INC-77%22+%3Cb%3E");
    let asked = browser.post(&page, &[OWN], &body).await.expect(401);
    assert!(asked.text.contains("nothing was executed") && asked.headers.contains_key("www-authenticate"));
    assert!(!asked.text.contains(env!("CARGO_PKG_VERSION")) && !asked.text.contains("nonce"), "{}", asked.text);
    assert_eq!(newest(&gateway, "claim.settle").await, json!([]));
    let (_, kept) = asked.text.split_once("name=\"kept\" value=\"").expect("the fields go along");
    let kept = kept.split('"').next().unwrap().replace("&amp;", "&");
    let kept: String = form_urlencoded::byte_serialize(kept.as_bytes()).collect();
    let fields = format!("token={}&to={page}&kept={kept}", token("act"));
    let begun = browser.post("/console/sign-in", &[OWN], &fields).await;
    assert_eq!((begun.status, location(&begun)), (303, &*page), "{}", begun.text);
    begun.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().clone_into(&mut browser.cookie);
    let elsewhere = browser.get("/console/find").await.expect(200);
    assert!(!elsewhere.text.contains("INC-77"), "it belongs to its page");
    let filled = browser.get(&page).await.expect(200);
    for part in
        ["value=\"success\" required checked", "{&quot;n&quot;:7}</textarea>", "value=\"&quot;INC-77&quot; &lt;b&gt;\""]
    {
        assert!(filled.text.contains(part), "{part}: {}", filled.text);
    }
    assert!(!browser.get(&page).await.expect(200).text.contains("INC-77"), "once");
    let again = format!("{}&outcome=success&reason=INC-77", bound(&filled));
    browser.post(&page, &[OWN], &again).await.expect(303);
    assert_eq!(newest(&gateway, "claim.settle").await.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_long_form_is_not_kept() {
    let gateway = operated().start().await;
    let long = format!("text={}", "x".repeat(17 << 10));
    let asked = Browser::at(&gateway).post("/console/find", &[OWN], &long).await.expect(401);
    assert!(!asked.text.contains("name=\"kept\"") && asked.text.len() < 4 << 10, "{}", asked.text.len());
}

#[tokio::test]
async fn a_refused_form_can_be_opened_again_with_what_was_typed() {
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "act").await;
    let page = format!("{}/settle", page_of(&unknown(&gateway, &json!({ "order_id": "A-1" })).await));
    let form = bound(&browser.get(&page).await.expect(200));
    let body = format!("{form}&outcome=success&result=%7Bbad&reason=%22INC-78%22");
    let refused = browser.post(&page, &[OWN], &body).await.expect(400);
    assert!(
        refused.text.contains(&format!("<a class=\"button\" href=\"{page}\">Back to the form</a>")),
        "{}",
        refused.text
    );
    let live = browser.send("GET", &page, &[("oncegate-live", "1")], "").await.expect(200);
    assert!(!live.text.contains("INC-78"), "a script does not take it");
    let other = Browser::signed_in(&gateway, "act").await;
    assert!(!other.get(&page).await.expect(200).text.contains("INC-78"), "nor another session");
    let filled = browser.get(&page).await.expect(200);
    for part in ["value=\"success\" required checked", "{bad</textarea>", "value=\"&quot;INC-78&quot;\""] {
        assert!(filled.text.contains(part), "{part}: {}", filled.text);
    }
    assert!(!browser.get(&page).await.expect(200).text.contains("INC-78"), "once");
    let again = format!("{}&outcome=success&result=7&reason=INC-78", bound(&filled));
    browser.post(&page, &[OWN], &again).await.expect(303);
    let foreign = browser.post(&page, &[OWN], "form_token=x&reason=INC-79").await.expect(403);
    assert!(!foreign.text.contains("Back to the form"), "{}", foreign.text);
    assert!(!browser.get(&page).await.text.contains("INC-79"), "a form of another session is not kept");
}
