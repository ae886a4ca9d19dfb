//! `POST /admin/v1/chains/{name}/failover`: operators hold the automatic switches of a chain, and allow them again.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use oncegate_core::engine::EngineError;
use oncegate_core::terms::Span;
use oncegate_gateway::chains::{FailoverStatus, Hold, HoldError};
use oncegate_web::body::JsonBytes;
use oncegate_web::problem::{Code, Problem};
use oncegate_web::response::json;
use serde::Serialize;

use super::unknown_chain;
use crate::Admin;
use crate::audit::Change;
use crate::auth::Operator;
use crate::bodies::{FailoverAction, SetFailover};

/// Times of a hold. For a longer one there is `manual`, which has no end.
const TIMES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(7 * 24);

/// 200 to a change.
#[derive(Serialize)]
struct FailoverBody {
    chain: String,
    failover: FailoverStatus,
}

/// Holds automatic switches, or allows them again.
pub(crate) async fn set(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    chain: Result<Path<String>, PathRejection>,
    body: JsonBytes,
) -> Result<Response, Problem> {
    let SetFailover { action, time, reason } = body.parse()?;
    let Ok(Path(chain)) = chain else { return Err(Problem::invalid("The path must name a chain.")) };
    let until = match (action, time) {
        (FailoverAction::Hold, Some(Span(time))) if TIMES.contains(&time) => Some(admin.clock.wall().plus(time)),
        (FailoverAction::Hold, _) => {
            return Err(Problem::invalid(
                "`for`: a hold takes from 1s to 7d, such as 30m. For longer, send the action `manual`, which has no end.",
            ));
        }
        (_, Some(_)) => return Err(Problem::invalid("`for`: only the action `hold` has a time; leave it out.")),
        (_, None) => None,
    };
    let hold = (action != FailoverAction::Automatic).then(|| Hold {
        until,
        who: operator.name.to_string(),
        reason: reason.text().to_owned(),
    });
    let what = match (action, until) {
        (FailoverAction::Automatic, _) => "automatic".to_owned(),
        (_, Some(until)) => format!("hold until {until}"),
        (_, None) => "manual".to_owned(),
    };
    let change = Change { detail: Some(format!("chain: {chain}, {what}")), ..Change::new("chain.failover", reason) };
    let gateway = admin.gateway.clone();
    let action = async move {
        let failover = gateway.hold_switches(&chain, hold).await.map_err(not_held)?;
        Ok((FailoverBody { chain, failover }, "changed"))
    };
    Ok(json(&admin.audit.execute(&operator, change, action).await?))
}

fn not_held(not_done: HoldError) -> Problem {
    match not_done {
        HoldError::UnknownChain(chains) => unknown_chain(&chains),
        HoldError::Manual => Problem::invalid(
            "Nothing was changed: gateways never switch this chain. Only a chain with a table `failover` and \
             mode = \"automatic\" in the configuration is switched automatically.",
        ),
        HoldError::Witness(why @ EngineError::Indeterminate(_)) => {
            let detail = format!("The witness may have stored it: {}. Send it again.", why.reason());
            Problem::new(Code::OutcomeUnknown, detail).retry_soon()
        }
        HoldError::Witness(why) => {
            let detail = format!(
                "Nothing was changed: the witness failed: {}. While it is out, no chain is switched automatically.",
                why.reason()
            );
            Problem::new(Code::StoreUnavailable, detail).retry_soon()
        }
    }
}
