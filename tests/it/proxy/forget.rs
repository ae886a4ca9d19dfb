//! Stored responses that an operator erases.

use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use oncegate_testkit::fresh;
use serde_json::{Value, json};

use super::{Caller, Upstream, address, config};
use crate::admin::{alice, operated};

#[tokio::test]
async fn an_erased_response_is_not_replayed_and_its_request_does_not_run_again() {
    let (upstream, port) = Upstream::start().await;
    let config = config("", &format!("urls = [\"http://127.0.0.1:{port}\"]\n"), "");
    let gateway = operated("memory:").config(&config).start().await;
    let caller = Caller { http: Client::builder(TokioExecutor::new()).build_http(), address: address(&gateway) };
    let alice = alice(&gateway);
    let first = caller.post("/orders/a", "k-1", "one").await;
    let claims = alice.get("/admin/v1/claims?app=default&realm=proxy").await.expect(200);
    let global_id = &claims.body["claims"][0]["global_id"];
    let mut other = json!({ "app": "default", "global_id": global_id, "reason": "PRIV-7", "attempt_hash": "00000000" });
    assert_eq!(alice.post("/admin/v1/proxy/forget", &other).await.code(), (409, "superseded"));
    assert!(caller.post("/orders/a", "k-1", "one").await.is_replay(), "nothing was erased");
    other["attempt_hash"] = claims.body["claims"][0]["attempt_hash"].clone();
    let forget = other;
    let forgotten = alice.post("/admin/v1/proxy/forget", &forget).await.expect(200);
    assert_eq!(forgotten.body["state"], "forgotten");
    let repeat = caller.post("/orders/a", "k-1", "one").await;
    assert_eq!((repeat.status, &repeat.json()["code"]), (409, &Value::from("response_not_stored")));
    assert_eq!(
        (&repeat.json()["response_status"], &repeat.headers["location"]),
        (&Value::from(201), &first.headers["location"])
    );
    let audit = alice.get("/admin/v1/audit").await.expect(200);
    let entry = &audit.body["entries"][0];
    assert_eq!((&entry["action"], &entry["reason"]), (&Value::from("proxy.forget"), &Value::from("PRIV-7")));
    let named = json!({ "app": "default", "realm": "proxy", "global_id": global_id });
    let shown = alice.post("/admin/v1/claims/show", &named).await.expect(200);
    assert!(!shown.text.contains("body"), "{}", shown.text);
    assert_eq!(upstream.effects(), 1);
    // A claim of the API has no response.
    let granted = gateway.client().claim(fresh::contents()).await.expect(201);
    let other = json!({ "app": "default", "global_id": granted.body["global_id"], "reason": "r" });
    assert_eq!(alice.post("/admin/v1/proxy/forget", &other).await.code(), (404, "not_found"));
}
