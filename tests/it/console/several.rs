//! Several rows of the attention page worked off with one form.

use oncegate_testkit::client::Answer;
use serde_json::json;

use super::actions::{newest, unknown};
use super::browser::{Browser, OWN, location};
use super::operated;

const PAGE: &str = "/console/attention";

/// Returns the fields of a form of the attention page with its first `count` rows chosen.
fn chosen(page: &Answer, what: &str, count: usize) -> String {
    let marker = format!("name=\"what\" value=\"{what}\"");
    let form = page.text.split("<form").find(|form| form.contains(&marker)).expect("the form");
    let values = |name: &str| {
        let marker = format!("name=\"{name}\" value=\"");
        let rest = form.split(&marker).skip(1).map(|rest| rest.split('"').next().unwrap().replace(' ', "+"));
        rest.collect::<Vec<_>>()
    };
    let rows: Vec<_> = values("row").into_iter().take(count).map(|row| format!("&row={row}")).collect();
    assert_eq!(rows.len(), count, "{form}");
    format!("form_token={}&nonce={}&what={what}{}", values("form_token")[0], values("nonce")[0], rows.concat())
}

#[tokio::test]
async fn two_hundred_suspects_are_worked_off_in_four_forms() {
    let gateway = operated().start().await;
    for number in 0..200 {
        super::hostile::suspected(&gateway, "order.submit", &json!({ "number": number })).await;
    }
    let browser = Browser::signed_in(&gateway, "act").await;
    for _ in 0..4 {
        let page = browser.get(PAGE).await.expect(200);
        let (_, link) = page.text.split_once("<a href=\"/console/attention?choose=").expect("a link");
        assert!(link.contains("Choose all 50 of"), "{link}");
        let link = link.split('"').next().unwrap();
        let ticked = browser.get(&format!("{PAGE}?choose={link}")).await.expect(200);
        assert_eq!(ticked.text.matches("name=\"row\"").count(), 50);
        assert_eq!(ticked.text.matches(" checked ").count(), 50, "{}", ticked.text);
        let form = format!("{}&found=once&reason=INC-42&typed=50", chosen(&ticked, "check", 50));
        let done = browser.post(PAGE, &[OWN], &form).await;
        assert_eq!(
            (done.status, location(&done)),
            (303, "/console/attention?done=checked&count=50&left=0"),
            "{}",
            done.text
        );
        assert!(browser.get(location(&done)).await.expect(200).text.contains("Recorded: 50."));
    }
    assert!(browser.get(PAGE).await.expect(200).text.contains("Nothing is open here"));
    assert!(browser.get("/console/").await.expect(200).text.contains("Nothing needs you"));
}

#[tokio::test]
async fn the_filters_of_the_list_are_kept() {
    let gateway = operated().start().await;
    super::hostile::suspected(&gateway, "order.submit", &json!(1)).await;
    let browser = Browser::signed_in(&gateway, "act").await;
    let list = format!("{PAGE}?kind=double&app=default");
    let page = browser.get(&list).await.expect(200);
    assert!(page.text.contains(&format!("action=\"{}\"", list.replace('&', "&amp;"))), "{}", page.text);
    let form = format!("{}&found=once&reason=INC-42&typed=1", chosen(&page, "check", 1));
    let done = browser.post(&list, &[OWN], &form).await;
    assert_eq!((done.status, &*format!("{list}&done=checked&count=1&left=0")), (303, location(&done)), "{}", done.text);
}

#[tokio::test]
async fn several_unknowns_are_settled_each_bound_to_its_attempt() {
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "act").await;
    let mut claims = Vec::new();
    for number in 0..3 {
        claims.push(unknown(&gateway, &json!({ "number": number })).await);
    }
    let page = browser.get(PAGE).await.expect(200);
    let form = chosen(&page, "settle", 3);
    for (more, why) in [
        ("&outcome=failure&reason=x&typed=2", "Type exactly"),
        ("&outcome=failure&reason=x", "Type exactly"),
        ("&outcome=failure&typed=3", "reason"),
        ("&outcome=other&reason=x&typed=3", "outcome"),
    ] {
        let refused = browser.post(PAGE, &[OWN], &format!("{form}{more}")).await;
        assert!(refused.status == 400 && refused.text.contains(why), "{more}: {}", refused.text);
    }
    assert_eq!(newest(&gateway, "claim.settle").await, json!([]), "no claim is settled");
    // Another attempt takes one of them over after the page was opened.
    let taken = json!({ "operation": "order.submit", "contents": { "number": 1 }, "take_over": true });
    gateway.client().post("/v1/claims", &taken).await.expect(201);
    let body = format!("{form}&outcome=success&reason=INC-42&typed=3");
    let done = browser.post(PAGE, &[OWN], &body).await;
    let led = "/console/attention?done=settled&count=2&left=1";
    assert_eq!((done.status, location(&done)), (303, led), "{}", done.text);
    assert_eq!(location(&browser.post(PAGE, &[OWN], &body).await), led, "a second click");
    let shown = browser.get(led).await.expect(200);
    assert!(shown.text.contains("Settled: 2.") && shown.text.contains("Not changed: 1."), "{}", shown.text);
    let states: Vec<_> = newest(&gateway, "claim.settle").await.as_array().unwrap().clone();
    assert!(states.len() == 2 && states.iter().all(|entry| entry["via"] == "console"), "a line each: {states:?}");
    for (number, state) in [(0, "succeeded"), (1, "in_progress"), (2, "succeeded")] {
        let repeat = json!({ "operation": "order.submit", "contents": { "number": number } });
        assert_eq!(gateway.client().post("/v1/claims", &repeat).await.body["state"], state, "{number}");
    }
}

#[tokio::test]
async fn rows_of_two_operations_more_than_fifty_and_forged_rows_are_refused() {
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "act").await;
    super::hostile::suspected(&gateway, "order.submit", &json!(1)).await;
    super::hostile::suspected(&gateway, "pay", &json!(1)).await;
    let page = browser.get(PAGE).await.expect(200);
    let more = "&found=once&reason=x";
    let none = chosen(&page, "check", 0);
    for (rows, why) in [
        (chosen(&page, "check", 2) + "&typed=2", "one operation"),
        (none.clone() + "&typed=0", "no row is chosen"),
        (format!("{none}{}&typed=51", "&row=default+pay+1".repeat(51)), "one operation"),
        (format!("{none}&row=default+pay+1%2F..%2F2&typed=1"), "another form"),
        (format!("{none}&row=default&typed=1"), "another form"),
        (none.replace("what=check", "what=release") + "&row=default+pay+1&typed=1", "does not say"),
    ] {
        let refused = browser.post(PAGE, &[OWN], &format!("{rows}{more}")).await;
        assert!(refused.status == 400 && refused.text.contains(why), "{why}: {} {}", refused.status, refused.text);
    }
    assert_eq!(newest(&gateway, "suspect.check").await, json!([]));
}
