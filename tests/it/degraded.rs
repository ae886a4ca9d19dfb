//! Outage policies as callers and operators see them: while the store is unavailable, and after it is back.

mod accepted;
mod late_calls;
mod left_behind;
mod overlapping;
mod policies;
mod shards;
mod spooled;

use std::time::Duration;

use oncegate_core::hex;
use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::gateway::{Gateway, Setup};
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::caller;
use crate::support::exposition::Page;
use crate::support::gateway;

const TOKEN: &str = "token_of_alice_0123456789abcdef";

/// Longest time of anything that follows the return of the store.
const TIMEOUT: Duration = Duration::from_secs(10);

/// An app for each policy, and an operator.
fn config() -> String {
    let app = |key: &str, claim: &str, outcome: &str| {
        format!("{}[apps.{key}.on_outage]\nclaim = \"{claim}\"\noutcome = \"{outcome}\"\n", caller::app(key))
    };
    let apps = [
        app("closed", "fail_closed", "fail_closed"),
        app("spooling", "fail_closed", "spool"),
        app("local", "local", "spool"),
        app("lenient", "fail_open", "spool"),
    ];
    let digest = hex::encode(&Sha256::digest(TOKEN));
    format!("[admin.tokens]\nalice = \"sha256:{digest}\"\n{}", apps.concat())
}

/// A Redis that loses nothing when it is killed.
async fn durable_redis() -> Option<RedisServer> {
    RedisServer::start_with(&["appendonly yes", "appendfsync always"]).await
}

/// A gateway with an app for each policy.
pub(crate) fn setup(engine: impl Into<String>) -> Setup {
    gateway::on(engine).config(&config())
}

/// The operator alice.
fn alice(gateway: &Gateway) -> Client {
    gateway.admin_client().with_credential(TOKEN)
}

/// Waits until nothing waits for the store any more.
async fn delivered(gateway: &Gateway) {
    let admin = gateway.admin_client();
    until("all is delivered", TIMEOUT, async || Page::get(&admin).await.sum("oncegate_spool_entries", &[]) == 0).await;
}

/// Waits until the gateway finds its store out.
pub(crate) async fn out(gateway: &Gateway) {
    let client = caller::caller(gateway, "closed");
    until("the store is missed", TIMEOUT, async || {
        client.claim(oncegate_testkit::fresh::contents()).await.code() == (503, "store_unavailable")
    })
    .await;
}

/// Waits until the gateway's store serves again.
async fn back(gateway: &Gateway) {
    let client = caller::caller(gateway, "closed");
    until("the store serves", TIMEOUT, async || client.claim(oncegate_testkit::fresh::contents()).await.status == 201)
        .await;
}

/// The policy that an answer names, in its body and in its head alike.
#[track_caller]
pub(crate) fn policy(answer: &Answer) -> Option<&str> {
    let body = answer.body["degraded"].as_str();
    let head = answer.headers.get("oncegate-degraded").map(|value| value.to_str().unwrap());
    assert_eq!(body, head, "{}", answer.text);
    body
}

/// The same claim by another attempt.
async fn again(client: &Client, contents: &Value) -> Answer {
    client.post("/v1/claims", &json!({ "contents": contents })).await
}
