//! Automatic switches of chains in the audit trail, each by the name `automatic`.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use oncegate_gateway::chains::SwitchError;
use oncegate_gateway::resilience::chain::{SwitchAction, SwitchRecorder};

use super::not_switched;
use crate::audit::{Audit, Change, Reason};
use crate::auth::{Operator, Via};
use crate::role::Role;

/// Name of the gateway in its own audit trail.
const WHO: &str = "automatic";

/// Records the automatic switches of a gateway.
pub struct AutomaticSwitches(pub Arc<Audit>);

impl SwitchRecorder for AutomaticSwitches {
    fn record(&self, detail: String, reason: String, switch: SwitchAction) -> BoxFuture<'static, Result<(), String>> {
        let audit = self.0.clone();
        Box::pin(async move {
            let request_id = format!("{:016x}", audit.entropy.bits());
            let operator = Operator { name: WHO.into(), role: Role::Act, request_id, via: Via::Gateway };
            let reason = Reason::try_from(reason).map_err(|error| error.to_string())?;
            let change = Change { detail: Some(detail), ..Change::new("chain.switch", reason) };
            let action = async move {
                switch.await.map_err(|why| not_switched(SwitchError::Rejected(why)))?;
                Ok(((), "switched"))
            };
            audit.execute(&operator, change, action).await.map_err(|problem| problem.detail.into_owned())
        })
    }
}
