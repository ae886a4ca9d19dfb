//! The audit trail: it has an entry before the change and after a crash. If it cannot store the entry, the change is
//! refused.

use std::fs;
use std::path::Path;
use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use super::{alice, operated};

const AUDIT: &str = "/admin/v1/audit";
const RELEASE: &str = "/admin/v1/claims/release";

fn release(contents: &Value) -> Value {
    json!({ "app": "default", "contents": contents, "reason": "INC-7: canary" })
}

async fn entries(gateway: &Gateway) -> Vec<Value> {
    alice(gateway).get(AUDIT).await.expect(200).body["entries"].as_array().unwrap().clone()
}

#[tokio::test]
async fn every_change_leaves_an_entry_and_no_entry_gives_an_attempt_away() {
    let gateway = operated("memory:").start().await;
    let (caller, alice) = (gateway.client(), alice(&gateway));
    let contents = json!({ "card": "contents-canary" });
    let first = caller.claim(contents.clone()).await.expect(201);
    let released = alice.send(
        "POST",
        RELEASE,
        &[("content-type", "application/json"), ("x-request-id", "r-7")],
        release(&contents).to_string(),
    );
    released.await.expect(200);
    let second = caller.claim(contents.clone()).await.expect(201);
    let settle = json!({ "app": "default", "contents": contents, "reason": "INC-8", "outcome": "success", "result": "result-canary" });
    alice.post("/admin/v1/claims/settle", &settle).await.expect(200);
    let both = alice.get(AUDIT).await.expect(200);
    let entries = both.body["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 2);
    let response =
        |entry: &Value| ["action", "result", "reason"].map(|member| entry[member].as_str().unwrap().to_owned());
    assert_eq!(response(&entries[0]), ["claim.settle", "succeeded", "INC-8"]);
    assert_eq!(response(&entries[1]), ["claim.release", "released", "INC-7: canary"]);
    for (entry, granted) in entries.iter().zip([&second, &first]) {
        assert_eq!((&entry["who"], &entry["app"]), (&json!("alice"), &json!("default")));
        assert_eq!(entry["global_id"], granted.body["global_id"]);
        let attempt = granted.body["attempt"].as_str().unwrap();
        let digest = <sha2::Sha256 as sha2::Digest>::digest(attempt);
        assert_eq!(entry["attempt_hash"], oncegate_core::hex::encode(&digest[..4]));
    }
    assert_eq!((&entries[1]["request_id"], &entries[0]["detail"]), (&json!("r-7"), &json!("outcome: success")));
    assert_eq!(alice.get(&format!("{AUDIT}?limit=1")).await.expect(200).body["entries"], json!([entries[0]]));

    // Not in the answers, the file or the log.
    let file = fs::read_to_string(gateway.data_dir().join("audit.jsonl")).unwrap();
    until("the changes are logged", Duration::from_secs(10), async || gateway.log().contains("INC-8")).await;
    let log = gateway.log();
    assert!(log.contains("Change by an operator"), "{log}");
    for secret in [&first, &second].map(|granted| granted.body["attempt"].as_str().unwrap().split_once('-').unwrap().1)
    {
        for text in [&file, &log, &both.text] {
            assert!(!text.contains(secret), "an attempt was given away: {text}");
        }
    }
    for text in [&file, &log, &both.text] {
        assert!(
            !text.contains("contents-canary") && !text.contains("result-canary") && !text.contains(super::TOKEN),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_refused_change_is_written_down_too() {
    let gateway = operated("memory:").start().await;
    let caller = gateway.client();
    // Two operators release the same claim at the same time: the second one learns it, and the trail records it. It takes
    // a few rounds until both have seen the claim before either has released it.
    for _ in 0..100 {
        let contents = oncegate_testkit::fresh::contents();
        caller.claim(contents.clone()).await.expect(201);
        let (alice, body) = (alice(&gateway), release(&contents));
        let (one, other) = tokio::join!(alice.post(RELEASE, &body), alice.post(RELEASE, &body));
        let mut codes = [one.code(), other.code()];
        codes.sort_unstable();
        assert_eq!(codes, [(200, ""), (404, "not_found")]);
        let newest = entries(&gateway).await;
        assert!(newest.iter().all(|entry| !entry["result"].is_null()));
        if newest.iter().any(|entry| entry["result"] == "not_found") {
            return;
        }
    }
    panic!("of two releases at once, the second never came far enough to be written down");
}

#[tokio::test]
async fn answered_changes_are_in_the_audit_trail_after_a_kill() {
    let claims = tempfile::tempdir().unwrap();
    let data = tempfile::tempdir().unwrap();
    let setup = operated(&format!("disk:{}", claims.path().join("claims").display())).data_dir(data.path());
    let mut gateway = setup.start().await;
    let (caller, alice) = (gateway.client(), alice(&gateway));
    let mut released = Vec::new();
    for number in 0..20 {
        let granted = caller.claim(json!(number)).await.expect(201);
        alice.post(RELEASE, &release(&json!(number))).await.expect(200);
        released.push(granted.body["global_id"].clone());
    }
    gateway.kill();
    // As a power loss in the middle of a line would leave it.
    let file = data.path().join("audit.jsonl");
    let mut text = fs::read_to_string(&file).unwrap();
    text.push_str("{\"id\":\"cut");
    fs::write(&file, text).unwrap();
    let gateway = setup.start().await;
    let mut found: Vec<_> = entries(&gateway).await.iter().map(|entry| entry["global_id"].clone()).collect();
    found.reverse();
    assert_eq!(found, released);
    gateway.client().claim(json!("next")).await.expect(201);
    super::alice(&gateway).post(RELEASE, &release(&json!("next"))).await.expect(200);
    assert_eq!(entries(&gateway).await.len(), 21, "the line that was cut short takes no other with it");
}

/// Killed at any instant while changes are made: the trail has every release.
#[tokio::test]
async fn no_change_outlives_a_kill_without_its_entry() {
    let claims = tempfile::tempdir().unwrap();
    let data = tempfile::tempdir().unwrap();
    let setup = operated(&format!("disk:{}", claims.path().join("claims").display())).data_dir(data.path());
    for round in 0..5 {
        let mut gateway = setup.start().await;
        let (caller, alice) = (gateway.client(), alice(&gateway));
        let contents: Vec<Value> = (0..40).map(|number| json!(format!("{round}-{number}"))).collect();
        for contents in &contents {
            caller.post("/v1/claims", &json!({ "contents": contents, "lease": "1h" })).await.expect(201);
        }
        let changes = contents.clone();
        let changing = tokio::spawn(async move {
            for contents in changes {
                let answer = alice.try_send(
                    "POST",
                    RELEASE,
                    &[("content-type", "application/json")],
                    release(&contents).to_string(),
                );
                if answer.await.is_err() {
                    return;
                }
            }
        });
        let some = async || trail_lines(data.path()) > round * 80 + 10 + round * 9;
        until("some changes are made", Duration::from_secs(20), some).await;
        gateway.kill();
        changing.await.unwrap();
        let gateway = setup.start().await;
        let trail = fs::read_to_string(data.path().join("audit.jsonl")).unwrap();
        for contents in &contents {
            let body = json!({ "app": "default", "contents": contents });
            let shown = super::alice(&gateway).post("/admin/v1/claims/show", &body).await;
            if shown.status == 404 {
                let id = gateway.client().post("/v1/global-ids", &json!({ "contents": contents })).await.expect(200);
                assert!(trail.contains(id.body["global_id"].as_str().unwrap()), "{contents} is gone without an entry");
            }
        }
        for contents in &contents {
            super::alice(&gateway).post(RELEASE, &release(contents)).await;
        }
    }
}

fn trail_lines(data: &Path) -> usize {
    fs::read_to_string(data.join("audit.jsonl")).map_or(0, |text| text.lines().count())
}

#[tokio::test]
async fn a_change_that_cannot_be_audited_is_not_made() {
    let data = tempfile::tempdir().unwrap();
    let gateway = operated("memory:").data_dir(data.path()).start().await;
    let (caller, alice) = (gateway.client(), alice(&gateway));
    let granted = caller.claim(json!(1)).await.expect(201);
    // A folder in place of the file: even root cannot write to it.
    let file = data.path().join("audit.jsonl");
    fs::create_dir(&file).unwrap();
    let refused = alice.post(RELEASE, &release(&json!(1))).await;
    assert_eq!(refused.code(), (503, "audit_unavailable"));
    assert!(
        refused.body["detail"].as_str().unwrap().starts_with("Nothing was changed: the audit trail "),
        "{}",
        refused.text
    );
    let settle = json!({ "app": "default", "contents": 1, "reason": "r", "outcome": "success" });
    assert_eq!(alice.post("/admin/v1/claims/settle", &settle).await.code(), (503, "audit_unavailable"));
    assert_eq!(alice.get(AUDIT).await.code(), (503, "audit_unavailable"));
    caller.renew(&granted, None).await.expect(200);
    fs::remove_dir(&file).unwrap();
    alice.post(RELEASE, &release(&json!(1))).await.expect(200);
    assert_eq!(entries(&gateway).await.len(), 1);
}

#[tokio::test]
async fn the_trail_is_searched_and_read_in_pages() {
    let gateway = operated("memory:").start().await;
    let (caller, alice) = (gateway.client(), alice(&gateway));
    let bob = gateway.admin_client().with_credential(super::TOKEN_OF_BOB);
    let mut ids = Vec::new();
    for (operator, number) in [(&alice, 1), (&bob, 2), (&alice, 3)] {
        let granted = caller.claim(json!(number)).await.expect(201);
        ids.push(granted.body["global_id"].as_str().unwrap().to_owned());
        operator.post(RELEASE, &release(&json!(number))).await.expect(200);
    }
    caller.claim(json!(4)).await.expect(201);
    let settle = json!({ "app": "default", "contents": 4, "reason": "INC-8", "outcome": "success" });
    bob.post("/admin/v1/claims/settle", &settle).await.expect(200);

    let found = async |query: &str| {
        let answer = alice.get(&format!("{AUDIT}?{query}")).await.expect(200);
        answer.body["entries"].as_array().unwrap().len()
    };
    for (query, count) in [
        ("who=alice", 2),
        ("who=bob", 2),
        ("who=eve", 0),
        ("action=claim.release", 3),
        ("action=claim.settle&who=bob", 1),
        ("app=default", 4),
        ("app=other", 0),
        (&*format!("global_id={}", ids[0]), 1),
        (&*format!("global_id={}&who=bob", ids[0]), 0),
    ] {
        assert_eq!(found(query).await, count, "{query}");
    }
    let first = alice.get(&format!("{AUDIT}?action=claim.release&limit=2")).await.expect(200);
    let next = first.body["next"].as_str().expect("there is one more");
    let last = alice.get(&format!("{AUDIT}?action=claim.release&limit=2&after={next}")).await.expect(200);
    assert_eq!((&last.body["entries"][0]["global_id"], &last.body["next"]), (&json!(ids[0]), &Value::Null));
    for (wrong, word) in [
        ("after=gone", "`next` of the previous page"),
        ("action=Release", "claim.release"),
        ("who=%20", "`who`"),
        ("app=%20", "`app`"),
        ("global_id=1", "`global_id`"),
        ("by=alice", "`by`"),
    ] {
        let refused = alice.get(&format!("{AUDIT}?{wrong}")).await;
        assert_eq!(refused.code(), (400, "invalid_request"), "{wrong}");
        assert!(refused.text.contains(word), "{}", refused.text);
    }

    let terminal = super::commands::Terminal::at(&gateway);
    let listed = terminal.run(&["audit", "--who", "alice", "--action", "claim.release", "--limit", "1"]).expect(0).out;
    let shown = &crate::support::table::rows(&listed)[0];
    assert_eq!((&*shown["WHO"], &*shown["GLOBAL ID"]), ("alice", &*ids[2]), "{listed}");
    let next = listed.trim_end().rsplit_once("There are more: --after ").expect("there is one more").1;
    let rest = terminal.run(&["audit", "--who", "alice", "--global-id", &ids[0], "--app", "default", "--after", next]);
    assert_eq!(crate::support::table::rows(&rest.expect(0).out).len(), 1);
    let none = terminal.run(&["audit", "--who", "eve"]).expect(0).out;
    assert_eq!(none, "There are no such changes in the audit trail of this gateway.\n");
    let wrong = terminal.run(&["audit", "--action", "x&limit=7"]).expect(2).err;
    assert!(wrong.contains("--action is the name of an action"), "{wrong}");
}
