//! Chains of gateways, as an operator sees and switches them.

use std::time::Duration;

use oncegate_testkit::client::Answer;
use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};

use crate::admin::alice;

/// The first chain, with its phase and its engines.
pub(crate) async fn chain(gateway: &Gateway) -> Value {
    alice(gateway).get("/admin/v1/chains").await.expect(200).body["chains"][0].clone()
}

/// The order to switch a chain to this engine.
pub(crate) fn order(to: &str) -> Value {
    json!({ "to": to, "accept_loss": true, "reason": "INC-42" })
}

/// Switches the default chain to this engine.
pub(crate) async fn switch(gateway: &Gateway, to: &str) -> Answer {
    alice(gateway).post("/admin/v1/chains/default/switch", &order(to)).await
}

/// Waits until the gateway uses this engine.
pub(crate) async fn comes_to(gateway: &Gateway, engine: &str, bound: Duration) {
    until(&format!("the gateway uses {engine}"), bound, async || {
        let chain = chain(gateway).await;
        chain["active"] == engine && chain["phase"] == "open"
    })
    .await;
}

/// Claims something new until that is granted.
pub(crate) async fn granted_within(gateway: &Gateway, bound: Duration) -> Answer {
    let mut answer = None;
    until("a claim is granted", bound, async || {
        let claimed = gateway.client().claim(fresh::contents()).await;
        let done = claimed.status == 201;
        answer = Some(claimed);
        done
    })
    .await;
    answer.unwrap()
}
