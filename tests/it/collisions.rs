//! Two operations with one global ID, as after an MD5 collision. The test writes one claim's record under another's
//! key. Refused, without a change and without revealing anything.

use oncegate_testkit::client::Client;
use oncegate_testkit::redis_server::RedisServer;
use serde_json::json;

use crate::support::gateway;

/// Asserts that a claim of these contents finds another record under its ID, and that it has no effect.
async fn assert_refused(server: &RedisServer, client: &Client, key: &str, contents: &str, response: &[&str]) {
    let stored: String = server.query_words(&["GET", key]);
    let left: i64 = server.query_words(&["PTTL", key]);
    for take_over in [false, true] {
        let answer = client.post("/v1/claims", &json!({ "contents": contents, "take_over": take_over })).await;
        assert_eq!(answer.code(), (422, "contents_mismatch"), "{stored}");
        let members: Vec<_> = answer.body.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(members, ["code", "detail", "request_id", "status", "title", "type"]);
        for secret in response {
            assert!(!answer.text.contains(secret), "{secret}: {}", answer.text);
        }
        let batch = json!({ "items": [{ "contents": contents }, { "contents": format!("not {contents}") }] });
        let answers = client.post("/v1/claims/batch", &batch).await.expect(200);
        assert_eq!(answers.body["items"][0]["code"], "contents_mismatch", "{}", answers.text);
    }
    assert_eq!(server.query_words::<String>(&["GET", key]), stored, "nothing is overwritten");
    let still_left: i64 = server.query_words(&["PTTL", key]);
    assert!(still_left <= left && (left == -1 || still_left > left - 5_000), "{left} ms, then {still_left}");
}

#[tokio::test]
async fn other_contents_under_the_same_id_are_refused() {
    let Some(server) = RedisServer::start().await else { return };
    for stored_bytes in [1024, 0] {
        let setup = gateway::on(format!("{}?prefix={stored_bytes}:", server.url())).patient();
        let gateway = setup.env("ONCEGATE_DEFAULTS__CONTENTS_STORED_BYTES", stored_bytes).start().await;
        let client = gateway.client();
        for outcome in [None, Some("success"), Some("unknown")] {
            let (ours, theirs) = (format!("ours {outcome:?}"), format!("theirs {outcome:?}"));
            let granted = client.claim(json!(theirs)).await.expect(201);
            if let Some(outcome) = outcome {
                let mut report = json!({ "outcome": outcome });
                if outcome == "success" {
                    report["result"] = json!("a stored result");
                }
                client.report(&granted, report).await.expect(200);
            }
            let key_of = |id: &serde_json::Value| format!("{stored_bytes}:og:{{{}}}:default", id.as_str().unwrap());
            let id = client.post("/v1/global-ids", &json!({ "contents": ours })).await.expect(200);
            let (from, to) = (key_of(&granted.body["global_id"]), key_of(&id.body["global_id"]));
            assert_eq!(server.query_words::<i64>(&["COPY", &from, &to]), 1);
            let attempt = granted.body["attempt"].as_str().unwrap();
            let response = [theirs.as_str(), attempt, "a stored result", granted.body["global_id"].as_str().unwrap()];
            assert_refused(&server, &client, &to, &ours, &response).await;
            // Its own claim is where it was.
            client.claim(json!(theirs)).await.expect(409);
        }
    }
}
