//! The overview for each role: the items that need a person, their actions, and the waiting callers.

use std::time::Duration;

use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::json;

use super::actions::unknown;
use super::browser::Browser;
use super::{ROLES, operated, operators};
use crate::support::gateway;

const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn what_needs_a_person_comes_first_with_what_to_do() {
    let gateway = operated().start().await;
    let quiet = Browser::signed_in(&gateway, "view").await.get("/console/").await.expect(200);
    assert!(quiet.text.contains("Nothing needs you") && quiet.text.contains("No caller waits"), "{}", quiet.text);
    unknown(&gateway, &json!({ "order_id": "secret-order" })).await;
    super::hostile::suspected(&gateway, "pay", &json!({ "order_id": "A-2" })).await;
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        let page = browser.get("/console/").await.expect(200);
        let (before, after) = page.text.split_once("2 things need a person").expect("both are named");
        assert!(!before.contains("<h2>"), "{}", page.text);
        let check = after.find("■ Check").expect("the double, which is critical");
        let settle = after.find("▲ Settle").expect("the unknown");
        assert!(check < settle && settle < after.find("<h2>").unwrap(), "{after}");
        assert!(after.contains("/console/attention?kind=double&amp;app=default"), "{after}");
        assert!(after.contains("/console/attention?kind=unknown&amp;app=default"), "{after}");
        assert_eq!(after.matches("What to do").count(), 2, "{after}");
        let list = browser.get("/console/attention?kind=unknown&app=default").await.expect(200);
        assert_eq!(list.text.contains("secret-order"), role != "view", "{role}: {}", list.text);
        assert!(!list.text.contains("May have run twice"), "{}", list.text);
        let all = browser.get("/console/attention").await.expect(200);
        assert!(all.text.contains("what the store has") && all.text.contains("seen by this gateway"), "{}", all.text);
        assert_eq!(all.text.contains("type=\"checkbox\""), role == "act", "{}", all.text);
    }
    // The list of all kinds has contents of an unknown claim and of a suspect: two entries.
    gateway.logged("claim.view", 6).await;
    // The looks are written without being waited for.
    let trail = || std::fs::read_to_string(gateway.data_dir().join("audit.jsonl")).unwrap();
    until("the looks are in the trail", SOON, async || trail().matches("1 unknown claims").count() == 4).await;
    assert!(!trail().contains("secret-order"), "{}", trail());
}

/// The three requests of a first view, in a gateway with something of each kind.
#[tokio::test]
async fn the_first_view_is_light() {
    let gateway = operated().start().await;
    unknown(&gateway, &json!({ "order_id": "A-1" })).await;
    super::hostile::suspected(&gateway, "pay", &json!({ "order_id": "A-2" })).await;
    let browser = Browser::signed_in(&gateway, "act").await;
    let page = browser.get("/console/").await.expect(200).text;
    let file = |before: &str| {
        let (_, rest) = page.split_once(before).expect(before);
        rest.split('"').next().unwrap().to_owned()
    };
    let style = browser.get(&file("rel=\"stylesheet\" href=\"")).await.expect(200).text;
    let script = browser.get(&file("<script src=\"")).await.expect(200).text;
    assert_eq!(page.matches(" src=").count() + page.matches("<link ").count(), 2, "no other file: {page}");
    // An hour of a busy gateway adds seven lines with a point for each minute: some 5 kB.
    let lengths = [page.len() + (5 << 10), style.len(), script.len()];
    assert!(lengths[0] <= 24 << 10 && lengths[1] <= 12 << 10 && lengths[2] <= 4 << 10, "{lengths:?}");
    assert!(lengths.iter().sum::<usize>() <= 40_000, "{lengths:?}");
}

#[tokio::test]
async fn claims_and_locks_that_callers_wait_for_are_shown_until_they_are_answered() {
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "view").await;
    let claim = json!({ "operation": "order.submit", "contents": "A-1", "lease": "10m", "wait": "25s" });
    let granted = gateway.client().post("/v1/claims", &claim).await.expect(201);
    let held = gateway.client().post("/v1/locks/report/holds", &json!({ "lease": "10m" })).await.expect(201);
    let (for_claim, for_lock) = (gateway.client(), gateway.client());
    let claiming = tokio::spawn(async move { for_claim.post("/v1/claims", &claim).await });
    let locking = tokio::spawn(async move { for_lock.post("/v1/locks/report/holds", &json!({ "wait": "25s" })).await });
    let page = async || browser.get("/console/").await.expect(200).text;
    until("both are shown", SOON, async || page().await.contains("Calls that wait: 2.")).await;
    let shown = page().await;
    let id = granted.body["global_id"].as_str().unwrap();
    assert!(shown.contains(&format!("/console/claims/default/{id}")), "{shown}");
    assert!(shown.contains("/console/locks/default/report"), "{shown}");
    gateway.client().settle(&granted, "success").await.expect(200);
    assert_eq!(claiming.await.unwrap().status, 409);
    until("one is left", SOON, async || page().await.contains("Calls that wait: 1.")).await;
    let release = json!({ "attempt": held.body["attempt"] });
    gateway.client().post("/v1/locks/report/release", &release).await.expect(200);
    assert_eq!(locking.await.unwrap().status, 201);
    until("none is left", SOON, async || page().await.contains("No caller waits")).await;
}

/// A number of one gateway is never shown as that of all.
#[tokio::test]
async fn each_region_names_its_source_and_counts_only_that() {
    let Some(server) = RedisServer::start().await else { return };
    let setup = || gateway::on(server.url()).config(&operators(&ROLES)).patient();
    let [one, other] = [setup().start().await, setup().start().await];
    let claim = json!({ "operation": "order.submit", "contents": "A-1" });
    let granted = one.client().post("/v1/claims", &claim).await.expect(201);
    one.client().report(&granted, json!({ "outcome": "success" })).await.expect(200);
    for (gateway, repeats, claims) in [(&one, 3, 4), (&other, 5, 5)] {
        for _ in 0..repeats {
            gateway.client().post("/v1/claims", &claim).await.expect(409);
        }
        let browser = Browser::signed_in(gateway, "view").await;
        let overview = browser.get("/console/").await.expect(200).text;
        let headings = ["What callers see", "Engines", "Waiting calls"]
            .map(|title| format!("<h2>{title}</h2><span class=\"muted\">this gateway</span>"));
        assert!(headings.iter().all(|heading| overview.contains(heading)), "{headings:?} in {overview}");
        assert!(overview.contains(&format!("({repeats} answers)")), "{overview}");
        let operations = browser.get("/console/operations").await.expect(200).text;
        assert!(operations.contains("<span class=\"muted\">this gateway · "), "{operations}");
        assert!(operations.contains(&format!("<td class=\"number\">{claims}<br>")), "{operations}");
        let attention = browser.get("/console/attention").await.expect(200).text;
        let scopes = ["what the store has", "seen by this gateway; each gateway lists its own"]
            .map(|scope| format!("<span class=\"muted\">{scope}</span>"));
        assert!(scopes.iter().all(|scope| attention.contains(scope)), "{attention}");
    }
}
