//! Outcomes after the end of their claims: recorded or refused, never dropped. On every engine.

use std::time::Duration;

use oncegate_core::clock::{Clock as _, SystemClock};
use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use crate::support::gateway;

#[tokio::test]
async fn late_outcomes_on_memory() {
    let gateway = gateway::on_memory().start().await;
    late_outcomes(&gateway.client()).await;
}

#[tokio::test]
async fn late_outcomes_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway::on_disk(&folder.path().join("claims")).start().await;
    late_outcomes(&gateway.client()).await;
}

#[tokio::test]
async fn late_outcomes_on_redis() {
    let Some(server) = RedisServer::start().await else { return };
    let gateway = gateway::on(server.url()).patient().start().await;
    late_outcomes(&gateway.client()).await;
}

/// A claim whose lease has ended. A shorter lease may end before a slow disk has taken the claim.
async fn lapsed(client: &Client, contents: &str) -> Answer {
    let granted = client.post("/v1/claims", &json!({ "contents": contents, "lease": "3s" })).await.expect(201);
    until("the lease ends", Duration::from_secs(10), async || client.get(&granted.path("")).await.status == 404).await;
    granted
}

fn response(answer: &Answer) -> (u16, &Value, &Value) {
    (answer.status, &answer.body["state"], &answer.body["late"])
}

async fn late_outcomes(client: &Client) {
    let late = &json!(true);

    // Without its contents: no difference is known, and the response reports that.
    let blind = lapsed(client, "blind").await;
    let settled = client.report(&blind, json!({ "outcome": "success", "result": 1 })).await;
    assert_eq!(response(&settled), (200, &json!("succeeded"), late), "{}", settled.text);
    let again = client.report(&blind, json!({ "outcome": "success", "result": 2 })).await;
    assert_eq!(response(&again), (200, &json!("succeeded"), late), "{}", again.text);
    let hit = client.post("/v1/claims", &json!({ "contents": "blind", "fingerprint": "any" })).await.expect(409);
    assert_eq!((&hit.body["state"], &hit.body["result"]), (&json!("succeeded"), &json!(1)));
    assert_eq!(hit.body["contents_verified"], false);
    assert_eq!(client.settle(&blind, "failure").await.code(), (409, "already_succeeded"));

    // With its contents: checked against the ID, and compared from then on.
    let known = lapsed(client, "known").await;
    let wrong = client.report(&known, json!({ "outcome": "success", "contents": "other" })).await;
    assert_eq!(wrong.code(), (422, "contents_mismatch"));
    let wrong = client.report(&known, json!({ "outcome": "success", "contents": "known", "operation": "other" })).await;
    assert_eq!(wrong.code(), (422, "contents_mismatch"));
    assert_eq!(client.get(&known.path("")).await.status, 404, "nothing was changed");
    let settled = client.report(&known, json!({ "outcome": "success", "contents": "known", "result": [] })).await;
    assert_eq!(response(&settled), (200, &json!("succeeded"), late));
    let hit = client.claim(json!("known")).await.expect(409);
    assert!(hit.body.get("contents_verified").is_none(), "{}", hit.text);
    let record = client.get(&known.path("")).await.expect(200);
    assert_eq!((&record.body["late"], &record.body["contents"]), (late, &json!("known")));

    // A failure leaves nothing; an unknown waits for a take-over.
    let failed = lapsed(client, "failed").await;
    assert_eq!(response(&client.settle(&failed, "failure").await), (200, &json!("released"), late));
    client.claim(json!("failed")).await.expect(201);
    let unknown = lapsed(client, "unknown").await;
    assert_eq!(response(&client.settle(&unknown, "unknown").await), (200, &json!("unknown"), late));
    let take_over = json!({ "contents": "unknown", "take_over": true });
    assert_eq!(client.claim(json!("unknown")).await.expect(409).body["state"], "unknown");
    let taken = client.post("/v1/claims", &take_over).await.expect(201);
    assert_eq!(taken.body["taken_over"], true);
    assert_eq!(client.settle(&unknown, "success").await.code(), (409, "superseded"));

    // Another caller was first: its claim is not changed.
    let beaten = lapsed(client, "beaten").await;
    let winner = client.claim(json!("beaten")).await.expect(201);
    for outcome in ["success", "failure", "unknown"] {
        let response = client.settle(&beaten, outcome).await;
        assert_eq!((response.code(), &response.body["state"]), ((409, "superseded"), &json!("in_progress")));
        assert!(response.headers.contains_key("retry-after"));
    }
    assert_eq!(client.renew(&beaten, None).await.code(), (409, "superseded"));
    client.settle(&winner, "success").await.expect(200);
    let response = client.settle(&beaten, "success").await;
    assert_eq!((response.code(), &response.body["state"]), ((409, "superseded"), &json!("succeeded")));
    assert!(response.headers.get("retry-after").is_none());

    // Older than its retention and a day: refused, except a failure, which has nothing to record.
    let forged = |outcome: &str| json!({ "attempt": "1000000000000000-0123456789abcdef", "outcome": outcome });
    let path = failed.path("/outcome").replace(failed.body["global_id"].as_str().unwrap(), &"0".repeat(32));
    for outcome in ["success", "unknown"] {
        assert_eq!(client.post(&path, &forged(outcome)).await.code(), (409, "expired"));
    }
    client.post(&path, &forged("failure")).await.expect(200);
    let mut forever = forged("success");
    forever["retention"] = json!("forever");
    let recorded = client.post(&path, &forever).await.expect(200);
    assert_eq!((&recorded.body["late"], &recorded.body["expires_at"]), (late, &Value::Null));
}

/// The contents, the operation and the retention of an item are those of its outcome, as of one that is sent alone.
#[tokio::test]
async fn an_item_of_a_batch_has_all_terms_of_an_outcome() {
    let gateway = gateway::on_memory().start().await;
    let client = gateway.client();
    let attempt = format!("{}-0123456789abcdef", SystemClock::new().wall().as_micros());
    let late = async |contents: &str, more: Value| {
        let named =
            client.post("/v1/global-ids", &json!({ "operation": "pay", "contents": contents })).await.expect(200);
        let mut item = json!({ "attempt": attempt, "outcome": "success", "operation": "pay" });
        item["global_id"] = named.body["global_id"].clone();
        item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        item
    };
    let items = [
        late("kept", json!({ "contents": "kept", "retention": "forever", "result": 7 })).await,
        late("wrong", json!({ "contents": "other" })).await,
        late("blind", json!({})).await,
    ];
    let answer = client.post("/v1/outcomes/batch", &json!({ "items": items })).await.expect(200);
    let [kept, wrong, blind] = [0, 1, 2].map(|at| &answer.body["items"][at]);
    assert_eq!((&kept["state"], &kept["late"], &kept["expires_at"]), (&json!("succeeded"), &json!(true), &Value::Null));
    assert_eq!((&wrong["status"], &wrong["code"]), (&json!(422), &json!("contents_mismatch")));
    assert!(blind["expires_at"].is_string(), "{}", answer.text);
    for (contents, is_verified) in [("kept", true), ("blind", false)] {
        let hit = client.post("/v1/claims", &json!({ "operation": "pay", "contents": contents })).await.expect(409);
        assert_eq!(hit.body.get("contents_verified").is_none(), is_verified, "{}", hit.text);
    }
}
