//! A gateway as the service of a workload of locks: calls over HTTP, each response checked against `openapi.yaml`.

use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::lock::LockMode;
use oncegate_core::terms::Span;
use serde_json::{Value, json};

use super::workload::LockService;
use super::{Acquire, LockAnswer, LockCall, LockReply};
use crate::client::{self, Client};

/// Longest wait for a response, in addition to the wait of the call, far beyond any deadline.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Client of a gateway's open app.
pub struct HttpLockService(pub Client);

#[async_trait]
impl LockService for HttpLockService {
    async fn call(&self, lock: &str, call: &LockCall) -> LockReply {
        let (path, body) = request(call);
        let path = format!("/v1/locks/{lock}/{path}");
        let headers = [("content-type", "application/json")];
        let sent = self.0.try_send("POST", &path, &headers, body.to_string());
        match tokio::time::timeout(TIMEOUT, sent).await.expect("every call is answered in time") {
            Ok(answer) => read(&answer),
            // The gateway did not receive it.
            Err(why) if why.contains("Connect") => LockReply::Refused,
            Err(_) => LockReply::Unknown,
        }
    }
}

fn request(call: &LockCall) -> (&'static str, Value) {
    match call {
        LockCall::Acquire(Acquire { nonce, owner, mode, lease, wait, fair }) => {
            let mode = if *mode == LockMode::Shared { "shared" } else { "exclusive" };
            let mut body = json!({
                "attempt_nonce": nonce.as_str(), "mode": mode, "lease": Span(*lease).to_string(), "fair": fair,
            });
            if !wait.is_zero() {
                body["wait"] = Span(*wait).to_string().into();
            }
            if let Some(owner) = owner {
                body["owner"] = owner.as_str().into();
            }
            ("holds", body)
        }
        LockCall::Release(attempt) => ("release", json!({ "attempt": attempt.to_string() })),
        LockCall::Withdraw(nonce) => ("release", json!({ "attempt_nonce": nonce.as_str() })),
        LockCall::Renew(attempt, lease) => {
            ("renewal", json!({ "attempt": attempt.to_string(), "lease": Span(*lease).to_string() }))
        }
    }
}

fn read(answer: &client::Answer) -> LockReply {
    let body = &answer.body;
    let millis = |field: &str| Duration::from_millis(body[field].as_u64().unwrap_or_default());
    let number = |field: &str| body[field].as_u64().and_then(|number| usize::try_from(number).ok());
    LockReply::Answered(match answer.code() {
        (201, _) => LockAnswer::Granted {
            attempt: body["attempt"].as_str().expect("an attempt").parse().expect("an attempt"),
            fence: body["fence"].as_u64().expect("a fence"),
            holds: number("holds").expect("a number"),
            lease: millis("lease_ms"),
            repeated: body["repeated"] == true,
            waited: millis("waited_ms"),
        },
        (200, _) if body.get("lease_ms").is_some() => LockAnswer::Renewed { lease: millis("lease_ms") },
        (200, _) => LockAnswer::Released { holds: number("holds").expect("a number"), late: body["late"].as_bool() },
        (409, "lock_held") => LockAnswer::Held { position: number("position"), waited: millis("waited_ms") },
        (409, "upgrade_refused") => LockAnswer::UpgradeRefused,
        (409, "withdrawn") => LockAnswer::Withdrawn,
        (409, "not_held") => LockAnswer::NotHeld,
        (503, "outcome_unknown") => return LockReply::Unknown,
        (503, "store_unavailable" | "store_full" | "store_incompatible" | "overloaded" | "draining") => {
            return LockReply::Refused;
        }
        _ => panic!("no answer to such a call: {}", answer.text),
    })
}
