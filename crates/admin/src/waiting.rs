//! `GET /admin/v1/waiting`: the claims and locks that callers of this gateway wait for.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use oncegate_core::tenant::AppKey;
use oncegate_gateway::waiting::Waiting;
use oncegate_web::problem::Problem;
use oncegate_web::response::json;
use serde::Serialize;

use super::Admin;
use super::query::Query;

/// Default and largest number of claims, and of locks.
const SHOWN: usize = 50;
const SHOWN_MAX: usize = 1000;

/// Claims and locks that callers of this gateway wait for, the longest wait first, up to a limit.
#[derive(Debug, Serialize)]
pub(super) struct Waits {
    /// Number of waiting callers, including those for items that are not shown.
    pub(super) callers: usize,
    /// Not everything is shown.
    pub(super) more: bool,
    #[serde(flatten)]
    pub(super) waiting: Waiting,
}

/// Returns up to `limit` claims and as many locks that callers of an app, or of all, wait for.
pub(super) fn waits(admin: &Admin, app: Option<&AppKey>, limit: usize) -> Waits {
    let mut waiting = admin.gateway.waiting(app);
    let (claims, locks) = (&mut waiting.claims, &mut waiting.locks);
    let for_claims: usize = claims.iter().map(|claim| claim.callers).sum();
    let for_locks: usize = locks.iter().map(|lock| lock.callers).sum();
    let more = claims.len() > limit || locks.len() > limit;
    claims.truncate(limit);
    locks.truncate(limit);
    Waits { callers: for_claims + for_locks, more, waiting }
}

/// Answers with what callers of this gateway wait for.
pub(super) async fn list(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let mut query = Query::parse(query)?;
    let app = query.take_as::<AppKey>("app")?;
    let limit = query.count("limit", SHOWN, SHOWN_MAX)?;
    query.end()?;
    Ok(json(&waits(&admin, app.as_ref(), limit)))
}
