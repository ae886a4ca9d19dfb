//! Erases the response that the proxy has stored for a claim. A tombstone remains: repeats are still refused.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use oncegate_core::global_id::GlobalId;
use oncegate_core::operator::ReleaseResponse;
use oncegate_core::record::Realm;
use oncegate_core::tenant::AppKey;
use oncegate_web::body::JsonBytes;
use oncegate_web::problem::Problem;
use oncegate_web::response::json;
use serde::Serialize;

use super::Named;
use super::change::{change_of, superseded};
use crate::Admin;
use crate::auth::Operator;
use crate::bodies::ForgetResponse;

/// 200 to an erased response.
#[derive(Serialize)]
struct ForgottenBody {
    app: AppKey,
    global_id: GlobalId,
    state: &'static str,
}

/// `POST /admin/v1/proxy/forget`: erases a stored response, and keeps its tombstone.
pub(crate) async fn forget(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    body: JsonBytes,
) -> Result<Response, Problem> {
    let ForgetResponse { app, operation, contents, global_id, attempt_hash, reason } = body.parse()?;
    let realm = global_id.is_some().then_some(Realm::Proxy);
    let target = Named { app, operation, contents, realm, global_id }.find(&admin)?;
    let found = target.inspect(&admin, attempt_hash.as_deref()).await?;
    let record = &found.claim.record;
    let is_of_proxy = target.id.realm == Realm::Proxy;
    let erase = |result: &str| (admin.erase)(result, target.id.global_id, &record.attempt);
    let tombstone = record.result.as_deref().filter(|_| is_of_proxy).map(erase);
    let tombstone = tombstone.ok_or_else(|| {
        Problem::invalid(
            "This claim has no response of the proxy: its operation is not `proxy:<route>`, or it has not succeeded.",
        )
    })?;
    let change = change_of("proxy.forget", &target, &found, reason);
    let (gateway, attempt) = (admin.gateway.clone(), record.attempt.clone());
    let action = async move {
        match gateway.replace_result(&target.app, target.id, attempt, tombstone).await? {
            ReleaseResponse::Done => {
                let state = "forgotten";
                Ok((ForgottenBody { app: target.app.key.clone(), global_id: target.id.global_id, state }, state))
            }
            ReleaseResponse::Absent => Err(target.nothing()),
            ReleaseResponse::Superseded => Err(superseded(None)),
        }
    };
    Ok(json(&admin.audit.execute(&operator, change, action).await?))
}
