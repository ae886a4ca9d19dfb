//! A gateway as the service of a workload: calls over HTTP, each response checked against `openapi.yaml`.

use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::claim::Outcome;
use oncegate_core::record::ClaimState;
use oncegate_core::terms::Span;
use serde_json::{Value, json};

use super::record::{Answer, Call, Reply};
use super::workload::Service;
use crate::client::{self, Client, global_id};

/// Longest wait for a response, far beyond any deadline: a slower response is a fault.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Client of a gateway's open app.
pub struct HttpService(pub Client);

#[async_trait]
impl Service for HttpService {
    async fn call(&self, key: &str, call: &Call) -> Reply {
        let (path, body) = request(key, call);
        let headers = [("content-type", "application/json")];
        let sent = self.0.try_send("POST", &path, &headers, body.to_string());
        match tokio::time::timeout(TIMEOUT, sent).await.expect("every call is answered in time") {
            Ok(answer) => read(&answer),
            // The gateway did not receive it.
            Err(why) if why.contains("Connect") => Reply::Refused,
            Err(_) => Reply::Unknown,
        }
    }
}

fn request(key: &str, call: &Call) -> (String, Value) {
    let path = |rest| format!("/v1/claims/{}/{rest}", global_id("default", &format!("\"{key}\"")));
    match call {
        Call::Claim { nonce, terms, take_over } => {
            let (lease, retention) = (Span(terms.lease).to_string(), terms.retention.to_string());
            let body = json!({
                "contents": key, "attempt_nonce": nonce.as_str(), "lease": lease, "retention": retention,
                "take_over": take_over,
            });
            ("/v1/claims".into(), body)
        }
        Call::Settle { attempt, outcome, .. } => {
            let mut body = json!({ "attempt": attempt.to_string(), "operation": "default" });
            body["outcome"] = match outcome {
                Outcome::Success { result, retention } => {
                    if let Some(result) = result {
                        body["result"] = serde_json::from_str(result).expect("results are JSON");
                    }
                    if let Some(retention) = retention {
                        body["retention"] = retention.to_string().into();
                    }
                    "success".into()
                }
                Outcome::Failure => "failure".into(),
                Outcome::Unknown => "unknown".into(),
            };
            (path("outcome"), body)
        }
        Call::Renew { attempt, lease } => {
            (path("renewal"), json!({ "attempt": attempt.to_string(), "lease": Span(*lease).to_string() }))
        }
    }
}

fn read(answer: &client::Answer) -> Reply {
    let body = &answer.body;
    let read = match answer.code() {
        (201, _) => Answer::Granted {
            attempt: body["attempt"].as_str().expect("an attempt").parse().expect("an attempt"),
            fence: body["fence"].as_u64(),
            repeated: body["repeated"] == true,
            taken_over: body["taken_over"] == true,
            lease: lease(body),
        },
        (200, _) if body.get("lease_ms").is_some() => Answer::Renewed { lease: lease(body) },
        (200 | 202, _) => Answer::Done { state: state(body), late: body["late"].as_bool() },
        (409, "duplicate") => Answer::Duplicate {
            timestamp: body["timestamp"].as_u64().expect("a timestamp"),
            state: state(body).expect("a state"),
            result: body.get("result").map(|result| result.to_string().into()),
        },
        (409, "superseded") => Answer::Superseded { state: state(body).expect("a state") },
        (409, "already_succeeded") => Answer::AlreadySucceeded,
        (409, "lease_lost") => Answer::LeaseLost,
        (409, "expired") => Answer::Expired,
        (503, "outcome_unknown") => return Reply::Unknown,
        (503, "store_unavailable" | "store_full" | "store_incompatible" | "overloaded" | "draining") => {
            return Reply::Refused;
        }
        _ => panic!("no answer to such a call: {}", answer.text),
    };
    match body["degraded"].as_str() {
        Some(policy) => Reply::Degraded(policy.to_owned(), read),
        None => Reply::Answered(read),
    }
}

fn lease(body: &Value) -> Duration {
    Duration::from_millis(body["lease_ms"].as_u64().expect("a lease"))
}

fn state(body: &Value) -> Option<ClaimState> {
    match body["state"].as_str() {
        Some("in_progress") => Some(ClaimState::InProgress),
        Some("succeeded") => Some(ClaimState::Succeeded),
        Some("unknown") => Some(ClaimState::Unknown),
        _ => None,
    }
}
