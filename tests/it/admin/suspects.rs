//! Suspected double executions: each one is listed, kept and worked off, however many the log leaves out.

use oncegate_testkit::gateway::Gateway;
use serde_json::{Value, json};

use super::commands::Terminal;
use super::{alice, operated};
use crate::support::exposition::Page;
use crate::support::table::rows;

const COUNT: u64 = 200;

/// Reports successes of attempts that do not hold their claims.
async fn late_successes(gateway: &Gateway) {
    let client = gateway.client();
    for number in 0..COUNT {
        let contents = json!({ "number": number });
        let granted =
            client.post("/v1/claims", &json!({ "operation": "order.submit", "contents": contents })).await.expect(201);
        let other = granted.body["timestamp"].as_u64().unwrap() - 1;
        let late = json!({
            "attempt": format!("{other}-0123456789abcdef"), "operation": "order.submit",
            "outcome": if number % 2 == 0 { "success" } else { "unknown" },
        });
        let path = format!("/v1/claims/{}/outcome", granted.body["global_id"].as_str().unwrap());
        for again in [false, true] {
            if number % 3 == 0 {
                let mut item = late.clone();
                item["global_id"] = granted.body["global_id"].clone();
                let answer = client.post("/v1/outcomes/batch", &json!({ "items": [item] })).await.expect(200).body;
                assert_eq!(answer["items"][0]["code"], "superseded", "again: {again}");
            } else {
                assert_eq!(client.post(&path, &late).await.code(), (409, "superseded"), "again: {again}");
            }
        }
        let harmless = json!({ "attempt": format!("{}-0123456789abcdef", other - 1), "outcome": "failure" });
        assert_eq!(client.post(&path, &harmless).await.code(), (409, "superseded"));
    }
}

async fn list(gateway: &Gateway, query: &str) -> Vec<Value> {
    let page = alice(gateway).get(&format!("/admin/v1/suspects?limit=1000{query}")).await.expect(200);
    page.body["suspects"].as_array().unwrap().clone()
}

#[tokio::test]
async fn all_suspected_double_executions_are_listed_and_worked_off_across_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let setup = operated("memory:").data_dir(folder.path());
    let mut gateway = setup.start().await;
    late_successes(&gateway).await;
    let metrics = Page::get(&gateway.admin_client()).await;
    assert_eq!(metrics.sum("oncegate_suspected_double_executions_total", &[("app", "default")]), COUNT);
    // At once: an answered check is on the disk.
    gateway.kill();
    let found = {
        let again = setup.start().await;
        let found = list(&again, "").await;
        assert_eq!(found.len() as u64, COUNT);
        assert!(found.is_sorted_by(|newer, older| newer["id"].as_u64() > older["id"].as_u64()));
        let newest = &found[0];
        assert_eq!((&newest["kind"], &newest["cause"]), (&json!("double"), &json!("superseded_unknown")));
        assert_eq!((&newest["app"], &newest["operation"]), (&json!("default"), &json!("order.submit")));
        assert_eq!((&newest["state"], &newest["theirs"]), (&json!("in_progress"), &Value::Null));
        assert_eq!(list(&again, "&kind=overlap").await.len(), 0);
        assert_eq!(list(&again, "&app=other").await.len(), 0);
        // Worked off, through the command line.
        let terminal = Terminal::at(&again);
        let listed = terminal.run(&["suspects", "list", "--kind", "double", "--limit", "3"]).expect(0).out;
        let row = &rows(&listed)[0];
        assert_eq!((&*row["CAUSE"], &*row["FOUND"]), ("superseded_unknown", "-"), "{listed}");
        assert!(listed.contains("\n\nThere are more: --after "), "{listed}");
        let checked =
            terminal.run(&["suspects", "check", &row["ID"], "--found", "twice", "--reason", "INC-1"]).expect(0);
        assert!(checked.out.starts_with(&format!("Checked {} (", row["ID"])), "{}", checked.out);
        let trail = alice(&again).get("/admin/v1/audit?limit=1").await.expect(200);
        let entry = &trail.body["entries"][0];
        assert_eq!((&entry["action"], &entry["result"]), (&json!("suspect.check"), &json!("twice")));
        assert_eq!((&entry["global_id"], &entry["reason"]), (&newest["global_id"], &json!("INC-1")));
        assert_eq!(entry["attempt_hash"], newest["ours"]["attempt_hash"]);
        let order = json!({ "found": "once", "reason": "INC-2" });
        for suspect in &found[1..] {
            alice(&again).post(&format!("/admin/v1/suspects/{}/check", suspect["id"]), &order).await.expect(200);
        }
        assert_eq!(list(&again, "&checked=false").await.len(), 0);
        for words in [&["suspects", "list"][..], &["suspects", "list", "--kind", "double"]] {
            assert_eq!(
                terminal.run(words).expect(0).out,
                "There are no unchecked suspects at this gateway; --all lists the others. Each gateway keeps its own list.\n"
            );
        }
        assert_eq!(rows(&terminal.run(&["suspects", "list", "--all", "--limit", "7"]).expect(0).out).len(), 7);
        list(&again, "&checked=true").await
    };
    let last = setup.start().await;
    assert_eq!(list(&last, "").await, found, "with what was found");
    assert_eq!(found[0]["checked"]["found"], "twice");
    assert_eq!((&found[0]["checked"]["who"], &found[0]["checked"]["reason"]), (&json!("alice"), &json!("INC-1")));
}

#[tokio::test]
async fn wrong_checks_and_lists_say_what_to_do() {
    let gateway = operated("memory:").start().await;
    let alice = alice(&gateway);
    let good = json!({ "found": "once", "reason": "INC-1" });
    for (id, body, code, word) in [
        ("7", good.clone(), (404, "not_found"), "GET /admin/v1/suspects"),
        ("07", good.clone(), (400, "invalid_request"), "whole number"),
        ("x", good.clone(), (400, "invalid_request"), "whole number"),
        ("7", json!({ "found": "thrice", "reason": "INC-1" }), (400, "invalid_request"), "twice"),
        ("7", json!({ "found": "once", "reason": "" }), (400, "invalid_request"), "reason"),
        ("7", json!({ "found": "once" }), (400, "invalid_request"), "reason"),
    ] {
        let answer = alice.post(&format!("/admin/v1/suspects/{id}/check"), &body).await;
        assert_eq!(answer.code(), code, "{}", answer.text);
        assert!(answer.text.contains(word), "{}", answer.text);
    }
    for (query, word) in
        [("kind=late", "double,overlap"), ("kind=", "double,overlap"), ("checked=yes", "checked=false")]
    {
        let answer = alice.get(&format!("/admin/v1/suspects?{query}")).await;
        assert_eq!(answer.code(), (400, "invalid_request"), "{query}");
        assert!(answer.text.contains(word), "{}", answer.text);
    }
    assert_eq!(gateway.admin_client().get("/admin/v1/suspects").await.status, 401);
    assert_eq!(gateway.admin_client().post("/admin/v1/suspects/7/check", &good).await.status, 401);
}
