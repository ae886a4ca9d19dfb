//! Results of outcomes that cannot be stored: the operation has had its effect, so the answer says how to report it.

use serde_json::{Value, json};

use crate::support::gateway;

#[tokio::test]
async fn a_result_that_cannot_be_stored_is_reported_otherwise() {
    let gateway = gateway::on_memory().start().await;
    let client = gateway.client();
    let claim = client.claim(json!("A-1")).await.expect(201);
    let (global_id, attempt) = (&claim.body["global_id"], &claim.body["attempt"]);
    let large = json!("x".repeat(70_000));
    let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
    let report = |outcome: &str, result: &Value| json!({ "attempt": attempt, "outcome": outcome, "result": result });
    let padded = |mut body: Value, bytes: usize| {
        body["contents"] = "x".repeat(bytes).into();
        body
    };
    let smaller = "report success with a smaller `result`, or without one, before the lease ends";
    let too_large = (413, "body_too_large");
    for (outcome, result, (status, code), advice) in [
        ("success", &large, too_large, smaller),
        ("success", &deep, (400, "invalid_request"), "report success with a flatter `result`, or without one"),
        ("failure", &large, (400, "invalid_request"), "go with the outcome `success` only"),
        ("unknown", &deep, (400, "invalid_request"), "go with the outcome `success` only"),
    ] {
        let answer = client.post(&claim.path("/outcome"), &report(outcome, result)).await;
        assert_eq!(answer.code(), (status, code), "{outcome}: {}", answer.text);
        assert!(answer.body["detail"].as_str().unwrap().contains(advice), "{outcome}: {}", answer.text);
        let mut item = report(outcome, result);
        item["global_id"] = global_id.clone();
        let answer = client.post("/v1/outcomes/batch", &json!({ "items": [item] })).await.expect(200);
        let item = &answer.body["items"][0];
        assert_eq!((&item["status"], &item["code"]), (&json!(status), &json!(code)), "{outcome}: {}", answer.text);
        assert!(item["detail"].as_str().unwrap().contains(advice), "{outcome}: {}", answer.text);
    }
    // Bodies as a whole.
    for outcome in ["success", "failure"] {
        let body = padded(json!({ "attempt": attempt, "outcome": outcome }), 1 << 20);
        let answer = client.post(&claim.path("/outcome"), &body).await;
        assert_eq!(answer.code(), too_large, "{outcome}");
        assert!(answer.text.contains("report it in a smaller body"), "{outcome}: {}", answer.text);
    }
    let items = vec![padded(json!({}), 1 << 19); 3];
    let answer = client.post("/v1/outcomes/batch", &json!({ "items": items })).await;
    assert_eq!(answer.code(), too_large);
    assert!(answer.text.contains("report them in smaller batches"), "{}", answer.text);
    // A claim has had no effect yet.
    let answer = client.post("/v1/claims", &padded(json!({}), 1 << 20)).await;
    assert_eq!(answer.code(), too_large);
    assert!(!answer.text.contains("outcome"), "{}", answer.text);
    client.post(&claim.path("/outcome"), &report("success", &json!("small"))).await.expect(200);
}

#[tokio::test]
async fn a_batch_of_repeats_has_the_results_that_fit_into_the_bytes_of_a_body() {
    let gateway = gateway::on_memory().start().await;
    let client = gateway.client();
    let items: Vec<_> = (0..20).map(|number| json!({ "contents": number })).collect();
    for item in &items {
        let claim = client.post("/v1/claims", item).await.expect(201);
        let report = json!({ "attempt": claim.body["attempt"], "outcome": "success", "result": "x".repeat(60_000) });
        client.post(&claim.path("/outcome"), &report).await.expect(200);
    }
    let answer = client.post("/v1/claims/batch", &json!({ "items": items })).await.expect(200);
    let answered = answer.body["items"].as_array().unwrap();
    let (with, without): (Vec<_>, Vec<_>) = answered.iter().partition(|item| item["result"].is_string());
    assert!(without.iter().all(|item| item["result_omitted"] == true), "{without:?}");
    assert!(with.len() >= 10 && !without.is_empty() && answer.text.len() <= 1 << 20, "{} bytes", answer.text.len());
}
