//! Locks as their callers and operators see them: lookups, lists, and holds that an operator ends, with a reason in the trail.

use oncegate_testkit::redis_server::RedisServer;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::{hold, queue, release};
use crate::admin::{TOKEN, alice, operated};
use crate::support::command::{Ended, oncegate_with};
use crate::support::exposition::Page;
use crate::support::gateway;

async fn oncegate(admin: &str, words: &[&str]) -> Ended {
    let mut words: Vec<String> = words.iter().copied().map(str::to_owned).collect();
    words.extend(["--admin".to_owned(), admin.to_owned()]);
    let run = move || {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        oncegate_with(&std::env::temp_dir(), &words, &[("ONCEGATE_ADMIN_TOKEN", TOKEN)])
    };
    spawn_blocking(run).await.expect("no panic")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_finds_a_lock_and_ends_one_hold_of_it_or_all() {
    let gateway = operated("memory:").start().await;
    let (client, admin) = (gateway.client(), format!("http://{}", gateway.admin()));
    let shared = json!({ "mode": "shared", "lease": "10m" });
    let (first, second) = (hold(&client, "b", shared.clone()).await, hold(&client, "b", shared).await);
    let held = first.expect(201);
    hold(&client, "a", json!({})).await.expect(201);
    let waits = queue(&gateway, "b").await;

    let found = client.get("/v1/locks/b").await.expect(200);
    assert_eq!((&found.body["mode"], &found.body["waiting"]), (&json!("shared"), &json!(1)));
    assert_eq!(found.body["fence"], held.body["fence"]);
    for attempt in [&held.body["attempt"], &second.body["attempt"]] {
        assert!(!found.text.contains(attempt.as_str().unwrap()), "no other caller learns an attempt: {}", found.text);
    }
    let hashes: Vec<_> = found.body["holders"].as_array().unwrap().iter().map(|holder| &holder["hash"]).collect();
    assert_eq!(hashes.len(), 2);

    let listed = oncegate(&admin, &["lock", "list", "--app", "default"]).await;
    let rows: Vec<Vec<_>> = listed.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows,
        [vec!["LOCK", "MODE", "HOLDERS", "WAITING"], vec!["a", "exclusive", "1", "0"], vec!["b", "shared", "2", "1"]]
    );
    let shown = oncegate(&admin, &["lock", "show", "--app", "default", "b", "--output", "json"]).await;
    let shown: Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!((&shown["holders"][0]["hash"], &shown["fence"]), (hashes[0], &found.body["fence"]));

    let ticket = &shown["queue"][0];
    assert_eq!((shown["queue"].as_array().unwrap().len(), &ticket["position"]), (1, &json!(1)), "{shown}");
    assert_eq!((&ticket["mode"], &ticket["waits"]), (&json!("exclusive"), &json!(true)));
    assert!(ticket["queued_at"].as_str() > shown["holders"][1]["claimed_at"].as_str(), "{shown}");
    assert!(ticket["hash"].as_str().unwrap().len() == 8 && ticket["age_ms"].is_u64(), "{shown}");
    assert!(found.body.get("queue").is_none(), "callers see the number of requests only");
    let printed = oncegate(&admin, &["lock", "show", "--app", "default", "b"]).await.out;
    assert!(printed.contains("\n\nPOSITION  REQUEST"), "{printed}");

    let end = ["lock", "release", "--app", "default", "b", "--reason", "INC-44"];
    let hash = hashes[0].as_str().unwrap();
    for wrong in ["00000000", &hash[..7], "", &hash.to_uppercase().replace(|c: char| c.is_ascii_digit(), "x")] {
        let refused = oncegate(&admin, &[&end[..], &["--holder", wrong]].concat()).await;
        assert!(refused.code != Some(0) && refused.err.contains("No hold of this lock"), "{wrong:?}: {}", refused.err);
    }
    assert_eq!(client.get("/v1/locks/b").await.body["holders"].as_array().unwrap().len(), 2, "nothing was ended");
    let ended = oncegate(&admin, &[&end[..], &["--holder", hash]].concat()).await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "Ended 1 holds of b\n"), "{}", ended.err);
    assert!(!waits.is_finished(), "the other one still shares it");
    let ended = oncegate(&admin, &end).await;
    assert_eq!((ended.code, &*ended.out), (Some(0), "Ended 1 holds of b\n"), "{}", ended.err);
    let next = super::answered(waits).await.expect(201);
    assert_eq!(release(&client, "b", &held).await.code(), (409, "not_held"));
    release(&client, "b", &next).await.expect(200);
    let free = oncegate(&admin, &end).await;
    assert!(free.code != Some(0) && free.err.contains("The lock is free"), "{:?} {}", free.code, free.err);

    let trail = alice(&gateway).get("/admin/v1/audit").await.expect(200).body["entries"].clone();
    let entry = |at: usize| ["action", "detail", "reason", "result", "app"].map(|field| trail[at][field].clone());
    assert_eq!(entry(1), ["lock.release", &*format!("lock: b, holder: {hash}"), "INC-44", "released", "default"]);
    assert_eq!(entry(0), ["lock.release", "lock: b, holder: all holders", "INC-44", "released", "default"]);
    let results = trail.as_array().unwrap().iter().filter(|entry| entry["result"] == "released");
    assert_eq!(results.count(), 2, "what ended nothing is not in the trail as released: {trail}");
    assert_eq!(trail.as_array().unwrap().len(), 2, "an order for a hold that is not there never begins: {trail}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_orders_of_an_operator_are_refused_and_a_store_that_cannot_list_says_so() {
    let gateway = operated("memory:").start().await;
    let alice_ = alice(&gateway);
    let post = async |path: &str, body: Value| alice_.post(&format!("/admin/v1/locks/{path}"), &body).await;
    for (path, body, expected) in [
        ("show", json!({ "app": "default", "name": "free" }), (404, "not_found")),
        ("show", json!({ "app": "default", "name": "-x" }), (400, "invalid_request")),
        ("show", json!({ "app": "other", "name": "a" }), (404, "not_found")),
        ("release", json!({ "app": "default", "name": "a" }), (400, "invalid_request")),
        ("release", json!({ "app": "default", "name": "free", "reason": "INC-44" }), (404, "not_found")),
    ] {
        assert_eq!(post(path, body.clone()).await.code(), expected, "{path} {body}");
    }
    for query in ["", "?app=default&limit=101", "?app=default&after=-x"] {
        assert_eq!(alice_.get(&format!("/admin/v1/locks{query}")).await.code(), (400, "invalid_request"), "{query}");
    }
    for name in ["a", "b", "c"] {
        hold(&gateway.client(), name, json!({})).await.expect(201);
    }
    let page = alice_.get("/admin/v1/locks?app=default&limit=2").await.expect(200).body;
    assert_eq!((&page["next"], page["locks"].as_array().unwrap().len()), (&json!("b"), 2));
    let rest = alice_.get("/admin/v1/locks?app=default&limit=2&after=b").await.expect(200).body;
    assert_eq!((&rest["next"], &rest["locks"][0]["name"]), (&Value::Null, &json!("c")));
    assert_eq!(gateway.admin_client().get("/admin/v1/locks?app=default").await.status, 401, "without a token");

    let Some(server) = RedisServer::start().await else { return };
    let gateway = operated(&server.url()).start().await;
    let listed = alice(&gateway).get("/admin/v1/locks?app=default").await;
    assert_eq!(listed.code(), (501, "not_supported"), "{}", listed.text);
    assert!(!listed.headers.contains_key("retry-after"), "it does not help to repeat");
    let claims = alice(&gateway).get("/admin/v1/claims?app=default").await;
    assert_eq!((claims.code(), &claims.body["detail"]), ((501, "not_supported"), &listed.body["detail"]));
}

