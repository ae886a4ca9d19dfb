//! The list of suspects: each row says what it is about, to operators who may see contents, and also while the store is away.

use oncegate_testkit::redis_server::RedisServer;
use serde_json::json;

use super::browser::Browser;
use super::hostile::suspected_by;
use super::{ROLES, operated, operators};
use crate::support::caller::{app, caller};
use crate::support::gateway;

#[tokio::test]
async fn a_row_of_a_suspect_says_what_it_is_about_to_roles_that_may_see_it() {
    let masked = "[apps.shop]\nconsole_mask = [\"/email\"]\n";
    let gateway = operated().config(&app("shop").replace("[apps.shop]\n", masked)).start().await;
    let shop = caller(&gateway, "shop");
    let contents = json!({ "order_id": "secret-order", "email": "a@secret", "text": "x".repeat(500) });
    let granted = suspected_by(&shop, "order.submit", &contents).await;
    // Another attempt of the same claim.
    let timestamp = granted.body["timestamp"].as_u64().unwrap() - 2;
    let attempt = format!("{timestamp}-0123456789abcdef");
    let other = json!({ "attempt": attempt, "operation": "order.submit", "outcome": "success" });
    assert_eq!(shop.post(&granted.path("/outcome"), &other).await.status, 409);
    let released = suspected_by(&shop, "order.submit", &json!({ "order_id": "secret-gone" })).await;
    shop.settle(&released, "failure").await.expect(200);
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        let script = browser.send("GET", "/console/attention", &[("oncegate-live", "1")], "").await.expect(200).text;
        assert!(script.contains("data-row=\"1\"") && !script.contains("secret-order"), "{role}: {script}");
        let page = browser.get("/console/attention?kind=double").await.expect(200).text;
        let row = |number: u32| {
            let (_, row) = page.split_once(&format!("data-row=\"{number}\"")).unwrap();
            row.split("</tr>").next().unwrap().to_owned()
        };
        let sees = role != "view";
        for number in [1, 2] {
            assert_eq!(row(number).contains("secret-order"), sees, "{role}: {page}");
        }
        assert_eq!(row(3).contains("No live claim"), sees, "{role}: {page}");
        assert!(
            !page.contains("a@secret") && !page.contains("secret-gone") && !page.contains(&"x".repeat(90)),
            "{page}"
        );
    }
    // One entry for each list with contents, and none for what the script has loaded.
    gateway.logged("claim.view", 2).await;
}

#[tokio::test]
async fn a_list_of_suspects_stays_while_the_store_does_not_answer() {
    let Some(server) = RedisServer::start().await else { return };
    let gateway = gateway::on(server.url()).config(&operators(&ROLES)).patient().start().await;
    for number in 0..50 {
        suspected_by(&gateway.client(), "order.submit", &json!({ "order_id": format!("secret-{number}-") })).await;
    }
    let browser = Browser::signed_in(&gateway, "read").await;
    let list = browser.get("/console/attention?kind=double").await.expect(200).text;
    for number in 0..50 {
        assert_eq!(list.matches(&format!("secret-{number}-")).count(), 1, "{number}: {list}");
    }
    server.freeze();
    let list = browser.get("/console/attention?kind=double").await.expect(200).text;
    assert!(list.matches("data-row=").count() == 50 && !list.contains("secret-"), "{list}");
}

#[tokio::test]
async fn the_oldest_suspects_come_first() {
    let gateway = operated().start().await;
    for number in 0..52 {
        super::hostile::suspected(&gateway, "order.submit", &json!({ "number": number })).await;
    }
    let browser = Browser::signed_in(&gateway, "view").await;
    let rows = |page: &str| {
        let rows = page.split("data-row=\"").skip(1).map(|row| row.split('"').next().unwrap().parse::<u32>().unwrap());
        rows.collect::<Vec<_>>()
    };
    let first = browser.get("/console/attention?kind=double").await.expect(200).text;
    assert_eq!(rows(&first), (1..=50).collect::<Vec<_>>(), "{first}");
    assert!(first.contains("after=50\""), "{first}");
    let second = browser.get("/console/attention?kind=double&after=50").await.expect(200).text;
    assert_eq!(rows(&second), [51, 52], "{second}");
}
