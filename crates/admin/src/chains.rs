//! `GET /admin/v1/chains` and `POST /admin/v1/chains/{name}/switch`: the active engine of each chain, and its replacement at
//! every gateway.

pub(super) mod automatic;
pub(super) mod hold;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::Response;
use oncegate_gateway::chains::{COUNTED_MAX, ChainStatus, ChainSwitchError, ClaimCount, ShownChain, SwitchError};
use oncegate_web::body::JsonBytes;
use oncegate_web::problem::{Code, Problem};
use oncegate_web::response::json;
use serde::Serialize;

use super::Admin;
use super::audit::Change;
use super::auth::Operator;
use super::bodies::SwitchChain;

#[derive(Serialize)]
struct ChainsBody {
    chains: Vec<ShownChain>,
}

/// 200 to a switch.
#[derive(Serialize)]
struct SwitchedBody {
    chain: String,
    from: String,
    active: String,
    epoch: u64,
}

/// `GET /admin/v1/chains`: every chain.
pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Response {
    json(&ChainsBody { chains: admin.gateway.chains().await })
}

/// `POST /admin/v1/chains/{name}/switch`: another engine becomes the active one. Answers once it is in use.
pub(super) async fn switch(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    chain: Result<Path<String>, axum::extract::rejection::PathRejection>,
    body: JsonBytes,
) -> Result<Response, Problem> {
    let SwitchChain { to, accept_loss, reason } = body.parse()?;
    let to = String::from(to);
    let Ok(Path(chain)) = chain else { return Err(Problem::invalid("The path must name a chain.")) };
    let status = admin.gateway.chain_status(&chain).map_err(not_switched)?;
    if !status.engines.contains(&to) {
        return Err(not_switched(SwitchError::Rejected(ChainSwitchError::UnknownEngine {
            to,
            engines: status.engines,
        })));
    }
    if status.active == to && status.switching_to.is_none() {
        return Err(not_switched(SwitchError::Rejected(ChainSwitchError::AlreadyActive(to))));
    }
    if !accept_loss {
        return Err(loss_not_accepted(&admin, &chain, &status, &to).await);
    }
    let detail = Some(format!("chain: {chain}, from: {}, to: {to}, accept_loss", status.active));
    let change = Change { detail, ..Change::new("chain.switch", reason) };
    let gateway = admin.gateway.clone();
    let action = async move {
        let switched = gateway.switch(&chain, &to).await.map_err(not_switched)?;
        let body = SwitchedBody { chain, from: switched.from, active: switched.to, epoch: switched.epoch };
        Ok((body, "switched"))
    };
    Ok(json(&admin.audit.execute(&operator, change, action).await?))
}

/// Returns the problem with the losses of a switch.
async fn loss_not_accepted(admin: &Admin, chain: &str, status: &ChainStatus, to: &str) -> Problem {
    let apps = admin.registry.apps().into_iter().filter(|app| app.chain == chain).map(|app| app.key.clone());
    let from = &status.active;
    let standing = match admin.gateway.count_claims(chain, apps.collect()).await {
        ClaimCount::Counted(COUNTED_MAX) => format!("At least {COUNTED_MAX} claims are stored on `{from}`"),
        ClaimCount::Counted(1) => format!("1 claim is stored on `{from}`"),
        ClaimCount::Counted(count) => format!("{count} claims are stored on `{from}`"),
        ClaimCount::Unknown => format!("How many claims are stored on `{from}` is not known"),
    };
    let detail = format!(
        "Nothing was changed. {standing}; engine `{to}` knows none of them, so that whatever is in progress or was done can \
         be claimed and run again once it is active. It does not know the locks that are held on `{from}` either: it grants them to \
         others while their holders still run. If that is accepted, send \"accept_loss\": true (on the command line: --accept-loss)."
    );
    Problem::new(Code::LossNotAccepted, detail)
}

/// Says why a chain was not switched.
pub(super) fn not_switched(not_done: SwitchError) -> Problem {
    let refused = match not_done {
        SwitchError::UnknownChain(chains) => return unknown_chain(&chains),
        SwitchError::Rejected(refused) => refused,
    };
    let code = match refused {
        ChainSwitchError::UnknownEngine { .. } => Code::InvalidRequest,
        ChainSwitchError::AlreadyActive(_) => Code::AlreadyActive,
        ChainSwitchError::InProgress(_) | ChainSwitchError::Conflict(_) => Code::SwitchUnderWay,
        ChainSwitchError::Unfit(_) => Code::StoreIncompatible,
        ChainSwitchError::Unavailable { .. } | ChainSwitchError::WitnessOut { .. } => Code::StoreUnavailable,
        ChainSwitchError::Incomplete { .. } => {
            return Problem::new(Code::OutcomeUnknown, format!("The switch has started: {refused}.")).retry_soon();
        }
    };
    let problem = Problem::new(code, format!("Nothing was changed: {refused}."));
    if matches!(code, Code::StoreUnavailable | Code::StoreIncompatible) { problem.retry_soon() } else { problem }
}

fn unknown_chain(chains: &[String]) -> Problem {
    let detail = format!("Nothing was changed: there is no such chain; there are: {}.", chains.join(", "));
    Problem::new(Code::NotFound, detail)
}