#[tokio::test]
async fn each_call_of_a_lock_is_counted_and_waits_and_holds_are_timed() {
    let gateway = gateway::on_memory().start().await;
    let client = gateway.client();
    let nonce = json!({ "attempt_nonce": "0123456789abcdef" });
    let held = hold(&client, "a", nonce.clone()).await.expect(201);
    hold(&client, "a", nonce).await.expect(201);
    hold(&client, "a", json!({})).await.expect(409);
    let renew = async || client.post("/v1/locks/a/renewal", &json!({ "attempt": held.body["attempt"] })).await;
    renew().await.expect(200);
    release(&client, "a", &held).await.expect(200);
    renew().await.expect(409);
    release(&client, "a", &held).await.expect(409);
    let page = Page::get(&gateway.admin_client()).await;
    let app = ("app", "default");
    for (result, count) in
        [("granted", 1), ("repeated", 1), ("held", 1), ("renewed", 1), ("released", 1), ("not_held", 2)]
    {
        assert_eq!(page.sum("oncegate_locks_total", &[app, ("result", result)]), count, "{result}");
    }
    assert_eq!(page.sum("oncegate_locks_total", &[]), 7, "and nothing else");
    for (times, count) in [("oncegate_lock_wait_seconds_count", 3), ("oncegate_lock_hold_seconds_count", 1)] {
        assert_eq!(page.sum(times, &[app]), count, "{times}");
    }
}
