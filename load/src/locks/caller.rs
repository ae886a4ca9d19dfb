//! Caller of a gateway's claims and locks. Any other answer than the expected one ends a measurement.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow, ensure};
use serde_json::{Value, json};

use crate::{
    client::{Answer, CallError, Connection, Target},
    running::{Gateway, Running},
};

/// Longer than the longest wait that the gateway permits.
const LONGEST_CALL: Duration = Duration::from_mins(1);

/// Number of store calls, and those of health checks.
const STORE_CALLS: &str = "oncegate_engine_call_duration_seconds_count";
const PROBES: &str = r#"call="probe""#;

/// Connection of a caller.
pub(super) struct Caller(Connection);

impl Caller {
    pub(super) fn new(target: &Arc<Target>) -> Self {
        Self(Connection::waiting(Arc::clone(target), LONGEST_CALL))
    }

    pub(super) async fn post(&mut self, path: &str, body: &Value, wanted: u16) -> anyhow::Result<Value> {
        let answer = parsed(self.0.post(path, &body.to_string()).await)?;
        expect(path, wanted, answer)
    }

    /// Sends a call that waits.
    pub(super) async fn send(&mut self, path: &str, body: &Value) -> anyhow::Result<()> {
        self.0.send(path, &body.to_string()).await.map_err(|why| anyhow!("a call was not sent: {why}"))
    }

    /// Reads the answer of the call that was sent.
    pub(super) async fn answer(&mut self, wanted: u16) -> anyhow::Result<Value> {
        let answer = parsed(self.0.answer().await)?;
        expect("a call that waits", wanted, answer)
    }

    pub(super) async fn claim(&mut self, contents: &str) -> anyhow::Result<Value> {
        self.post("/v1/claims", &json!({ "contents": contents }), 201).await
    }

    pub(super) async fn settle(&mut self, claimed: &Value, outcome: &str) -> anyhow::Result<()> {
        let global_id = claimed["global_id"].as_str().context("a claim without a global ID")?;
        let body = json!({ "attempt": claimed["attempt"], "outcome": outcome });
        self.post(&format!("/v1/claims/{global_id}/outcome"), &body, 200).await.map(drop)
    }

    pub(super) async fn acquire(&mut self, name: &str, body: &Value) -> anyhow::Result<Value> {
        self.post(&holds(name), body, 201).await
    }

    pub(super) async fn release(&mut self, name: &str, held: &Value) -> anyhow::Result<()> {
        let body = json!({ "attempt": held["attempt"] });
        self.post(&format!("/v1/locks/{name}/release"), &body, 200).await.map(drop)
    }
}

/// Returns the path of the holds of a lock.
pub(super) fn holds(name: &str) -> String {
    format!("/v1/locks/{name}/holds")
}

fn parsed(answer: Result<Answer<'_>, CallError>) -> anyhow::Result<(u16, Value)> {
    let answer = answer.map_err(|why| anyhow!("a call has no answer: {why}"))?;
    Ok((answer.status, serde_json::from_slice(answer.body).context("an answer is not JSON")?))
}

fn expect(path: &str, wanted: u16, (status, body): (u16, Value)) -> anyhow::Result<Value> {
    ensure!(status == wanted, "{path} was answered {status} instead of {wanted}: {body}");
    Ok(body)
}

/// Returns the calls of the store by all gateways so far, without health checks.
pub(super) async fn store_calls(running: &Running) -> anyhow::Result<u64> {
    let mut calls = 0;
    for gateway in &running.gateways {
        let page = metrics(gateway).await?;
        calls += sum(&page, STORE_CALLS, "") - sum(&page, STORE_CALLS, PROBES);
    }
    Ok(calls)
}

/// Returns the callers that wait for claims at a gateway.
pub(super) async fn waiting(gateway: &Gateway) -> anyhow::Result<u64> {
    Ok(sum(&metrics(gateway).await?, "oncegate_claims_waiting", ""))
}

async fn metrics(gateway: &Gateway) -> anyhow::Result<String> {
    let mut connection = Connection::new(Arc::clone(&gateway.admin));
    let answer = connection.get("/metrics").await.map_err(|why| anyhow!("no metrics: {why}"))?;
    ensure!(answer.status == 200, "the metrics were answered {}", answer.status);
    Ok(String::from_utf8_lossy(answer.body).into_owned())
}

/// Returns the sum of the series of this name that have this label; all if it is empty.
pub(super) fn sum(page: &str, name: &str, label: &str) -> u64 {
    let series = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = rest.rsplit_once(' ')?;
        let is_it = (labels.is_empty() || labels.starts_with('{')) && labels.contains(label);
        value.parse::<u64>().ok().filter(|_| is_it)
    });
    series.sum()
}
