//! Memory of batches: the results of duplicates are bounded while they are loaded.

use std::fmt::Write as _;

use oncegate_testkit::wait::PATIENCE;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::gateway;

/// Duplicates in a batch, and batches at once.
const ITEMS: usize = 1000;
const BATCHES: usize = 32;

#[tokio::test]
async fn many_batches_of_duplicates_with_large_results_take_little_memory() {
    let setup = gateway::on_memory().env("ONCEGATE_LIMITS__BATCH_RESULT_BYTES", 16 << 20);
    // The test reads its answers one after the other.
    let gateway = setup.env("ONCEGATE_LIMITS__WRITE_TIMEOUT", "5m").start().await;
    let client = gateway.client();
    let items: Vec<_> = (0..ITEMS).map(|number| json!({ "contents": number, "lease": "10m" })).collect();
    let claims = json!({ "items": items });
    let granted = client.post("/v1/claims/batch", &claims).await.expect(200);
    let result = "x".repeat((64 << 10) - 2);
    // As many outcomes in a batch as a body holds.
    for granted in granted.body["items"].as_array().expect("items").chunks(15) {
        let mut body = String::from("{\"items\":[");
        for (number, granted) in granted.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            let (id, attempt) = (&granted["global_id"], &granted["attempt"]);
            let item =
                format!("{{\"global_id\":{id},\"attempt\":{attempt},\"outcome\":\"success\",\"result\":\"{result}\"}}");
            write!(body, "{comma}{item}").expect("a text takes all");
        }
        body.push_str("]}");
        let settled = client.post_raw("/v1/outcomes/batch", body).await.expect(200);
        assert!(settled.body["items"].as_array().expect("items").iter().all(|item| item["status"] == 200));
    }

    let before = gateway.kib("VmHWM");
    let mut batches = JoinSet::new();
    for _ in 0..BATCHES {
        let (client, claims) = (client.clone(), claims.to_string());
        batches.spawn(async move { client.post_raw("/v1/claims/batch", claims).await.expect(200).body });
    }
    let answers: Vec<Value> = batches.join_all().await;
    let grown = gateway.kib("VmHWM") - before;
    for answer in &answers {
        for item in answer["items"].as_array().expect("items") {
            assert_eq!((&item["status"], &item["state"]), (&json!(409), &json!("succeeded")));
            assert!(item["result"].is_string() != (item["result_omitted"] == true), "{item}");
        }
    }
    let response = answers.iter().filter_map(|answer| answer["items"].as_array()).flatten();
    assert!(response.filter(|item| item["result"].is_string()).count() > 0, "some have their result");
    // All of them would be 2 GiB. Each batch also has its body and its answer.
    assert!(grown < 80 << 10, "{grown} KiB more than before");
    tokio::time::timeout(PATIENCE, client.claim(json!("one more"))).await.expect("in time").expect(201);
}
