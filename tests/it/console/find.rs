//! The box in the header of every page: an ID, contents, a request ID or an attempt leads to its claim, without an app being named.

use oncegate_testkit::client::Answer;
use oncegate_testkit::gateway::Gateway;
use serde_json::json;

use super::browser::{Browser, OWN, location};
use super::pages::{page_of, succeeded};
use super::{ROLES, operated};
use crate::support::caller::{app, caller};

/// Sends the form of the header, as the page of a path has it.
pub(super) async fn typed(browser: &Browser, path: &str, text: &str) -> Answer {
    let page = browser.get(path).await;
    let (_, form) =
        page.text.split_once("<form class=\"find\" role=\"search\" method=\"post\" action=\"/console/find\">").unwrap();
    let (form, _) = form.split_once("</form>").unwrap();
    assert_eq!(form.matches("name=").count(), 2, "a token and a text: {form}");
    let (_, token) = form.split_once("name=\"form_token\" value=\"").unwrap();
    let fields = [("form_token", token.split('"').next().unwrap()), ("text", text)];
    let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    browser.post("/console/find", &[OWN], &form).await
}

/// The paths of all kinds of pages.
const PAGES: [&str; 6] =
    ["/console/", "/console/find", "/console/recent", "/console/apps", "/console/none", "/console/chains/none"];

#[tokio::test]
async fn every_page_finds_an_order_by_whatever_an_operator_has_of_it() {
    let gateway = operated().start().await;
    let granted = succeeded(&gateway, &json!({ "order_id": "secret-order" }), &json!(1)).await;
    let page = page_of(&granted);
    let repeat = json!({ "operation": "order.submit", "contents": { "order_id": "secret-order" } });
    let fields = [("x-request-id", "req-7"), ("content-type", "application/json")];
    gateway.client().send("POST", "/v1/claims", &fields, repeat.to_string()).await.expect(409);
    let plain = gateway.client().claim(json!({ "order_id": "of-default" })).await.expect(201);
    let id = granted.body["global_id"].as_str().unwrap();
    let attempt = granted.body["attempt"].as_str().unwrap();
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        for path in PAGES {
            let found = typed(&browser, path, &format!(" {} ", id.to_uppercase())).await;
            assert_eq!((found.status, location(&found)), (303, &*page), "{path}: {}", found.text);
        }
        for text in ["req-7", attempt] {
            let found = typed(&browser, "/console/", text).await;
            assert_eq!((found.status, location(&found)), (303, &*page), "{role}: {text}: {}", found.text);
        }
        let by_contents = typed(&browser, "/console/", "{\"order_id\": \"of-default\"}").await;
        assert_eq!((by_contents.status, location(&by_contents)), (303, &*page_of(&plain)), "{}", by_contents.text);
        let absent = typed(&browser, "/console/", "{\"order_id\": \"<b>none\"}").await.expect(200).text;
        assert!(
            absent.contains("No live claim") && absent.contains("&lt;b&gt;none"),
            "what was typed is kept: {absent}"
        );
        let wrong = typed(&browser, "/console/", "A-1001").await.expect(200).text;
        assert!(wrong.contains("neither a global ID"), "{wrong}");
    }
    assert!(!gateway.log().contains("secret-order") && !gateway.log().contains(attempt), "{}", gateway.log());
    let foreign = Browser::signed_in(&gateway, "view").await.post("/console/find", &[OWN], "text=req-7").await;
    assert_eq!(foreign.status, 403, "without the form token");
}

const FIND: &str = "[apps.bank.operations.\"order.submit\"]\nconsole_find = '{\"order_id\": \"{text}\"}'\n";

async fn of_apps() -> Gateway {
    operated().config(&format!("{}{}{FIND}", app("shop"), app("bank"))).start().await
}

fn page_at_bank(granted: &Answer) -> String {
    format!("/console/claims/bank/{}", granted.body["global_id"].as_str().unwrap())
}

#[tokio::test]
async fn among_several_apps_each_is_asked() {
    let gateway = of_apps().await;
    let bank = caller(&gateway, "bank");
    let (seen, other) = (json!({ "order_id": "A-1" }), json!({ "order_id": "A-2" }));
    let granted = bank.claim(seen.clone()).await.expect(201);
    bank.claim(seen).await.expect(409);
    let quiet = bank.claim(other).await.expect(201);
    let browser = Browser::signed_in(&gateway, "view").await;
    let id = |granted: &Answer| granted.body["global_id"].as_str().unwrap().to_owned();
    for (text, granted) in
        [(id(&granted), &granted), (id(&quiet), &quiet), ("{\"order_id\": \"A-2\"}".to_owned(), &quiet)]
    {
        let found = typed(&browser, "/console/", &text).await;
        assert_eq!((found.status, location(&found)), (303, &*page_at_bank(granted)), "{text}: {}", found.text);
    }
    for text in ["{\"order_id\": \"A-3\"}", "0123456789abcdef0123456789abcdef"] {
        let absent = typed(&browser, "/console/", text).await.expect(200).text;
        assert!(absent.contains("No live claim") && absent.contains("bank"), "{text}: {absent}");
    }
}

#[tokio::test]
async fn an_order_is_found_from_its_number() {
    let gateway = of_apps().await;
    let order = json!({ "operation": "order.submit", "contents": { "order_id": "A-7" } });
    let granted = caller(&gateway, "bank").post("/v1/claims", &order).await.expect(201);
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        let found = typed(&browser, "/console/", " A-7 ").await;
        assert_eq!((found.status, location(&found)), (303, &*page_at_bank(&granted)), "{}", found.text);
        let absent = typed(&browser, "/console/", "A-8").await.expect(200).text;
        assert!(absent.contains("No live claim") && absent.contains("order.submit"), "{absent}");
    }
}

#[tokio::test]
async fn among_many_apps_the_operator_chooses() {
    let apps: String = (0..9).map(|number| app(&format!("shop{number}"))).collect();
    let gateway = operated().config(&apps).start().await;
    let browser = Browser::signed_in(&gateway, "view").await;
    let page = typed(&browser, "/console/", "0123456789abcdef0123456789abcdef").await.expect(200).text;
    assert!(page.contains("Choose the app") && page.contains("<option value=\"shop8\">"), "{page}");
}

#[tokio::test]
async fn a_search_in_some_operations_only_says_so() {
    let gateway = operated().start().await;
    for number in 0..20 {
        let claim = json!({ "operation": format!("op.{number}"), "contents": number });
        gateway.client().post("/v1/claims", &claim).await.expect(201);
    }
    let browser = Browser::signed_in(&gateway, "view").await;
    let find = async |fields: &str| {
        let form = format!("form_token={}&app=default&text=%22A-1%22&{fields}", browser.form_token().await);
        browser.post("/console/find", &[OWN], &form).await.expect(200).text
    };
    let some = "The contents were looked up in 16 operations only";
    let absent = find("operation=").await;
    assert!(absent.contains("No live claim") && absent.contains(some), "{absent}");
    let absent = find("operation=op.1").await;
    assert!(absent.contains("No live claim") && !absent.contains(some), "{absent}");
}
