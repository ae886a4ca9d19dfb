//! `GET /admin/v1/unknowns`: the claims whose outcome is unknown, of all apps or of one, on every engine.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use oncegate_core::clock::Timestamp;
use oncegate_core::record::Realm;
use oncegate_core::tenant::AppKey;
use oncegate_gateway::unknowns::UnknownView;
use oncegate_web::problem::Problem;
use oncegate_web::record::RecordBody;
use oncegate_web::response::json;
use serde::Serialize;

use super::Admin;
use super::auth::Operator;
use super::claims::{app, shown_to};
use super::query::Query;
use super::role::Role;

/// Default and largest number of claims.
const SHOWN: usize = 50;
const SHOWN_MAX: usize = 1000;

/// Most apps without an answer that are named.
const FAILED_MAX: usize = 100;

/// Unknown claims, the oldest first.
#[derive(Debug, Serialize)]
pub(super) struct UnknownsBody {
    pub(super) unknowns: Vec<Unknown>,
    /// There may be more.
    pub(super) more: bool,
    /// Apps whose store did not answer.
    pub(super) failed: Vec<Unanswered>,
}

/// An unknown claim.
#[derive(Debug, Serialize)]
pub(super) struct Unknown {
    pub(super) app: AppKey,
    pub(super) realm: Realm,
    pub(super) since: Timestamp,
    #[serde(flatten)]
    pub(super) record: RecordBody,
}

/// An app whose store did not answer.
#[derive(Debug, Serialize)]
pub(super) struct Unanswered {
    pub(super) app: AppKey,
    pub(super) detail: String,
}

/// Returns up to `limit` unknown claims of an app, or of all, as this role may see them.
///
/// # Errors
/// There is no such app, or the store of the only app does not answer.
pub(super) async fn unknowns(
    admin: &Admin,
    role: Role,
    key: Option<&AppKey>,
    limit: usize,
) -> Result<UnknownsBody, Problem> {
    let apps = match key {
        Some(key) => vec![app(admin, key)?],
        None => admin.registry.apps(),
    };
    let mut unknowns = admin.gateway.unknowns(apps, limit).await;
    if key.is_some()
        && let Some((_, failure)) = unknowns.failed.pop()
    {
        return Err(failure.into());
    }
    let shown = |UnknownView { app, realm, since, claim }| {
        let record = shown_to(role, claim);
        Unknown { app, realm, since, record }
    };
    let failed = unknowns.failed.into_iter().take(FAILED_MAX);
    Ok(UnknownsBody {
        unknowns: unknowns.found.into_iter().map(shown).collect(),
        more: unknowns.more,
        failed: failed.map(|(app, failure)| Unanswered { app, detail: failure.to_string() }).collect(),
    })
}

/// Answers with unknown claims.
pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let mut query = Query::parse(query)?;
    let app = query.take_as::<AppKey>("app")?;
    let limit = query.count("limit", SHOWN, SHOWN_MAX)?;
    query.end()?;
    Ok(json(&unknowns(&admin, operator.role, app.as_ref(), limit).await?))
}
